//! Files that change while serving.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the files are looked at. A look costs two microseconds a file, and sees what a
/// watch on a folder has to piece together: editors that rename, links that are moved.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// How long a changed file must have stood unchanged before it is taken up (contract section 3).
const STANDS: Duration = Duration::from_millis(250);

/// Files whose changes are to be taken up while running: a change, and a removal.
#[derive(Debug)]
pub(super) struct Watch {
    files: Vec<File>,
    /// A change was seen, and [`Watch::done`] not called since.
    due: bool,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    /// As it was when it was last taken up; `None`: it was not there.
    taken: Option<Stamp>,
    /// As it has been since then.
    standing: Option<(Option<Stamp>, Instant)>,
}

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    /// When its content, its owner or its mode was last changed (ctime): nobody can set it back, as a copy that
    /// keeps times sets the time of the content, and `chmod` after a file that could not be read changes it too.
    changed: (i64, i64),
}

impl Stamp {
    /// `None`: not there, as in the middle of a rename.
    fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(Stamp {
            device: file.dev(),
            inode: file.ino(),
            length: file.len(),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }
}

impl Watch {
    /// Watches these files; as they are now they are taken up.
    pub(super) fn over(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let file = |path: PathBuf| File { taken: Stamp::of(&path), standing: None, path };
        Watch { files: paths.into_iter().map(file).collect(), due: false }
    }

    /// Watches these files from here on, and no others. Those that it has watched so far keep their state.
    pub(super) fn set(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        let mut before = std::mem::take(&mut self.files);
        for path in paths {
            match before.iter().position(|file| file.path == path) {
                Some(known) => self.files.push(before.swap_remove(known)),
                None if self.files.iter().any(|file| file.path == path) => {}
                None => self.files.extend(Watch::over([path]).files),
            }
        }
    }

    /// The files are about to be read as they are now, whatever they are.
    pub(super) fn take_all(&mut self) {
        let paths: Vec<PathBuf> = self.files.iter().map(|file| file.path.clone()).collect();
        *self = Watch { due: true, ..Watch::over(paths) };
    }

    /// Whether a file changed or went away, and has stood so since; until [`Watch::done`].
    pub(super) fn has_changed(&mut self, now: Instant) -> bool {
        for file in &mut self.files {
            // Every file is looked at: two that changed together are one change.
            self.due |= file.look(Stamp::of(&file.path), now);
        }
        self.due
    }

    /// What changed was read, and taken up or reported.
    pub(super) fn done(&mut self) {
        self.due = false;
    }
}

impl File {
    fn look(&mut self, stamp: Option<Stamp>, now: Instant) -> bool {
        // An empty file is more likely one that is being written than one that is meant.
        if stamp == self.taken || stamp.is_some_and(|s| s.length == 0) {
            self.standing = None;
            return false;
        }
        match self.standing {
            Some((standing, since)) if standing == stamp => {
                let taken = now.duration_since(since) >= STANDS;
                if taken {
                    (self.taken, self.standing) = (stamp, None);
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
        Some(Stamp { device: 1, inode: 1, length, changed: (0, 0) })
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
    fn an_empty_file_is_not_taken_up() {
        let mut file = File { path: PathBuf::new(), taken: stamp(1), standing: None };
        let start = Instant::now();
        for (s, ms) in [(stamp(0), 0), (stamp(0), 400), (stamp(1), 1600), (stamp(1), 2000)] {
            assert!(!file.look(s, start + Duration::from_millis(ms)));
        }
    }

    #[test]
    fn a_file_that_stays_away_is_told_once_and_again_when_it_is_back() {
        let mut file = File { path: PathBuf::new(), taken: stamp(1), standing: None };
        let start = Instant::now();
        let mut look = |s, ms| file.look(s, start + Duration::from_millis(ms));
        assert!(!look(None, 0), "this may be a rename");
        assert!(!look(stamp(1), 100));
        // What stood there before the file was missing counts for nothing.
        assert!(!look(stamp(2), 2100));
        assert!(!look(None, 2200));
        assert!(!look(stamp(2), 2400));
        assert!(!look(None, 2500));
        assert!(look(None, 2800));
        assert!(!look(None, 9000), "told once");
        assert!(!look(stamp(1), 9100));
        assert!(look(stamp(1), 9400), "the same file is back");
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
        assert!(watch.has_changed(start + STANDS), "until it is done");
        watch.done();
        assert!(!watch.has_changed(start + STANDS));
    }

    #[test]
    fn a_file_that_stays_watched_keeps_its_state() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&path, "1").unwrap();
        let mut watch = Watch::over([path.clone()]);
        fs::write(&path, "22").unwrap();
        fs::write(&other, "3").unwrap();
        watch.set([other, path]);
        let start = Instant::now();
        assert!(!watch.has_changed(start));
        assert!(watch.has_changed(start + STANDS), "its change is still to be taken up");
    }
}
