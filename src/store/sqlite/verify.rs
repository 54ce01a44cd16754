//! `store verify`: finds what is wrong with a store, and changes no byte of it or of its WAL. SQLite's own checks come
//! first, then the schema, then what its tables require of each row. Memory does not grow with the store.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode};

use super::failure::{Failure, RESTORE, TAKE_ANOTHER};
use super::lineage::{self, ForeignWal};
use super::{SqliteStore, inspect, open};
use crate::model::one_line;
use crate::store::StoreError;

/// How many flaws of one kind are reported.
const MOST_FLAWS: usize = 100;

/// The `CHECK` constraints of the migrations, negated: the first schema with the constraint, the table, and the condition
/// of a row that breaks it. `integrity_check` skips them on a connection that cannot write. A NULL satisfies each of them.
const CHECKS: [(i64, &str, &str); 8] = [
    (1, "guild", "gone NOT IN (0, 1)"),
    (1, "member", "member < 0"),
    (1, "warn", "id < 0"),
    (1, "review", "id < 0 OR rating NOT BETWEEN 1 AND 5"),
    (1, "key", "length(digest) <> 32 OR scope NOT IN ('read', 'write')"),
    (2, "key", "length(previous) <> 32"),
    (2, "key", "(previous IS NULL) <> (previous_until IS NULL)"),
    (2, "daily", "count < 0"),
];

/// What is in a whole store, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The schema of the file, and the one this version writes.
    pub schema: (i64, i64),
    /// The number of rows of each table. Empty where the file is too damaged to count them.
    pub rows: Vec<(&'static str, u64)>,
    /// What is wrong, one line for each flaw.
    pub flaws: Vec<String>,
    /// What to do where something is wrong.
    pub repair: String,
}

/// The flaws that a check found.
type Flaws = rusqlite::Result<Vec<String>>;

impl SqliteStore {
    /// Finds what is wrong with the store at `path`, and changes nothing. Blocks, for as long as reading the whole file
    /// takes.
    pub fn verify(path: &Path) -> Result<Report, StoreError> {
        let Some(ForeignWal { what, repair }) = lineage::foreign_wal(path)? else {
            return inspect::read(path, |conn| report(conn, path));
        };
        if open::is_missing(path) {
            return Err(StoreError::Failed(format!("{what}. {repair}")));
        }
        // The file alone, because the WAL belongs to another file.
        let report = inspect::immutable(path).map_err(Failure::from).and_then(|conn| report(&conn, path));
        let mut report = report.map_err(|failure| failure.at(path))?;
        report.flaws.insert(0, what);
        report.repair = repair;
        Ok(report)
    }
}

impl SqliteStore {
    /// As [`SqliteStore::verify`], of a file that is not the store of the configuration: to restore a backup is no
    /// advice about a damaged backup.
    pub fn verify_backup(path: &Path) -> Result<Report, StoreError> {
        let mut report = SqliteStore::verify(path).map_err(|error| match error {
            StoreError::Failed(message) => StoreError::Failed(message.replace(RESTORE, TAKE_ANOTHER)),
            other => other,
        })?;
        report.flaws.iter_mut().for_each(|flaw| *flaw = flaw.replace(&format!("; {RESTORE}"), ""));
        if report.repair.ends_with(RESTORE) {
            report.repair = TAKE_ANOTHER.to_owned();
        }
        Ok(report)
    }
}

fn report(conn: &Connection, path: &Path) -> Result<Report, Failure> {
    inspect::must_be_store(conn, path)?;
    let (found, newest) = (open::schema_version(conn)?, open::newest_schema());
    let mut report =
        Report { schema: (found, newest), repair: format!("stop the server and {RESTORE}"), ..Report::default() };
    if let Err(truncated) = open::refuse_truncated(conn, path, fs::metadata(path)?.len()) {
        report.flaws.push(truncated.at(path).to_string());
    }
    // A process died before it made the first table. The next one that opens the store makes all of them.
    if found == 0 && schema_of(conn)?.is_empty() {
        return Ok(report);
    }
    let schema = if found == 0 { newest } else { found };
    let fresh = open::fresh(schema)?;
    let checks = [
        check_integrity(conn),
        check_schema(conn, &fresh, report.schema),
        check_rows(conn, schema),
        check_references(conn),
        check_texts(conn, &fresh),
    ];
    for check in checks {
        match check {
            Ok(flaws) => report.flaws.extend(flaws),
            Err(error) => add_error(error, &mut report)?,
        }
    }
    match count_rows(conn) {
        Ok(rows) => report.rows = rows,
        Err(error) => add_error(error, &mut report)?,
    }
    Ok(report)
}

/// An error that the store's flaws cause is a flaw too; any other one is returned.
fn add_error(error: rusqlite::Error, report: &mut Report) -> Result<(), Failure> {
    let does_not_fit_schema = matches!(error, rusqlite::Error::SqlInputError { .. });
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt) => {
            let flaw = error.to_string();
            if !report.flaws.contains(&flaw) {
                report.flaws.push(flaw);
            }
        }
        // A table or column is missing, which is reported already.
        code if (does_not_fit_schema || code == Some(ErrorCode::Unknown)) && !report.flaws.is_empty() => {}
        _ => return Err(error.into()),
    }
    Ok(())
}

/// Pages, indexes, and the types of values.
fn check_integrity(conn: &Connection) -> Flaws {
    let mut statement = conn.prepare(&format!("PRAGMA integrity_check({MOST_FLAWS})"))?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
    lines.filter(|line| !matches!(line, Ok(line) if line == "ok")).collect()
}

/// A table, index, trigger or view: its table, and the statement that made it, without white space.
type Object = (String, String);

/// Compares tables and indexes with those of `fresh`, an empty store of the same schema, and finds triggers and unique
/// indexes that others added to our tables: these take part in each write. Other objects of others do no harm.
fn check_schema(conn: &Connection, fresh: &Connection, (found, newest): (i64, i64)) -> Flaws {
    let mut flaws = Vec::new();
    if found == 0 {
        flaws.push("the number of its schema is missing (table refinery_schema_history)".to_owned());
    }
    if found > newest {
        return Ok(flaws);
    }
    let (there, ours) = (schema_of(conn)?, schema_of(fresh)?);
    for ((kind, name), object) in &ours {
        match there.get(&(kind.clone(), name.clone())) {
            Some(other) if other == object => {}
            Some(_) => flaws.push(format!("{kind} {name} is not as Guildgate makes it")),
            None => flaws.push(format!("{kind} {name} is missing")),
        }
    }
    let added = there.iter().filter(|(id, (table, sql))| {
        !ours.contains_key(id)
            && ours.contains_key(&("table".to_owned(), table.clone()))
            && (id.0 == "trigger" || sql.starts_with("CREATEUNIQUEINDEX"))
    });
    flaws.extend(added.take(MOST_FLAWS).map(|((kind, name), (table, _))| {
        format!("{kind} {} on table {table} is not Guildgate's; drop it", one_line(name))
    }));
    Ok(flaws)
}

/// The objects of a schema by type and name. SQLite's own follow from the others, and the table of the migrations is
/// made by another library.
fn schema_of(conn: &Connection) -> rusqlite::Result<BTreeMap<(String, String), Object>> {
    let mut statement = conn.prepare(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' \
         ESCAPE '\\' AND name <> 'refinery_schema_history'",
    )?;
    let objects = statement.query_map([], |row| {
        // A damaged one need not be UTF-8.
        let text = |at| row.get_ref(at).map(|value| String::from_utf8_lossy(value.as_bytes().unwrap_or_default()));
        let sql = text(3)?.split_whitespace().collect();
        Ok(((text(0)?.into_owned(), text(1)?.into_owned()), (text(2)?.into_owned(), sql)))
    })?;
    objects.collect()
}

fn check_rows(conn: &Connection, schema: i64) -> Flaws {
    let mut flaws = Vec::new();
    for (_, table, is_broken) in CHECKS.iter().filter(|(since, ..)| *since <= schema) {
        if conn.prepare(&format!("SELECT 1 FROM main.{table} WHERE {is_broken} LIMIT 1"))?.exists([])? {
            flaws.push(format!("CHECK constraint failed in {table}"));
        }
    }
    Ok(flaws)
}

/// Rows that refer to a row that is not there: another program left them, with foreign keys off.
fn check_references(conn: &Connection) -> Flaws {
    let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut statement = conn.prepare("PRAGMA foreign_key_check")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        *counts.entry((row.get(0)?, row.get(2)?)).or_default() += 1;
    }
    let flaw = |((table, parent), count)| {
        format!("table {table}: {count} rows refer to rows of table {parent} that are missing")
    };
    Ok(counts.into_iter().map(flaw).collect())
}

/// Text that is not UTF-8, in our tables. SQLite keeps any bytes as text, but reading such a row fails.
fn check_texts(conn: &Connection, fresh: &Connection) -> Flaws {
    conn.create_scalar_function("is_utf8", 1, FunctionFlags::SQLITE_UTF8, |call| {
        Ok(!matches!(call.get_raw(0), ValueRef::Text(bytes) if std::str::from_utf8(bytes).is_err()))
    })?;
    let mut columns = fresh.prepare(
        "SELECT t.name, c.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c \
         WHERE t.type = 'table' AND (c.type = 'TEXT' OR c.type LIKE 'VARCHAR%')",
    )?;
    let mut columns = columns.query([])?;
    let mut flaws = Vec::new();
    while let Some(row) = columns.next()? {
        let (table, column): (String, String) = (row.get(0)?, row.get(1)?);
        let count = count(conn, &format!("main.{table} WHERE NOT is_utf8({column})"))?;
        if count > 0 {
            flaws.push(format!("table {table}: {column} is not UTF-8 text in {count} rows"));
        }
    }
    Ok(flaws)
}

fn count_rows(conn: &Connection) -> rusqlite::Result<Vec<(&'static str, u64)>> {
    ["guild", "member", "warn", "review", "key"].into_iter().map(|table| Ok((table, count(conn, table)?))).collect()
}

fn count(conn: &Connection, from: &str) -> rusqlite::Result<u64> {
    conn.query_row(&format!("SELECT count(*) FROM {from}"), [], |row| row.get(0).map(i64::unsigned_abs))
}
