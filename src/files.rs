//! Files by their paths: which file a path names, whether it changed, where links lead, and reading with a bound.

mod events; // changes, by inotify

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub use events::FileEvents;

/// How far the clock of a file system may be behind, in milliseconds: it goes by the system's ticks.
const CLOCK_LAG: i64 = 100;

/// What some editors put before a text.
pub const BYTE_ORDER_MARK: char = '\u{feff}';

/// The most seconds that a file system counts as one (FAT).
const COARSEST: i64 = 2;

/// Links followed before they are taken for a ring; Linux itself follows as many.
const MAX_LINKS: usize = 40;

/// Which file it is, whatever its name. A file that replaces another one has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The id of the file that `path` leads to.
    pub fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|meta| FileId::from(&meta))
    }
}

impl From<&Metadata> for FileId {
    fn from(meta: &Metadata) -> Self {
        FileId { device: meta.dev(), inode: meta.ino() }
    }
}

/// Tells one state of a file from another: it differs after each write, and after each change of owner or mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    id: FileId,
    length: u64,
    /// Seconds and nanoseconds of the last change (ctime). Unlike the time of the content, no program can set it back.
    changed: (i64, i64),
    /// How many seconds ago that was, up to [`COARSEST`], where a file system seems to count whole seconds: until then another
    /// write may have given the file the same time, so what is seen later is another state.
    age: i64,
}

impl FileState {
    /// The state of the file that `path` leads to. `now` is a moment before, in Unix milliseconds.
    pub fn of(path: &Path, now: i64) -> io::Result<Self> {
        let state = FileState::from(&fs::metadata(path)?);
        Ok(FileState { age: age(state.changed, now), ..state })
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether it is the same state, as far as can be told: only its age may be another.
    pub fn is_as_before(&self, before: &FileState) -> bool {
        FileState { age: before.age, ..*self } == *before
    }

    /// Of some file of this length.
    #[cfg(test)]
    pub(crate) fn of_length(length: u64) -> Self {
        FileState { id: FileId { device: 1, inode: 1 }, length, changed: (0, 0), age: COARSEST }
    }
}

impl From<&Metadata> for FileState {
    fn from(meta: &Metadata) -> Self {
        let changed = (meta.ctime(), meta.ctime_nsec());
        FileState { id: meta.into(), length: meta.len(), changed, age: COARSEST }
    }
}

/// The age of a file that was changed then, at `now` (Unix milliseconds). File systems that count nanoseconds give no time
/// without them, but for one in a billion.
fn age((seconds, nanoseconds): (i64, i64), now: i64) -> i64 {
    if nanoseconds == 0 { ((now - CLOCK_LAG).div_euclid(1000) - seconds).clamp(0, COARSEST) } else { COARSEST }
}

/// Everything in `source`, or `None` where that is more than `max` bytes.
pub fn read_at_most(source: impl Read, max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    source.take(max + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= max).then_some(bytes))
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
        let (id, state) = (FileId::of(&path).unwrap(), FileState::of(&path, 0).unwrap());
        fs::write(&path, "12").unwrap();
        assert_eq!(FileId::of(&path).unwrap(), id);
        assert_ne!(FileState::of(&path, 0).unwrap(), state);
        fs::rename(&other, &path).unwrap();
        assert_ne!(FileId::of(&path).unwrap(), id);
    }

    #[test]
    fn a_file_that_may_change_unseen_in_the_seconds_after_a_change_is_in_another_state_after_each() {
        let cases = [((5, 0), 4_000, 0), ((5, 0), 6_000, 0), ((5, 0), 6_000 + CLOCK_LAG, 1), ((5, 0), 9_000, 2)];
        for (changed, now, expected) in cases.into_iter().chain([((5, 1), 5_000, 2)]) {
            assert_eq!(age(changed, now), expected, "{changed:?} at {now}");
        }
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
