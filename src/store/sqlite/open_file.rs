//! Whether the file under the store's name is still the one that was opened. It may be moved away, or another file may
//! be put in its place or copied over it: what SQLite then wrote would be lost, or would damage the other file.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;

use super::{failure, lineage};
use crate::store::StoreError;

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

/// The file of an open store, as one connection sees it.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    identity: Identity,
    /// Open for as long as the store is: closing a descriptor of the file drops SQLite's locks on it.
    file: Arc<File>,
    /// The lineage that the file's header had last.
    lineage: i32,
}

impl OpenFile {
    /// The file at `path`, in which there is a store.
    pub(super) fn of(path: &Path) -> Result<Self, StoreError> {
        let failed = |e: io::Error| StoreError::Failed(format!("{}: {e}", path.display()));
        let file = Arc::new(File::open(path).map_err(failed)?);
        let identity = Identity::of(path).map_err(failed)?;
        let lineage = lineage::of_open(&file).map_err(failed)?;
        let lineage = lineage.ok_or_else(|| StoreError::Failed(format!("{} is no SQLite file", path.display())))?;
        Ok(OpenFile { identity, file, lineage })
    }

    /// Refuses to go on where it is not the file at `path` any more, or something else is in it. `conn` tells how far
    /// the file's lineage may have come.
    pub(super) fn check(&mut self, path: &Path, conn: &Connection) -> Result<(), StoreError> {
        let refused = |why: &str| Err(StoreError::Failed(format!("{} {why}", path.display())));
        match Identity::of(path) {
            Ok(now) if now == self.identity => {}
            Ok(_) => return refused("is another file now; stop the server and start it again"),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return refused("was moved away or removed; put it back, or stop the server");
            }
            Err(e) => return Err(StoreError::Failed(format!("{}: {e}", path.display()))),
        }
        let found = lineage::of_open(&self.file).map_err(|e| StoreError::Failed(format!("{}: {e}", path.display())))?;
        let other =
            "had another file copied over it; stop the server, and see what `guildgate store verify` says of it";
        // Said before `conn` looks at it: SQLite removes the log of an empty file.
        let Some(found) = found else { return refused(other) };
        if found == self.lineage {
            return Ok(());
        }
        let newest = lineage::now(conn).map_err(|e| failure::of(path, &e))?;
        let since = |lineage: i32| lineage.wrapping_sub(self.lineage).cast_unsigned();
        if since(found) > since(newest) {
            return refused(other);
        }
        self.lineage = found;
        Ok(())
    }
}
