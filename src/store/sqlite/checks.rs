//! What a store's tables demand of each row (`CHECK`), asked by statements of our own: SQLite's integrity check passes
//! over it on a connection that cannot write.

use std::iter;

use rusqlite::Connection;
use rusqlite::types::ValueRef;

/// Tables in which a row is not as its table demands.
pub(super) fn broken(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut tables = conn.prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name")?;
    // Not every byte of it need be text: it may be damaged, in a comment for instance.
    let text = |value: ValueRef<'_>| value.as_bytes().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
    let tables = tables.query_map([], |row| Ok((row.get_ref(0).map(text)?, row.get_ref(1).map(text)?)))?;
    let mut broken = Vec::new();
    for table in tables {
        let (name, sql) = table?;
        // A demand whose answer is NULL is met, and so it is here.
        let demands: Vec<String> = demands(&sql).iter().map(|demand| format!("NOT {demand}")).collect();
        if demands.is_empty() {
            continue;
        }
        let quoted = name.replace('"', "\"\"");
        let sql = format!("SELECT 1 FROM main.\"{quoted}\" WHERE {} LIMIT 1", demands.join(" OR "));
        if conn.prepare(&sql)?.exists([])? {
            broken.push(name);
        }
    }
    Ok(broken)
}

/// The demands in a `CREATE TABLE`, each in its brackets.
fn demands(sql: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = sql;
    while let Some(word) = token(rest) {
        let after = rest.get(word.len()..).unwrap_or_default();
        let brackets = after.trim_start();
        match word.eq_ignore_ascii_case("CHECK").then(|| in_brackets(brackets)).flatten() {
            Some(demand) => {
                found.push(demand);
                rest = brackets.get(demand.len()..).unwrap_or_default();
            }
            None => rest = after,
        }
    }
    found
}

/// What stands in the brackets that `sql` begins with, and they themselves.
fn in_brackets(sql: &str) -> Option<&str> {
    let (mut depth, mut length) = (0_usize, 0);
    while let Some(word) = token(sql.get(length..)?) {
        length += word.len();
        match word {
            "(" => depth += 1,
            ")" => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return (word == ")").then(|| sql.get(..length)).flatten();
        }
    }
    None
}

/// What `sql` says, whatever stands between its words and beside them.
pub(super) fn words(sql: &str) -> Vec<&str> {
    let mut rest = sql;
    let tokens = iter::from_fn(|| {
        let word = token(rest)?;
        rest = rest.get(word.len()..).unwrap_or_default();
        Some(word)
    });
    tokens.filter(|word| !(word.starts_with("--") || word.starts_with("/*") || word.trim().is_empty())).collect()
}

/// What `sql` begins with: a comment, something quoted, a word, or a single character.
fn token(sql: &str) -> Option<&str> {
    let first = sql.chars().next()?;
    let ends_after = |end: &str, from: usize| {
        let length = sql.get(from..).and_then(|rest| rest.find(end)).map(|at| from + at + end.len());
        length.unwrap_or(sql.len())
    };
    let length = match first {
        '-' if sql.starts_with("--") => ends_after("\n", 2),
        '/' if sql.starts_with("/*") => ends_after("*/", 2),
        // A quote within is written twice, and so what follows is taken for quoted as well.
        '\'' => ends_after("'", 1),
        '"' => ends_after("\"", 1),
        '`' => ends_after("`", 1),
        '[' => ends_after("]", 1),
        _ if is_of_word(first) => sql.find(|c| !is_of_word(c)).unwrap_or(sql.len()),
        _ => first.len_utf8(),
    };
    sql.get(..length)
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demands_are_found_wherever_they_stand_and_nothing_else_is() {
        let sql = "CREATE TABLE \"check (a)\" ( -- CHECK (no)\n a INTEGER CHECK (a IN (1, 2)), /* CHECK (no) */\n\
            [check (b)] TEXT DEFAULT 'CHECK (no) it''s' check(`b)` <> ')' AND c NOT LIKE '(%'), check_c TEXT,\n\
            CHECK\n(a > 0 -- or so)\n) ) STRICT";
        assert_eq!(demands(sql), ["(a IN (1, 2))", "(`b)` <> ')' AND c NOT LIKE '(%')", "(a > 0 -- or so)\n)"]);
        assert!(demands("CREATE TABLE t (a CHECK (a > 0").is_empty());
        assert_eq!(
            words("a -- b\n /* c */('d -- e','f''g')-1"),
            ["a", "(", "'d -- e'", ",", "'f'", "'g'", ")", "-", "1"]
        );
    }

    #[test]
    fn each_demand_of_a_store_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        drop(crate::store::SqliteStore::open(&path).unwrap());
        let conn = Connection::open(&path).unwrap();
        conn.execute_batch("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON").unwrap();
        let of = |table: &str| -> Vec<String> {
            let sql: String =
                conn.query_row("SELECT sql FROM sqlite_schema WHERE name = ?1", [table], |row| row.get(0)).unwrap();
            demands(&sql).into_iter().map(str::to_owned).collect()
        };
        assert_eq!(["guild", "member", "warn", "review", "key", "daily"].map(|t| of(t).len()), [1, 1, 1, 2, 4, 1]);
        assert_eq!(broken(&conn).unwrap(), Vec::<String>::new());
        for (table, row) in [
            ("guild", "(id, name, gone) VALUES ('1', 'N', 2)"),
            ("member", "VALUES (1, -1, 'A', 0)"),
            ("warn", "VALUES (1, 1, -1, 'A', 'r', 0)"),
            ("review", "VALUES (1, 1, 1, 'A', 6, 't')"),
            ("key", "(id, digest, guild, name, scope, created) VALUES ('k', x'00', 1, 'n', 'read', 0)"),
            ("daily", "VALUES ('k', 1, -1)"),
        ] {
            conn.execute_batch(&format!("SAVEPOINT s; INSERT INTO {table} {row}")).unwrap();
            assert_eq!(broken(&conn).unwrap(), [table]);
            conn.execute_batch("ROLLBACK TO s; RELEASE s").unwrap();
        }
    }
}
