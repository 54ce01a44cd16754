//! Notices changes of files while serving: they are checked when the system tells that one may have changed, and twice a
//! second in any case. A change counts once the file has stayed the same for a while (contract section 3).

mod checks; // when files are to be checked
mod file; // one file

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use self::file::{Change, WatchedFile};
use crate::clock::Clock;
use crate::files::FileState;

pub(super) use checks::tell_when_to_check;

/// How long a changed file must have stayed the same before its change counts (contract section 3).
pub(super) const SETTLE_TIME: Duration = Duration::from_millis(250);

/// How long a file may be empty before the log says that its reload waits.
const EMPTY_REPORT: Duration = Duration::from_secs(2);

/// How many threads may look at the files of a part, or read them, at a time. One that hangs keeps its thread; another one
/// may not hang, as after a file system was mounted anew. The runtime has 512 for everything.
const MAX_READERS: usize = 64;

/// After how many seconds another thread tries where one hangs; each that hangs doubles it, this often.
const FIRST_RETRY: u64 = 1;
const MOST_DOUBLINGS: u32 = 6;

/// The states of some files; `None`: a file was missing.
pub(super) type FileStates = Vec<(PathBuf, Option<FileState>)>;

/// Looks at files, which may take for ever.
pub(super) fn look_at(paths: impl IntoIterator<Item = PathBuf>) -> FileStates {
    let clock = Clock::system();
    let state = |path: PathBuf| {
        let state = FileState::of(&path, clock.unix_ms()).ok();
        (path, state)
    };
    paths.into_iter().map(state).collect()
}

/// Whether it is the same state of a file, as far as can be told.
pub(super) fn is_same(before: Option<FileState>, after: Option<FileState>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => after.is_as_before(&before),
        (before, after) => before.is_none() && after.is_none(),
    }
}

/// Watches files for changes, removals included.
#[derive(Clone, Debug, Default)]
pub(super) struct FileWatch {
    files: Vec<WatchedFile>,
    readers: Readers,
}

#[derive(Clone, Debug)]
struct Readers {
    free: Arc<Semaphore>,
    /// A read took too long, and is to be done again.
    reads_again: Arc<Notify>,
}

impl Default for Readers {
    fn default() -> Self {
        Readers { free: Arc::new(Semaphore::new(MAX_READERS)), reads_again: Arc::default() }
    }
}

impl FileWatch {
    /// Watches these files for changes from now on.
    pub(super) fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        FileWatch::of(look_at(paths))
    }

    /// Watches these files for changes since they were in these states.
    pub(super) fn of(states: FileStates) -> Self {
        let files = states.into_iter().map(|(path, state)| WatchedFile::of(path, state)).collect();
        FileWatch { files, readers: Readers::default() }
    }

    /// Waits until a thread may look at the files or read them. The thread keeps what this returns until it has ended.
    pub(super) fn reader(&self) -> impl Future<Output = Option<OwnedSemaphorePermit>> + Send + use<> {
        let readers = self.readers.free.clone();
        async { readers.acquire_owned().await.ok() } // it is never closed
    }

    /// How long a look or a read may take until another one begins: what hangs may be another file by then.
    pub(super) fn retry_after(&self) -> Duration {
        let hanging = MAX_READERS - self.readers.free.available_permits();
        let doublings = u32::try_from(hanging).unwrap_or(u32::MAX).min(MOST_DOUBLINGS);
        Duration::from_secs(FIRST_RETRY << doublings)
    }

    /// Notified where the files are to be read again because that took too long.
    pub(super) fn reads_again(&self) -> Arc<Notify> {
        self.readers.reads_again.clone()
    }

    /// Watches these files and no others. Files that this or `other` watches already keep their state.
    pub(super) fn set_files(&mut self, paths: impl IntoIterator<Item = PathBuf>, other: Option<&FileWatch>) {
        let before = std::mem::take(&mut self.files);
        for path in paths {
            let is_same = |file: &&WatchedFile| file.path == path;
            if self.files.iter().any(|file| file.path == path) {
                continue;
            }
            match before.iter().chain(other.into_iter().flat_map(|other| &other.files)).find(is_same) {
                Some(file) => self.files.push(WatchedFile { delays: true, ..file.clone() }),
                None => self.files.extend(FileWatch::new([path]).files),
            }
        }
        if !before.iter().map(|file| &file.path).eq(self.files.iter().map(|file| &file.path)) {
            self.readers = Readers::default(); // those that hang may do so at a file that is not watched any more
        }
    }

    /// From now on a reload waits for no other files than these; a change of the others causes one all the same.
    pub(super) fn wait_only_for(&mut self, paths: &[PathBuf]) {
        self.files.iter_mut().for_each(|file| file.delays = paths.contains(&file.path));
    }

    /// Watches no file any more for which no reload waits, since a look at one does not end. The next reload, which is caused
    /// by this, finds out whether it needs that file.
    pub(super) fn drop_others(&mut self) {
        let count = self.files.len();
        self.files.retain(|file| file.delays);
        if self.files.len() < count {
            self.readers = Readers::default();
            self.forget_read();
        }
    }

    /// The states in which the files were read last, or are being read.
    pub(super) fn read(&self) -> FileStates {
        self.files.iter().map(|file| (file.path.clone(), file.read)).collect()
    }

    /// Forgets earlier changes, because these files are about to be read.
    pub(super) fn reset(&mut self, now: FileStates) {
        for (path, state) in now {
            for file in self.files.iter_mut().filter(|file| file.path == path) {
                *file = WatchedFile { delays: file.delays, ..WatchedFile::of(path.clone(), state) };
            }
        }
    }

    /// What was read of the files counts for nothing: they are read again once they have stayed the same for a while.
    pub(super) fn forget_read(&mut self) {
        self.files.iter_mut().for_each(|file| file.is_unread = true);
    }

    /// Whether a file has changed or was removed, and all files that a reload waits for have stayed the same for a while:
    /// none of them is read while another is being written. Each change is reported once. `states`: those of all files
    /// at `now`; if others are watched by now, nothing has changed.
    pub(super) fn has_changed(&mut self, states: &FileStates, now: Instant) -> bool {
        let (mut may_read, mut has_changed) = (true, false);
        if !self.paths().eq(states.iter().map(|(path, _)| path.clone())) {
            return false;
        }
        for (file, (_, state)) in self.files.iter_mut().zip(states) {
            file.is_settled = file.has_settled(*state, now);
            may_read &= file.is_settled || !file.delays;
        }
        if may_read {
            for file in self.files.iter_mut().filter(|file| file.is_settled) {
                has_changed |= file.accept();
            }
        }
        has_changed
    }

    /// When all files that have changed will have stayed the same for long enough, if they stay in these states, in which they
    /// are at `now`; `None`: none has changed.
    pub(super) fn settles_at(&self, states: &FileStates, now: Instant) -> Option<Instant> {
        let state_of = |file: &WatchedFile| states.iter().find(|(path, _)| *path == file.path).map(|(_, state)| *state);
        let changed_at = |file: &WatchedFile| {
            let state = state_of(file).filter(|state| !is_same(file.read, *state))?;
            let seen = file.changed.filter(|change| change.state == state && !change.is_empty());
            Some(seen.map_or(now, |change| change.since))
        };
        Some(self.files.iter().filter_map(changed_at).max()? + SETTLE_TIME)
    }

    /// Whether a change waits until its file has stayed the same, or a file is to be read again. An empty file does not
    /// count if it has been empty for long, or no reload waits for it.
    pub(super) fn has_unsettled(&self) -> bool {
        let is_left_empty =
            |file: &WatchedFile, change: Change| change.is_reported || change.is_empty() && !file.delays;
        let waits = |file: &WatchedFile, change| !file.is_settled && !is_left_empty(file, change);
        self.files.iter().any(|file| file.changed.map_or(file.is_unread, |change| waits(file, change)))
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.files.iter().map(|file| file.path.clone())
    }

    /// Files that were removed a while ago, and have not caused a reload, because it waits for others. Each is returned once.
    pub(super) fn take_removed(&mut self) -> Vec<PathBuf> {
        let removed = self.files.iter_mut().filter(|file| file.delays && file.is_settled).filter_map(|file| {
            let change = file.changed.as_mut().filter(|change| change.state.is_none() && !change.is_reported)?;
            change.is_reported = true;
            Some(file.path.clone())
        });
        removed.collect()
    }

    /// A file that was emptied a while ago, for which a reload waits. Each is returned once.
    pub(super) fn take_empty(&mut self, now: Instant) -> Option<PathBuf> {
        self.files.iter_mut().filter(|file| file.delays).find_map(|file| {
            let change = file.changed.as_mut().filter(|change| change.is_empty() && !change.is_reported)?;
            change.is_reported = now.duration_since(change.since) >= EMPTY_REPORT;
            change.is_reported.then(|| file.path.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures_util::FutureExt;

    use super::*;

    pub(super) fn state(length: u64) -> Option<FileState> {
        Some(FileState::of_length(length))
    }

    fn has_changed(watch: &mut FileWatch, now: Instant) -> bool {
        let states = look_at(watch.paths());
        watch.has_changed(&states, now)
    }

    #[test]
    fn a_file_whose_change_was_seen_settles_as_long_after_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let states = |length| vec![("a".into(), state(1)), ("b".into(), state(length))];
        let mut watch = FileWatch::of(states(1));
        assert_eq!(watch.settles_at(&states(1), at(100)), None);
        assert!(!watch.has_changed(&states(2), at(100)));
        assert_eq!(watch.settles_at(&states(2), at(200)), Some(at(100) + SETTLE_TIME));
        assert_eq!(watch.settles_at(&states(3), at(200)), Some(at(200) + SETTLE_TIME), "it changed again");
        assert!(!watch.has_changed(&states(0), at(300)));
        assert_eq!(watch.settles_at(&states(0), at(400)), Some(at(400) + SETTLE_TIME), "it was emptied");
    }

    #[test]
    fn as_many_threads_read_the_files_of_a_part_as_may_however_many_hang() {
        let watch = FileWatch::new([]);
        let hang: Vec<_> = (0..MAX_READERS).map(|_| watch.reader().now_or_never().unwrap()).collect();
        assert!(watch.reader().now_or_never().is_none());
        drop(hang);
        assert!(watch.reader().now_or_never().is_some());
    }

    #[test]
    fn threads_that_hang_at_another_file_keep_no_file_from_being_read() {
        let mut watch = FileWatch::new(["a".into()]);
        let _hang: Vec<_> = (0..MAX_READERS).map(|_| watch.reader().now_or_never().unwrap()).collect();
        watch.set_files(["a".into()], None);
        assert!(watch.reader().now_or_never().is_none());
        watch.set_files(["b".into()], None);
        assert!(watch.reader().now_or_never().is_some());
    }

    #[test]
    fn a_file_that_is_replaced_by_a_rename_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&path, "1").unwrap();
        let mut watch = FileWatch::new([path.clone()]);
        let start = Instant::now();
        fs::write(&other, "2").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(!has_changed(&mut watch, start));
        assert!(has_changed(&mut watch, start + SETTLE_TIME));
        assert!(!has_changed(&mut watch, start + SETTLE_TIME));
    }

    #[test]
    fn a_change_waits_for_another_file_that_is_empty_or_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let (main, other) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&main, "1").unwrap();
        fs::write(&other, "1").unwrap();
        let mut watch = FileWatch::new([main.clone(), other.clone()]);
        let start = Instant::now();
        fs::write(&main, "").unwrap();
        fs::write(&other, "22").unwrap();
        assert!(!has_changed(&mut watch, start));
        assert!(!has_changed(&mut watch, start + 10 * SETTLE_TIME), "the first file is empty");
        assert_eq!(watch.take_empty(start), None, "it may be being written");
        assert_eq!(watch.take_empty(start + EMPTY_REPORT), Some(main.clone()));
        assert_eq!(watch.take_empty(start + EMPTY_REPORT), None, "it was reported");
        fs::write(&main, "22").unwrap();
        assert!(!has_changed(&mut watch, start + 11 * SETTLE_TIME), "it is being written");
        assert!(has_changed(&mut watch, start + 12 * SETTLE_TIME));
        assert!(!has_changed(&mut watch, start + 13 * SETTLE_TIME), "the two are one change");
    }

    #[test]
    fn a_removal_that_waits_for_another_file_is_told_once() {
        let start = Instant::now();
        let states =
            |length, removed: bool| vec![("a".into(), state(length)), ("b".into(), state(1).filter(|_| !removed))];
        for delays in [true, false] {
            let mut watch = FileWatch::of(states(1, false));
            if !delays {
                watch.wait_only_for(&["a".into()]);
            }
            assert!(!watch.has_changed(&states(0, true), start));
            assert!(watch.take_removed().is_empty(), "this may be a rename");
            assert!(!watch.has_changed(&states(0, true), start + SETTLE_TIME), "the other file is empty");
            let told: Vec<PathBuf> = if delays { vec!["b".into()] } else { Vec::new() };
            assert_eq!(watch.take_removed(), told);
            assert!(watch.take_removed().is_empty());
        }
    }

    #[test]
    fn a_change_does_not_wait_for_a_file_that_nothing_in_force_names() {
        let folder = tempfile::tempdir().unwrap();
        let (main, other) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&main, "1").unwrap();
        let mut watch = FileWatch::new([main.clone(), other.clone()]);
        watch.wait_only_for(std::slice::from_ref(&main));
        let start = Instant::now();
        fs::write(&main, "22").unwrap();
        fs::write(&other, "").unwrap();
        assert!(!has_changed(&mut watch, start));
        assert!(has_changed(&mut watch, start + SETTLE_TIME));
        fs::write(&other, "22").unwrap();
        assert!(!has_changed(&mut watch, start + 2 * SETTLE_TIME));
        assert!(has_changed(&mut watch, start + 3 * SETTLE_TIME), "its own change causes a reload");
        fs::write(&other, "333").unwrap();
        fs::write(&main, "").unwrap();
        assert!(!has_changed(&mut watch, start + 4 * SETTLE_TIME));
        assert!(!has_changed(&mut watch, start + 9 * SETTLE_TIME), "the file that is waited for is empty");
    }

    #[test]
    fn a_file_that_is_still_watched_keeps_its_state() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&path, "1").unwrap();
        let mut watch = FileWatch::new([path.clone()]);
        fs::write(&path, "22").unwrap();
        fs::write(&other, "3").unwrap();
        watch.set_files([other, path], None);
        let start = Instant::now();
        assert!(!has_changed(&mut watch, start));
        assert!(has_changed(&mut watch, start + SETTLE_TIME), "its change is not lost");
    }
}
