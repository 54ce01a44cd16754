//! Whether a store's tables and indexes are those that our own migrations make, and whether others were added that
//! change what it does.

use std::collections::BTreeMap;

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::checks::words;
use super::verify::{BACKUP, Flaw};
use crate::model::one_line;

/// What a schema is made of, by type and name.
type Objects = BTreeMap<(String, String), Object>;

struct Object {
    table: String,
    sql: String,
}

/// What in the schema of `conn` is other than in that of `fresh`, an empty store of the same version.
pub(super) fn differences(conn: &Connection, fresh: &Connection) -> rusqlite::Result<Vec<Flaw>> {
    let (found, ours) = (objects(conn)?, objects(fresh)?);
    let mut flaws = Vec::new();
    for ((kind, name), Object { sql, .. }) in &ours {
        let what = match found.get(&(kind.clone(), name.clone())) {
            Some(there) if words(&there.sql) == words(sql) => continue,
            Some(_) => format!("{kind} {name} is not as Guildgate makes it"),
            None => format!("{kind} {name} is missing"),
        };
        // An index has nothing of its own; what was in a table is gone.
        let repair = match kind.as_str() {
            "index" => in_shell(&format!("DROP INDEX IF EXISTS {name}; {}", words(sql).join(" "))),
            _ => BACKUP.to_owned(),
        };
        flaws.push(Flaw { what, repair });
    }
    for ((kind, name), Object { table, sql }) in &found {
        if ours.contains_key(&(kind.clone(), name.clone())) {
            continue;
        }
        // Other tables, views and indexes are nothing to us, but these take part in each of our writes.
        let of_ours = ours.contains_key(&("table".to_owned(), table.clone()));
        let is_unique = kind == "index" && words(sql).get(1).is_some_and(|word| word.eq_ignore_ascii_case("UNIQUE"));
        if of_ours && (kind == "trigger" || is_unique) {
            let what = format!("{kind} {} on table {table} is not Guildgate's", one_line(name));
            let drop = format!("DROP {} \"{}\"", kind.to_uppercase(), one_line(&name.replace('"', "\"\"")));
            flaws.push(Flaw { what, repair: in_shell(&drop) });
        }
    }
    Ok(flaws)
}

/// Whether there is nothing in it.
pub(super) fn is_bare(conn: &Connection) -> rusqlite::Result<bool> {
    objects(conn).map(|objects| objects.is_empty())
}

/// The tables of a store of ours.
pub(super) fn tables(fresh: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut tables = fresh.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")?;
    tables.query_map([], |row| row.get(0))?.collect()
}

pub(super) fn in_shell(sql: &str) -> String {
    format!("stop the server and run in the sqlite3 shell: {sql}")
}

fn objects(conn: &Connection) -> rusqlite::Result<Objects> {
    // SQLite's own follow from the others, and the text of the migrations' own table is theirs to choose.
    let mut statement = conn.prepare(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' \
         ESCAPE '\\' AND name <> 'refinery_schema_history'",
    )?;
    // Not every byte of it need be text: it may be damaged, in a comment for instance.
    let text = |value: ValueRef<'_>| value.as_bytes().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
    let objects = statement.query_map([], |row| {
        let at = |at| row.get_ref(at).map(text);
        Ok(((at(0)?, at(1)?), Object { table: at(2)?, sql: at(3)? }))
    })?;
    objects.collect()
}
