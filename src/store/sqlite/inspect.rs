//! Reads a store without changing a byte of it or of its WAL. If no process has it open, no other file is made; if it has
//! a WAL, SQLite may make its -shm or write to it, which holds no data.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, OpenFlags};

use super::failure::Failure;
use super::{SqliteStore, lineage, open};
use crate::files::{FileState, follow_links, with_suffix};
use crate::store::StoreError;

/// How long reading waits for a process that has the file for itself, such as while it recovers it after a crash.
const BUSY: Duration = Duration::from_secs(10);

/// How often a file is read again that others open and close meanwhile. A server keeps it open.
const READS: usize = 5;

/// Runs `work` on a connection to the file at `path` that changes neither it nor its WAL. A file that no process has open is
/// read as it is, so that it may be where nothing can be written.
pub(super) fn read<T>(path: &Path, mut work: impl FnMut(&Connection) -> Result<T, Failure>) -> Result<T, StoreError> {
    let mut read = || -> Result<Option<T>, Failure> {
        lineage::refuse_foreign_wal(path)?;
        for _ in 0..READS {
            let before = unused(path)?;
            let conn = match before {
                Some(_) => immutable(path),
                None => open::readable(path, BUSY),
            };
            let found = conn.map_err(Failure::from).and_then(|conn| work(&conn));
            // If a process began to write to it meanwhile, what was read is not the state of one moment.
            if before.is_none() || unused(path)? == before {
                return found.map(Some);
            }
        }
        Ok(None)
    };
    let busy =
        || StoreError::Busy(format!("{} was opened and written to at each read of it; try again", path.display()));
    read().map_err(|failure| failure.at(path))?.ok_or_else(busy)
}

impl SqliteStore {
    /// Refuses a WAL of the file at `path` that is not the file's own, such as one whose file is missing.
    pub fn refuse_foreign_wal(path: &Path) -> Result<(), StoreError> {
        lineage::refuse_foreign_wal(path)
    }

    /// Refuses a link that leads to no file: it is unknown which store was meant.
    pub fn refuse_broken_link(path: &Path) -> Result<(), StoreError> {
        let Ok(target) = fs::read_link(path) else { return Ok(()) };
        match fs::metadata(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Err(StoreError::Failed(format!(
                "{} is a link to {}, which is not there; put the store there, or remove the link",
                std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display(),
                target.display()
            ))),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// A connection to a file that no process writes to meanwhile: SQLite takes no lock, searches for no WAL and makes no
/// other file.
pub(super) fn immutable(path: &Path) -> rusqlite::Result<Connection> {
    let name = percent_encode(path.as_os_str().as_bytes(), NON_ALPHANUMERIC);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(format!("file:{name}?immutable=1"), flags)
}

/// Refuses a file that holds no store.
pub(super) fn must_be_store(conn: &Connection, path: &Path) -> Result<(), Failure> {
    match open::refuse_foreign(conn, path)? {
        false => Ok(()),
        true => Err(StoreError::Failed(format!("{} is empty: there is no store in it", path.display())).into()),
    }
}

/// The state of a file that no process has open. `None` if it has a WAL, since then a process has it open or died while it
/// had.
/// A process that writes to a store makes a WAL first, and removes it last.
fn unused(path: &Path) -> Result<Option<FileState>, Failure> {
    // SQLite has the WAL beside the file itself, not beside a link to it.
    let file = follow_links(path)?;
    let meta = fs::metadata(&file)?;
    if !meta.is_file() {
        return Err(StoreError::Failed(format!("{} is not a file", path.display())).into());
    }
    let has_journal = ["-wal", "-journal"].iter().any(|end| fs::symlink_metadata(with_suffix(&file, end)).is_ok());
    Ok((!has_journal).then(|| FileState::from(&meta)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn store(folder: &Path) -> (std::path::PathBuf, Connection) {
        // A name that means something else in a URI.
        let path = folder.join("a b?mode=rw#%41.db");
        let conn = Connection::open(&path).unwrap();
        conn.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (x); INSERT INTO t VALUES (1)").unwrap();
        (path, conn)
    }

    fn sum(conn: &Connection) -> Result<i64, Failure> {
        Ok(conn.query_row("SELECT sum(x) FROM t", [], |row| row.get(0)).unwrap())
    }

    #[test]
    fn a_read_sees_what_is_in_the_wal_and_changes_neither_it_nor_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, conn) = store(folder.path());
        let crashed = folder.path().join("crashed.db");
        for end in ["", "-wal"] {
            let beside = |path: &Path| format!("{}{end}", path.display());
            fs::copy(beside(&path), beside(&crashed)).unwrap();
        }
        drop(conn);
        let content = || ["", "-wal"].map(|end| fs::read(format!("{}{end}", crashed.display())).unwrap());
        let before = content();
        assert!(before[1].len() > 4096);
        assert_eq!(read(&crashed, sum).unwrap(), 1);
        assert!(content() == before);
    }

    #[test]
    fn what_is_read_while_another_begins_to_write_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, conn) = store(folder.path());
        drop(conn);
        assert_eq!(read(&path, sum).unwrap(), 1);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        let (reads, other) = (Cell::new(0), Cell::new(None));
        let found = read(&path, |conn| {
            reads.set(reads.get() + 1);
            if reads.get() == 1 {
                let conn = Connection::open(&path).unwrap();
                conn.execute_batch("INSERT INTO t VALUES (2)").unwrap();
                other.set(Some(conn));
            }
            sum(conn)
        });
        assert_eq!((found.unwrap(), reads.get()), (3, 2));
        // A program that opens and closes it each time leaves no WAL, but the file has changed.
        drop(other.take());
        let busy = read(&path, |conn| {
            Connection::open(&path).unwrap().execute_batch("INSERT INTO t VALUES (0)").unwrap();
            sum(conn)
        });
        assert!(matches!(busy, Err(StoreError::Busy(_))), "{busy:?}");
    }
}
