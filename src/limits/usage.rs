//! What is counted for one key whatever its limits are: the day's requests, the requests under way, and the last use.
//! It is shared by all entries of a key and outlives every reload, so that a change of tier or of secret loses no
//! count. All counters are atomic; a request takes no lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Counted, DayCount};
use crate::clock::Tick;

/// What is counted of one key whatever its policy: it outlives every change of record and limits.
#[derive(Debug, Default)]
pub struct Usage {
    pub day: DayCount,
    under_way: AtomicU32,
    last: AtomicU64,
}

impl Usage {
    /// That of a key of whose day the store knows.
    pub fn known(counted: Counted) -> Self {
        Usage { day: DayCount::known(counted), ..Usage::default() }
    }

    /// Counts a request as under way until [`Usage::end`], and tells how many others are.
    pub fn begin(&self) -> u32 {
        self.under_way.fetch_add(1, Ordering::AcqRel)
    }

    /// A request that began is done.
    pub fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether nothing is under way and nothing was counted on the day of `unix`.
    pub fn is_idle(&self, unix: i64) -> bool {
        self.under_way.load(Ordering::Acquire) == 0 && !self.day.has_counted(unix)
    }

    /// Notes a use at `now`. (0 stands for none; a use in the clock's first nanosecond is the second's.)
    pub fn touch(&self, now: Tick) {
        self.last.store(now.0.max(1), Ordering::Relaxed);
    }

    /// When the key was used last, once: `None` if not since the last call.
    pub fn take_last_use(&self) -> Option<Tick> {
        match self.last.swap(0, Ordering::Relaxed) {
            0 => None,
            tick => Some(Tick(tick)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_under_way_until_it_ends() {
        let usage = Usage::default();
        assert_eq!((usage.begin(), usage.begin()), (0, 1));
        usage.end();
        assert_eq!(usage.begin(), 1);
    }

    #[test]
    fn a_use_is_told_once() {
        let usage = Usage::default();
        usage.touch(Tick(0));
        assert_eq!((usage.take_last_use(), usage.take_last_use()), (Some(Tick(1)), None));
    }
}
