//! One watched file: whether it differs from what was read, and since when it has stayed so.

use std::path::PathBuf;
use std::time::Instant;

use super::SETTLE_TIME;
use crate::files::FileState;

#[derive(Clone, Debug)]
pub(super) struct WatchedFile {
    pub(super) path: PathBuf,
    /// The state that was read last; `None`: the file was missing.
    pub(super) read: Option<FileState>,
    /// What was read counts for nothing.
    pub(super) is_unread: bool,
    pub(super) changed: Option<Change>,
    /// Whether a reload waits until this file has stayed the same.
    pub(super) delays: bool,
    /// Whether it had stayed the same at the last check.
    pub(super) is_settled: bool,
}

/// A state that differs from the one that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) state: Option<FileState>,
    /// Since when it has stayed the same.
    pub(super) since: Instant,
    /// Whether `FileWatch::take_empty` or `take_removed` has returned it.
    pub(super) is_reported: bool,
}

impl Change {
    /// An empty file is more likely one that is being written than an intended one.
    pub(super) fn is_empty(&self) -> bool {
        self.state.is_some_and(|state| state.is_empty())
    }
}

impl WatchedFile {
    pub(super) fn of(path: PathBuf, read: Option<FileState>) -> Self {
        WatchedFile { path, read, is_unread: false, changed: None, delays: true, is_settled: true }
    }

    /// Whether the file is unchanged, or has changed to `state` and has stayed so for long enough.
    pub(super) fn has_settled(&mut self, state: Option<FileState>, now: Instant) -> bool {
        if state == self.read && !self.is_unread {
            self.changed = None;
            return true;
        }
        match self.changed {
            Some(change) if change.state == state => {
                now.duration_since(change.since) >= SETTLE_TIME && !change.is_empty()
            }
            Some(_) | None => {
                self.changed = Some(Change { state, since: now, is_reported: false });
                false
            }
        }
    }

    /// Takes the changed state for the one that is read now. Whether there was a change.
    pub(super) fn accept(&mut self) -> bool {
        let changed = self.changed.take();
        if let Some(change) = changed {
            (self.read, self.is_unread) = (change.state, false);
        }
        changed.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::state;
    use super::*;

    fn file_of(length: u64) -> WatchedFile {
        WatchedFile::of(PathBuf::new(), state(length))
    }

    #[test]
    fn a_change_is_reported_once_and_only_when_the_file_stays_the_same() {
        let mut file = file_of(1);
        let start = Instant::now();
        let mut settles = |s, ms| file.has_settled(s, start + Duration::from_millis(ms)) && file.accept();
        assert!(!settles(state(1), 0), "nothing changed");
        assert!(!settles(state(2), 100));
        assert!(!settles(state(3), 300), "it changed again");
        assert!(!settles(state(3), 500));
        assert!(settles(state(3), 550));
        assert!(!settles(state(3), 900), "it was reported");
    }

    #[test]
    fn a_file_that_became_empty_is_not_reported() {
        let mut file = file_of(1);
        let start = Instant::now();
        for (s, ms) in [(state(0), 0), (state(0), 400), (state(1), 1600), (state(1), 2000)] {
            assert!(!(file.has_settled(s, start + Duration::from_millis(ms)) && file.accept()));
        }
    }

    #[test]
    fn a_removed_file_is_reported_once_and_again_when_it_is_back() {
        let mut file = file_of(1);
        let start = Instant::now();
        let mut settles = |s, ms| file.has_settled(s, start + Duration::from_millis(ms)) && file.accept();
        assert!(!settles(None, 0), "this may be a rename");
        assert!(!settles(state(1), 100));
        // The state before the file was missing does not count.
        assert!(!settles(state(2), 2100));
        assert!(!settles(None, 2200));
        assert!(!settles(state(2), 2400));
        assert!(!settles(None, 2500));
        assert!(settles(None, 2800));
        assert!(!settles(None, 9000), "it was reported");
        assert!(!settles(state(1), 9100));
        assert!(settles(state(1), 9400), "the same file is back");
    }

    #[test]
    fn a_file_whose_reading_failed_is_reported_again_as_it_is_or_as_removed() {
        for then in [state(1), None] {
            let mut file = file_of(1);
            let start = Instant::now();
            file.is_unread = true;
            assert!(!file.has_settled(then, start));
            assert!(file.has_settled(then, start + SETTLE_TIME) && file.accept());
            assert!(!(file.has_settled(then, start + 2 * SETTLE_TIME) && file.accept()), "it was reported");
        }
    }
}
