//! Tests of import and export on an SQLite store: an import of an export exports the same bytes, bad lines are reported by
//! number and nothing is imported, and no temporary file is left. A property test compares the store with a second
//! implementation of the rules. PostgreSQL's tests use `record` too.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};

use proptest::prelude::*;

use super::*;
use crate::store::sqlite::tests::TestStore;
use crate::store::suite::{guild, member, warn_for};
use crate::store::{Change, Directory as _, Members as _, SqliteStore, Store, StoreError};

const SAMPLE: &str = r#"{"guild":"81384788765712384","name":"Night Watch"}
{"guild":"81384788765712384","member":"190551803669118976","name":"Ada","points":1250}
{"guild":"81384788765712384","member":"190551803669118976","warn":"17","author":"Mod","reason":"spam","expires":1790000000}
{"guild":"81384788765712384","member":"190551803669118976","review":"9","author":"Bo","rating":5,"text":"Quick and kind"}
"#;

#[test]
fn the_sample_has_a_record_of_each_kind() {
    // A new kind does not compile here. It needs the next number, a line of `SAMPLE`, and an arm of `record`, whose
    // records PostgreSQL's tests move as well.
    let number = |record: Record| match record {
        Record::Guild { .. } => 0,
        Record::Member { .. } => 1,
        Record::Warn { .. } => 2,
        Record::Review { .. } => 3,
    };
    let kinds: Vec<_> = SAMPLE.lines().map(|line| number(Record::parse(line.as_bytes()).unwrap())).collect();
    assert_eq!(kinds, [0, 1, 2, 3]);
}

fn import(store: &SqliteStore, text: impl AsRef<[u8]>, mode: Mode) -> Result<Imported, ImportError> {
    store.import(text.as_ref(), mode, &mut |_| {})
}

fn export(store: &SqliteStore) -> String {
    let mut out = Vec::new();
    store.export(&mut out, &mut |_| {}).unwrap();
    String::from_utf8(out).unwrap()
}

fn bad(answer: Result<Imported, ImportError>) -> BadLines {
    match answer {
        Err(ImportError::Bad(bad)) => bad,
        other => panic!("{other:?}"),
    }
}

/// The bad lines of a file, as `line: reason`.
fn reasons(answer: Result<Imported, ImportError>) -> Vec<String> {
    bad(answer).shown.into_iter().map(|bad| format!("{}: {}", bad.line, bad.reason)).collect()
}

fn files(test: &TestStore) -> Vec<String> {
    let entries = std::fs::read_dir(test.folder.path()).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn an_import_is_exported_byte_for_byte_and_read_back() {
    let test = TestStore::new();
    let second = test.open_second();
    assert_eq!(import(&test.store, SAMPLE, Mode::AllOrNothing).unwrap().records, 4);
    assert_eq!(export(&test.store), SAMPLE);
    let (watch, ada) = (guild("81384788765712384"), member(190551803669118976));
    assert_eq!(second.points(&watch, ada).await.unwrap(), 1250);
    assert_eq!(second.warns(&watch, ada, 0).await.unwrap()[0].id, 17);
    assert_eq!(second.reviews(&watch, ada).await.unwrap()[0].rating, 5);
    assert_eq!(second.changes().await.unwrap(), [Change::Everything]);
    assert_eq!(test.store.changes().await.unwrap(), []);
    // The next warn's number follows the highest.
    assert_eq!(test.store.add_note(&watch, ada, warn_for("again", 0)).await.unwrap(), 18);
}

#[test]
fn an_import_leaves_no_file_behind_whether_it_succeeds_or_not() {
    let test = TestStore::new();
    let before = files(&test);
    import(&test.store, SAMPLE, Mode::AllOrNothing).unwrap();
    bad(import(&test.store, "nonsense", Mode::AllOrNothing));
    assert_eq!(files(&test), before);
}

#[test]
fn what_exists_is_replaced_and_within_a_file_the_later_line_wins() {
    let test = TestStore::new();
    import(&test.store, SAMPLE, Mode::AllOrNothing).unwrap();
    let later = r#"{"guild":"81384788765712384","name":"Day Watch"}
{"guild":"81384788765712384","member":"190551803669118976","name":"Eve","points":1}
{"guild":"81384788765712384","member":"190551803669118976","name":"Ida","points":-2}
{"guild":"81384788765712384","member":"190551803669118976","warn":"17","author":"Mod","reason":"a","expires":1}
{"guild":"81384788765712384","member":"190551803669118976","warn":"17","author":"Mod","reason":"b","expires":2}
{"guild":"81384788765712384","member":"190551803669118976","review":"9","author":"Bo","rating":1,"text":"Slow"}
"#;
    import(&test.store, later, Mode::AllOrNothing).unwrap();
    let lines: Vec<&str> = later.lines().collect();
    let expected = [lines[0], lines[2], lines[4], lines[5], ""].join("\n");
    assert_eq!(export(&test.store), expected);
}

#[test]
fn a_warn_or_review_whose_id_another_member_has_moves() {
    let test = TestStore::new();
    import(&test.store, SAMPLE, Mode::AllOrNothing).unwrap();
    let moved = SAMPLE.replace("190551803669118976", "5").replace("Ada", "Bea");
    import(&test.store, &moved, Mode::AllOrNothing).unwrap();
    let ada = SAMPLE.lines().nth(1).unwrap();
    assert_eq!(export(&test.store), format!("{moved}{ada}\n"));
}

#[test]
fn a_warn_for_an_unknown_member_makes_it_named_by_its_id() {
    let test = TestStore::new();
    let text = r#"{"guild":"g","member":"007","warn":"1","author":"Mod","reason":"spam","expires":1}
{"guild":"g","member":"8","review":"1","author":"Bo","rating":1,"text":""}
{"guild":"g","name":"Later"}"#;
    import(&test.store, text, Mode::AllOrNothing).unwrap();
    let out = export(&test.store);
    assert!(out.contains(r#"{"guild":"g","member":"7","name":"7","points":0}"#), "{out}");
    assert!(out.contains(r#"{"guild":"g","member":"8","name":"8","points":0}"#), "{out}");
}

#[test]
fn a_bad_line_is_reported_by_number_and_reason_and_nothing_is_imported() {
    let cases = [
        ("not json", "1: not JSON"),
        (r#"{"guild":"g","name":"G"} {"#, "1: not JSON: trailing characters at column 26"),
        ("[]", "1: invalid type: sequence, expected an object"),
        (r#"{"name":"G"}"#, "1: 'guild' is missing"),
        (r#"{"guild":1,"name":"G"}"#, "1: 'guild': invalid type: integer `1`, expected a text in quotes"),
        (r#"{"guild":"a b","name":"G"}"#, "1: a guild id is"),
        (r#"{"guild":"g"}"#, "1: 'name' is missing"),
        (r#"{"guild":"g","name":"G","colour":1}"#, "1: unknown field 'colour'"),
        (r#"{"guild":"g","name":"G","name":"H"}"#, "1: 'name' is given twice"),
        (r#"{"guild":"g","name":"G","points":1}"#, "1: a guild has no field 'points'"),
        (r#"{"guild":"g","member":"7","name":"G"}"#, "1: 'points' is missing"),
        (r#"{"guild":"g","member":"-7","name":"G","points":1}"#, "1: 'member': a member id is digits"),
        (r#"{"guild":"g","member":"9223372036854775808","name":"G","points":1}"#, "1: 'member'"),
        (r#"{"guild":"g","member":"7","name":"G","points":1.5}"#, "1: 'points': invalid type: floating point"),
        (r#"{"guild":"g","member":"7","name":"G","points":9223372036854775808}"#, "1: 'points': invalid value"),
        (r#"{"guild":"g","member":"7","warn":"x","author":"","reason":"","expires":1}"#, "1: 'warn' is digits"),
        (r#"{"guild":"g","member":"7","warn":"1","author":"","reason":""}"#, "1: 'expires' is missing"),
        (r#"{"guild":"g","member":"7","review":"1","author":"","rating":6,"text":""}"#, "1: 'rating' is 1 to 5"),
        (r#"{"guild":"g","member":"7","review":"1","author":"","rating":257,"text":""}"#, "1: 'rating' is 1 to 5"),
    ];
    let test = TestStore::new();
    for (line, expected) in cases {
        let text = format!("{line}\n{SAMPLE}");
        let found = reasons(import(&test.store, &text, Mode::AllOrNothing));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{line}: {found:?}");
        assert_eq!(export(&test.store), "");
    }
    let latin1 = b"{\"guild\":\"g\",\"name\":\"\xE9\"}";
    assert_eq!(reasons(import(&test.store, latin1, Mode::AllOrNothing)).len(), 1);
}

#[test]
fn a_guild_neither_in_the_file_nor_in_the_store_makes_bad_lines() {
    let test = TestStore::new();
    let text = r#"{"guild":"nowhere","member":"7","name":"A","points":1}
nonsense
{"guild":"later","member":"7","name":"A","points":1}
{"guild":"nowhere","member":"7","name":"A","points":2}
{"guild":"later","name":"Later"}"#;
    let found = reasons(import(&test.store, text, Mode::AllOrNothing));
    let missing = "guild nowhere is neither in this file nor in the store";
    assert_eq!(found.len(), 3);
    assert_eq!(found[0], format!("1: {missing}"));
    assert!(found[1].starts_with("2: not JSON"));
    assert_eq!(found[2], format!("4: {missing}"));

    let imported = import(&test.store, text, Mode::Partial).unwrap();
    assert_eq!((imported.records, imported.bad.total), (2, 3));
    assert_eq!(export(&test.store).lines().count(), 2);
    // Now that the store has it, a file need not.
    import(&test.store, r#"{"guild":"later","member":"9","name":"B","points":1}"#, Mode::AllOrNothing).unwrap();
    assert_eq!(export(&test.store).lines().count(), 3);
}

#[test]
fn with_partial_the_good_lines_are_imported() {
    let test = TestStore::new();
    let text = format!("\u{FEFF}{SAMPLE}\r\n\n{{}}\n");
    let imported = import(&test.store, &text, Mode::Partial).unwrap();
    assert_eq!((imported.records, imported.bad.total), (4, 1));
    assert_eq!(imported.bad.shown[0].line, 7);
    assert_eq!(export(&test.store), SAMPLE);
}

#[test]
fn of_many_bad_lines_the_first_are_shown_and_the_rest_counted() {
    let test = TestStore::new();
    let bad = bad(import(&test.store, "x\n".repeat(1000), Mode::AllOrNothing));
    assert_eq!((bad.total, bad.shown.len()), (1000, SHOWN));
    assert!(bad.to_string().ends_with("line 20: not JSON: expected value at column 1\n980 more bad lines"), "{bad}");
}

#[test]
fn a_line_of_ten_megabytes_is_a_bad_line() {
    let test = TestStore::new();
    let (head, tail) = SAMPLE.split_at(SAMPLE.find('\n').unwrap() + 1);
    let long = std::io::repeat(b' ').take(10 << 20);
    let source = BufReader::new(head.as_bytes().chain(long).chain(&b"\n"[..]).chain(tail.as_bytes()));
    let imported = test.store.import(source, Mode::Partial, &mut |_| {}).unwrap();
    assert_eq!(imported.records, 4);
    assert_eq!(imported.bad.to_string(), "line 2: longer than 1048576 bytes");
    assert_eq!(export(&test.store), SAMPLE);
}

#[test]
fn a_source_that_fails_leaves_the_store_unchanged() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("broken"))
        }
    }
    let test = TestStore::new();
    let source = BufReader::new(SAMPLE.as_bytes().chain(Broken));
    let answer = test.store.import(source, Mode::Partial, &mut |_| {});
    assert!(matches!(answer, Err(ImportError::Read(_))), "{answer:?}");
    assert_eq!(export(&test.store), "");
}

#[tokio::test]
async fn an_import_waits_for_the_stores_lock_and_keeps_that_a_guild_has_departed() {
    let test = TestStore::new();
    let watch = guild("81384788765712384");
    test.store.add_guild(&watch, "Old").await.unwrap();
    test.store.set_guild_departed(&watch, true).await.unwrap();
    let other = test.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::thread::scope(|scope| {
        let (applying, reported) = std::sync::mpsc::channel();
        let store = &test.store;
        let import = scope.spawn(move || {
            store.import(SAMPLE.as_bytes(), Mode::AllOrNothing, &mut |p| {
                if p.phase == Phase::Applying {
                    applying.send(p).unwrap();
                }
            })
        });
        assert_eq!(reported.recv().unwrap().of, Some(4));
        other.execute_batch("COMMIT").unwrap();
        import.join().unwrap().unwrap();
    });
    let guilds = test.store.guilds().await.unwrap();
    assert_eq!((guilds[0].name.as_str(), guilds[0].departed), ("Night Watch", true));
    let answer = test.store.points(&watch, member(190551803669118976)).await;
    assert!(matches!(answer, Err(StoreError::GuildDeparted(_))));
}

#[test]
fn opening_the_store_during_an_import_keeps_its_staging_file() {
    let test = TestStore::new();
    let mut opened = 0;
    let answer = test.store.import(SAMPLE.as_bytes(), Mode::AllOrNothing, &mut |progress| {
        if progress.phase != Phase::Reading {
            return;
        }
        assert_eq!(files(&test).iter().filter(|name| name.starts_with("store.db.import-")).count(), 1);
        drop(test.open_second());
        opened += 1;
    });
    answer.unwrap();
    assert_eq!((opened, export(&test.store)), (1, SAMPLE.to_owned()));
}

fn text() -> impl Strategy<Value = String> {
    // Texts are stored as one line.
    any::<String>().prop_map(|text| crate::model::one_line(&text).into_owned())
}

/// A text of one repeated character, as long as fits a line.
fn long_text() -> impl Strategy<Value = String> {
    let text = (any::<char>(), 1000usize..200_000).prop_map(|(what, times)| what.to_string().repeat(times));
    text.prop_map(|text| crate::model::one_line(&text).into_owned())
}

pub(in crate::store) fn record() -> impl Strategy<Value = Record> {
    let ids = || (0u8..3, prop_oneof![0u64..4, Just(i64::MAX as u64)]);
    let place = |(g, m): (u8, u64)| (guild(&format!("g{g}")), member(m));
    let number = || prop_oneof![0i64..4, Just(i64::MAX)];
    prop_oneof![
        (0u8..3, text()).prop_map(|(g, name)| Record::Guild { guild: guild(&format!("g{g}")), name }),
        (ids(), text(), any::<i64>()).prop_map(move |(at, name, points)| {
            let (guild, member) = place(at);
            Record::Member { guild, member, name, points }
        }),
        (ids(), number(), text(), text(), any::<i64>()).prop_map(move |(at, warn, author, reason, expires)| {
            let (guild, member) = place(at);
            Record::Warn { guild, member, warn, author, reason, expires }
        }),
        (ids(), number(), text(), 1u8..=5, prop_oneof![3 => text().boxed(), 1 => long_text().boxed()]).prop_map(
            move |(at, review, author, rating, text)| {
                let (guild, member) = place(at);
                Record::Review { guild, member, review, author, rating, text }
            }
        ),
    ]
}

/// What a store holds after `records`, as lines in the order of an export: a second implementation of the rules, on a
/// map.
fn expected(records: &[Record]) -> String {
    /// Guild; and in it the member, the kind, and the number of the warn or review.
    type Place = (String, Option<(u64, u8, i64)>);
    let mut map: BTreeMap<Place, Record> = BTreeMap::new();
    for record in records {
        let guild = record.guild().to_string();
        let place = match record {
            Record::Guild { .. } => None,
            Record::Member { member, .. } => Some((member.get(), 0, 0)),
            Record::Warn { member, warn, .. } => Some((member.get(), 1, *warn)),
            Record::Review { member, review, .. } => Some((member.get(), 2, *review)),
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_records_are_stored_by_the_rules_and_an_export_imports_as_itself(
        first in prop::collection::vec(record(), 0..30),
        second in prop::collection::vec(record(), 0..30),
    ) {
        let guilds = (0..3).map(|g| Record::Guild { guild: guild(&format!("g{g}")), name: String::new() });
        let first: Vec<Record> = guilds.chain(first).collect();
        let test = TestStore::new();
        for part in [&first, &second] {
            let text: String = part.iter().map(|r| serde_json::to_string(r).unwrap() + "\n").collect();
            import(&test.store, text, Mode::AllOrNothing).unwrap();
        }
        let out = export(&test.store);
        // A member that only a replaced warn belonged to is made by neither file.
        prop_assert_eq!(&out, &both(&first, &second));

        let other = TestStore::new();
        import(&other.store, &out, Mode::AllOrNothing).unwrap();
        prop_assert_eq!(export(&other.store), out);
    }
}

/// The lines after two imports.
fn both(first: &[Record], second: &[Record]) -> String {
    let left: Vec<Record> = expected(first).lines().map(|line| Record::parse(line.as_bytes()).unwrap()).collect();
    expected(&left.into_iter().chain(second.iter().cloned()).collect::<Vec<_>>())
}
