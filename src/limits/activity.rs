//! What became of one key's requests in the last minute, hour and day, for people who look at a key. It decides nothing.
//! A request adds to the newest slot of the shortest window without a lock; every ten seconds that slot is added to the
//! longer windows. Requests that are counted at that very moment may be missing.

use std::array;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::clock::Tick;
use crate::model::Limit;

/// All requests, those over each limit, other refusals, failures of the origin.
const COUNTERS: usize = 1 + Limit::ALL.len() + 2;

const REFUSED: usize = COUNTERS - 2;
const FAILED: usize = COUNTERS - 1;

/// How long a slot of each window is. A window's newest slot has only begun, so what is read of a window covers up to
/// one slot less than its name says.
const SECONDS_OF_MINUTE: u64 = 10;
const SECONDS_OF_HOUR: u64 = 600;
const SECONDS_OF_DAY: u64 = 3600;

/// The activity of one key. A key that is never used needs no room for it.
#[derive(Debug, Default)]
pub struct Activity(OnceLock<Box<Windows>>);

/// 1,020 bytes.
#[derive(Debug, Default)]
struct Windows {
    minute: Window<6, SECONDS_OF_MINUTE>,
    hour: Window<6, SECONDS_OF_HOUR>,
    day: Window<24, SECONDS_OF_DAY>,
    /// Held while slots begin.
    change: Mutex<()>,
}

#[derive(Debug)]
struct Window<const SLOTS: usize, const SECONDS: u64> {
    /// The number of the newest slot, counted from the clock's beginning.
    newest: AtomicU32,
    slots: [[AtomicU32; COUNTERS]; SLOTS],
}

/// The requests of a key in one window of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivityCounts {
    pub requests: u32,
    /// Refused for a limit, by [`Limit::index`].
    pub over_limit: [u32; Limit::ALL.len()],
    /// Refused for another reason that lies with the caller.
    pub refused: u32,
    /// Not answered by the service (20, 21, 22).
    pub failed: u32,
}

/// The last minute, hour and day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentActivity {
    pub minute: ActivityCounts,
    pub hour: ActivityCounts,
    pub day: ActivityCounts,
}

impl Activity {
    /// Counts the end of a request: its code if it was refused, and the limit that it was over.
    pub fn count(&self, code: Option<u8>, over_limit: Option<Limit>, now: Tick) {
        let windows = self.0.get_or_init(Box::default);
        windows.begin_slots(now);
        let slot = windows.minute.newest_slot();
        slot[0].fetch_add(1, Ordering::Relaxed);
        let reason = match (code, over_limit) {
            (None, _) => return,
            (Some(12), Some(limit)) => 1 + limit.index(),
            (Some(20..=22), _) => FAILED,
            (Some(_), _) => REFUSED,
        };
        slot[reason].fetch_add(1, Ordering::Relaxed);
    }

    /// Whether anything was ever counted.
    pub fn is_used(&self) -> bool {
        self.0.get().is_some()
    }

    /// What was counted up to `now`.
    pub fn recent(&self, now: Tick) -> RecentActivity {
        let Some(windows) = self.0.get() else { return RecentActivity::default() };
        windows.begin_slots(now);
        // The newest slot is not in the longer windows yet.
        let newest = windows.minute.newest_slot().each_ref().map(|n| n.load(Ordering::Relaxed));
        let with_newest = |counts: [u32; COUNTERS]| counts_of(array::from_fn(|i| counts[i].saturating_add(newest[i])));
        RecentActivity {
            minute: counts_of(windows.minute.sum()),
            hour: with_newest(windows.hour.sum()),
            day: with_newest(windows.day.sum()),
        }
    }
}

fn counts_of(counts: [u32; COUNTERS]) -> ActivityCounts {
    ActivityCounts {
        requests: counts[0],
        over_limit: array::from_fn(|i| counts[1 + i]),
        refused: counts[REFUSED],
        failed: counts[FAILED],
    }
}

impl Windows {
    /// Begins the slots of `now`, if they have not begun. The slot of the minute that has ended is added to the longer
    /// windows at the time of its beginning.
    fn begin_slots(&self, now: Tick) {
        let number = number_of(now, SECONDS_OF_MINUTE);
        if self.minute.newest.load(Ordering::Acquire) >= number {
            return;
        }
        let _change = self.change.lock();
        let ended = self.minute.newest.load(Ordering::Acquire);
        if ended >= number {
            return;
        }
        let counts = self.minute.newest_slot().each_ref().map(|n| n.load(Ordering::Relaxed));
        self.hour.add(counts, ended, number);
        self.day.add(counts, ended, number);
        self.minute.begin_slot(number);
    }
}

/// The number of the slot of `now`. 1,361 years of them have a number.
fn number_of(now: Tick, seconds: u64) -> u32 {
    u32::try_from(now.since(Tick(0)).as_secs() / seconds).unwrap_or(u32::MAX)
}

impl<const SLOTS: usize, const SECONDS: u64> Window<SLOTS, SECONDS> {
    fn newest_slot(&self) -> &[AtomicU32; COUNTERS] {
        &self.slots[self.newest.load(Ordering::Acquire) as usize % SLOTS]
    }

    /// Clears what is too old, and makes this slot the newest.
    fn begin_slot(&self, number: u32) {
        let newest = self.newest.load(Ordering::Acquire);
        for new in (newest.saturating_add(1)..=number).rev().take(SLOTS) {
            self.slots[new as usize % SLOTS].iter().for_each(|n| n.store(0, Ordering::Relaxed));
        }
        self.newest.store(newest.max(number), Ordering::Release);
    }

    /// Adds what was counted in a slot of the minute, then begins the slot of another one.
    fn add(&self, counts: [u32; COUNTERS], slot: u32, next: u32) {
        let number_of = |slot: u32| u32::try_from(u64::from(slot) * SECONDS_OF_MINUTE / SECONDS).unwrap_or(u32::MAX);
        self.begin_slot(number_of(slot));
        for (n, count) in self.newest_slot().iter().zip(counts) {
            n.fetch_add(count, Ordering::Relaxed);
        }
        self.begin_slot(number_of(next));
    }

    fn sum(&self) -> [u32; COUNTERS] {
        array::from_fn(|i| {
            self.slots.iter().fold(0, |sum: u32, slot| sum.saturating_add(slot[i].load(Ordering::Relaxed)))
        })
    }
}

impl<const SLOTS: usize, const SECONDS: u64> Default for Window<SLOTS, SECONDS> {
    fn default() -> Self {
        Window { newest: AtomicU32::default(), slots: array::from_fn(|_| array::from_fn(|_| AtomicU32::default())) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Tick {
        Tick(0).plus(Duration::from_secs(seconds))
    }

    #[test]
    fn a_key_that_is_used_takes_at_most_a_kilobyte() {
        assert!(size_of::<Windows>() <= 1024, "{}", size_of::<Windows>());
    }

    #[test]
    fn each_request_is_counted_once_with_its_reason() {
        let activity = Activity::default();
        for (code, over) in
            [(None, None), (None, Some(Limit::Rate)), (Some(12), Some(Limit::Daily)), (Some(4), None), (Some(21), None)]
        {
            activity.count(code, over, at(100));
        }
        let over_limit = Limit::ALL.map(|limit| (limit == Limit::Daily).into());
        let counts = ActivityCounts { requests: 5, over_limit, refused: 1, failed: 1 };
        let RecentActivity { minute, hour, day } = activity.recent(at(109));
        assert_eq!((minute, hour, day), (counts, counts, counts));
    }

    #[test]
    fn a_request_leaves_each_window_when_its_time_has_passed() {
        let activity = Activity::default();
        activity.count(None, None, at(5));
        let seen = |now| {
            let RecentActivity { minute, hour, day } = activity.recent(at(now));
            (minute.requests, hour.requests, day.requests)
        };
        assert_eq!(seen(59), (1, 1, 1));
        assert_eq!(seen(61), (0, 1, 1));
        assert_eq!(seen(3599), (0, 1, 1));
        assert_eq!(seen(3601), (0, 0, 1));
        assert_eq!(seen(86_399), (0, 0, 1));
        assert_eq!(seen(86_401), (0, 0, 0));
    }

    #[test]
    fn a_request_every_second_fills_each_window_but_for_its_newest_slot() {
        let activity = Activity::default();
        for second in 0..100_000 {
            activity.count(None, None, at(second));
        }
        let RecentActivity { minute, hour, day } = activity.recent(at(100_000));
        assert!((50..=60).contains(&minute.requests), "{}", minute.requests);
        assert!((3000..=3600).contains(&hour.requests), "{}", hour.requests);
        assert!((82_800..=86_400).contains(&day.requests), "{}", day.requests);
    }

    #[test]
    fn requests_of_several_threads_are_all_counted_within_a_slot() {
        let activity = Activity::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| activity.count(Some(12), Some(Limit::Rate), at(7))));
            }
        });
        assert_eq!(
            activity.recent(at(7)).day.over_limit,
            Limit::ALL.map(|limit| if limit == Limit::Rate { 4000 } else { 0 })
        );
    }
}
