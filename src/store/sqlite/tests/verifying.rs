//! Tests of `store verify`: stores are damaged or changed with SQL, each flaw must be named with what repairs it, and a
//! sound store must have none. Looking must not change a byte of the file.

use std::fs;

use super::*;
use crate::store::Report;
use crate::store::sqlite::verify::BACKUP;

/// A store with something in each table, closed, and changed by somebody else.
async fn changed(sql: &str) -> (TempDir, PathBuf) {
    let World { store, folder } = World::new();
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

fn looked_at(path: &Path) -> Report {
    let before = fs::read(path).unwrap();
    let report = SqliteStore::verify(path).unwrap();
    assert!(fs::read(path).unwrap() == before, "looking changed it");
    report
}

/// What is wrong, and what would repair it.
fn flaws(path: &Path) -> Vec<(String, String)> {
    looked_at(path).flaws.into_iter().map(|flaw| (flaw.what, flaw.repair)).collect()
}

fn in_shell(sql: &str) -> String {
    format!("stop the server and run in the sqlite3 shell: {sql}")
}

#[tokio::test]
async fn rows_of_a_guild_that_is_not_there_are_named_in_every_table() {
    let (_folder, path) = changed("").await;
    assert_eq!(flaws(&path), []);
    for table in ["member", "key", "warn", "review"] {
        let (_folder, path) = changed(&format!("UPDATE {table} SET guild = 99 WHERE guild = 1")).await;
        let count = if table == "key" { 1 } else { 2 };
        let what = format!("table {table} has rows of guild number 99, which is not there: {count}");
        assert!(flaws(&path).contains(&(what, BACKUP.to_owned())), "{:?}", flaws(&path));
    }
    let (_folder, path) = changed("DELETE FROM guild WHERE no = 2").await;
    let named: Vec<_> = flaws(&path).into_iter().map(|(what, _)| what).collect();
    let of = |table| format!("table {table} has rows of guild number 2, which is not there: 2");
    assert_eq!(named, ["member", "warn", "review"].map(of));
}

#[tokio::test]
async fn text_that_is_not_utf_8_is_named_with_its_row_and_what_mends_it_helps() {
    for (table, column, place) in [
        ("guild", "name", "no = 1"),
        ("member", "name", "guild = 1 AND member = 2"),
        ("warn", "author", "guild = 2 AND member = 1 AND id = 1"),
        ("warn", "reason", "guild = 1 AND member = 2 AND id = 2"),
        ("review", "author", "guild = 1 AND member = 1 AND id = 1"),
        ("review", "text", "guild = 1 AND member = 2 AND id = 2"),
        ("key", "name", "id = 'k_1'"),
        ("key", "tier", "id = 'k_1'"),
        ("refinery_schema_history", "name", "version = 1"),
    ] {
        let sql = format!("UPDATE {table} SET {column} = CAST(x'61ff62' AS TEXT) WHERE {place}");
        let (_folder, path) = changed(&sql).await;
        let what = format!("table {table}, {place}: {column} is not text in UTF-8");
        let mend = format!("UPDATE {table} SET {column} = '…' WHERE {place}");
        assert_eq!(flaws(&path), [(what, in_shell(&mend))]);
        Connection::open(&path).unwrap().execute_batch(&mend).unwrap();
        assert_eq!(flaws(&path), []);
    }
    // A row whose key it is.
    for (table, column) in [("key", "id"), ("daily", "key")] {
        let (_folder, path) = changed(&format!("UPDATE {table} SET {column} = CAST(x'6bff' AS TEXT)")).await;
        let mend = format!("UPDATE {table} SET {column} = '…' WHERE {column} = CAST(x'6bff' AS TEXT)");
        assert!(matches!(&flaws(&path)[..], [(_, repair)] if *repair == in_shell(&mend)), "{:?}", flaws(&path));
        Connection::open(&path).unwrap().execute_batch(&mend).unwrap();
        assert_eq!(flaws(&path), []);
    }
}

#[tokio::test]
async fn of_much_that_is_not_text_some_is_named() {
    let many = "WITH RECURSIVE n (i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 500) \
        INSERT INTO member SELECT 1, i, CAST(x'ff' AS TEXT), 0 FROM n";
    let (_folder, path) = changed(many).await;
    assert_eq!(flaws(&path).len(), 100);
}

#[tokio::test]
async fn a_table_an_index_or_a_column_that_is_gone_is_named() {
    for table in ["guild", "member", "warn", "review", "key", "change", "daily"] {
        let (_folder, path) = changed(&format!("DROP TABLE {table}")).await;
        let missing = (format!("table {table} is missing"), BACKUP.to_owned());
        assert!(flaws(&path).contains(&missing), "{:?}", flaws(&path));
    }
    for alteration in ["review DROP COLUMN text", "member ADD COLUMN more TEXT", "daily RENAME COLUMN count TO n"] {
        let (_folder, path) = changed(&format!("ALTER TABLE {alteration}")).await;
        let table = alteration.split(' ').next().unwrap();
        let other = (format!("table {table} is not as Guildgate makes it"), BACKUP.to_owned());
        assert_eq!(flaws(&path), [other]);
    }
    for (name, sql) in [
        ("daily_by_day", "CREATE INDEX daily_by_day ON daily ( day )"),
        ("key_by_previous", "CREATE UNIQUE INDEX key_by_previous ON key ( previous ) WHERE previous IS NOT NULL"),
    ] {
        let (_folder, path) = changed(&format!("DROP INDEX {name}")).await;
        let mend = format!("DROP INDEX IF EXISTS {name}; {sql}");
        assert_eq!(flaws(&path), [(format!("index {name} is missing"), in_shell(&mend))]);
        Connection::open(&path).unwrap().execute_batch(&mend).unwrap();
        assert_eq!(flaws(&path), []);
    }
    let (_folder, path) = changed("DROP INDEX daily_by_day; CREATE INDEX daily_by_day ON daily (count)").await;
    assert!(flaws(&path)[0].0.contains("index daily_by_day is not as Guildgate makes it"));
}

#[tokio::test]
async fn what_others_added_is_named_where_it_changes_what_is_written() {
    for (sql, what, drop) in [
        (
            "CREATE TRIGGER \"t\"\"x\" AFTER UPDATE ON member BEGIN DELETE FROM warn; END",
            "trigger t\"x on table member",
            "DROP TRIGGER \"t\"\"x\"",
        ),
        ("CREATE UNIQUE INDEX u ON member (guild, name)", "index u on table member", "DROP INDEX \"u\""),
    ] {
        let (_folder, path) = changed(sql).await;
        assert_eq!(flaws(&path), [(format!("{what} is not Guildgate's"), in_shell(drop))]);
        Connection::open(&path).unwrap().execute_batch(drop).unwrap();
        assert_eq!(flaws(&path), []);
    }
    let harmless = "CREATE INDEX i ON member (name); CREATE TABLE theirs (x UNIQUE); CREATE UNIQUE INDEX u ON theirs (x); \
        CREATE VIEW v AS SELECT * FROM member; ANALYZE";
    assert_eq!(flaws(&changed(harmless).await.1), []);
}

#[tokio::test]
async fn an_older_store_is_compared_with_its_own_schema_before_and_after_it_is_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    fs::write(&path, include_bytes!("../../../../tests/fixtures/store-v1.db")).unwrap();
    assert_eq!((looked_at(&path).schema, flaws(&path)), ((1, 3), vec![]));
    drop(SqliteStore::open(&path).unwrap());
    assert_eq!((looked_at(&path).schema, flaws(&path)), ((3, 3), vec![]));
    fs::write(&path, include_bytes!("../../../../tests/fixtures/store-v1.db")).unwrap();
    Connection::open(&path).unwrap().execute_batch("DROP TABLE change").unwrap();
    assert_eq!(flaws(&path), [("table change is missing".to_owned(), BACKUP.to_owned())]);
    // It says that it is older than it is.
    let (_folder, path) = changed("DELETE FROM refinery_schema_history WHERE version >= 2").await;
    let named = flaws(&path);
    assert!(named.iter().any(|(what, _)| what == "table key is not as Guildgate makes it"), "{named:?}");
    for sql in ["DROP TABLE refinery_schema_history", "DELETE FROM refinery_schema_history"] {
        let (_folder, path) = changed(sql).await;
        assert!(matches!(&flaws(&path)[..], [(what, _)] if what.contains("is not noted in it")), "{:?}", flaws(&path));
    }
}

#[test]
fn a_store_that_a_crash_left_before_its_first_table_was_made_is_sound() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    open::sign(&Connection::open(&path).unwrap()).unwrap();
    assert_eq!(looked_at(&path), Report { schema: (0, 3), ..Report::default() });
    drop(SqliteStore::open(&path).unwrap());
    assert_eq!(flaws(&path), []);
}

#[tokio::test]
async fn a_journal_that_a_write_left_is_named_and_not_the_files_mode() {
    let (_folder, path) = changed("").await;
    let journal = format!("{}-journal", path.display());
    fs::write(&journal, [0xa5; 5000]).unwrap();
    let said = SqliteStore::verify(&path).unwrap_err().to_string();
    assert!(said.contains("-journal") && !said.contains("chmod"), "{said}");
    drop(SqliteStore::open(&path).unwrap());
    assert_eq!(flaws(&path), []);
}

#[tokio::test]
async fn damage_in_a_comment_of_the_schema_is_no_harm_and_hides_none() {
    let (_folder, path) = changed("UPDATE review SET rating = rating").await;
    let mut bytes = fs::read(&path).unwrap();
    let comment = b"-- 1: the bot left it";
    let at = bytes.windows(comment.len()).position(|there| there == comment).unwrap();
    bytes[at + 5] = 0xff;
    fs::write(&path, &bytes).unwrap();
    assert_eq!(flaws(&path), []);
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch("PRAGMA ignore_check_constraints = ON; UPDATE guild SET gone = 7").unwrap();
    drop(conn);
    assert!(
        flaws(&path).iter().any(|(what, _)| what.contains("CHECK constraint failed in guild")),
        "{:?}",
        flaws(&path)
    );
}
