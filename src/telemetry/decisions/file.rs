//! One file of the decision record, which only one process may write: it is locked for as long as it is open. After
//! opening it has complete blocks only: an incomplete one is removed, and a damaged file is renamed. Only
//! `writer` uses it; readers open files without the lock.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::raw_blocks::{MAGIC, RawBlock, RawBlocks, RecordError};
use crate::files::FileId;

/// Why a file cannot be opened for writing.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("{}: {cause}", path.display())]
    Io { path: PathBuf, cause: io::Error },
    #[error("{} is written by another process; stop that process, or give each server its own file", .0.display())]
    Locked(PathBuf),
    #[error("{} is not a regular file; name another path", .0.display())]
    NotAFile(PathBuf),
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// The path of a record's older file: `PATH.1`.
pub fn older(path: &Path) -> PathBuf {
    let mut older = OsString::from(path);
    older.push(".1");
    older.into()
}

/// A file that only this process writes.
#[derive(Debug)]
pub(super) struct RecordFile {
    file: File,
    path: PathBuf,
    /// The end of its last complete block.
    length: u64,
}

impl RecordFile {
    /// Opens or creates the file of this path. A file that is damaged before its end cannot be continued, so it becomes
    /// the older file.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |cause| OpenError::Io { path: path.to_owned(), cause };
        let opened = lock(path)?;
        let length = opened.metadata().map_err(failed)?.len();
        let mut file = match complete_length(&opened, length, path) {
            Ok(length) => RecordFile { file: opened, path: path.to_owned(), length },
            Err(error @ RecordError::Damaged { .. }) => {
                tracing::warn!("{error}; it is kept as {}, and a new file is begun", older(path).display());
                rotate(path)?;
                RecordFile { file: lock(path)?, path: path.to_owned(), length: 0 }
            }
            Err(error) => return Err(error.into()),
        };
        if file.length < length {
            tracing::warn!(
                path = %path.display(),
                bytes = length - file.length,
                "the decision record was cut short within a block; the incomplete block was removed"
            );
            file.file.set_len(file.length).map_err(failed)?;
        }
        if file.length == 0 {
            file.append(MAGIC).map_err(failed)?;
        }
        Ok(file)
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Whether it has no block yet.
    pub(super) fn is_empty(&self) -> bool {
        self.length <= MAGIC.len() as u64
    }

    /// Whether its path still names this file.
    pub(super) fn is_in_place(&self) -> bool {
        is_same(&self.file, &self.path)
    }

    /// Whether it has the length that was written: it was not truncated, and no write was partial.
    pub(super) fn is_unchanged(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.len() == self.length)
    }

    /// Appends these bytes. A failure may leave a part of them, so the file must be opened again after it.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// Renames the file of this path to the older file, which it replaces.
pub(super) fn rotate(path: &Path) -> Result<(), OpenError> {
    match fs::rename(path, older(path)) {
        // It was moved already.
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        moved => moved.map_err(|cause| OpenError::Io { path: older(path), cause }),
    }
}

/// Opens and locks the file.
fn lock(path: &Path) -> Result<File, OpenError> {
    let failed = |cause| OpenError::Io { path: path.to_owned(), cause };
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(OpenError::NotAFile(path.to_owned())); // opening a pipe would wait
    }
    loop {
        // The record says who called and when, so other users must not read it.
        let options = OpenOptions::new().create(true).read(true).append(true).mode(0o640).open(path);
        let file = options.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::Locked(path.to_owned())),
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
        // If not, its owner renamed it between opening and locking.
        if is_same(&file, path) {
            return Ok(file);
        }
    }
}

/// Whether a path names this open file.
fn is_same(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), FileId::of(path)) else { return false };
    FileId::from(&ours) == there
}

/// The end of a file's last complete block.
fn complete_length(file: &File, length: u64, path: &Path) -> Result<u64, RecordError> {
    let mut blocks = RawBlocks::new(BufReader::new(file.take(length)), path);
    loop {
        match blocks.next()? {
            RawBlock::Content(_) => {}
            RawBlock::End | RawBlock::Incomplete => return Ok(blocks.at()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::raw_blocks;
    use super::*;

    fn block(content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        raw_blocks::put(content, &mut out);
        out
    }

    #[test]
    fn an_incomplete_last_block_is_removed_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.log");
        let whole = [MAGIC, &block(b"one")].concat();
        for length in 1..block(b"two").len() {
            fs::write(&path, [&whole, &block(b"two")[..length]].concat()).unwrap();
            let file = RecordFile::open(&path).unwrap();
            assert_eq!((file.length(), fs::read(&path).unwrap()), (whole.len() as u64, whole.clone()), "{length}");
        }
        fs::write(&path, &MAGIC[..5]).unwrap();
        assert!(RecordFile::open(&path).unwrap().is_empty());
        assert_eq!(fs::read(&path).unwrap(), MAGIC);
    }

    #[test]
    fn a_file_that_is_damaged_in_its_middle_becomes_the_older_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.log");
        let mut bytes = [MAGIC, &block(b"one"), &block(b"two")].concat();
        bytes[MAGIC.len() + 13] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(RecordFile::open(&path).unwrap().is_empty());
        assert_eq!(fs::read(&path).unwrap(), MAGIC);
        assert_eq!(fs::read(older(&path)).unwrap(), bytes);
    }

    #[test]
    fn a_file_that_is_not_a_record_is_neither_written_nor_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        fs::write(&path, "a note of somebody, long enough").unwrap();
        let error = RecordFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("notes.txt is no record of decisions"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "a note of somebody, long enough");
        let other = folder.path().join("d.log");
        fs::write(&other, "guildgate decisions 2\nwhatever").unwrap();
        assert!(RecordFile::open(&other).unwrap_err().to_string().contains("version 2"));
        for not_a_file in [folder.path(), Path::new("/dev/full")] {
            assert!(matches!(RecordFile::open(not_a_file), Err(OpenError::NotAFile(_))), "{}", not_a_file.display());
        }
        assert!(matches!(RecordFile::open(&folder.path().join("none/d.log")), Err(OpenError::Io { .. })));
    }

    #[test]
    fn a_file_has_one_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.log");
        let first = RecordFile::open(&path).unwrap();
        let error = RecordFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("d.log is written by another process"), "{error}");
        drop(first);
        RecordFile::open(&path).unwrap();
    }

    #[test]
    fn changes_by_others_are_detected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.log");
        let mut file = RecordFile::open(&path).unwrap();
        file.append(&block(b"one")).unwrap();
        assert!(file.is_unchanged() && file.is_in_place());
        fs::rename(&path, folder.path().join("moved")).unwrap();
        assert!(file.is_unchanged() && !file.is_in_place());
        OpenOptions::new().write(true).open(folder.path().join("moved")).unwrap().set_len(3).unwrap();
        assert!(!file.is_unchanged());
    }
}
