//! What is wrong with a store, without changing a byte of it or of its log.

use std::fs;
use std::path::Path;

use rusqlite::{Connection, ErrorCode};

use super::lineage::{self, Stray};
use super::{checks, failure, look, open, schema, text};
use crate::store::StoreError;

/// Flaws named one by one, of each kind; a file that has more is not mended by hand.
const MOST_FLAWS: usize = 100;

/// What a look at a whole store found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The schema of the file, and the one this version writes.
    pub schema: (i64, i64),
    /// Tables by name, and how many rows each has. Empty where the file is too damaged to say.
    pub rows: Vec<(&'static str, u64)>,
    pub flaws: Vec<Flaw>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    pub what: String,
    /// What would repair it.
    pub repair: String,
}

/// Adds to a report what is wrong in one way.
type Look<'l> = &'l dyn Fn(&mut Report) -> rusqlite::Result<()>;

/// Looks at all of the store at `path`. Blocks, for as long as reading the whole file takes.
pub(super) fn verify(path: &Path) -> Result<Report, StoreError> {
    let Some(Stray { what, repair }) = lineage::stray(path)? else { return look::at(path, |conn| report(conn, path)) };
    if open::is_missing(path) {
        return Err(StoreError::Failed(format!("{what}. {repair}")));
    }
    // The file alone: what is in that log is not the file's.
    let conn = look::unmoving(path).map_err(|e| failure::of(path, &e))?;
    let mut report = report(&conn, path)?;
    report.flaws.insert(0, Flaw { what, repair });
    Ok(report)
}

fn report(conn: &Connection, path: &Path) -> Result<Report, StoreError> {
    look::is_ours(conn, path)?;
    let (found, newest) = (open::schema_version(conn).map_err(|e| failure::of(path, &e))?, open::newest_schema());
    let mut report = Report { schema: (found, newest), ..Report::default() };
    if let Err(torn) = open::refuse_torn(conn, path, fs::metadata(path).map_or(0, |there| there.len())) {
        report.flaws.push(Flaw { what: torn.to_string(), repair: BACKUP.to_owned() });
    }
    // Whoever made it went no further than its name: all the rest is made when it is next opened.
    if found == 0 && schema::is_bare(conn).map_err(|e| failure::of(path, &e))? {
        return Ok(report);
    }
    let fresh = open::fresh(if found == 0 { newest } else { found })?;
    let looks: [Look<'_>; 6] = [
        &|report| integrity(conn, report),
        &|report| shape(conn, &fresh, report),
        &|report| demands(conn, report),
        &|report| references(conn, report),
        &|report| texts(conn, &fresh, report),
        &|report| count(conn, report),
    ];
    // What is damaged may fail the very statement that looks for damage: that is a finding as well.
    for look in looks {
        match look(&mut report) {
            Ok(()) => {}
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt) => {
                report.flaws.push(Flaw { what: error.to_string(), repair: BACKUP.to_owned() });
            }
            // It asks for what is missing, as is said already.
            Err(error) if !report.flaws.is_empty() && is_the_statements(&error) => {}
            Err(error) => return Err(failure::of(path, &error)),
        }
    }
    Ok(report)
}

/// Whether the statement does not fit the schema.
fn is_the_statements(error: &rusqlite::Error) -> bool {
    matches!(error, rusqlite::Error::SqlInputError { .. }) || error.sqlite_error_code() == Some(ErrorCode::Unknown)
}

pub(super) const BACKUP: &str = "stop the server and put a backup in its place (`guildgate store restore FILE`)";

/// Pages, indexes, and the types of what is in them.
fn integrity(conn: &Connection, report: &mut Report) -> rusqlite::Result<()> {
    let mut statement = conn.prepare(&format!("PRAGMA integrity_check({MOST_FLAWS})"))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let what: String = row.get(0)?;
        if what != "ok" {
            let repair = repair_of(&what);
            report.flaws.push(Flaw { what, repair });
        }
    }
    Ok(())
}

/// What mends a line of SQLite's integrity check.
fn repair_of(what: &str) -> String {
    // An index can be made anew from its table; a table cannot.
    if what.contains("missing from index") || what.contains("entries in index") || what.contains("non-unique entry") {
        return "stop the server and run REINDEX in the sqlite3 shell".to_owned();
    }
    if what.contains("constraint failed") || what.contains("NULL value in") || what.contains(" value in ") {
        return "that row was not written by Guildgate: correct it in the sqlite3 shell".to_owned();
    }
    BACKUP.to_owned()
}

/// Tables, indexes and triggers, where this version knows which ones there ought to be.
fn shape(conn: &Connection, fresh: &Connection, report: &mut Report) -> rusqlite::Result<()> {
    let (found, newest) = report.schema;
    if found == 0 {
        let what = "which schema it has is not noted in it (refinery_schema_history)".to_owned();
        report.flaws.push(Flaw { what, repair: BACKUP.to_owned() });
    }
    if found <= newest {
        report.flaws.extend(schema::differences(conn, fresh)?.into_iter().take(MOST_FLAWS));
    }
    Ok(())
}

fn demands(conn: &Connection, report: &mut Report) -> rusqlite::Result<()> {
    for table in checks::broken(conn)? {
        let what = format!("CHECK constraint failed in {table}");
        let repair = repair_of(&what);
        report.flaws.push(Flaw { what, repair });
    }
    Ok(())
}

/// Rows that refer to what is not there: only another program, without foreign keys, leaves any.
fn references(conn: &Connection, report: &mut Report) -> rusqlite::Result<()> {
    let mut members = conn.prepare(
        "SELECT g.id, o.member FROM (SELECT guild, member FROM warn UNION SELECT guild, member FROM review) o \
         JOIN guild g ON g.no = o.guild LEFT JOIN member m ON m.guild = o.guild AND m.member = o.member \
         WHERE m.member IS NULL LIMIT ?1",
    )?;
    let mut rows = members.query([MOST_FLAWS as i64])?;
    while let Some(row) = rows.next()? {
        let (guild, member): (String, i64) = (row.get(0)?, row.get(1)?);
        report.flaws.push(Flaw {
            what: format!("guild {guild} has warns or reviews of member {member}, and not the member"),
            repair: format!("`guildgate member set --guild {guild} --member {member}` makes it anew"),
        });
    }
    // Those of the rows above whose guild is not there either have no name by which a member could be made anew.
    for table in ["member", "key", "warn", "review"] {
        let mut guilds = conn.prepare(&format!(
            "SELECT guild, count(*) FROM {table} WHERE guild NOT IN (SELECT no FROM guild) GROUP BY guild LIMIT ?1"
        ))?;
        let mut rows = guilds.query([MOST_FLAWS as i64])?;
        while let Some(row) = rows.next()? {
            let (guild, count): (i64, i64) = (row.get(0)?, row.get(1)?);
            let what = format!("table {table} has rows of guild number {guild}, which is not there: {count}");
            report.flaws.push(Flaw { what, repair: BACKUP.to_owned() });
        }
    }
    Ok(())
}

/// Text that cannot be read, in the tables of ours.
fn texts(conn: &Connection, fresh: &Connection, report: &mut Report) -> rusqlite::Result<()> {
    report.flaws.extend(text::broken(conn, &schema::tables(fresh)?, MOST_FLAWS)?);
    Ok(())
}

fn count(conn: &Connection, report: &mut Report) -> rusqlite::Result<()> {
    for table in ["guild", "member", "warn", "review", "key"] {
        let sql = format!("SELECT count(*) FROM {table}");
        let rows: i64 = conn.query_row(&sql, [], |row| row.get(0))?;
        report.rows.push((table, rows.unsigned_abs()));
    }
    Ok(())
}
