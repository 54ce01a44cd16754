//! From a path to a store that this binary can use, or to one line that says why it cannot: makes the file, checks whose
//! it is, writes what a crash left in the WAL into it, and brings the schema up to date.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use refinery::Runner;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, ffi};

use super::failure::{self, Failure};
use super::open_file::OpenFile;
use super::{inspect, lineage, restore};
use crate::clock::Clock;
use crate::files::{folder_of, follow_links, sync_folder_of, with_suffix};
use crate::store::{IfMissing, StoreError, refusals};

mod embedded {
    refinery::embed_migrations!("src/store/sqlite/migrations");
}

/// In the file's header (`PRAGMA application_id`), says that it is Guildgate's: "Ggat" in ASCII.
pub(super) const APPLICATION_ID: i32 = 0x4767_6174;

/// Only the owner may read a store: it holds the digests of keys (contract section 2).
pub(in crate::store) const FILE_MODE: u32 = 0o600;

/// How long opening waits for another process that is opening or migrating the same store.
/// Migrating a million rows takes seconds; after a minute something hangs.
const OPENING_WAIT: Duration = Duration::from_secs(60);

/// How often the wait above tries again.
const OPENING_POLL: Duration = Duration::from_millis(10);

/// How long the statements of opening wait for a lock, such as an import's.
const OPENING_BUSY: Duration = Duration::from_secs(10);

/// Bytes of WAL kept for reuse: a usual one has 4 MiB, an import's hundreds, which are given back.
const WAL_KEPT: i64 = 16 << 20;

/// Statements kept prepared per connection: all that this module has, and room.
const STATEMENTS: usize = 64;

/// A store that [`writable`] and [`readable`] can open.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Kept until the store's own connections are open: a restore replaces a store that no process has open.
    pub(super) conn: Connection,
    pub(super) file: OpenFile,
    /// Whether what a crash left in the WAL is in the file. If it is not, the store can be read, and nothing may be
    /// written before [`checkpoint`] succeeds.
    pub(super) is_checkpointed: bool,
    /// Whether there was no store before.
    pub(super) is_new: bool,
}

/// Makes the file if there is none and `if_missing` says so, checks that it is a store of ours, and brings its schema up
/// to date.
pub(super) fn prepare(path: &Path, if_missing: IfMissing) -> Result<Prepared, StoreError> {
    try_prepare(path, if_missing).map_err(|failure| failure.at(path))
}

fn try_prepare(path: &Path, if_missing: IfMissing) -> Result<Prepared, Failure> {
    // The file itself, since SQLite's other files are beside it, and not beside a link to it.
    let file = follow_links(path)?;
    let _lock = lock_folder(&folder_of(&file), path)?;
    if let Some(outcome) = restore::finish(&file)? {
        tracing::warn!("{outcome}");
    }
    lineage::refuse_foreign_wal(path)?;
    // Each process that has it open has a WAL there.
    let had_wal = with_suffix(&file, "-wal").exists();
    match if_missing {
        IfMissing::Make => create(path)?,
        IfMissing::Refuse if is_missing(path) => return Err(refusals::no_store(path.display()).into()),
        IfMissing::Refuse => must_be_file(path)?,
    }
    let meta = fs::metadata(path)?;
    let mut conn = Connection::open_with_flags(path, flags(false))?;
    conn.busy_timeout(OPENING_BUSY)?;
    // The mode is checked as well, since root may write to anything.
    if meta.permissions().readonly() || conn.is_readonly("main")? {
        return Err(StoreError::Failed(failure::read_only(path)).into());
    }
    // Refused before anything is written: a database of another program stays as it is.
    let is_new = refuse_foreign(&conn, path)?;
    refuse_truncated(&conn, path, meta.len())?;
    if is_new {
        if if_missing == IfMissing::Refuse {
            return Err(refusals::no_store(path.display()).into());
        }
        sign(&conn)?;
    }
    let mode: String = conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(StoreError::Failed(format!(
            "{} is on a file system without shared memory, which SQLite's WAL needs; put the store on a local disk",
            path.display()
        ))
        .into());
    }
    conn.pragma_update(None, "synchronous", "FULL")?;
    let is_checkpointed = match checkpoint_after_crash(&conn) {
        Err(e) if failure::is_full(&e) && has_our_schema(&conn, path)? => false,
        other => other.map(|()| true)?,
    };
    if is_checkpointed {
        conn.busy_timeout(OPENING_BUSY)?;
        migrate(&mut conn, path)?;
        if !had_wal {
            // The last process that closes the store removes its WAL.
            drop(conn);
            lineage::renew(&file)?;
            conn = Connection::open_with_flags(path, flags(false))?;
            conn.busy_timeout(OPENING_BUSY)?;
            // The first read makes the WAL.
            lineage::of_newest_commit(&conn)?;
        }
    }
    let file = OpenFile::of(path)?;
    Ok(Prepared { conn, file, is_checkpointed, is_new })
}

/// Writes what a crash left in the WAL into the file. If an fsync failed before the crash, the kernel may hold such
/// frames in memory only and call them written; a power failure would then leave a gap before what is acknowledged after
/// them. Where other processes have the store open, this does not wait: there was no crash, or they have done it. On a
/// full disk they have not, and then the first of the two checkpoints fails here as well.
fn checkpoint_after_crash(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(Duration::ZERO)?;
    // No one waits for it, and it leaves little to the second one, for which writers wait.
    conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    checkpoint(conn).map(drop)
}

/// Writes what is in the WAL into the file, and empties the WAL; `false` where others prevented that for as long as
/// `conn` waits.
pub(super) fn checkpoint(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0).map(|busy: bool| !busy))
}

/// Notes in the file that it is Guildgate's.
pub(super) fn sign(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "application_id", APPLICATION_ID)
}

/// Refuses a database of another program. Whether it is an empty one, in which a store can be made.
pub(super) fn refuse_foreign(conn: &Connection, path: &Path) -> Result<bool, Failure> {
    let id: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let objects: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (id, objects) {
        (APPLICATION_ID, _) => Ok(false),
        (0, 0) => Ok(true),
        _ => Err(StoreError::Failed(format!(
            "{} is an SQLite database of another program; name another file for the store",
            path.display()
        ))
        .into()),
    }
}

/// Refuses a file of `size` bytes whose last page is cut, which SQLite does not detect. If there is a WAL, a crash may
/// have cut it, and the WAL repairs it.
pub(super) fn refuse_truncated(conn: &Connection, path: &Path, size: u64) -> Result<(), Failure> {
    if fs::metadata(with_suffix(&follow_links(path)?, "-wal")).is_ok_and(|wal| wal.len() > 0) {
        return Ok(());
    }
    let page: i64 = conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
    match size.is_multiple_of(page.cast_unsigned()) {
        true => Ok(()),
        false => Err(failure::damaged(path, "its last page is cut").into()),
    }
}

/// A connection that writes.
pub(in crate::store) fn writable(path: &Path) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(path, flags(false))?;
    keep_statements(&conn)?;
    // FULL: the commit is fsynced before it is acknowledged (guarantee 1).
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "journal_size_limit", WAL_KEPT)?;
    Ok(conn)
}

/// A connection that cannot write. A file that was emptied is refused: SQLite would remove the WAL beside it.
pub(in crate::store) fn readable(path: &Path, busy: Duration) -> rusqlite::Result<Connection> {
    if path.metadata().is_ok_and(|file| file.len() == 0) {
        return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), None));
    }
    let conn = Connection::open_with_flags(path, flags(true))?;
    conn.busy_timeout(busy)?;
    keep_statements(&conn)?;
    Ok(conn)
}

/// A connection to a temporary file. If that was removed meanwhile, it is not made again.
pub(in crate::store) fn temporary(path: &Path) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(path, flags(false))?;
    // It need not survive a crash, so it has no journal.
    conn.pragma_update(None, "journal_mode", "OFF")?;
    conn.pragma_update(None, "synchronous", "OFF")?;
    Ok(conn)
}

/// A connection that changes nothing, for a store to which others write. It is not opened as read-only: SQLite would
/// leave files next to a store that no other process has open.
pub(super) fn query_only(path: &Path, busy: Duration) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(path, flags(false))?;
    conn.busy_timeout(busy)?;
    conn.pragma_update(None, "query_only", true)?;
    Ok(conn)
}

/// Keeps statements prepared whatever is bound to them. Without the stability guarantee SQLite plans
/// a statement again at each change of a parameter in its WHERE, which takes most of a read's time.
pub(in crate::store) fn keep_statements(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Never CREATE: only [`create`] makes the file, with its mode. No mutex: only one thread uses a connection at a time.
pub(super) fn flags(read_only: bool) -> OpenFlags {
    let access = if read_only { OpenFlags::SQLITE_OPEN_READ_ONLY } else { OpenFlags::SQLITE_OPEN_READ_WRITE };
    access | OpenFlags::SQLITE_OPEN_NO_MUTEX
}

/// Makes two processes that open a store at once take turns. The folder is locked and not the file:
/// closing a second descriptor of the file would drop SQLite's own locks on it.
pub(super) fn lock_folder(folder: &Path, path: &Path) -> Result<File, StoreError> {
    let handle = File::open(folder).map_err(|e| match e.kind() {
        ErrorKind::NotFound => StoreError::Failed(format!(
            "the folder of {} does not exist; make it (mkdir -p {}) or name another file for the store",
            path.display(),
            folder.display()
        )),
        _ => failure::of_io(folder, &e),
    })?;
    let clock = Clock::system();
    let start = clock.now();
    loop {
        match handle.try_lock() {
            Ok(()) => return Ok(handle),
            Err(fs::TryLockError::WouldBlock) if clock.now().since(start) < OPENING_WAIT => {
                std::thread::sleep(OPENING_POLL);
            }
            Err(fs::TryLockError::WouldBlock) => {
                return Err(StoreError::Busy(format!(
                    "another process has been opening {} for a minute",
                    path.display()
                )));
            }
            Err(fs::TryLockError::Error(e)) => return Err(failure::of_io(folder, &e)),
        }
    }
}

fn create(path: &Path) -> Result<(), Failure> {
    // SQLite gives -wal and -shm the mode of the file itself.
    match OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path) {
        Ok(_) => Ok(sync_folder_of(path)?),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => must_be_file(path),
        Err(e) => Err(e.into()),
    }
}

fn must_be_file(path: &Path) -> Result<(), Failure> {
    let meta = fs::metadata(path)?;
    if meta.is_file() {
        return Ok(());
    }
    let what = if meta.is_dir() { "is a folder; name a file in it" } else { "is not a file; name a file" };
    Err(StoreError::Failed(format!("{} {what} for the store", path.display())).into())
}

/// Whether nothing is at `path`, or an empty file: then no store was ever made there.
pub(super) fn is_missing(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(meta) => meta.is_file() && meta.len() == 0,
        Err(e) => e.kind() == ErrorKind::NotFound,
    }
}

fn migrate(conn: &mut Connection, path: &Path) -> Result<(), Failure> {
    if has_our_schema(conn, path)? {
        return Ok(());
    }
    let run = embedded::migrations::runner().set_grouped(true).run(conn);
    run.map(drop)
        .map_err(|e| StoreError::Failed(format!("{} could not be brought up to date: {e}", path.display())))?;
    Ok(())
}

/// Whether the store's schema is this version's, and not an older one; a newer one is refused.
fn has_our_schema(conn: &Connection, path: &Path) -> Result<bool, Failure> {
    let (found, newest) = (schema_version(conn)?, newest_schema());
    if found > newest {
        return Err(is_newer(path, found).into());
    }
    Ok(found == newest)
}

/// Refuses a store whose schema this version does not know.
pub(super) fn is_newer(path: &Path, schema: i64) -> StoreError {
    StoreError::Failed(format!(
        "{} was written by a newer Guildgate (its schema is {schema}, this one knows {}); run that version or a later one",
        path.display(),
        newest_schema()
    ))
}

/// Whether the store at `path` has this version's schema; a file that this version cannot use as a store is
/// refused. Changes nothing.
pub(super) fn is_up_to_date(path: &Path) -> Result<bool, StoreError> {
    must_be_file(path).map_err(|failure| failure.at(path))?;
    inspect::read(path, |conn| {
        refuse_foreign(conn, path)?;
        refuse_truncated(conn, path, fs::metadata(path)?.len())?;
        has_our_schema(conn, path)
    })
}

/// An empty store in memory, of this schema.
pub(super) fn fresh(schema: i64) -> Result<Connection, StoreError> {
    let failed = |e: &dyn std::error::Error| StoreError::Failed(format!("no store could be made in memory: {e}"));
    let mut conn = Connection::open_in_memory().map_err(|e| failed(&e))?;
    let all = embedded::migrations::runner();
    let migrations: Vec<_> =
        all.get_migrations().iter().filter(|m| i64::from(m.version()) <= schema).cloned().collect();
    // Without any there is not even the table in which they are noted.
    if !migrations.is_empty() {
        Runner::new(&migrations).set_grouped(true).run(&mut conn).map_err(|e| failed(&e))?;
    }
    Ok(conn)
}

/// The number of the schema that this version writes.
pub(super) fn newest_schema() -> i64 {
    embedded::migrations::runner().get_migrations().iter().map(|m| i64::from(m.version())).max().unwrap_or(0)
}

pub(super) fn schema_version(conn: &Connection) -> rusqlite::Result<i64> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'refinery_schema_history'";
    if conn.query_row(sql, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(0);
    }
    conn.query_row("SELECT coalesce(max(version), 0) FROM refinery_schema_history", [], |row| row.get(0))
}
