//! An SQLite file as a store: from a path to one that this binary can use, or to a line that says why it cannot; and
//! connections to it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use rusqlite::config::DbConfig;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql, params_from_iter};

use super::conn::Row;
use super::*;
use crate::clock::becomes_true;
use crate::files::{FileId, folder_of, follow_links, sync_folder_of, with_suffix};

/// How every SQLite file begins.
pub const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Threads that read for callers: so many reads that are not in memory wait for the disk at once.
pub(super) const READERS: usize = 4;

/// In the file's header (`PRAGMA application_id`), says that it is Guildgate's: "Ggat" in ASCII.
const APPLICATION_ID: i32 = 0x4767_6174;

/// Only the owner may read a store: it holds the digests of keys (contract section 2).
pub(super) const FILE_MODE: u32 = 0o600;

/// How long opening waits for another process that opens, migrates or restores the same store.
const OPENING: Duration = Duration::from_secs(60);

/// How long a read waits while SQLite locks the file for itself (recovery after a crash). In WAL mode nothing else makes a
/// reader wait.
const RECOVERY: Duration = Duration::from_secs(1);

/// Bytes of write-ahead log kept for reuse: a usual one has 4 MiB, an import's hundreds, which are given back.
const WAL_KEPT: i64 = 16 << 20;

/// Statements kept prepared per connection: all that this module has, and room.
const STATEMENTS: usize = 64;

/// Makes the file if there is none and `if_missing` says so, checks that it is a store of ours, and brings its schema up to
/// date. Returns its absolute path, which file it is, and whether it is new. Blocks.
pub(super) fn prepare(path: &Path, if_missing: IfMissing) -> Result<(PathBuf, FileId, bool), StoreError> {
    // Absolute, so that no name has a special meaning to SQLite, as ":memory:" has.
    let path = std::path::absolute(path).map_err(|e| of_io(path, &e))?;
    // SQLite's other files are beside the file itself, and not beside a link to it.
    let file = follow_links(&path).map_err(|e| of_io(&path, &e))?;
    let _lock = lock_folder(&file)?;
    match if_missing {
        IfMissing::Make => create(&path)?,
        IfMissing::Refuse => must_exist(&path)?,
    }
    let failed = |e| line_of(&path, &e);
    let shown = path.display();
    let conn = connect(&path, "mode=rw").map_err(failed)?;
    if conn.is_readonly("main").map_err(failed)? {
        return Err(StoreError::Failed(format!("{shown} is read-only; {CHECK_RIGHTS}")));
    }
    // Before anything is written: a database of another program stays as it is.
    let schema = inspect(&conn, &path)?;
    if schema.is_none() && if_missing == IfMissing::Refuse {
        return Err(refusals::no_store(shown));
    }
    if schema.is_none_or(|schema| schema < newest_schema()) {
        migrate(&conn, &path, schema)?;
    }
    let mode: String = conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(failed)?;
    if mode != "wal" {
        return Err(StoreError::Failed(format!(
            "{shown} is on a file system without shared memory; put it on a local disk"
        )));
    }
    let id = FileId::of(&path).map_err(|e| of_io(&path, &e))?;
    Ok((path, id, schema.is_none()))
}

/// Brings the schema up to date, beside no other process: one of an older version would not know what it finds.
fn migrate(conn: &Connection, path: &Path, schema: Option<i64>) -> Result<(), StoreError> {
    let prepared = match schema {
        None => conn.pragma_update(None, "application_id", APPLICATION_ID),
        Some(_) => leave_wal(conn),
    };
    prepared.map_err(|e| match is_busy(&e) {
        true => refusals::older_and_open(path.display()),
        false => line_of(path, &e),
    })?;
    let steps = migrations::statements(migrations::SQLITE, schema.unwrap_or(0));
    conn.execute_batch(&format!("BEGIN IMMEDIATE;\n{steps}COMMIT"))
        .map_err(|e| StoreError::Failed(format!("{} could not be brought up to date: {e}", path.display())))
}

/// Writes what is in the write-ahead log into the file, and removes the log. Busy if any other process has the file open.
pub(super) fn leave_wal(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(Duration::ZERO)?;
    conn.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))
}

/// The state of the store at `path`. Changes nothing.
pub(super) fn state(path: &Path) -> Result<StoreState, StoreError> {
    let path = &std::path::absolute(path).map_err(|e| of_io(path, &e))?;
    match fs::metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound && !path.is_symlink() => return Ok(StoreState::Missing),
        _ => must_exist(path)?,
    }
    let schema = inspect(&read_unchanged(path)?, path)?;
    Ok(match schema {
        None => StoreState::Missing,
        Some(schema) if schema < newest_schema() => StoreState::Older,
        Some(_) => StoreState::Current,
    })
}

/// The schema of the store in a file; `None`: the file is empty, and a store can be made in it. Refuses a file that is no
/// store, or that a newer version wrote.
pub(super) fn inspect(conn: &Connection, path: &Path) -> Result<Option<i64>, StoreError> {
    let failed = |e| line_of(path, &e);
    let id: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(failed)?;
    let number = |sql| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(failed);
    let objects = number("SELECT count(*) FROM sqlite_schema")?;
    if id != APPLICATION_ID && (id, objects) != (0, 0) {
        let path = path.display();
        return Err(StoreError::Failed(format!("{path} is an SQLite database of another program; name another file")));
    }
    if objects == 0 {
        return Ok(None);
    }
    let schema = number("SELECT coalesce(max(version), 0) FROM refinery_schema_history")?;
    let newest = newest_schema();
    if schema > newest { Err(refusals::newer(path.display(), schema, newest)) } else { Ok(Some(schema)) }
}

/// The number of the schema that this version writes.
pub(super) fn newest_schema() -> i64 {
    migrations::newest(migrations::SQLITE)
}

/// Makes processes that open, migrate or restore one store take turns. The folder is locked and not the file: closing a
/// second descriptor of the file would drop SQLite's own locks on it.
pub(super) fn lock_folder(file: &Path) -> Result<File, StoreError> {
    let folder = folder_of(file);
    let handle = File::open(&folder).map_err(|e| of_io(&folder, &e))?;
    if becomes_true(Instant::now() + OPENING, || handle.try_lock().is_ok()) {
        return Ok(handle);
    }
    let (folder, file) = (folder.display(), file.display());
    Err(StoreError::Busy(format!(
        "another process has been opening or restoring {file} for a minute, or the file system of {folder} has no locks"
    )))
}

fn create(path: &Path) -> Result<(), StoreError> {
    // SQLite gives its other files the mode of the file itself.
    match OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path) {
        Ok(_) => sync_folder_of(path).map_err(|e| of_io(path, &e)),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => must_exist(path),
        Err(e) => Err(of_io(path, &e)),
    }
}

/// Refuses a path at which there is no store, and names what to do.
///
/// # Errors
/// What is there instead, if anything.
pub fn must_exist(path: &Path) -> Result<(), StoreError> {
    match fs::metadata(path) {
        Ok(file) if file.is_file() => Ok(()),
        Ok(_) => Err(StoreError::Failed(format!("{} is not a file; name a file for the store", path.display()))),
        // Where a link leads to nothing, it is unknown which store was meant.
        Err(e) if e.kind() == ErrorKind::NotFound && !path.is_symlink() => Err(refusals::no_store(path.display())),
        Err(e) => Err(of_io(path, &e)),
    }
}

/// Never CREATE: only [`create`] makes the file, with its mode. No mutex: only one thread uses a connection at a time.
fn connect(file: &Path, how: &str) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let conn = Connection::open_with_flags(uri(file, how), flags)?;
    conn.busy_timeout(RECOVERY)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Without it SQLite plans a statement again at each change of a parameter in its WHERE, which takes most of a read's
    // time.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(conn)
}

/// A file's name for SQLite, with how it is to be opened.
pub(super) fn uri(file: &Path, how: &str) -> String {
    format!("file:{}?{how}", percent_encode(file.as_os_str().as_bytes(), NON_ALPHANUMERIC))
}

/// A connection that changes no rows. It holds off those who would put the file or its log away meanwhile; but a file that
/// may not be written to, or whose folder may not, is read as it is, unless a log or a journal is beside it.
pub(super) fn read_unchanged(path: &Path) -> Result<Connection, StoreError> {
    let failed = |e| line_of(path, &e);
    let file = follow_links(path).map_err(|e| of_io(path, &e))?;
    let [has_log, has_journal] = ["-wal", "-journal"].map(|end| with_suffix(&file, end).exists());
    // Whoever writes and closes the file last puts the log away. A journal is what a process that was killed left of a
    // change: it is undone.
    let conn = connect(&file, if has_log { "mode=ro" } else { "mode=rw" }).map_err(failed)?;
    if has_log || has_journal {
        return Ok(conn);
    }
    let may_not = match conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())) {
        Ok(()) => conn.is_readonly("main").map_err(failed)?,
        Err(e) => matches!(e.sqlite_error_code(), Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly)),
    };
    if may_not { connect(&file, "mode=ro&immutable=1").map_err(failed) } else { Ok(conn) }
}

/// A connection of an open store.
struct SqliteConn {
    conn: Connection,
    path: PathBuf,
    file: FileId,
    feed_position: Option<i64>,
    /// The disk or the file may have failed, so that a new connection has to find out what is left.
    is_broken: bool,
}

/// Opens a connection to the store at `path`, which is this `file`. Blocks.
pub(super) fn open(path: &Path, file: FileId) -> Result<Box<dyn Conn>, StoreError> {
    let failed = |e| line_of(path, &e);
    refuse_moved(path, file)?;
    // One that reads is opened for writing too, since only such a one empties the log when it is the last that closes.
    let conn = connect(path, "mode=rw").map_err(failed)?;
    // FULL: a commit is synced before it is acknowledged (guarantee 1).
    conn.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
    conn.pragma_update(None, "foreign_keys", true).map_err(failed)?;
    conn.pragma_update(None, "journal_size_limit", WAL_KEPT).map_err(failed)?;
    Ok(Box::new(SqliteConn { conn, path: path.to_owned(), file, feed_position: None, is_broken: false }))
}

impl SqliteConn {
    /// The result of a call, or its error as a line.
    fn done<T>(&mut self, called: rusqlite::Result<T>) -> Result<T, StoreError> {
        called.map_err(|error| {
            // A constraint or a lock is no fault of the disk or the file.
            self.is_broken |= !is_busy(&error) && error.sqlite_error_code() != Some(ErrorCode::ConstraintViolation);
            line_of(&self.path, &error)
        })
    }

    fn read(&self, sql: &str, params: &[Value<'_>]) -> rusqlite::Result<Vec<Row>> {
        let mut statement = self.conn.prepare_cached(&numbered(sql))?;
        let columns = statement.column_count();
        let value = |row: &rusqlite::Row<'_>, at| row.get_ref(at).map(owned);
        let row = |row: &rusqlite::Row<'_>| Ok(Row((0..columns).map(|at| value(row, at)).collect::<Result<_, _>>()?));
        statement.query_map(params_from_iter(params), row)?.collect()
    }
}

/// In SQLite `$1` is a name, and `?1` a number.
fn numbered(sql: &str) -> String {
    sql.replace('$', "?")
}

fn owned(value: ValueRef<'_>) -> Value<'static> {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Int(number),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec().into()),
        // What is not UTF-8, another program wrote.
        ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned().into()),
        ValueRef::Real(number) => Value::Text(number.to_string().into()),
    }
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Int(number) => ValueRef::Integer(*number),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl Conn for SqliteConn {
    fn rows(&mut self, sql: &str, params: &[Value<'_>]) -> Result<Vec<Row>, StoreError> {
        let found = self.read(sql, params);
        self.done(found)
    }

    fn execute(&mut self, sql: &str, params: &[Value<'_>]) -> Result<u64, StoreError> {
        let ran = self.conn.prepare_cached(&numbered(sql)).and_then(|mut run| run.execute(params_from_iter(params)));
        self.done(ran).map(|rows| rows as u64)
    }

    fn batch(&mut self, sql: &str) -> Result<(), StoreError> {
        self.execute(sql, &[]).map(drop)
    }

    fn begin(&mut self, wait: Duration) -> Result<(), StoreError> {
        self.check()?;
        let set = self.conn.busy_timeout(wait);
        self.done(set)?;
        self.batch("BEGIN IMMEDIATE")
    }

    fn begin_snapshot(&mut self) -> Result<(), StoreError> {
        self.batch("BEGIN")
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        let committed = self.conn.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
        committed.map(drop).map_err(|e| {
            self.is_broken = true;
            let line = line_of(&self.path, &e);
            // A full disk is noticed before the commit's last page is written.
            if e.sqlite_error_code() == Some(ErrorCode::DiskFull) {
                return line;
            }
            StoreError::Unknown(format!("a commit failed, and it may come back after a crash: {line}"))
        })
    }

    /// Refuses if the file was moved away or replaced: what is written would be lost.
    fn check(&mut self) -> Result<(), StoreError> {
        refuse_moved(&self.path, self.file)
    }

    /// Empties the log, and the failed commit with it: after a failed sync the kernel may hold its pages in memory only and
    /// call them written, and a power failure would leave a gap before what is acknowledged later.
    fn recover(&mut self) -> Result<(), StoreError> {
        let is_busy = self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0));
        if self.done(is_busy)? {
            return Err(StoreError::Busy(format!(
                "another process is reading from {}; try again",
                self.path.display()
            )));
        }
        Ok(())
    }

    fn feed_position(&mut self) -> &mut Option<i64> {
        &mut self.feed_position
    }

    /// SQLite's calls have no deadline: whoever waits for one gives up, and its thread takes no further job.
    fn set_deadline(&mut self, _: Instant) {}

    fn is_usable(&self) -> bool {
        !self.is_broken
    }
}

fn refuse_moved(path: &Path, file: FileId) -> Result<(), StoreError> {
    if FileId::of(path).is_ok_and(|now| now == file) {
        return Ok(());
    }
    let path = path.display();
    Err(StoreError::Failed(format!(
        "{path} was moved away, removed or replaced while it is open; put it back, or stop the server and start it again"
    )))
}

/// Whether another connection's lock is all that is wrong.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Whether the file is no sound SQLite file.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
}

/// What to check where a file cannot be used.
const CHECK_RIGHTS: &str = "check that the file, its -wal and -shm, and its folder belong to this user, their modes, and how the disk is mounted";

/// An error of SQLite: what is wrong with the file, and what to do. A lock is `Busy`: SQLite reports it before it writes
/// anything.
pub(super) fn line_of(file: &Path, error: &rusqlite::Error) -> StoreError {
    use ErrorCode::*;
    let file = file.display();
    let next = match error.sqlite_error_code() {
        _ if is_busy(error) => return StoreError::Busy(format!("another process is writing to {file}; try again")),
        Some(NotADatabase | DatabaseCorrupt) => {
            "it is no sound store; use a backup (`guildgate store verify` checks one)"
        }
        Some(CannotOpen | ReadOnly | PermissionDenied) => CHECK_RIGHTS,
        Some(DiskFull | SystemIoFailure) => "check its disk, and make room on it",
        _ => "",
    };
    StoreError::Failed(format!("{file}: {error}{}{next}", if next.is_empty() { "" } else { "; " }))
}

/// A failure to open or read the file at `path`.
pub(super) fn of_io(path: &Path, error: &io::Error) -> StoreError {
    StoreError::Failed(format!("{}: {error}; {CHECK_RIGHTS}", path.display()))
}
