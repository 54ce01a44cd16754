//! Looking at a store without changing a byte of it or of its log. Beside one that nobody has open nothing is made;
//! where a log lies beside it, SQLite may make its -shm or write to it, which holds nothing of its own.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, OpenFlags};

use super::open::{self, Owner};
use super::{SqliteStore, failure, lineage};
use crate::store::StoreError;

/// How long a look waits for who has the file to himself, such as while he recovers it after a crash.
const BUSY: Duration = Duration::from_secs(10);

/// Looks at a file that others open and close again meanwhile; whoever serves from it keeps it open.
const LOOKS: usize = 5;

/// Runs `look` on a connection to the file at `path` that changes neither it nor its log. What nobody has open is
/// read as it is, so that it may lie where nothing can be written.
pub(super) fn at<T>(path: &Path, look: impl Fn(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
    lineage::refuse_stray(path)?;
    for _ in 0..LOOKS {
        let quiet = Quiet::of(path)?;
        let conn = match quiet {
            Some(_) => unmoving(path),
            None => open::readable(path, BUSY),
        };
        let seen = conn.map_err(|e| failure::of(path, &e)).and_then(|conn| look(&conn));
        // What was seen of a file that somebody began to write to meanwhile is of no moment, and means nothing.
        if quiet.is_none() || Quiet::of(path)? == quiet {
            return seen;
        }
    }
    Err(StoreError::Busy(format!("{} was opened and written to at each look at it; try again", path.display())))
}

impl SqliteStore {
    /// Refuses a log beside the file at `path` that is not the file's own, such as one whose file is gone.
    pub fn refuse_stray_log(path: &Path) -> Result<(), StoreError> {
        lineage::refuse_stray(path)
    }

    /// Refuses a link that leads to no file: which store was meant, nobody can say.
    pub fn refuse_lone_link(path: &Path) -> Result<(), StoreError> {
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

/// A connection to a file that nobody writes to as long as it is there: SQLite takes no lock, looks for no log and
/// makes no file beside it.
pub(super) fn unmoving(path: &Path) -> rusqlite::Result<Connection> {
    let name = percent_encode(path.as_os_str().as_bytes(), NON_ALPHANUMERIC);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(format!("file:{name}?immutable=1"), flags)
}

/// Refuses what is no store of ours.
pub(super) fn is_ours(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    match open::refuse_foreign(conn, path)? {
        Owner::Guildgate => Ok(()),
        Owner::Nobody => Err(StoreError::Failed(format!("{} is empty: there is no store in it", path.display()))),
    }
}

/// A file that nobody has open, and by what one sees that it was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quiet {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds.
    written: (i64, i64),
    changed: (i64, i64),
}

impl Quiet {
    /// `None` where a log lies beside it: somebody has it open, or died over it. Whoever writes to a store makes one
    /// first, and removes it last.
    fn of(path: &Path) -> Result<Option<Self>, StoreError> {
        let failed = |e| StoreError::Failed(format!("{}: {e}", path.display()));
        // SQLite puts it beside the file itself, not beside a link to it.
        let file = fs::canonicalize(path).map_err(failed)?;
        let there = fs::metadata(&file).map_err(failed)?;
        if !there.is_file() {
            return Err(StoreError::Failed(format!("{} is not a file", path.display())));
        }
        let has_log = ["-wal", "-journal"].iter().any(|end| {
            let mut log = OsString::from(&file);
            log.push(end);
            fs::symlink_metadata(log).is_ok()
        });
        Ok((!has_log).then(|| Quiet {
            device: there.dev(),
            inode: there.ino(),
            size: there.len(),
            written: (there.mtime(), there.mtime_nsec()),
            changed: (there.ctime(), there.ctime_nsec()),
        }))
    }
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

    fn sum(conn: &Connection) -> Result<i64, StoreError> {
        Ok(conn.query_row("SELECT sum(x) FROM t", [], |row| row.get(0)).unwrap())
    }

    #[test]
    fn a_look_sees_what_is_in_the_log_and_changes_neither_it_nor_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, conn) = store(folder.path());
        let crashed = folder.path().join("crashed.db");
        for end in ["", "-wal"] {
            let beside = |path: &Path| format!("{}{end}", path.display());
            fs::copy(beside(&path), beside(&crashed)).unwrap();
        }
        drop(conn);
        let read = || ["", "-wal"].map(|end| fs::read(format!("{}{end}", crashed.display())).unwrap());
        let before = read();
        assert!(before[1].len() > 4096);
        assert_eq!(at(&crashed, sum).unwrap(), 1);
        assert!(read() == before);
    }

    #[test]
    fn what_is_seen_while_another_begins_to_write_is_looked_at_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, conn) = store(folder.path());
        drop(conn);
        assert_eq!(at(&path, sum).unwrap(), 1);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        let (looks, other) = (Cell::new(0), Cell::new(None));
        let seen = at(&path, |conn| {
            looks.set(looks.get() + 1);
            if looks.get() == 1 {
                let conn = Connection::open(&path).unwrap();
                conn.execute_batch("INSERT INTO t VALUES (2)").unwrap();
                other.set(Some(conn));
            }
            sum(conn)
        });
        assert_eq!((seen.unwrap(), looks.get()), (3, 2));
        // One that comes and goes each time leaves no log, but another file.
        drop(other.take());
        let busy = at(&path, |conn| {
            Connection::open(&path).unwrap().execute_batch("INSERT INTO t VALUES (0)").unwrap();
            sum(conn)
        });
        assert!(matches!(busy, Err(StoreError::Busy(_))), "{busy:?}");
    }
}
