//! An SQLite file as a store: from a path to one that this binary can use, or to a line that says why it cannot; and
//! connections to it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use rusqlite::config::DbConfig;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql, ffi, params_from_iter};

use super::conn::{Access, Row};
use super::*;
use crate::files::{FileId, folder_of, follow_links, sync_folder_of, with_suffix};

mod embedded {
    refinery::embed_migrations!("src/store/migrations/sqlite");
}

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

/// How often the wait above tries again.
const OPENING_POLL: Duration = Duration::from_millis(10);

/// How long a read waits while SQLite locks the file for itself (recovery after a crash). In WAL mode nothing else makes a
/// reader wait.
const RECOVERY: Duration = Duration::from_secs(1);

/// Bytes of write-ahead log kept for reuse: a usual one has 4 MiB, an import's hundreds, which are given back.
const WAL_KEPT: i64 = 16 << 20;

/// Statements kept prepared per connection: all that this module has, and room.
const STATEMENTS: usize = 64;

/// What a file is to the operator, for what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Store,
    Backup,
}

/// Makes the file if there is none and `if_missing` says so, checks that it is a store of ours, and brings its schema up to
/// date. Returns its absolute path, which file it is, and whether it is new. Blocks.
pub(super) fn prepare(path: &Path, if_missing: IfMissing) -> Result<(PathBuf, FileId, bool), StoreError> {
    // Absolute, so that no name has a special meaning to SQLite, as ":memory:" has.
    let path = std::path::absolute(path)
        .map_err(|e| StoreError::Failed(format!("'{}' is no name for a store: {e}", path.display())))?;
    // SQLite's other files are beside the file itself, and not beside a link to it.
    let file = follow_links(&path).map_err(|e| of_io(&path, &e))?;
    let _lock = lock_folder(&file)?;
    match if_missing {
        IfMissing::Make => create(&path)?,
        IfMissing::Refuse => must_exist(&path)?,
    }
    let failed = |e| line_of(&path, &e, Role::Store);
    let mut conn = connect(&path, false).map_err(failed)?;
    // The mode is checked as well, since root may write to anything.
    let is_read_only = fs::metadata(&path).is_ok_and(|file| file.permissions().readonly());
    if is_read_only || conn.is_readonly("main").map_err(failed)? {
        return Err(read_only(&path));
    }
    // Before anything is written: a database of another program stays as it is.
    let found = inspect(&conn, &path, Role::Store)?;
    if found.is_empty && if_missing == IfMissing::Refuse {
        return Err(refusals::no_store(path.display()));
    }
    if found.schema < newest_schema() {
        migrate(&mut conn, &path, found.is_empty)?;
    }
    let mode: String = conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(failed)?;
    if mode != "wal" {
        return Err(StoreError::Failed(format!(
            "{} is on a file system without shared memory, which SQLite's WAL needs; put the store on a local disk",
            path.display()
        )));
    }
    let id = FileId::of(&path).map_err(|e| of_io(&path, &e))?;
    Ok((path, id, found.is_empty))
}

/// Brings the schema up to date, beside no other process: one of an older version would not know what it finds.
fn migrate(conn: &mut Connection, path: &Path, is_empty: bool) -> Result<(), StoreError> {
    let failed = |e| line_of(path, &e, Role::Store);
    if is_empty {
        conn.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
    } else {
        leave_wal(conn).map_err(|e| match is_busy(&e) {
            true => StoreError::Failed(format!(
                "{} was written by an older Guildgate, and another process has it open; stop that process (a server, or a \
                 command) and try again: the schema is brought up to date then",
                path.display()
            )),
            false => failed(e),
        })?;
    }
    let run = embedded::migrations::runner().set_grouped(true).run(conn);
    run.map(drop).map_err(|e| StoreError::Failed(format!("{} could not be brought up to date: {e}", path.display())))
}

/// Writes what is in the write-ahead log into the file, and removes the log. Busy if any other process has the file open.
pub(super) fn leave_wal(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(Duration::ZERO)?;
    conn.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))
}

/// The state of the store at `path`. Changes nothing.
pub(super) fn state(path: &Path) -> Result<StoreState, StoreError> {
    let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if is_missing(path) {
        return Ok(StoreState::Missing);
    }
    must_exist(path)?;
    let conn = read_unchanged(path, Role::Store)?;
    let found = inspect(&conn, path, Role::Store)?;
    Ok(if found.schema == newest_schema() { StoreState::Current } else { StoreState::Older })
}

/// What a file holds.
pub(super) struct Found {
    /// Nothing: a store can be made in it.
    pub(super) is_empty: bool,
    pub(super) schema: i64,
}

/// Looks at a file; refuses one that is no store, or of a newer version, or cut short.
pub(super) fn inspect(conn: &Connection, path: &Path, role: Role) -> Result<Found, StoreError> {
    let failed = |e| line_of(path, &e, role);
    let id: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(failed)?;
    let objects: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(failed)?;
    let shown = path.display();
    if id != APPLICATION_ID && (id, objects) != (0, 0) {
        let next = if role == Role::Store { "name another file for the store" } else { "it is no backup of a store" };
        return Err(StoreError::Failed(format!("{shown} is an SQLite database of another program; {next}")));
    }
    // SQLite does not notice that a file's last page is cut. If there is a log, a crash may have cut it, and that repairs it.
    let log = follow_links(path).map(|file| with_suffix(&file, "-wal"));
    let has_log = log.is_ok_and(|log| fs::metadata(log).is_ok_and(|log| log.len() > 0));
    let page: u32 = conn.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(failed)?;
    if !has_log && fs::metadata(path).is_ok_and(|file| !file.len().is_multiple_of(page.into())) {
        return Err(damaged(path, &"its last page is cut", role));
    }
    let (schema, newest) = (schema(conn).map_err(failed)?, newest_schema());
    if schema > newest {
        return Err(refusals::newer(shown, schema, newest));
    }
    Ok(Found { is_empty: objects == 0, schema })
}

fn schema(conn: &Connection) -> rusqlite::Result<i64> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'refinery_schema_history'";
    if conn.query_row(sql, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(0);
    }
    conn.query_row("SELECT coalesce(max(version), 0) FROM refinery_schema_history", [], |row| row.get(0))
}

/// The number of the schema that this version writes.
pub(super) fn newest_schema() -> i64 {
    newest_version(&embedded::migrations::runner())
}

/// Makes processes that open, migrate or restore one store take turns. The folder is locked and not the file: closing a
/// second descriptor of the file would drop SQLite's own locks on it.
pub(super) fn lock_folder(file: &Path) -> Result<File, StoreError> {
    let folder = folder_of(file);
    let handle = File::open(&folder).map_err(|e| match e.kind() {
        ErrorKind::NotFound => StoreError::Failed(format!(
            "the folder of {} does not exist; make it (mkdir -p {}) or name another file for the store",
            file.display(),
            folder.display()
        )),
        _ => of_io(&folder, &e),
    })?;
    let (mut locked, deadline) = (handle.try_lock(), Instant::now() + OPENING);
    while matches!(locked, Err(fs::TryLockError::WouldBlock)) && Instant::now() < deadline {
        std::thread::sleep(OPENING_POLL);
        locked = handle.try_lock();
    }
    match locked {
        Ok(()) => Ok(handle),
        Err(fs::TryLockError::Error(e)) => Err(of_io(&folder, &e)),
        Err(fs::TryLockError::WouldBlock) => {
            let file = file.display();
            Err(StoreError::Busy(format!("another process has been opening or restoring {file} for a minute")))
        }
    }
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
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        // It is unknown which store was meant.
        Err(e) if e.kind() == ErrorKind::NotFound && path.is_symlink() => {
            let shown = path.display();
            return Err(StoreError::Failed(format!(
                "{shown} is a link to what is not there; put the store there, or remove it"
            )));
        }
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(refusals::no_store(path.display())),
        Err(e) => return Err(of_io(path, &e)),
    };
    if meta.is_file() {
        return Ok(());
    }
    let what = if meta.is_dir() { "is a folder; name a file in it" } else { "is not a file; name a file" };
    Err(StoreError::Failed(format!("{} {what} for the store", path.display())))
}

/// Whether nothing is at `path`, or an empty file: then no store was ever made there.
pub(super) fn is_missing(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(meta) => meta.is_file() && meta.len() == 0,
        Err(e) => e.kind() == ErrorKind::NotFound && !path.is_symlink(),
    }
}

/// Never CREATE: only [`create`] makes the file, with its mode. No mutex: only one thread uses a connection at a time.
fn connect(path: &Path, read_only: bool) -> rusqlite::Result<Connection> {
    let conn = connect_as(path, if read_only { "mode=ro" } else { "mode=rw" })?;
    conn.busy_timeout(RECOVERY)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Without it SQLite plans a statement again at each change of a parameter in its WHERE, which takes most of a read's
    // time.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(conn)
}

fn connect_as(file: &Path, how: &str) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(uri(file, how), flags)
}

/// A connection that changes no rows. It holds off those who would put the file or its log away meanwhile; but a file
/// without a log that may not be written to, or that is a backup, is read as it is. A journal is what a process that was
/// killed left of a change: it is undone first.
pub(super) fn read_unchanged(path: &Path, role: Role) -> Result<Connection, StoreError> {
    let file = follow_links(path).map_err(|e| of_io(path, &e))?;
    if !fs::metadata(&file).map_err(|e| of_io(path, &e))?.is_file() {
        return Err(StoreError::Failed(format!("{} is not a file", path.display())));
    }
    let failed = |e| line_of(path, &e, role);
    let [has_log, has_journal] = ["-wal", "-journal"].map(|end| with_suffix(&file, end).exists());
    if has_log || has_journal {
        return connect(&file, !has_journal).map_err(failed);
    }
    if role == Role::Store
        && let Some(conn) = read_beside_others(&file).map_err(failed)?
    {
        return Ok(conn);
    }
    connect_as(&file, "mode=ro&immutable=1").map_err(failed)
}

/// A file's name for SQLite, with how it is to be opened.
pub(super) fn uri(file: &Path, how: &str) -> String {
    format!("file:{}?{how}", percent_encode(file.as_os_str().as_bytes(), NON_ALPHANUMERIC))
}

/// A connection that reads, which removes the log that it makes. `None`: the file or its folder may not be written to.
fn read_beside_others(file: &Path) -> rusqlite::Result<Option<Connection>> {
    let read = || -> rusqlite::Result<Connection> {
        let conn = connect(file, false)?;
        conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        Ok(conn)
    };
    match read() {
        Ok(conn) => Ok((!conn.is_readonly("main")?).then_some(conn)),
        Err(e) => match e.sqlite_error_code() {
            Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Ok(None),
            _ => Err(e),
        },
    }
}

/// A connection of an open store.
struct SqliteConn {
    conn: Connection,
    path: PathBuf,
    file: FileId,
    serial: u64,
    /// The disk or the file failed, so that a new connection has to find out what is left.
    is_broken: bool,
}

/// Opens a connection to the store at `path`, which is this `file`. Blocks.
pub(super) fn open(path: &Path, file: FileId, access: Access) -> Result<Box<dyn Conn>, StoreError> {
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    let failed = |e| line_of(path, &e, Role::Store);
    refuse_moved(path, file)?;
    // One that reads is opened for writing too, since only such a one empties the log when it is the last that closes.
    let conn = connect(path, false).map_err(failed)?;
    if access == Access::Read {
        conn.pragma_update(None, "query_only", true).map_err(failed)?;
    } else {
        // FULL: a commit is synced before it is acknowledged (guarantee 1).
        conn.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
        conn.pragma_update(None, "foreign_keys", true).map_err(failed)?;
        conn.pragma_update(None, "journal_size_limit", WAL_KEPT).map_err(failed)?;
    }
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    Ok(Box::new(SqliteConn { conn, path: path.to_owned(), file, serial, is_broken: false }))
}

impl SqliteConn {
    fn failed(&mut self, error: &rusqlite::Error) -> StoreError {
        self.is_broken |= is_file_error(error);
        line_of(&self.path, error, Role::Store)
    }

    fn read(&self, sql: &str, params: &[Value<'_>], each: &mut dyn FnMut(Row) -> bool) -> rusqlite::Result<()> {
        let mut statement = self.conn.prepare_cached(&numbered(sql))?;
        let columns = statement.column_count();
        let mut rows = statement.query(params_from_iter(params))?;
        while let Some(row) = rows.next()? {
            let values = (0..columns).map(|at| Ok(owned(row.get_ref(at)?))).collect::<rusqlite::Result<_>>()?;
            if !each(Row(values)) {
                break;
            }
        }
        Ok(())
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
        let mut found = Vec::new();
        self.each_row(sql, params, &mut |row| {
            found.push(row);
            true
        })?;
        Ok(found)
    }

    fn execute(&mut self, sql: &str, params: &[Value<'_>]) -> Result<u64, StoreError> {
        let run = || self.conn.prepare_cached(&numbered(sql))?.execute(params_from_iter(params));
        run().map(|rows| rows as u64).map_err(|e| self.failed(&e))
    }

    fn each_row(
        &mut self,
        sql: &str,
        params: &[Value<'_>],
        each: &mut dyn FnMut(Row) -> bool,
    ) -> Result<(), StoreError> {
        self.read(sql, params, each).map_err(|e| self.failed(&e))
    }

    fn batch(&mut self, sql: &str) -> Result<(), StoreError> {
        self.execute(sql, &[]).map(drop)
    }

    fn begin(&mut self, wait: Duration) -> Result<(), StoreError> {
        self.check()?;
        self.conn.busy_timeout(wait).map_err(|e| self.failed(&e))?;
        self.batch("BEGIN IMMEDIATE")
    }

    fn begin_snapshot(&mut self) -> Result<(), StoreError> {
        self.batch("BEGIN")
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        let committed = self.conn.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
        committed.map(drop).map_err(|e| {
            self.is_broken = true;
            let line = line_of(&self.path, &e, Role::Store);
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
        let emptied =
            self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0).map(|busy: i64| busy == 0));
        match emptied.map_err(|e| self.failed(&e))? {
            true => Ok(()),
            false => {
                Err(StoreError::Busy(format!("another process is reading from {}; try again", self.path.display())))
            }
        }
    }

    fn serial(&self) -> u64 {
        self.serial
    }

    /// SQLite's calls have no deadline: whoever waits for one gives up, and its thread takes no further job.
    fn set_deadline(&mut self, _: Instant) {}

    fn is_usable(&self) -> bool {
        !self.is_broken
    }
}

fn refuse_moved(path: &Path, file: FileId) -> Result<(), StoreError> {
    match FileId::of(path) {
        Ok(now) if now == file => Ok(()),
        Err(e) if e.kind() != ErrorKind::NotFound => Err(of_io(path, &e)),
        _ => Err(StoreError::Failed(format!(
            "{} was moved away, removed or replaced while it is open; put it back, or stop the server and start it again",
            path.display()
        ))),
    }
}

/// Whether another connection's lock is all that is wrong.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Whether the file is no sound SQLite file.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
}

/// Whether the disk or the file failed, and not the statement.
fn is_file_error(error: &rusqlite::Error) -> bool {
    use ErrorCode::*;
    let codes =
        [SystemIoFailure, DiskFull, DatabaseCorrupt, NotADatabase, CannotOpen, ReadOnly, PermissionDenied, OutOfMemory];
    error.sqlite_error_code().is_some_and(|code| codes.contains(&code))
}

/// An error of SQLite: one line that says what is wrong with the file and what to do. A lock is `Busy`: SQLite reports it
/// before it writes anything.
pub(super) fn line_of(file: &Path, error: &rusqlite::Error, role: Role) -> StoreError {
    let path = file.display();
    StoreError::Failed(match (error.sqlite_error_code(), role) {
        _ if is_busy(error) => return StoreError::Busy(format!("another process is writing to {path}; try again")),
        (Some(ErrorCode::NotADatabase), Role::Store) => {
            format!("{path} is not an SQLite file; name another file for the store, or move this one away")
        }
        (Some(ErrorCode::NotADatabase), Role::Backup) => {
            format!("{path} is not an SQLite file, and so no backup of a store")
        }
        (Some(ErrorCode::DatabaseCorrupt), _) => return damaged(file, error, role),
        (Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied), _) => return read_only(file),
        (Some(ErrorCode::CannotOpen), _) => {
            format!(
                "{path} cannot be opened ({error}); check that the file and its folder belong to this user, and their modes"
            )
        }
        (Some(ErrorCode::DiskFull), _) => format!("the disk of {path} is full; make room, then try again"),
        // The first thing that SQLite needs room for, even to read.
        (Some(ErrorCode::SystemIoFailure), _)
            if error.sqlite_error().is_some_and(|e| e.extended_code == ffi::SQLITE_IOERR_SHMSIZE) =>
        {
            format!("no -shm can be made beside {path} ({error}); make room on its disk, then try again")
        }
        _ => format!("{path}: {error}"),
    })
}

/// A failure to open or read the file at `path`.
pub(super) fn of_io(path: &Path, error: &io::Error) -> StoreError {
    let shown = path.display();
    match error.kind() {
        ErrorKind::ReadOnlyFilesystem => read_only(path),
        ErrorKind::PermissionDenied => StoreError::Failed(format!(
            "{shown} may not be opened by this user; check the owners and modes of the file and its folder"
        )),
        _ => StoreError::Failed(format!("{shown}: {error}")),
    }
}

fn read_only(path: &Path) -> StoreError {
    StoreError::Failed(format!(
        "{} is read-only; make the file and its folder writable for this user (chmod, chown, or mount its disk for writing)",
        path.display()
    ))
}

pub(super) fn damaged(path: &Path, why: &dyn std::fmt::Display, role: Role) -> StoreError {
    let next = match role {
        Role::Store => "put a backup in its place (`guildgate store restore FILE`)",
        Role::Backup => "it cannot be used as a backup, so take another one",
    };
    StoreError::Failed(format!("{} is damaged or cut short ({why}); {next}", path.display()))
}
