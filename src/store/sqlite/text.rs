//! Text that is none: SQLite keeps whatever bytes it is given and calls them sound, and whoever reads such a row fails.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

use super::schema::in_shell;
use super::verify::Flaw;

/// Names what is not UTF-8 in `tables`, `most` at the most. Reads them row by row, and keeps none of them.
pub(super) fn broken(conn: &Connection, tables: &[String], most: usize) -> rusqlite::Result<Vec<Flaw>> {
    let mut flaws = Vec::new();
    for table in tables {
        let keys = keys(conn, table)?;
        if keys.is_empty() {
            continue; // it is not there, which is named elsewhere
        }
        let mut statement = conn.prepare(&format!("SELECT * FROM main.{table}"))?;
        let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            for (at, column) in columns.iter().enumerate() {
                if !is_broken(row.get_ref(at)?) {
                    continue;
                }
                if flaws.len() == most {
                    return Ok(flaws);
                }
                let place = place(row, &keys)?;
                flaws.push(Flaw {
                    what: format!("table {table}, {place}: {column} is not text in UTF-8"),
                    repair: in_shell(&format!("UPDATE {table} SET {column} = '…' WHERE {place}")),
                });
            }
        }
    }
    Ok(flaws)
}

fn is_broken(value: ValueRef<'_>) -> bool {
    matches!(value, ValueRef::Text(bytes) if std::str::from_utf8(bytes).is_err())
}

/// The columns by which a row of `table` is found.
fn keys(conn: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let mut columns = conn.prepare("SELECT name FROM pragma_table_info(?1) WHERE pk > 0 ORDER BY pk")?;
    columns.query_map([table], |row| row.get(0))?.collect()
}

/// Which row it is, as a condition in SQL.
fn place(row: &Row<'_>, keys: &[String]) -> rusqlite::Result<String> {
    let one = |key: &String| row.get_ref(key.as_str()).map(|value| format!("{key} = {}", literal(value)));
    Ok(keys.iter().map(one).collect::<rusqlite::Result<Vec<_>>>()?.join(" AND "))
}

fn literal(value: ValueRef<'_>) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    match value {
        ValueRef::Null => "NULL".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Blob(bytes) => format!("x'{}'", hex(bytes)),
        ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains(char::is_control) => format!("'{}'", text.replace('\'', "''")),
            _ => format!("CAST(x'{}' AS TEXT)", hex(bytes)),
        },
    }
}
