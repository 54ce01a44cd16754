//! Backup, verification and restore of a store in an SQLite file.
//!
//! A restore holds the lock that every opener takes, so that nobody opens the store meanwhile, and at no moment is the
//! store's name beside another file's write-ahead log:
//! 1. what is in the present log is written into the present file, and the log is removed; that fails if a process has the
//!    store open, or the disk is full;
//! 2. the backup is copied to a temporary file, which is synced;
//! 3. the present file gets a second name (a link), what still lies beside it (the log of a damaged file, or of none) is put
//!    aside, and the copy is renamed to the store's name.
//!
//! Killed at any step, the store's name has the previous store or the restored one, each whole.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use chrono::DateTime;
use rusqlite::{Connection, OpenFlags};

use super::sqlite::{self, inspect, is_busy, is_damage, line_of, of_io, read_unchanged};
use super::temp_file::TempFile;
use super::*;
use crate::clock::Clock;
use crate::files::{FileId, follow_links, sync_folder_of, with_suffix};

pub use super::sqlite::must_exist;

/// How many flaws are reported.
const MOST_FLAWS: usize = 100;

/// The end of the previous store's name: the time of the restore.
const KEPT: &str = ".before-restore-%Y%m%dT%H%M%S%.3fZ";

/// What is in a whole store, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The schema of the file, and the one that this version writes.
    pub schema: (i64, i64),
    /// The number of rows of each table. Empty where the file is too damaged to count them.
    pub rows: Vec<(&'static str, u64)>,
    /// What is wrong, one line for each flaw.
    pub flaws: Vec<String>,
}

/// What a restore did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Bytes of the restored store.
    pub size: u64,
    /// The name of the previous store; `None`: there was none.
    pub kept: Option<PathBuf>,
}

/// Copies the store at `from`, as it is at one moment, while others may go on writing to it. Returns the temporary file that
/// is ready to replace `to`. An older backup is replaced only with `force`.
///
/// # Errors
/// Why it cannot be copied; `to` is as it was.
pub async fn backup(from: &Path, to: &Path, force: bool) -> Result<TempFile, StoreError> {
    let paths = (from.to_owned(), to.to_owned());
    blocking(move || refuse_target(&paths.0, &paths.1, force)).await?;
    // Not on the other thread, so that a command that is interrupted removes it.
    let part = TempFile::new(to).map_err(|e| of_io(to, &e))?;
    let (from, copied) = (from.to_owned(), part.path.clone());
    blocking(move || copy(&from, &copied)).await?;
    Ok(part)
}

/// Finds what is wrong with the store or backup at `path`, and changes nothing. Blocks, for as long as reading the whole
/// file takes.
///
/// # Errors
/// Why it cannot be looked at.
pub fn verify(path: &Path) -> Result<Report, StoreError> {
    let conn = read_unchanged(path)?;
    let schema = schema(&conn, path)?;
    let flaws = flaws(&conn).or_else(|e| match line_of(path, &e) {
        busy @ StoreError::Busy(_) => Err(busy),
        damage => Ok(vec![damage.to_string()]),
    })?;
    Ok(Report { schema: (schema, sqlite::newest_schema()), rows: count_rows(&conn), flaws })
}

/// The schema of a store or backup.
fn schema(conn: &Connection, path: &Path) -> Result<i64, StoreError> {
    let empty = || StoreError::Failed(format!("{} is empty: there is no store in it", path.display()));
    inspect(conn, path)?.ok_or_else(empty)
}

/// Puts a copy of the backup `from` in the place of the store at `store`, whose file is kept under another name. Blocks.
///
/// # Errors
/// Why it was not restored; the store is as it was.
pub fn restore(from: &Path, store: &Path) -> Result<Restored, StoreError> {
    let target = follow_links(store).map_err(|e| of_io(store, &e))?;
    let _lock = sqlite::lock_folder(&target)?;
    if is_same_file(from, &target) {
        return Err(StoreError::Refused(format!("{} is the store itself; name a backup of it", from.display())));
    }
    if let Some(flaw) = verify(from)?.flaws.first() {
        let from = from.display();
        return Err(StoreError::Failed(format!("{from} is not sound: {flaw}; nothing was changed, take another one")));
    }
    let failed = |e: io::Error| StoreError::Failed(format!("{} cannot be restored: {e}", target.display()));
    let present = fs::metadata(&target).ok();
    if present.is_some() {
        close(&target)?;
    }
    let part = TempFile::new(&target).map_err(failed)?;
    copy(from, &part.path)?;
    if let Some(present) = &present {
        // A restore by root leaves the store to the user of the server.
        fchown(&part.file, Some(present.uid()), Some(present.gid())).map_err(failed)?;
    }
    let now = DateTime::from_timestamp_millis(Clock::system().unix_ms()).unwrap_or_default();
    let kept = with_suffix(&target, &now.format(KEPT).to_string());
    if present.is_some() {
        fs::hard_link(&target, &kept).map_err(failed)?;
    }
    for end in SQLITE_FILES.into_iter().filter(|end| with_suffix(&target, end).exists()) {
        fs::rename(with_suffix(&target, end), with_suffix(&kept, end)).map_err(failed)?;
    }
    sync_folder_of(&target).map_err(failed)?;
    let size = part.replace_target().map_err(failed)?;
    Ok(Restored { size, kept: present.map(|_| kept) })
}

/// Writes the log of the present store into it. A file that is no store, or damaged, is left as it is.
fn close(target: &Path) -> Result<(), StoreError> {
    let conn = Connection::open_with_flags(target, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX);
    match conn.and_then(|conn| sqlite::leave_wal(&conn)) {
        Err(e) if is_busy(&e) => Err(StoreError::Refused(format!(
            "another process has {} open: a server, or another command; stop it first. Nothing was changed",
            target.display()
        ))),
        Err(e) if !is_damage(&e) => Err(line_of(target, &e)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Copies the store or backup at `from` to the empty file `part`.
fn copy(from: &Path, part: &Path) -> Result<(), StoreError> {
    let source = read_unchanged(from)?;
    schema(&source, from)?;
    // It reads one state of the store, whole, so that a damaged one does not replace a good backup.
    // `mode=rw`: where the command was interrupted, and has removed the file already, it is not made again.
    let copied = source.execute("VACUUM INTO ?1", [sqlite::uri(part, "mode=rw")]);
    let (from, part) = (from.display(), part.display());
    copied.map(drop).map_err(|e| StoreError::Failed(format!("{from} cannot be copied to {part}: {e}")))
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    FileId::of(a).is_ok_and(|a| FileId::of(b).is_ok_and(|b| a == b))
}

/// Refuses what a backup must not replace: the store itself, a store that is open, whatever is no backup, and without
/// `force` an older backup.
fn refuse_target(from: &Path, to: &Path, force: bool) -> Result<(), StoreError> {
    let refused = |why: &str| Err(StoreError::Refused(format!("{} {why}, or name another file", to.display())));
    let file = follow_links(to).map_err(|e| of_io(to, &e))?;
    match fs::metadata(&file) {
        Err(_) => Ok(()), // whether it can be made, making it tells
        Ok(meta) if meta.is_file() && meta.len() == 0 => Ok(()),
        Ok(_) if is_same_file(from, &file) || SQLITE_FILES.iter().any(|end| with_suffix(&file, end).exists()) => {
            refused("is a store in use; stop its server")
        }
        Ok(meta) if !meta.is_file() || read_unchanged(&file).and_then(|conn| inspect(&conn, &file)).is_err() => {
            refused("is there, and is no backup of a store; move it away")
        }
        Ok(_) if force => Ok(()),
        Ok(_) => refused("is an older backup; --force replaces it"),
    }
}

/// What SQLite's own checks find.
fn flaws(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut integrity = conn.prepare(&format!("PRAGMA integrity_check({MOST_FLAWS})"))?;
    let lines = integrity.query_map([], |row| row.get::<_, String>(0))?;
    let mut flaws = lines.collect::<rusqlite::Result<Vec<_>>>()?;
    flaws.retain(|line| line != "ok");
    let sql = "SELECT \"table\", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2";
    let mut references = conn.prepare(sql)?;
    let lost = references.query_map([], |row| {
        let (table, parent, count): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(format!("table {table}: {count} rows refer to rows of table {parent} that are missing"))
    })?;
    flaws.extend(lost.collect::<rusqlite::Result<Vec<_>>>()?);
    Ok(flaws)
}

/// The number of rows of each table that there is and that can be read.
fn count_rows(conn: &Connection) -> Vec<(&'static str, u64)> {
    let count = |table| conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0));
    let counted = |table| count(table).ok().map(|rows: i64| (table, rows.unsigned_abs()));
    ["guild", "member", "note", "key"].into_iter().filter_map(counted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_device_is_replaced_by_a_backup() {
        let refused = refuse_target(Path::new("s.db"), Path::new("/dev/null"), true).unwrap_err();
        assert!(refused.to_string().contains("/dev/null is there, and is no backup of a store"), "{refused}");
    }

    #[tokio::test]
    async fn whoever_would_put_the_log_away_waits_for_a_backup() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.db");
        drop(Store::open(&StoreAt::Sqlite(path.clone()), IfMissing::Make).await.unwrap());
        assert!(!with_suffix(&path, "-wal").exists());
        let reading = read_unchanged(&path).unwrap();
        let other = Connection::open(&path).unwrap();
        assert!(is_busy(&sqlite::leave_wal(&other).unwrap_err()));
        drop(reading);
        sqlite::leave_wal(&other).unwrap();
    }
}
