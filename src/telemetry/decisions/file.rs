//! One file of the decision record, which only one process may write: it is locked for as long as it is open. After
//! opening it holds whole blocks only: a block that was cut short is removed, and a damaged file is put aside. Only
//! `writer` uses it; readers open files without the lock.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::frames::{Frame, Frames, MAGIC, RecordError};

/// Why a file cannot be written on.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("{}: {cause}", path.display())]
    Io { path: PathBuf, cause: io::Error },
    #[error("{} is written by another process; stop that one, or give each server a file of its own", .0.display())]
    Taken(PathBuf),
    #[error("{} is no file that can be written on; name another", .0.display())]
    NoFile(PathBuf),
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Where the older half of a record is: `PATH.1`.
pub fn older(path: &Path) -> PathBuf {
    let mut older = OsString::from(path);
    older.push(".1");
    older.into()
}

/// A file of decisions that this process, and no other, writes on.
#[derive(Debug)]
pub(super) struct RecordFile {
    file: File,
    path: PathBuf,
    /// Its length as far as it is whole.
    length: u64,
}

impl RecordFile {
    /// Opens or makes the file of this path, with nothing but whole blocks in it. One that is
    /// damaged before its end is put aside as the older half: nobody could read on in it.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |cause| OpenError::Io { path: path.to_owned(), cause };
        let opened = lock(path)?;
        let length = opened.metadata().map_err(failed)?.len();
        let mut file = match whole(&opened, length, path) {
            Ok(whole) => RecordFile { file: opened, path: path.to_owned(), length: whole },
            Err(error @ RecordError::Damaged { .. }) => {
                tracing::warn!("{error}; it is kept as {}, and another one is begun", older(path).display());
                rotate(path)?;
                RecordFile { file: lock(path)?, path: path.to_owned(), length: 0 }
            }
            Err(error) => return Err(error.into()),
        };
        if file.length < length {
            tracing::warn!(
                path = %path.display(),
                bytes = length - file.length,
                "the decision record was cut short within a block, which is taken away"
            );
            file.file.set_len(file.length).map_err(failed)?;
        }
        if file.length == 0 {
            file.append(MAGIC).map_err(failed)?;
        }
        Ok(file)
    }

    /// Bytes in it.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Whether it holds no block yet.
    pub(super) fn is_empty(&self) -> bool {
        self.length <= MAGIC.len() as u64
    }

    /// Whether its path still leads to it.
    pub(super) fn is_in_place(&self) -> bool {
        is_same(&self.file, &self.path)
    }

    /// Whether it is as long as it was left: nobody cut it, and nothing was written in part.
    pub(super) fn is_as_left(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.len() == self.length)
    }

    /// Appends these bytes. After a failure some of them may be there: the file is to be opened anew.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// Puts the file of this path aside, in place of the older half there was.
pub(super) fn rotate(path: &Path) -> Result<(), OpenError> {
    match fs::rename(path, older(path)) {
        // Somebody moved it away already.
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        moved => moved.map_err(|cause| OpenError::Io { path: older(path), cause }),
    }
}

/// Opens the file for this process alone.
fn lock(path: &Path) -> Result<File, OpenError> {
    let failed = |cause| OpenError::Io { path: path.to_owned(), cause };
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(OpenError::NoFile(path.to_owned())); // and a pipe would be waited for
    }
    loop {
        // Who asked and when is the operator's business alone.
        let options = OpenOptions::new().create(true).read(true).append(true).mode(0o640).open(path);
        let file = options.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::Taken(path.to_owned())),
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
        // Else its owner put it aside between the two.
        if is_same(&file, path) {
            return Ok(file);
        }
    }
}

/// Whether a path leads to this open file.
fn is_same(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), fs::metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}

/// How much of a file is whole blocks.
fn whole(file: &File, length: u64, path: &Path) -> Result<u64, RecordError> {
    let mut frames = Frames::new(BufReader::new(file.take(length)), path);
    loop {
        match frames.next()? {
            Frame::Content(_) => {}
            Frame::End | Frame::Cut => return Ok(frames.at()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames;
    use super::*;

    fn block(content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frames::put(content, &mut out);
        out
    }

    #[test]
    fn a_torn_end_is_cut_away_and_what_was_whole_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.log");
        let whole = [MAGIC, &block(b"one")].concat();
        for torn in 1..block(b"two").len() {
            fs::write(&path, [&whole, &block(b"two")[..torn]].concat()).unwrap();
            let file = RecordFile::open(&path).unwrap();
            assert_eq!((file.length(), fs::read(&path).unwrap()), (whole.len() as u64, whole.clone()), "{torn}");
        }
        fs::write(&path, &MAGIC[..5]).unwrap();
        assert!(RecordFile::open(&path).unwrap().is_empty());
        assert_eq!(fs::read(&path).unwrap(), MAGIC);
    }

    #[test]
    fn a_file_that_is_damaged_in_its_middle_is_put_aside_whole() {
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
    fn what_is_no_record_is_neither_written_on_nor_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        fs::write(&path, "what somebody wrote down, long enough").unwrap();
        let error = RecordFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("notes.txt is no record of decisions"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "what somebody wrote down, long enough");
        let other = folder.path().join("d.log");
        fs::write(&other, "guildgate decisions 2\nwhatever").unwrap();
        assert!(RecordFile::open(&other).unwrap_err().to_string().contains("version 2"));
        for no_file in [folder.path(), Path::new("/dev/full")] {
            assert!(matches!(RecordFile::open(no_file), Err(OpenError::NoFile(_))), "{}", no_file.display());
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
    fn a_file_that_others_touch_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.log");
        let mut file = RecordFile::open(&path).unwrap();
        file.append(&block(b"one")).unwrap();
        assert!(file.is_as_left() && file.is_in_place());
        fs::rename(&path, folder.path().join("moved")).unwrap();
        assert!(file.is_as_left() && !file.is_in_place());
        OpenOptions::new().write(true).open(folder.path().join("moved")).unwrap().set_len(3).unwrap();
        assert!(!file.is_as_left());
    }
}
