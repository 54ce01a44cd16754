//! Files by their paths: which file a path names, whether it changed, where links lead, and reading with a bound.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What some editors put before a text.
pub const BYTE_ORDER_MARK: char = '\u{feff}';

/// Links followed before they are taken for a ring; Linux itself follows as many.
const MAX_LINKS: usize = 40;

/// Which file it is, whatever its name: its device and inode. A file that replaces another one has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId(u64, u64);

impl FileId {
    /// The id of the file that `path` leads to.
    pub fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|meta| FileId::from(&meta))
    }
}

impl From<&Metadata> for FileId {
    fn from(meta: &Metadata) -> Self {
        FileId(meta.dev(), meta.ino())
    }
}

/// Tells one state of a file from another: it differs after each write, and after each change of owner or mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    id: FileId,
    length: u64,
    /// Seconds and nanoseconds of the last change (ctime). Unlike the time of the content, no program can set it back.
    changed: (i64, i64),
}

impl FileState {
    /// The state of the file that `path` leads to. `None`: there is none, or the system does not let it be found.
    pub fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(FileState { id: FileId::from(&file), length: file.len(), changed: (file.ctime(), file.ctime_nsec()) })
    }

    /// Whether it is empty, and has become so after this time (Unix milliseconds).
    pub fn is_empty_since(&self, unix_ms: i64) -> bool {
        self.length == 0 && self.changed.0 * 1000 + self.changed.1 / 1_000_000 > unix_ms
    }
}

/// Everything in `source`, or `None` where that is more than `max` bytes.
pub fn read_at_most(source: impl Read, max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    source.take(max + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= max).then_some(bytes))
}

/// Everything in the regular file at `path`, or `None` where that is more than `max` bytes. Opening a pipe would wait for
/// who writes to it.
pub fn read_file(path: &Path, max: u64) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path)?.is_file() {
        true => read_at_most(File::open(path)?, max),
        false => Err(io::Error::other("it is not a file")),
    }
}

/// Whether every user of this machine may read the file.
pub fn others_may_read(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.permissions().mode() & 0o004 != 0)
}

/// The path to which the links at `path` lead, even if nothing is there. A program that writes to a link writes there.
pub fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            Ok(to) => path = folder_of(&path).join(to),
            Err(_) => return Ok(path), // it is no link
        }
    }
    Err(io::Error::other("its links form a ring"))
}

/// The folder that `path` is in.
pub fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Has the names in the folder that `path` is in on disk.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

/// `path` with `suffix` after its file name, as in `store.db-wal`.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_read_whole_or_not_at_all() {
        assert_eq!(read_at_most(&b"abc"[..], 3).unwrap(), Some(b"abc".to_vec()));
        assert_eq!(read_at_most(&b"abcd"[..], 3).unwrap(), None);
    }

    #[test]
    fn a_file_that_replaces_another_has_another_id_and_one_that_was_written_to_another_state() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&path, "1").unwrap();
        fs::write(&other, "1").unwrap();
        let (id, state) = (FileId::of(&path).unwrap(), FileState::of(&path).unwrap());
        fs::write(&path, "12").unwrap();
        assert_eq!(FileId::of(&path).unwrap(), id);
        assert_ne!(FileState::of(&path).unwrap(), state);
        fs::rename(&other, &path).unwrap();
        assert_ne!(FileId::of(&path).unwrap(), id);
    }

    #[test]
    fn links_are_followed_to_where_they_lead_and_not_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink("second", at("first")).unwrap();
        std::os::unix::fs::symlink("file", at("second")).unwrap();
        std::os::unix::fs::symlink("ring", at("ring")).unwrap();
        assert_eq!(follow_links(&at("first")).unwrap(), at("file"));
        assert!(follow_links(&at("ring")).is_err());
    }
}
