//! Tests of `store verify`: stores are damaged or changed with SQL, each flaw must be reported, and a sound store must
//! have none. The check must not change a byte of the file.

use std::fs;

use super::*;
use crate::store::Report;

/// A store with something in each table, closed, and changed by somebody else.
async fn changed(sql: &str) -> (TempDir, PathBuf) {
    let TestStore { store, folder } = TestStore::new();
    let path = folder.path().join("store.db");
    for name in ["81", "82"] {
        store.add_guild(&guild(name), "Night Watch").await.unwrap();
        for id in [1, 2] {
            store.set_points(&guild(name), member(id), 5).await.unwrap();
        }
    }
    drop(store);
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch(
        "INSERT INTO warn SELECT guild, member, member, 'Mod', 'spam', 0 FROM member;
         INSERT INTO review SELECT guild, member, member, 'Bo', 5, 'kind' FROM member;
         INSERT INTO key (id, digest, guild, name, scope, created) VALUES ('k_1', zeroblob(32), 1, 'bot', 'read', 0);
         INSERT INTO daily VALUES ('k_1', 1, 1);
         PRAGMA foreign_keys = OFF",
    )
    .unwrap();
    conn.execute_batch(sql).unwrap();
    (folder, path)
}

fn verified(path: &Path) -> Report {
    let before = fs::read(path).unwrap();
    let report = SqliteStore::verify(path).unwrap();
    assert!(fs::read(path).unwrap() == before, "looking changed it");
    report
}

fn flaws(path: &Path) -> Vec<String> {
    verified(path).flaws
}

#[tokio::test]
async fn rows_of_a_guild_or_member_that_is_not_there_are_counted_for_every_table() {
    let (_folder, path) = changed("").await;
    assert_eq!(flaws(&path), [""; 0]);
    for (table, parent) in [("member", "guild"), ("key", "guild"), ("warn", "member"), ("review", "member")] {
        let (_folder, path) = changed(&format!("UPDATE {table} SET guild = 99 WHERE guild = 1")).await;
        let count = if table == "key" { 1 } else { 2 };
        let flaw = format!("table {table}: {count} rows refer to rows of table {parent} that are missing");
        assert!(flaws(&path).contains(&flaw), "{:?}", flaws(&path));
    }
}

#[tokio::test]
async fn each_check_constraint_of_the_schema_is_checked() {
    let (_folder, path) = changed("").await;
    let constraints: i64 = Connection::open(&path)
        .unwrap()
        .query_row(
            "SELECT sum(length(sql) - length(replace(sql, ' CHECK (', ' CHECK('))) FROM sqlite_schema",
            [],
            |row| row.get(0),
        )
        .unwrap();
    let rows = [
        ("guild", "(id, name, gone) VALUES ('1', 'N', 2)"),
        ("member", "VALUES (1, -1, 'A', 0)"),
        ("warn", "VALUES (1, 1, -1, 'A', 'r', 0)"),
        ("review", "VALUES (1, 1, -1, 'A', 5, 't')"),
        ("review", "VALUES (1, 1, 9, 'A', 6, 't')"),
        ("key", "(id, digest, guild, name, scope, created) VALUES ('k', x'00', 1, 'n', 'read', 0)"),
        ("key", "(id, digest, guild, name, scope, created) VALUES ('k', randomblob(32), 1, 'n', 'none', 0)"),
        (
            "key",
            "(id, digest, guild, name, scope, created, previous, previous_until) \
             VALUES ('k', randomblob(32), 1, 'n', 'read', 0, x'00', 1)",
        ),
        (
            "key",
            "(id, digest, guild, name, scope, created, previous_until) \
             VALUES ('k', randomblob(32), 1, 'n', 'read', 0, 1)",
        ),
        ("daily", "VALUES ('k', 1, -1)"),
    ];
    assert_eq!(rows.len() as i64, constraints, "one row for each");
    for (table, row) in rows {
        let (_folder, path) =
            changed(&format!("PRAGMA ignore_check_constraints = ON; INSERT INTO {table} {row}")).await;
        assert_eq!(flaws(&path), [format!("CHECK constraint failed in {table}")], "{row}");
    }
}

#[tokio::test]
async fn text_that_is_not_utf_8_is_counted_for_every_column() {
    for (table, column, count) in [
        ("guild", "name", 2),
        ("member", "name", 4),
        ("warn", "author", 4),
        ("warn", "reason", 4),
        ("review", "author", 4),
        ("review", "text", 4),
        ("key", "id", 1),
        ("key", "name", 1),
        ("key", "tier", 1),
        ("daily", "key", 1),
        ("refinery_schema_history", "name", 3),
    ] {
        let (_folder, path) = changed(&format!("UPDATE {table} SET {column} = CAST(x'61ff62' AS TEXT)")).await;
        assert_eq!(flaws(&path), [format!("table {table}: {column} is not UTF-8 text in {count} rows")]);
    }
}

#[tokio::test]
async fn a_missing_table_index_or_column_is_reported() {
    for table in ["guild", "member", "warn", "review", "key", "change", "daily"] {
        let (_folder, path) = changed(&format!("DROP TABLE {table}")).await;
        assert!(flaws(&path).contains(&format!("table {table} is missing")), "{:?}", flaws(&path));
    }
    for alteration in ["review DROP COLUMN text", "member ADD COLUMN more TEXT", "daily RENAME COLUMN count TO n"] {
        let (_folder, path) = changed(&format!("ALTER TABLE {alteration}")).await;
        let table = alteration.split(' ').next().unwrap();
        assert_eq!(flaws(&path), [format!("table {table} is not as Guildgate makes it")]);
    }
    for (name, sql) in [
        ("daily_by_day", "CREATE INDEX daily_by_day ON daily ( day )"),
        ("key_by_previous", "CREATE UNIQUE INDEX key_by_previous ON key ( previous ) WHERE previous IS NOT NULL"),
    ] {
        let (_folder, path) = changed(&format!("DROP INDEX {name}")).await;
        assert_eq!(flaws(&path), [format!("index {name} is missing")]);
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        assert_eq!(flaws(&path), [""; 0]);
    }
    let (_folder, path) = changed("DROP INDEX daily_by_day; CREATE INDEX daily_by_day ON daily (count)").await;
    assert_eq!(flaws(&path), ["index daily_by_day is not as Guildgate makes it"]);
}

#[tokio::test]
async fn objects_that_others_added_are_reported_if_they_affect_writes() {
    for (sql, flaw) in [
        (
            "CREATE TRIGGER \"t\"\"x\" AFTER UPDATE ON member BEGIN DELETE FROM warn; END",
            "trigger t\"x on table member is not Guildgate's; drop it",
        ),
        ("CREATE unique INDEX u ON member (guild, name)", "index u on table member is not Guildgate's; drop it"),
    ] {
        assert_eq!(flaws(&changed(sql).await.1), [flaw]);
    }
    let harmless = "CREATE INDEX i ON member (name); CREATE TABLE theirs (x UNIQUE); CREATE UNIQUE INDEX u ON theirs (x); \
        CREATE VIEW v AS SELECT * FROM member; ANALYZE";
    assert_eq!(flaws(&changed(harmless).await.1), [""; 0]);
}

#[tokio::test]
async fn an_older_store_is_compared_with_its_own_schema_before_and_after_it_is_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    fs::write(&path, include_bytes!("../../../../tests/fixtures/store-v1.db")).unwrap();
    assert_eq!((verified(&path).schema, flaws(&path)), ((1, 3), vec![]));
    drop(SqliteStore::open(&path).unwrap());
    assert_eq!((verified(&path).schema, flaws(&path)), ((3, 3), vec![]));
    fs::write(&path, include_bytes!("../../../../tests/fixtures/store-v1.db")).unwrap();
    Connection::open(&path).unwrap().execute_batch("DROP TABLE change").unwrap();
    assert_eq!(flaws(&path), ["table change is missing"]);
    // It says that it is older than it is.
    let (_folder, path) = changed("DELETE FROM refinery_schema_history WHERE version >= 2").await;
    let named = flaws(&path);
    assert!(named.iter().any(|flaw| flaw == "table key is not as Guildgate makes it"), "{named:?}");
    for sql in ["DROP TABLE refinery_schema_history", "DELETE FROM refinery_schema_history"] {
        let (_folder, path) = changed(sql).await;
        assert!(
            matches!(&flaws(&path)[..], [flaw] if flaw.contains("the number of its schema is missing")),
            "{:?}",
            flaws(&path)
        );
    }
}

#[test]
fn a_store_that_a_crash_left_before_its_first_table_was_made_is_sound() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    open::sign(&Connection::open(&path).unwrap()).unwrap();
    let report = verified(&path);
    assert_eq!((report.schema, report.rows, report.flaws), ((0, 3), vec![], vec![]));
    drop(SqliteStore::open(&path).unwrap());
    assert_eq!(flaws(&path), [""; 0]);
}

#[tokio::test]
async fn a_journal_that_a_write_left_is_named_and_not_the_files_mode() {
    let (_folder, path) = changed("").await;
    let journal = format!("{}-journal", path.display());
    fs::write(&journal, [0xa5; 5000]).unwrap();
    let said = SqliteStore::verify(&path).unwrap_err().to_string();
    assert!(said.contains("-journal") && !said.contains("chmod"), "{said}");
    drop(SqliteStore::open(&path).unwrap());
    assert_eq!(flaws(&path), [""; 0]);
}

#[tokio::test]
async fn damage_in_a_comment_of_the_schema_is_named_and_hides_no_other() {
    let (_folder, path) = changed("UPDATE review SET rating = rating").await;
    let mut bytes = fs::read(&path).unwrap();
    let comment = b"-- 1: the bot left it";
    let at = bytes.windows(comment.len()).position(|there| there == comment).unwrap();
    bytes[at + 5] = 0xff;
    fs::write(&path, &bytes).unwrap();
    assert_eq!(flaws(&path), ["table guild is not as Guildgate makes it"]);
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch("PRAGMA ignore_check_constraints = ON; UPDATE guild SET gone = 7").unwrap();
    drop(conn);
    assert!(flaws(&path).iter().any(|flaw| flaw == "CHECK constraint failed in guild"), "{:?}", flaws(&path));
}
