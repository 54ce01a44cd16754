//! Whether the files under the store's name are still those that were opened. If one is moved away, or another file is
//! put in its place or copied over it, what SQLite writes would be lost, or would damage the other file.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::Connection;

use super::failure::Failure;
use super::{failure, lineage};
use crate::files::{FileId, follow_links, with_suffix};
use crate::store::StoreError;

/// By how much the lineage of the store may rise between two checks of this process, of which there are several each
/// second. That of another file differs by more, but for one in 256. Others would have to write for hours while this
/// process is stopped.
const MOST_COMMITS: u32 = 1 << 24;

/// The files of an open store.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    path: PathBuf,
    id: FileId,
    /// The WAL and the shared memory, without which other processes do not see the WAL's commits.
    companions: Arc<[(PathBuf, FileId); 2]>,
    /// Open for as long as the store is: closing a descriptor of the file drops SQLite's locks on it.
    file: Arc<File>,
    /// The lineage that was last in the file's header. Locked during a check: of two checks the later one finds the later
    /// lineage.
    lineage: Arc<Mutex<i32>>,
}

impl OpenFile {
    /// The file at `path`, in which there is a store that a connection has open.
    pub(super) fn of(path: &Path) -> Result<Self, Failure> {
        let file = Arc::new(File::open(path)?);
        let lineage = lineage::in_header(&file)?;
        let lineage = lineage.ok_or_else(|| StoreError::Failed(format!("{} is no SQLite file", path.display())))?;
        // SQLite puts them beside the file itself, not beside a link to it.
        let real = follow_links(path)?;
        let companion = |end| -> Result<(PathBuf, FileId), Failure> {
            let name = with_suffix(&real, end);
            let id = FileId::of(&name).map_err(|e| failure::of_io(&name, &e))?;
            Ok((name, id))
        };
        Ok(OpenFile {
            path: path.to_owned(),
            id: FileId::of(path)?,
            companions: Arc::new([companion("-wal")?, companion("-shm")?]),
            file,
            lineage: Arc::new(Mutex::new(lineage)),
        })
    }

    /// The write-ahead log.
    pub(super) fn wal(&self) -> &Path {
        &self.companions[0].0
    }

    /// Refuses to go on if the files are not those that were opened, or something else is in the first one. `conn` reads
    /// up to where the lineage may have risen.
    pub(super) fn check(&self, conn: &Connection) -> Result<(), StoreError> {
        for (name, id) in &*self.companions {
            must_be_there(name, *id)?;
        }
        self.check_file(conn)
    }

    /// As [`OpenFile::check`], before what is in the WAL is written into the file at the end. A WAL that has lost its name
    /// is written as well, unless others have written to another WAL since.
    pub(super) fn check_at_end(&self, conn: &Connection) -> Result<(), StoreError> {
        let [(wal, wal_id), (shared, shared_id)] = &*self.companions;
        match is_there(wal, *wal_id) {
            Ok(true) => is_there(shared, *shared_id).map(drop)?,
            Ok(false) => {}
            Err(_) if lineage::has_no_commit(wal) => {}
            Err(other) => return Err(other),
        }
        self.check_file(conn)
    }

    fn check_file(&self, conn: &Connection) -> Result<(), StoreError> {
        must_be_there(&self.path, self.id)?;
        if self.holds_our_lineage(conn).map_err(|failure| failure.at(&self.path))? {
            return Ok(());
        }
        Err(StoreError::Failed(format!(
            "{} had another file copied over it; stop the server, and see what `guildgate store verify` reports of it",
            self.path.display()
        )))
    }

    fn holds_our_lineage(&self, conn: &Connection) -> Result<bool, Failure> {
        let mut last = self.lineage.lock();
        // Before `conn` reads anything: SQLite removes the WAL of an empty file.
        let Some(found) = lineage::in_header(&self.file)? else { return Ok(false) };
        if found == *last {
            return Ok(true);
        }
        let newest = lineage::of_newest_commit(conn)?;
        let since = |lineage: i32| lineage.wrapping_sub(*last).cast_unsigned();
        if since(found) > since(newest).min(MOST_COMMITS) {
            return Ok(false);
        }
        *last = found;
        Ok(true)
    }
}

fn must_be_there(name: &Path, id: FileId) -> Result<(), StoreError> {
    if is_there(name, id)? {
        return Ok(());
    }
    Err(StoreError::Failed(format!("{} was moved away or removed; put it back, or stop the server", name.display())))
}

/// Whether this file is under this name; `false` if there is none. Another one is refused.
fn is_there(name: &Path, id: FileId) -> Result<bool, StoreError> {
    match FileId::of(name) {
        Ok(now) if now == id => Ok(true),
        Ok(_) => Err(StoreError::Failed(format!(
            "{} is another file now; stop the server and start it again",
            name.display()
        ))),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failure::of_io(name, &e)),
    }
}
