//! Tests of import and export with PostgreSQL: the same files make the same store as in SQLite, byte for byte, random
//! records stay the same on the way to the other kind of store and back, and an import that fails leaves nothing.

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;

use super::*;
use crate::store::sqlite::tests::TestStore as SqliteTestStore;
use crate::store::transfer::tests::record;
use crate::store::transfer::{ImportError, Imported, Mode};

/// Stores of random records that are moved; each takes a new database.
const MOVED: usize = 8;

/// Files that are imported one after the other: what each replaces, moves and refuses.
const FILES: [&str; 6] = [
    r#"{"guild":"b","name":"Bees"}
{"guild":"a","name":"Ants \\ \"and\" ★"}
{"guild":"a","member":"7","name":"Ada\tX","points":1250}
{"guild":"a","member":"7","name":"Ada","points":-9223372036854775808}
{"guild":"b","member":"9223372036854775807","name":"","points":9223372036854775807}
"#,
    // Of members that are not there, in a guild that comes later in the file or is in the store.
    r#"{"guild":"c","member":"1","warn":"17","author":"Mod","reason":"spam","expires":1790000000}
{"guild":"a","member":"70","review":"9","author":"Bo","rating":5,"text":"Quick and kind"}
{"guild":"a","member":"8","warn":"5","author":"Mod","reason":"one","expires":1}
{"guild":"a","member":"8","warn":"5","author":"Mod","reason":"two","expires":2}
{"guild":"c","name":"Crabs"}
"#,
    // An id that another member has moves to this one.
    r#"{"guild":"a","member":"7","warn":"5","author":"Mod","reason":"moved","expires":3}
{"guild":"a","member":"7","review":"9","author":"Cy","rating":1,"text":"Moved"}
{"guild":"a","name":"Ants"}
"#,
    "{\"guild\":\"d\",\"name\":\"D\"}\nnonsense\n{\"guild\":\"none\",\"member\":\"1\",\"name\":\"x\",\"points\":1}\n",
    "",
    "{\"guild\":\"none\",\"member\":\"1\",\"name\":\"x\",\"points\":1}\n{\"guild\":\"d\",\"name\":\"D\"}\n",
];

#[tokio::test]
async fn the_same_files_make_the_same_store_as_in_sqlite_byte_for_byte() {
    let (file, test) = (SqliteTestStore::new(), TestStore::new().await);
    let second = test.open_second().await;
    for (at, lines) in FILES.iter().enumerate() {
        for mode in [Mode::AllOrNothing, Mode::Partial] {
            let expected = file.store.import(lines.as_bytes(), mode, &mut |_| {});
            let imported = import(&test, lines, mode).await;
            match (expected, imported) {
                (Ok(expected), Ok(imported)) => assert_eq!(imported, expected, "{at}"),
                (Err(ImportError::Bad(expected)), Err(ImportError::Bad(bad))) => assert_eq!(bad, expected, "{at}"),
                other => panic!("{at}: {other:?}"),
            }
            let (mut expected, mut exported) = (Vec::new(), Vec::new());
            let records = file.store.export(&mut expected, &mut |_| {}).unwrap();
            assert_eq!(test.store.export(&mut exported, &mut |_| {}).await.unwrap(), records);
            assert_eq!(String::from_utf8(exported).unwrap(), String::from_utf8(expected).unwrap(), "{at}");
        }
    }
    assert_eq!(test.store.members(&guild("a"), None, usize::MAX).await.unwrap().len(), 3, "it was no empty comparison");
    assert_eq!(others_changes(&second).await, [Change::Everything]);
    assert_eq!(others_changes(&test.store).await, []);
    // The next warn's number follows the highest.
    assert_eq!(test.store.add_note(&guild("c"), member(1), suite::warn_for("again", 0)).await.unwrap(), 18);
}

async fn import(test: &TestStore, lines: &str, mode: Mode) -> Result<Imported, ImportError> {
    let lines = std::io::Cursor::new(lines.to_owned());
    test.store.import(lines, mode, |_| {}).await?.commit().await
}

async fn moved_to_postgres(lines: &str) -> String {
    let (test, mut exported) = (TestStore::new().await, Vec::new());
    import(&test, lines, Mode::AllOrNothing).await.unwrap();
    test.store.export(&mut exported, &mut |_| {}).await.unwrap();
    String::from_utf8(exported).unwrap()
}

fn moved_to_sqlite(lines: &str) -> String {
    let (file, mut exported) = (SqliteTestStore::new(), Vec::new());
    file.store.import(lines.as_bytes(), Mode::AllOrNothing, &mut |_| {}).unwrap();
    file.store.export(&mut exported, &mut |_| {}).unwrap();
    String::from_utf8(exported).unwrap()
}

#[tokio::test]
async fn any_records_move_from_one_kind_of_store_to_the_other_and_back_byte_for_byte() {
    // Always the same ones: the same failure each time it runs.
    let mut runner = TestRunner::deterministic();
    let mut moved = 0;
    for at in 0..MOVED {
        let records = proptest::collection::vec(record(), 30..60).new_tree(&mut runner).unwrap().current();
        let guilds = (0..3).map(|g| format!("{{\"guild\":\"g{g}\",\"name\":\"G\"}}"));
        let records = records.iter().map(|record| serde_json::to_string(record).unwrap());
        let lines: String = guilds.chain(records).map(|line| line + "\n").collect();
        let first = moved_to_sqlite(&lines);
        // Compared as a whole and not printed: a text may be a megabyte long.
        assert!(moved_to_postgres(&lines).await == first, "{at}: the same file makes another store");
        assert!(moved_to_postgres(&first).await == first, "{at}: from SQLite to PostgreSQL");
        assert!(moved_to_sqlite(&first) == first, "{at}: and back");
        moved += first.len();
    }
    assert!(moved > 400_000, "there were long texts: {moved}");
}

#[tokio::test]
async fn an_import_that_fails_midway_leaves_nothing() {
    let test = TestStore::new().await;
    test.add_guild(&guild("a")).await;
    connect(&test.url).await.batch_execute("ALTER TABLE review ADD CHECK (rating < 5)").await.unwrap();
    let lines = "{\"guild\":\"a\",\"member\":\"1\",\"name\":\"x\",\"points\":1}\n\
        {\"guild\":\"a\",\"member\":\"1\",\"review\":\"1\",\"author\":\"B\",\"rating\":5,\"text\":\"t\"}\n";
    let failed = import(&test, lines, Mode::AllOrNothing).await;
    assert!(matches!(failed, Err(ImportError::Store(StoreError::Failed(_)))), "{failed:?}");
    assert_eq!(test.store.members(&guild("a"), None, usize::MAX).await.unwrap(), []);
    test.store.set_points(&guild("a"), member(1), 2).await.unwrap();
}
