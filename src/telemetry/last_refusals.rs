//! The last refusals of each code, for people who ask why a request was refused. A request never waits for it: where
//! two are refused at the very same moment, one of them may be left out.

use std::collections::VecDeque;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;

use super::AccessLine;

/// The codes of the contract, up to 22.
const CODES: usize = 23;

/// Refusals that are kept of each code, so that a flood of one does not hide the others. Each has some 200 bytes.
const KEPT: usize = 50;

#[derive(Debug, Default)]
pub struct LastRefusals([Mutex<VecDeque<AccessLine>>; CODES]);

impl LastRefusals {
    pub(super) fn add(&self, outcome: &AccessLine) {
        let of_code = outcome.code.and_then(|code| self.0.get(usize::from(code)));
        let Some(mut last) = of_code.and_then(Mutex::try_lock) else { return };
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back(outcome.clone());
    }

    /// All that are kept, the latest first.
    pub fn list(&self) -> Vec<AccessLine> {
        let mut all: Vec<AccessLine> =
            self.0.iter().flat_map(|last| last.lock().iter().cloned().collect::<Vec<_>>()).collect();
        all.sort_by_key(|outcome| std::cmp::Reverse(outcome.unix_ms));
        all
    }
}

/// How many of the last requests are kept, and how many of each tenth of a second.
const LIVE: usize = 500;
const LIVE_IN_TENTH: usize = 20;

/// How long after a look at them requests are kept, in milliseconds.
const WATCHED_FOR: i64 = 15_000;

/// The last requests, for people who watch them: some of them where there are many, and none while nobody watches.
#[derive(Debug, Default)]
pub struct LiveRequests {
    /// In milliseconds since the Unix epoch.
    watched_until: AtomicI64,
    last: Mutex<VecDeque<AccessLine>>,
}

impl LiveRequests {
    pub(super) fn add(&self, line: &AccessLine) {
        if line.unix_ms >= self.watched_until.load(Relaxed) {
            return;
        }
        let Some(mut last) = self.last.try_lock() else { return };
        let is_of_tenth = |other: &AccessLine| other.unix_ms / 100 == line.unix_ms / 100;
        if last.iter().rev().take(LIVE_IN_TENTH).filter(|other| is_of_tenth(other)).count() == LIVE_IN_TENTH {
            return;
        }
        if last.len() == LIVE {
            last.pop_front();
        }
        last.push_back(line.clone());
    }

    /// Those that are kept, the latest first; more are kept from now on.
    pub fn watch(&self, now_ms: i64) -> Vec<AccessLine> {
        let was_watched = self.watched_until.swap(now_ms + WATCHED_FOR, Relaxed) > now_ms;
        let mut last = self.last.lock();
        if !was_watched {
            last.clear();
        }
        last.iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::access_line::tests::example;

    #[test]
    fn requests_are_kept_while_somebody_watches_and_of_many_some() {
        let live = LiveRequests::default();
        let line = |unix_ms| AccessLine { unix_ms, ..example() };
        live.add(&line(1));
        assert!(live.watch(2).is_empty());
        (2..300).for_each(|ms| live.add(&line(ms)));
        live.add(&line(2 + WATCHED_FOR));
        let times: Vec<i64> = live.watch(300).iter().map(|line| line.unix_ms).collect();
        assert_eq!(times, (200..220).rev().chain((100..120).rev()).chain((2..22).rev()).collect::<Vec<i64>>());
        assert!(live.watch(301 + WATCHED_FOR).is_empty());
    }

    #[test]
    fn a_flood_of_one_code_does_not_hide_another() {
        let last = LastRefusals::default();
        let outcome = |unix_ms, code| AccessLine { unix_ms, code, ..example() };
        last.add(&outcome(0, None));
        last.add(&outcome(1, Some(12)));
        (2..1000).for_each(|unix_ms| last.add(&outcome(unix_ms, Some(2))));
        let times: Vec<i64> = last.list().iter().map(|outcome| outcome.unix_ms).collect();
        assert_eq!(times, (950..1000).rev().chain([1]).collect::<Vec<i64>>());
    }
}
