//! Which files have changed since they were read, and stand still. They are looked at four times a second, which sees an
//! editor's rename, a link that leads elsewhere and what another machine writes alike.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::files::FileState;

/// How often files are looked at, and so how long a changed one must have stayed the same (contract section 3).
pub(super) const TICK: Duration = Duration::from_millis(250);

/// The states of files at one moment; `None`: there was no such file.
pub(super) type States = BTreeMap<PathBuf, Option<FileState>>;

/// Looks at files, which may take for ever.
pub(super) fn look(paths: impl IntoIterator<Item = PathBuf>) -> States {
    paths.into_iter().map(|path| (path.clone(), FileState::of(&path))).collect()
}

/// What is known of the files that are watched.
#[derive(Debug)]
pub(super) struct Watch {
    /// The states in which files were read last.
    taken: States,
    now: States,
    /// Those that were in the same state at the look before.
    settled: States,
    /// Those of them that have become empty.
    empty: Vec<PathBuf>,
}

impl Watch {
    /// `taken`: files that were read after this look.
    pub(super) fn new(taken: States) -> Self {
        Watch { now: taken.clone(), settled: States::new(), empty: Vec::new(), taken }
    }

    /// Takes up a look. Returns the files that have become empty, each once: such a file is more likely being written than
    /// meant, and is read only if that is asked for.
    pub(super) fn looked(&mut self, now: States) -> Vec<PathBuf> {
        let before = std::mem::replace(&mut self.now, now);
        self.settled = self.now.clone();
        self.settled.retain(|file, state| before.get(file) == Some(state));
        let empty = self.settled.iter().filter(|(file, state)| is_empty(state) && self.differs(file, state));
        let empty = empty.map(|(file, _)| file.clone()).collect();
        let told = std::mem::replace(&mut self.empty, empty);
        self.empty.iter().filter(|file| !told.contains(file)).cloned().collect()
    }

    fn differs(&self, file: &Path, state: &Option<FileState>) -> bool {
        self.taken.get(file) != Some(state)
    }

    /// Whether a file is in another state than it was read in.
    pub(super) fn is_behind(&self) -> bool {
        self.now.iter().any(|(file, state)| self.differs(file, state))
    }

    /// Whether one of these files has changed, stands still and is not empty.
    pub(super) fn is_due(&self, files: &[PathBuf]) -> bool {
        let is_due = |file| self.settled.get(file).is_some_and(|s| self.differs(file, s) && !is_empty(s));
        files.iter().any(|file| is_due(file))
    }

    /// The states of these files, if all of them may be read. `asked_at`: since when those may be empty that are (Unix
    /// milliseconds).
    pub(super) fn readable(&self, files: &[PathBuf], asked_at: Option<i64>) -> Option<States> {
        let is_asked = |state: &FileState| asked_at.is_some_and(|at| state.is_of_before(at));
        let may_be_read = |state: &&Option<FileState>| !is_empty(state) || state.as_ref().is_some_and(is_asked);
        let state = |file| self.settled.get(file).filter(may_be_read);
        files.iter().map(|file| Some((file.clone(), *state(file)?))).collect()
    }

    /// The first of these files that does not stand still.
    pub(super) fn moving<'f>(&self, files: &'f [PathBuf]) -> Option<&'f Path> {
        files.iter().find(|file| !self.settled.contains_key(*file)).map(PathBuf::as_path)
    }

    /// These files were read in these states.
    pub(super) fn take(&mut self, states: States) {
        self.taken.extend(states);
    }

    /// What was read of this file counts for nothing.
    pub(super) fn forget(&mut self, file: &Path) {
        self.taken.remove(file);
    }
}

fn is_empty(state: &Option<FileState>) -> bool {
    state.is_some_and(|state| state.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file `a` with this many bytes, or without a file.
    fn states(length: Option<u64>) -> States {
        States::from([("a".into(), length.map(FileState::of_length))])
    }

    /// The lengths that are taken up if the file has these at one look after the other.
    fn taken_up(lengths: &[Option<u64>]) -> Vec<Option<u64>> {
        let (mut watch, file, mut taken) = (Watch::new(states(Some(1))), ["a".into()], Vec::new());
        for length in lengths {
            watch.looked(states(*length));
            if watch.is_due(&file) {
                watch.take(watch.readable(&file, None).unwrap());
                taken.push(*length);
            }
        }
        taken
    }

    #[test]
    fn a_change_is_taken_up_once_and_only_when_the_file_stands_still() {
        let [empty, one, two, three, four] = [0, 1, 2, 3, 4].map(Some);
        assert_eq!(taken_up(&[one, one]), []);
        assert_eq!(taken_up(&[two, three, three, three]), [three]);
        assert_eq!(taken_up(&[empty, empty, two, three, four]), [], "it is being written");
        assert_eq!(
            taken_up(&[None, one, None, None, None, one, one]),
            [None, one],
            "away for a moment, then for longer"
        );
    }

    #[test]
    fn a_file_that_stays_empty_is_told_once_and_may_be_read_if_that_is_asked_for() {
        let (mut watch, file) = (Watch::new(states(Some(1))), ["a".into()]);
        let told: Vec<_> = (0..4).map(|_| watch.looked(states(Some(0))).len()).collect();
        assert_eq!(told, [0, 1, 0, 0]);
        assert!(!watch.is_due(&file) && watch.is_behind() && watch.readable(&file, None).is_none());
        assert!(watch.readable(&file, Some(999)).is_none(), "it was emptied after that");
        watch.take(watch.readable(&file, Some(1000)).unwrap());
        assert!(!watch.is_behind());
    }

    #[test]
    fn a_file_that_is_new_is_due_once_it_stands_still() {
        let (mut watch, file) = (Watch::new(States::new()), ["a".into()]);
        watch.looked(states(Some(1)));
        assert!(!watch.is_due(&file) && watch.moving(&file).is_some() && watch.readable(&file, Some(1000)).is_none());
        watch.looked(states(Some(1)));
        assert!(watch.is_due(&file) && watch.moving(&file).is_none());
    }
}
