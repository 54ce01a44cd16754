//! SQLite's errors as lines for the operator: what failed, and what to do next.

use std::fmt::Display;
use std::io;
use std::path::Path;

use rusqlite::{Error, ErrorCode, ffi};

use super::access;
use crate::store::StoreError;

/// Why something could not be done with a store, before it is known which store that is.
#[derive(Debug)]
pub(in crate::store) enum Failure {
    Sqlite(Error),
    Io(io::Error),
    Store(StoreError),
}

impl Failure {
    /// The failure of the store at `path`.
    pub(in crate::store) fn at(self, path: &Path) -> StoreError {
        match self {
            Failure::Sqlite(error) => of(path, &error),
            Failure::Io(error) => of_io(path, &error),
            Failure::Store(error) => error,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Sqlite(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Io(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Store(error)
    }
}

/// Whether another connection's lock is all that is wrong.
pub(super) fn is_busy(error: &Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Whether a write failed for lack of space.
pub(super) fn is_full(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// Whether the disk or the file failed, and not the statement: nothing else in the transaction can
/// be trusted to have been written then.
pub(super) fn is_file_error(error: &Error) -> bool {
    use ErrorCode::*;
    matches!(
        error.sqlite_error_code(),
        Some(
            SystemIoFailure
                | DiskFull
                | DatabaseCorrupt
                | NotADatabase
                | CannotOpen
                | ReadOnly
                | PermissionDenied
                | OutOfMemory
                | FileLockingProtocolFailed
                | InternalMalfunction
        )
    )
}

/// An error of a store that is open. A lock is `Busy`: SQLite reports it before it writes anything.
pub(in crate::store) fn of(path: &Path, error: &Error) -> StoreError {
    if is_busy(error) {
        return StoreError::Busy(format!("another process is writing to {}; try again", path.display()));
    }
    StoreError::Failed(line(path, error))
}

/// A failure to open or read the file at `path`.
pub(super) fn of_io(path: &Path, error: &io::Error) -> StoreError {
    StoreError::Failed(match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => read_only(path),
        io::ErrorKind::PermissionDenied => access::refusal(path).unwrap_or_else(|| {
            format!("{} may not be opened by this user; check who owns the file and its folder", path.display())
        }),
        _ => format!("{}: {error}", path.display()),
    })
}

/// One line that says what is wrong with the file and what to do.
pub(super) fn line(file: &Path, error: &Error) -> String {
    let path = file.display();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => {
            format!("{path} is not an SQLite file; name another file for the store, or move this one away")
        }
        Some(ErrorCode::DatabaseCorrupt) => cut_short(&path, error),
        Some(ErrorCode::ReadOnly) if extended(error) == Some(ffi::SQLITE_READONLY_ROLLBACK) => format!(
            "{path} has a -journal beside it, of a write that was cut off; any command that opens the store, such as \
             `guildgate key list`, takes it back"
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => read_only(file),
        Some(ErrorCode::CannotOpen) => access::refusal(file).unwrap_or_else(|| {
            format!("{path} cannot be opened ({error}); check that the file and its folder belong to this user")
        }),
        Some(ErrorCode::DiskFull) => format!("the disk of {path} is full; make room, then try again"),
        // The first thing that SQLite needs room for, even to read.
        Some(ErrorCode::SystemIoFailure) if extended(error) == Some(ffi::SQLITE_IOERR_SHMSIZE) => {
            format!("no -shm can be made beside {path} ({error}); make room on its disk, then try again")
        }
        _ => format!("{path}: {error}"),
    }
}

fn extended(error: &Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}

/// What to do about a store that cannot be written to: it may be another user's.
pub(super) fn read_only(path: &Path) -> String {
    access::refusal(path).unwrap_or_else(|| {
        let path = path.display();
        format!("{path} is read-only; make the file and its folder writable (chmod u+w, or mount its disk for writing)")
    })
}

/// What to do about a damaged store.
pub(super) const RESTORE: &str = "put a backup in its place (`guildgate store restore FILE`)";

/// What to do about a file that was to be put in a store's place.
pub(super) const TAKE_ANOTHER: &str = "nothing was changed; it cannot be used as a backup, so take another one";

fn cut_short(path: &dyn Display, why: &dyn Display) -> String {
    format!("{path} is damaged or cut short ({why}); {RESTORE}")
}

pub(super) fn damaged(path: &Path, why: &str) -> StoreError {
    StoreError::Failed(cut_short(&path.display(), &why))
}
