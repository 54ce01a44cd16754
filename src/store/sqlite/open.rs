//! From a path to a store that this binary can use, or to one line that says why not.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use refinery::Runner;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::open_file::OpenFile;
use super::{access, failure, lineage, look, restore};
use crate::clock::Clock;
use crate::store::under_way::led_to;
use crate::store::{IfMissing, StoreError, refusals};

mod embedded {
    refinery::embed_migrations!("src/store/sqlite/migrations");
}

/// Stands in the file's header (`PRAGMA application_id`) and says whose it is: "Ggat" in ASCII.
pub(super) const APPLICATION_ID: i32 = 0x4767_6174;

/// Only the owner may read a store: it holds the digests of keys (contract section 2).
pub(in crate::store) const FILE_MODE: u32 = 0o600;

/// How long opening waits for another process that is opening or migrating the same store.
/// Migrating a million rows takes seconds; a minute says that something hangs.
const OPENING_WAIT: Duration = Duration::from_secs(60);

/// How often the wait above looks again.
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
    /// Open until the store's own connections are: a restore takes a store that nobody has open.
    pub(super) conn: Connection,
    pub(super) file: OpenFile,
    /// Whether what a crash left is in the file. If it is not, it can be read, and nothing may be written before
    /// [`is_settled`] says that it is.
    pub(super) settled: bool,
    /// Whether there was no store before.
    pub(super) is_new: bool,
}

/// Makes the file where there is none, if `if_missing` says so, checks that it is a store of ours, and brings its
/// schema up to date.
pub(super) fn prepare(path: &Path, if_missing: IfMissing) -> Result<Prepared, StoreError> {
    // That of the file itself: it may be known by other names as well.
    let file = led_to(path).map_err(|e| failed(path, &e))?;
    let _alone = lock_folder(&folder_of(&file), path)?;
    if let Some(told) = restore::finish(&file).map_err(|e| failed(path, &e))? {
        tracing::warn!("{told}");
    }
    lineage::refuse_stray(path)?;
    // Whoever has it open has a log there.
    let had_log = lineage::beside(&file, "-wal").exists();
    match if_missing {
        IfMissing::Make => create(path)?,
        IfMissing::Refuse if is_missing(path) => return Err(refusals::no_store(path.display())),
        IfMissing::Refuse => must_be_file(path)?,
    }
    let meta = fs::metadata(path).map_err(|e| failed(path, &e))?;
    // Said from the mode and not from a failed write, since root may write to anything.
    if meta.permissions().readonly() {
        return Err(StoreError::Failed(failure::read_only(path)));
    }
    let mut conn = Connection::open_with_flags(path, flags(false)).map_err(|e| failure::of(path, &e))?;
    conn.busy_timeout(OPENING_BUSY).map_err(|e| failure::of(path, &e))?;
    let read_only = conn.is_readonly("main").map_err(|e| failure::of(path, &e))?;
    if read_only {
        return Err(StoreError::Failed(failure::read_only(path)));
    }
    // Refused before anything is written: a database of another program stays as it is.
    let owner = refuse_foreign(&conn, path)?;
    refuse_torn(&conn, path, meta.len())?;
    let is_new = owner == Owner::Nobody;
    if is_new {
        if if_missing == IfMissing::Refuse {
            return Err(refusals::no_store(path.display()));
        }
        sign(&conn).map_err(|e| failure::of(path, &e))?;
    }
    let mode: String = conn
        .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))
        .map_err(|e| failure::of(path, &e))?;
    if mode != "wal" {
        return Err(StoreError::Failed(format!(
            "{} lies on a file system without shared memory, which SQLite's WAL needs; put the store on a local disk",
            path.display()
        )));
    }
    conn.pragma_update(None, "synchronous", "FULL").map_err(|e| failure::of(path, &e))?;
    let settled = match settle(&conn) {
        Err(e) if failure::is_full(&e) && has_our_schema(&conn, path)? => false,
        other => other.map(|()| true).map_err(|e| failure::of(path, &e))?,
    };
    if settled {
        conn.busy_timeout(OPENING_BUSY).map_err(|e| failure::of(path, &e))?;
        migrate(&mut conn, path)?;
        if !had_log {
            // The last one to close it takes the log away.
            drop(conn);
            lineage::renew(&file)?;
            conn = Connection::open_with_flags(path, flags(false)).map_err(|e| failure::of(path, &e))?;
            conn.busy_timeout(OPENING_BUSY).map_err(|e| failure::of(path, &e))?;
            // From the first read on it has a log.
            lineage::now(&conn).map_err(|e| failure::of(path, &e))?;
        }
    }
    let file = OpenFile::of(path)?;
    Ok(Prepared { conn, file, settled, is_new })
}

/// Writes what a crash left in the WAL into the file. Where an fsync failed before the crash, the kernel
/// may hold such frames in memory only and call them written; what is acknowledged after them would be
/// behind a gap if the power failed. Beside other processes it is not tried for long: there was no crash,
/// or they have settled it. On a full disk they have not, and then the first of the two fails here as well.
fn settle(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(Duration::ZERO)?;
    // It holds nobody up, and leaves little to the other, behind which writes wait.
    conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    is_settled(conn).map(drop)
}

/// Writes what is in the WAL into the file, and empties it; `false` where others kept it from that for as long as
/// `conn` waits.
pub(super) fn is_settled(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0).map(|busy: bool| !busy))
}

/// Says in the file whose it is.
pub(super) fn sign(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "application_id", APPLICATION_ID)
}

/// Whose a file is, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Guildgate,
    /// An empty file, in which a store can be made.
    Nobody,
}

/// Refuses a database of another program.
pub(super) fn refuse_foreign(conn: &Connection, path: &Path) -> Result<Owner, StoreError> {
    let shape = || -> rusqlite::Result<(i32, i64)> {
        let owner = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
        Ok((owner, conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?))
    };
    match shape().map_err(|e| failure::of(path, &e))? {
        (APPLICATION_ID, _) => Ok(Owner::Guildgate),
        (0, 0) => Ok(Owner::Nobody),
        _ => Err(StoreError::Failed(format!(
            "{} is an SQLite database of another program; name another file for the store",
            path.display()
        ))),
    }
}

/// SQLite sees that pages are missing, but not that the last one is cut. Beside a WAL that may be
/// a crash's doing, which the WAL mends.
pub(super) fn refuse_torn(conn: &Connection, path: &Path, size: u64) -> Result<(), StoreError> {
    // SQLite puts it beside the file itself, not beside a link to it.
    let mut wal = fs::canonicalize(path).map_err(|e| failed(path, &e))?.into_os_string();
    wal.push("-wal");
    if fs::metadata(wal).is_ok_and(|wal| wal.len() > 0) {
        return Ok(());
    }
    let page: i64 = conn.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(|e| failure::of(path, &e))?;
    if size.is_multiple_of(page.cast_unsigned()) { Ok(()) } else { Err(failure::damaged(path, "its last page is cut")) }
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

/// A connection that cannot write.
pub(in crate::store) fn readable(path: &Path, busy: Duration) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(path, flags(true))?;
    conn.busy_timeout(busy)?;
    keep_statements(&conn)?;
    Ok(conn)
}

/// A connection to a file that is under way. One that an interruption has just removed is not made anew by it.
pub(in crate::store) fn under_way(path: &Path) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(path, flags(false))?;
    // Thrown away after a crash, so nothing is spent on surviving one.
    conn.pragma_update(None, "journal_mode", "OFF")?;
    conn.pragma_update(None, "synchronous", "OFF")?;
    Ok(conn)
}

/// A connection that changes nothing beside others who write. It is not opened as read-only: SQLite would leave
/// files behind beside a store that nobody else has open.
pub(super) fn untouching(path: &Path, busy: Duration) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(path, flags(false))?;
    conn.busy_timeout(busy)?;
    conn.pragma_update(None, "query_only", true)?;
    Ok(conn)
}

/// Statements stay prepared whatever is bound to them. Without the stability guarantee SQLite plans
/// a statement anew at each change of a parameter in its WHERE, which is most of a read's time.
pub(in crate::store) fn keep_statements(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Never CREATE: making the file is [`create`]'s, with its mode. No mutex: a connection is one
/// thread's at a time by construction.
pub(super) fn flags(read_only: bool) -> OpenFlags {
    let access = if read_only { OpenFlags::SQLITE_OPEN_READ_ONLY } else { OpenFlags::SQLITE_OPEN_READ_WRITE };
    access | OpenFlags::SQLITE_OPEN_NO_MUTEX
}

pub(in crate::store) fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Two processes that open a new store at once take turns. The folder is locked and not the file:
/// closing a second descriptor of the file would drop SQLite's own locks on it.
pub(super) fn lock_folder(folder: &Path, path: &Path) -> Result<File, StoreError> {
    let handle = File::open(folder).map_err(|e| match e.kind() {
        ErrorKind::NotFound => StoreError::Failed(format!(
            "the folder of {} does not exist; make it (mkdir -p {}) or name another file for the store",
            path.display(),
            folder.display()
        )),
        _ => failed(folder, &e),
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
            Err(fs::TryLockError::Error(e)) => return Err(failed(folder, &e)),
        }
    }
}

/// Has the names of what lies beside a store on disk, and its own.
pub(super) fn sync_folder(path: &Path) -> Result<(), StoreError> {
    // SQLite's files are beside the file itself, not beside a link to it.
    let folder = fs::canonicalize(path).map(|file| folder_of(&file)).map_err(|e| failed(path, &e))?;
    File::open(&folder).and_then(|handle| handle.sync_all()).map_err(|e| failed(&folder, &e))
}

fn create(path: &Path) -> Result<(), StoreError> {
    // -wal and -shm get the mode of the file itself, from SQLite.
    match OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path) {
        Ok(_) => sync_folder(path),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => must_be_file(path),
        Err(e) => Err(failed(path, &e)),
    }
}

fn must_be_file(path: &Path) -> Result<(), StoreError> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() => Ok(()),
        Ok(meta) if meta.is_dir() => {
            Err(StoreError::Failed(format!("{} is a folder; name a file in it for the store", path.display())))
        }
        Ok(_) => Err(StoreError::Failed(format!("{} is not a file; name a file for the store", path.display()))),
        Err(e) => Err(failed(path, &e)),
    }
}

/// Whether nothing is at `path`, or an empty file: then no store was ever made there.
pub(super) fn is_missing(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(there) => there.is_file() && there.len() == 0,
        Err(e) => e.kind() == ErrorKind::NotFound,
    }
}

fn failed(path: &Path, error: &io::Error) -> StoreError {
    StoreError::Failed(match error.kind() {
        ErrorKind::ReadOnlyFilesystem => failure::read_only(path),
        ErrorKind::PermissionDenied => access::refusal(path).unwrap_or_else(|| {
            format!("{} may not be opened by this user; check who owns the file and its folder", path.display())
        }),
        _ => format!("{}: {error}", path.display()),
    })
}

fn migrate(conn: &mut Connection, path: &Path) -> Result<(), StoreError> {
    if has_our_schema(conn, path)? {
        return Ok(());
    }
    let run = embedded::migrations::runner().set_grouped(true).run(conn);
    run.map(drop).map_err(|e| StoreError::Failed(format!("{} could not be brought up to date: {e}", path.display())))
}

/// Whether the store's schema is this version's, and not an older one; a newer one is refused.
fn has_our_schema(conn: &Connection, path: &Path) -> Result<bool, StoreError> {
    let (found, newest) = (schema_version(conn).map_err(|e| failure::of(path, &e))?, newest_schema());
    if found > newest {
        return Err(StoreError::Failed(is_newer(path, found)));
    }
    Ok(found == newest)
}

/// What is said of a store whose schema this version does not know.
pub(super) fn is_newer(path: &Path, schema: i64) -> String {
    format!(
        "{} was written by a newer Guildgate (its schema is {schema}, this one knows {}); run that version or a later one",
        path.display(),
        newest_schema()
    )
}

/// Whether the store at `path` has this version's schema; what is no store that this version can use is
/// refused. Nothing is changed by looking.
pub(super) fn is_up_to_date(path: &Path) -> Result<bool, StoreError> {
    let there = fs::metadata(path).map_err(|e| failed(path, &e))?;
    if !there.is_file() {
        return Err(StoreError::Failed(format!("{} is not a file; name a file for the store", path.display())));
    }
    look::at(path, |conn| {
        refuse_foreign(conn, path)?;
        refuse_torn(conn, path, there.len())?;
        has_our_schema(conn, path)
    })
}

/// An empty store in memory, of as old a schema as is asked for.
pub(super) fn fresh(schema: i64) -> Result<Connection, StoreError> {
    let failed = |e: &dyn std::error::Error| StoreError::Failed(format!("no store could be made in memory: {e}"));
    let mut conn = Connection::open_in_memory().map_err(|e| failed(&e))?;
    let all = embedded::migrations::runner();
    let migrations: Vec<_> =
        all.get_migrations().iter().filter(|m| i64::from(m.version()) <= schema).cloned().collect();
    // Of none there is not even the table in which they are noted.
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
