//! Import and export: an import of an export exports the same bytes, bad lines are reported by number and nothing is
//! imported. A property test compares the store with a second implementation of the rules.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Cursor, Read as _};
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::*;
use crate::model::{NOTE_KINDS, one_line};

const SAMPLE: &str = r#"{"guild":"81384788765712384","name":"Night Watch"}
{"guild":"81384788765712384","member":"190551803669118976","name":"Ada","points":1250}
{"guild":"81384788765712384","member":"190551803669118976","warn":"17","author":"Mod","reason":"spam","expires":1790000000}
{"guild":"81384788765712384","member":"190551803669118976","review":"9","author":"Bo","rating":5,"text":"Quick and kind"}
"#;

async fn import_from<R: BufRead>(
    test: &TestStore,
    open: impl Fn() -> io::Result<R> + Send + 'static,
    mode: Mode,
) -> Result<Imported, TransferError> {
    Ok(test.store().import(open, mode, |_| {}).await?.commit().await?)
}

async fn import(test: &TestStore, text: impl AsRef<[u8]>, mode: Mode) -> Result<Imported, TransferError> {
    let text = text.as_ref().to_vec();
    import_from(test, move || Ok(Cursor::new(text.clone())), mode).await
}

async fn export(test: &TestStore) -> String {
    exported(test.store()).await
}

pub(crate) async fn exported(store: &Arc<Store>) -> String {
    let store = store.clone();
    let export = move || {
        let mut out = Vec::new();
        store.export(&mut out, &mut |_| {}).unwrap();
        String::from_utf8(out).unwrap()
    };
    tokio::task::spawn_blocking(export).await.unwrap()
}

fn bad(answer: Result<Imported, TransferError>) -> BadLines {
    match answer {
        Err(TransferError::Bad(bad)) => bad,
        other => panic!("{other:?}"),
    }
}

/// The bad lines of a file, as `line: reason`.
fn reasons(answer: Result<Imported, TransferError>) -> Vec<String> {
    bad(answer).shown.into_iter().map(|(line, reason)| format!("{line}: {reason}")).collect()
}

pub(crate) async fn an_import_is_exported_byte_for_byte_and_read_back(kind: Kind) {
    let test = TestStore::new(kind).await;
    let second = test.open_second().await;
    assert_eq!(import(&test, SAMPLE, Mode::AllOrNothing).await.unwrap().records, 4);
    assert_eq!(export(&test).await, SAMPLE);
    let (watch, ada) = (guild("81384788765712384"), member(190551803669118976));
    assert_eq!(second.points(&watch, ada).await.unwrap(), 1250);
    assert_eq!(second.notes_of(&WARN, &watch, ada, 0).await.unwrap()[0].id, 17);
    assert_eq!(second.notes_of(&REVIEW, &watch, ada, 0).await.unwrap()[0].number, 5);
    assert_eq!(second.changes().await.unwrap(), [Change::Everything]);
    assert_eq!(test.store().changes().await.unwrap(), [Change::Everything]);
    // The next warn's number follows the highest.
    assert_eq!(test.store().add_note(&WARN, &watch, ada, warn_for("again", 0)).await.unwrap(), 18);
}

pub(crate) async fn a_bad_line_is_reported_by_number_and_reason_and_nothing_is_imported(kind: Kind) {
    let cases = [
        ("not json", "1: not JSON"),
        (r#"{"guild":"g","name":"G"} {"#, "1: not JSON: trailing characters at column 26"),
        ("[]", "1: no object such as"),
        (r#"{"name":"G"}"#, "1: 'guild' is missing"),
        (r#"{"guild":1,"name":"G"}"#, "1: 'guild' is a text in quotes"),
        (r#"{"guild":"a b","name":"G"}"#, "1: 'guild': a guild id is"),
        (r#"{"guild":"g"}"#, "1: 'name' is missing"),
        (r#"{"guild":"g","name":"G","colour":1}"#, "1: a guild has no field 'colour'"),
        (r#"{"guild":"g","name":"G","points":1}"#, "1: a guild has no field 'points'"),
        (r#"{"guild":"g","member":"7","name":"G"}"#, "1: 'points' is missing"),
        (r#"{"guild":"g","member":"-7","name":"G","points":1}"#, "1: 'member': a member id is digits"),
        (r#"{"guild":"g","member":"9223372036854775808","name":"G","points":1}"#, "1: 'member'"),
        (r#"{"guild":"g","member":"7","name":"G","points":1.5}"#, "1: 'points' is a whole number"),
        (r#"{"guild":"g","member":"7","name":"G","points":9223372036854775808}"#, "1: 'points' is a whole number"),
        (r#"{"guild":"g","member":"7","warn":"x","author":"","reason":"","expires":1}"#, "1: 'warn' is digits"),
        (r#"{"guild":"g","member":"7","warn":"1","author":"","reason":""}"#, "1: 'expires' is missing"),
        (r#"{"guild":"g","member":"7","review":"1","author":"","rating":6,"text":""}"#, "1: a rating is 1 to 5"),
        (r#"{"guild":"g","member":"7","review":"1","author":"","rating":257,"text":""}"#, "1: a rating is 1 to 5"),
    ];
    let test = TestStore::new(kind).await;
    for (line, expected) in cases {
        let text = format!("{line}\n{SAMPLE}");
        let found = reasons(import(&test, &text, Mode::AllOrNothing).await);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{line}: {found:?}");
        assert_eq!(export(&test).await, "");
    }
    let long = SAMPLE.lines().nth(1).unwrap().replace("Ada", &"x".repeat(64 * 1024 + 1));
    assert!(
        reasons(import(&test, long, Mode::AllOrNothing).await)[0].starts_with("1: a member's name is at most 65536")
    );
    let latin1 = b"{\"guild\":\"g\",\"name\":\"\xE9\"}";
    assert_eq!(reasons(import(&test, latin1, Mode::AllOrNothing).await).len(), 1);
}

pub(crate) async fn a_guild_neither_in_the_file_nor_in_the_store_makes_bad_lines(kind: Kind) {
    let test = TestStore::new(kind).await;
    let text = "\u{FEFF}".to_owned()
        + r#"{"guild":"nowhere","member":"7","name":"A","points":1}
nonsense

{"guild":"later","member":"7","name":"A","points":1}
{"guild":"nowhere","member":"7","name":"A","points":2}
{"guild":"later","name":"Later"}"#;
    let found = reasons(import(&test, &text, Mode::AllOrNothing).await);
    let missing = "guild nowhere is neither in the file nor in the store";
    assert_eq!(found.len(), 2);
    assert!(found[0].starts_with(&format!("1: {missing} (lines about it: 2)")));
    assert!(found[1].starts_with("2: not JSON"));

    let imported = import(&test, &text, Mode::Partial).await.unwrap();
    assert_eq!((imported.records, imported.bad.total), (2, 3));
    assert_eq!(export(&test).await.lines().count(), 2);
    // Now that the store has it, a file need not.
    import(&test, r#"{"guild":"later","member":"9","name":"B","points":1}"#, Mode::AllOrNothing).await.unwrap();
    assert_eq!(export(&test).await.lines().count(), 3);
}

pub(crate) async fn an_import_may_pause_for_longer_than_a_write_may(kind: Kind) {
    /// Ends after as long as millions of bad lines take.
    struct Pause;
    impl io::Read for Pause {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            std::thread::sleep(Duration::from_millis(2500));
            Ok(0)
        }
    }
    let test = TestStore::new(kind).await;
    let open = || Ok(SAMPLE.as_bytes().chain(io::BufReader::new(Pause)));
    assert_eq!(import_from(&test, open, Mode::Partial).await.unwrap().records, 4);
    assert_eq!(export(&test).await, SAMPLE);
}

pub(crate) async fn of_many_bad_lines_the_first_are_shown_and_the_rest_counted(kind: Kind) {
    let test = TestStore::new(kind).await;
    let bad = bad(import(&test, "x\n".repeat(1000), Mode::AllOrNothing).await);
    assert_eq!((bad.total, bad.shown.len()), (1000, SHOWN));
    assert!(bad.to_string().ends_with("line 20: not JSON: expected value at column 1\n980 more bad lines"), "{bad}");
}

/// Texts are stored as one line. One of one repeated character may be as long as fits a line.
fn text() -> impl Strategy<Value = String> {
    let long = (any::<char>(), 1000usize..200_000).prop_map(|(what, times)| what.to_string().repeat(times));
    prop_oneof![9 => any::<String>().boxed(), 1 => long.boxed()].prop_map(|text| one_line(&text).into_owned())
}

fn record() -> impl Strategy<Value = Record> {
    let ids = || (0u8..3, prop_oneof![0u64..4, Just(i64::MAX as u64)]);
    let place = |(g, m): (u8, u64)| (guild(&format!("g{g}")), member(m));
    let number = || prop_oneof![0i64..4, Just(i64::MAX)];
    prop_oneof![
        (0u8..3, text()).prop_map(|(g, name)| Record::Guild { guild: guild(&format!("g{g}")), name }),
        (ids(), any::<char>(), any::<i64>()).prop_map(move |(at, name, points)| {
            let (guild, member) = place(at);
            Record::Member { guild, member, name: one_line(&name.to_string()).into_owned(), points }
        }),
        (ids(), number(), text(), text(), any::<i64>()).prop_map(move |(at, id, author, text, number)| {
            let (guild, member) = place(at);
            Record::Note { guild, member, kind: &WARN, note: Note { id, author, text, number } }
        }),
        (ids(), number(), text(), 1i64..=5, text()).prop_map(move |(at, id, author, number, text)| {
            let (guild, member) = place(at);
            Record::Note { guild, member, kind: &REVIEW, note: Note { id, author, text, number } }
        }),
    ]
}

/// What a store holds after `records`, as lines in the order of an export: a second implementation of the rules, on a
/// map.
fn expected(records: &[Record]) -> String {
    /// Guild; and in it the member, the kind, and the number of the warn or review.
    type Place = (String, Option<(u64, i64, i64)>);
    let mut map: BTreeMap<Place, Record> = BTreeMap::new();
    for record in records {
        let guild = record.guild().to_string();
        let place = match record {
            Record::Guild { .. } => None,
            Record::Member { member, .. } => Some((member.get(), 0, 0)),
            Record::Note { member, kind, note, .. } => Some((member.get(), kind.code, note.id)),
        };
        if let Some((_, kind @ 1.., id)) = place {
            map.retain(|(g, at), _| *g != guild || at.is_none_or(|at| (at.1, at.2) != (kind, id)));
        }
        map.insert((guild, place), record.clone());
    }
    for ((guild_id, place), _) in map.clone() {
        if let Some((id, 1.., _)) = place {
            let made = Record::Member { guild: guild(&guild_id), member: member(id), name: id.to_string(), points: 0 };
            map.entry((guild_id, Some((id, 0, 0)))).or_insert(made);
        }
    }
    map.values().map(|record| serde_json::to_string(record).unwrap() + "\n").collect()
}

pub(crate) async fn any_records_are_stored_by_the_rules_and_an_export_imports_as_itself(kind: Kind) {
    // Always the same ones: the same failure each time it runs.
    let mut runner = TestRunner::deterministic();
    for _ in 0..12 {
        let mut some = || proptest::collection::vec(record(), 0..40).new_tree(&mut runner).unwrap().current();
        let guilds = (0..3).map(|g| Record::Guild { guild: guild(&format!("g{g}")), name: String::new() });
        let (first, second): (Vec<Record>, _) = (guilds.chain(some()).collect(), some());
        let test = TestStore::new(kind).await;
        for part in [&first, &second] {
            let text: String = part.iter().map(|r| serde_json::to_string(r).unwrap() + "\n").collect();
            import(&test, text, Mode::AllOrNothing).await.unwrap();
        }
        let out = export(&test).await;
        // A member that only a replaced note belonged to is made by neither file. Compared as a whole and not printed: a
        // text may be long.
        assert!(out == both(&first, &second), "the rules make another store");
        let other = TestStore::new(if kind == Kind::Sqlite { Kind::Postgres } else { Kind::Sqlite }).await;
        import(&other, &out, Mode::AllOrNothing).await.unwrap();
        assert!(export(&other).await == out, "moved to the other kind of store");
    }
}

/// The lines after two imports.
fn both(first: &[Record], second: &[Record]) -> String {
    let left: Vec<Record> = expected(first).lines().map(|line| Record::parse(line.as_bytes()).unwrap()).collect();
    expected(&left.into_iter().chain(second.iter().cloned()).collect::<Vec<_>>())
}

pub(crate) async fn a_file_that_changes_between_its_two_readings_is_not_imported(kind: Kind) {
    let test = TestStore::new(kind).await;
    let readings = AtomicU32::new(0);
    let open = move || Ok(if readings.fetch_add(1, Ordering::Relaxed) == 0 { SAMPLE } else { "nonsense\n" }.as_bytes());
    let answer = import_from(&test, open, Mode::AllOrNothing).await;
    assert!(answer.unwrap_err().to_string().contains("changed while it was read"));
    assert_eq!(export(&test).await, "");
}

pub(crate) async fn an_import_that_is_dropped_leaves_nothing(kind: Kind) {
    let test = TestStore::new(kind).await;
    let import = test.store().import(|| Ok(SAMPLE.as_bytes()), Mode::AllOrNothing, |_| {}).await.unwrap();
    assert_eq!(import.imported.of_members, 3);
    drop(import);
    test.add_guild(&guild("g")).await; // nobody holds a lock any more
    assert_eq!(export(&test).await, "{\"guild\":\"g\",\"name\":\"A guild\"}\n");
}

pub(crate) async fn an_import_of_longer_answers_than_a_mebibyte_is_refused_and_names_the_members(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    for (number, note) in NOTE_KINDS.into_iter().map(|note| if note.expires() { (i64::MAX, note) } else { (5, note) }) {
        let line = |id: i64, bytes: usize| {
            let text = "x".repeat(bytes);
            let note_of = Note { id, author: String::new(), text, number };
            let record = Record::Note { guild: guild("g"), member: member(7), kind: note, note: note_of };
            serde_json::to_string(&record).unwrap() + "\n"
        };
        // The longest answer there is, and one byte more.
        let entry = note.answer(member(7), &[Note { id: 1, author: String::new(), text: String::new(), number }]).len();
        let room = (1 << 20) - entry;
        import(&test, line(1, room - 300_000) + &line(2, 100), Mode::AllOrNothing).await.unwrap();
        for mode in [Mode::AllOrNothing, Mode::Partial] {
            let why = import(&test, line(2, 300_000), mode).await.unwrap_err().to_string();
            assert!(why.contains("member 7 in guild g") && why.contains(note.plural), "{why}");
        }
        let found = test.store().notes(note, &guild("g"), None, None, usize::MAX).await.unwrap();
        assert_eq!(found[1].1.text.len(), 100, "nothing was imported");
        import(&test, line(2, 300_000 - (entry - "{}".len()) - ", ".len()), Mode::AllOrNothing).await.unwrap();
        let found = test.store().notes_of(note, &guild("g"), member(7), 0).await.unwrap();
        assert_eq!(note.answer(member(7), &found).len(), 1 << 20);
    }
}
