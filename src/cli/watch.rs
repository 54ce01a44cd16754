use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the files are looked at. A look costs two microseconds a file, and sees what a
/// watch on a folder has to piece together: editors that rename, links that are moved.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// How long a changed file must have stood unchanged before it is taken up (contract section 3).
const STANDS: Duration = Duration::from_millis(250);

/// Files whose changes are to be taken up while running.
#[derive(Debug)]
pub(super) struct Watch(Vec<File>);

#[derive(Debug)]
struct File {
    path: PathBuf,
    /// As it was when it was last taken up.
    taken: Option<Stamp>,
    /// As it has been since then.
    standing: Option<(Stamp, Instant)>,
}

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl Stamp {
    /// `None`: not there, as in the middle of a rename.
    fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(Stamp {
            device: file.dev(),
            inode: file.ino(),
            length: file.len(),
            seconds: file.mtime(),
            nanoseconds: file.mtime_nsec(),
        })
    }
}

impl Watch {
    /// Watches these files; as they are now they are taken up.
    pub(super) fn over(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let file = |path: PathBuf| File { taken: Stamp::of(&path), standing: None, path };
        Watch(paths.into_iter().map(file).collect())
    }

    /// Watches these as well, where they are not watched yet.
    pub(super) fn look_at_too(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        for path in paths {
            if !self.0.iter().any(|file| file.path == path) {
                self.0.extend(Watch::over([path]).0);
            }
        }
    }

    /// Whether a file changed and has stood unchanged since; told once.
    pub(super) fn has_changed(&mut self, now: Instant) -> bool {
        // Every file is looked at: two that changed together are one change.
        self.0.iter_mut().filter_map(|file| file.look(Stamp::of(&file.path), now).then_some(())).count() > 0
    }
}

impl File {
    fn look(&mut self, stamp: Option<Stamp>, now: Instant) -> bool {
        // An empty file is more likely one that is being written than one that is meant.
        let Some(stamp) = stamp.filter(|s| Some(*s) != self.taken && s.length > 0) else {
            self.standing = None;
            return false;
        };
        match self.standing {
            Some((standing, since)) if standing == stamp => {
                let taken = now.duration_since(since) >= STANDS;
                if taken {
                    (self.taken, self.standing) = (Some(stamp), None);
                }
                taken
            }
            Some(_) | None => {
                self.standing = Some((stamp, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(length: u64) -> Option<Stamp> {
        Some(Stamp { device: 1, inode: 1, length, seconds: 0, nanoseconds: 0 })
    }

    #[test]
    fn a_changed_file_is_told_once_and_only_when_it_stood_still() {
        let mut file = File { path: PathBuf::new(), taken: stamp(1), standing: None };
        let start = Instant::now();
        let mut look = |s, ms| file.look(s, start + Duration::from_millis(ms));
        assert!(!look(stamp(1), 0), "nothing changed");
        assert!(!look(stamp(2), 100));
        assert!(!look(stamp(3), 300), "it changed again");
        assert!(!look(stamp(3), 500));
        assert!(look(stamp(3), 550));
        assert!(!look(stamp(3), 900), "told once");
    }

    #[test]
    fn an_empty_or_missing_file_is_not_taken_up() {
        let mut file = File { path: PathBuf::new(), taken: stamp(1), standing: None };
        let start = Instant::now();
        for (s, ms) in [(stamp(0), 0), (stamp(0), 400), (None, 800), (None, 1200), (stamp(1), 1600), (stamp(1), 2000)] {
            assert!(!file.look(s, start + Duration::from_millis(ms)));
        }
        // What stood there before the file was missing counts for nothing.
        assert!(!file.look(stamp(2), start + Duration::from_millis(2100)));
        assert!(!file.look(None, start + Duration::from_millis(2200)));
        assert!(!file.look(stamp(2), start + Duration::from_millis(2400)));
    }

    #[test]
    fn a_file_put_in_place_by_a_rename_is_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&path, "1").unwrap();
        let mut watch = Watch::over([path.clone()]);
        let start = Instant::now();
        fs::write(&other, "2").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(!watch.has_changed(start));
        assert!(watch.has_changed(start + STANDS));
    }
}
