//! Whether the files under the store's name are still those that were opened. One may be moved away, or another file may
//! be put in its place or copied over it: what SQLite then wrote would be lost, or would damage the other file.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::Connection;

use super::{failure, lineage};
use crate::store::StoreError;
use crate::store::under_way::led_to;

/// Which file it is, however it is named: a file put in its place has another inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|meta| Identity { device: meta.dev(), inode: meta.ino() })
    }
}

/// How far the lineage of the store may come between two looks of this process, however many there are each second. That
/// of another file is further away, but for one in 256. Others would have to write for hours while this process stands
/// still.
const MOST_COMMITS: u32 = 1 << 24;

/// The files of an open store.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    path: PathBuf,
    identity: Identity,
    /// The log and the shared memory, without which others do not see what is written to the log.
    beside: Arc<[(PathBuf, Identity); 2]>,
    /// Open for as long as the store is: closing a descriptor of the file drops SQLite's locks on it.
    file: Arc<File>,
    /// The lineage that the file's header had last. Locked for as long as a look takes: of two looks the later one sees
    /// the later lineage.
    lineage: Arc<Mutex<i32>>,
}

impl OpenFile {
    /// The file at `path`, in which there is a store that a connection has open.
    pub(super) fn of(path: &Path) -> Result<Self, StoreError> {
        let failed = |e: io::Error| StoreError::Failed(format!("{}: {e}", path.display()));
        let file = Arc::new(File::open(path).map_err(failed)?);
        let lineage = lineage::of_open(&file).map_err(failed)?;
        let lineage = lineage.ok_or_else(|| StoreError::Failed(format!("{} is no SQLite file", path.display())))?;
        // SQLite puts them beside the file itself, not beside a link to it.
        let real = led_to(path).map_err(failed)?;
        let beside = |end| {
            let name = lineage::beside(&real, end);
            Identity::of(&name).map(|identity| (name, identity)).map_err(failed)
        };
        Ok(OpenFile {
            path: path.to_owned(),
            identity: Identity::of(path).map_err(failed)?,
            beside: Arc::new([beside("-wal")?, beside("-shm")?]),
            file,
            lineage: Arc::new(Mutex::new(lineage)),
        })
    }

    /// Refuses to go on where the files are not those that were opened, or something else is in the first one. `conn`
    /// tells how far the lineage may have come.
    pub(super) fn check(&self, conn: &Connection) -> Result<(), StoreError> {
        for (name, identity) in &*self.beside {
            if let Some(Missing) = still_there(name, *identity)? {
                return Err(is_missing(name));
            }
        }
        self.check_file(conn)
    }

    /// As [`OpenFile::check`], before what is in the log is written into the file at the end. It is written from a log
    /// that has lost its name as well, unless others have written to another log since.
    pub(super) fn check_at_end(&self, conn: &Connection) -> Result<(), StoreError> {
        let [(log, log_id), (shared, shared_id)] = &*self.beside;
        match still_there(log, *log_id) {
            Ok(None) => still_there(shared, *shared_id).map(drop)?,
            Ok(Some(Missing)) => {}
            Err(_) if lineage::has_no_commit(log) => {}
            Err(other) => return Err(other),
        }
        self.check_file(conn)
    }

    fn check_file(&self, conn: &Connection) -> Result<(), StoreError> {
        let path = &self.path;
        if let Some(Missing) = still_there(path, self.identity)? {
            return Err(is_missing(path));
        }
        let refused = || {
            Err(StoreError::Failed(format!(
                "{} had another file copied over it; stop the server, and see what `guildgate store verify` says of it",
                path.display()
            )))
        };
        let mut last = self.lineage.lock();
        let found = lineage::of_open(&self.file).map_err(|e| StoreError::Failed(format!("{}: {e}", path.display())))?;
        // Said before `conn` looks at it: SQLite removes the log of an empty file.
        let Some(found) = found else { return refused() };
        if found == *last {
            return Ok(());
        }
        let newest = lineage::now(conn).map_err(|e| failure::of(path, &e))?;
        let since = |lineage: i32| lineage.wrapping_sub(*last).cast_unsigned();
        if since(found) > since(newest).min(MOST_COMMITS) {
            return refused();
        }
        *last = found;
        Ok(())
    }
}

/// Nothing is under a name.
struct Missing;

/// Looks whether the file under this name is still the same.
fn still_there(name: &Path, identity: Identity) -> Result<Option<Missing>, StoreError> {
    match Identity::of(name) {
        Ok(now) if now == identity => Ok(None),
        Ok(_) => Err(StoreError::Failed(format!(
            "{} is another file now; stop the server and start it again",
            name.display()
        ))),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Some(Missing)),
        Err(e) => Err(StoreError::Failed(format!("{}: {e}", name.display()))),
    }
}

fn is_missing(name: &Path) -> StoreError {
    StoreError::Failed(format!("{} was moved away or removed; put it back, or stop the server", name.display()))
}
