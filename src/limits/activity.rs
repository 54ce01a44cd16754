//! What became of one key's requests in the last minute, hour and day, for people who look at a key. It decides nothing.
//! A request adds to the newest slot without a lock; every ten seconds that slot is added to the windows.

use std::array;
use std::mem;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::clock::Tick;
use crate::model::Limit;

/// All requests, those over each limit, other refusals, failures of the origin.
const COUNTERS: usize = 1 + Limit::ALL.len() + 2;

const REFUSED: usize = COUNTERS - 2;
const FAILED: usize = COUNTERS - 1;

/// How long the newest slot is. Those of the minute are as long.
const SLOT_SECONDS: u64 = 10;

/// How many of the newest slots are in one slot of the hour, and of the day.
const IN_SLOT_OF_HOUR: u32 = 60;
const IN_SLOT_OF_DAY: u32 = 360;

/// The slots of the day are hours.
pub const HOURS: usize = 24;

/// The activity of one key. A key that is never used needs no room for it.
#[derive(Debug, Default)]
pub struct Activity(OnceLock<Box<Counted>>);

#[derive(Debug, Default)]
struct Counted {
    /// The number of the newest slot, counted from the clock's beginning.
    newest: AtomicU32,
    counts: [AtomicU32; COUNTERS],
    windows: Mutex<Windows>,
}

/// What was counted before the newest slot. A window's own newest slot has only begun, so what is read of a window covers up
/// to one slot less than its name says.
#[derive(Debug, Default)]
struct Windows {
    minute: [Slot; 6],
    hour: [Slot; 6],
    day: [Slot; HOURS],
    /// Requests that were not taken to be saved, less those of the newest slot that were.
    unsaved: i64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    number: u32,
    counts: [u32; COUNTERS],
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
        let counted = self.0.get_or_init(Box::default);
        counted.begin_slot(now);
        counted.counts[0].fetch_add(1, Ordering::Relaxed);
        let reason = match (code, over_limit) {
            (None, _) => return,
            (Some(12), Some(limit)) => 1 + limit.index(),
            (Some(20..=22), _) => FAILED,
            (Some(_), _) => REFUSED,
        };
        counted.counts[reason].fetch_add(1, Ordering::Relaxed);
    }

    /// Whether anything was ever counted.
    pub fn is_used(&self) -> bool {
        self.0.get().is_some()
    }

    /// What was counted up to `now`.
    pub fn recent(&self, now: Tick) -> RecentActivity {
        let Some(counted) = self.0.get() else { return RecentActivity::default() };
        counted.begin_slot(now);
        let windows = counted.windows.lock();
        let number = counted.newest.load(Ordering::Acquire);
        let newest = counted.counts.each_ref().map(|n| n.load(Ordering::Relaxed));
        RecentActivity {
            minute: sum(&windows.minute, number, newest),
            hour: sum(&windows.hour, number / IN_SLOT_OF_HOUR, newest),
            day: sum(&windows.day, number / IN_SLOT_OF_DAY, newest),
        }
    }

    /// The hours of the day, the newest one first, which has only begun.
    pub fn hours(&self, now: Tick) -> [ActivityCounts; HOURS] {
        let Some(counted) = self.0.get() else { return Default::default() };
        counted.begin_slot(now);
        let windows = counted.windows.lock();
        let number = counted.newest.load(Ordering::Acquire) / IN_SLOT_OF_DAY;
        let newest = counted.counts.each_ref().map(|n| n.load(Ordering::Relaxed));
        array::from_fn(|ago| {
            let is_of_hour = |slot: &&Slot| u64::from(slot.number) + ago as u64 == u64::from(number);
            let before = windows.day.iter().find(is_of_hour).map_or([0; COUNTERS], |slot| slot.counts);
            if ago == 0 { plus(before, newest) } else { before }.into()
        })
    }

    /// Takes the number of requests since the last time, to save it.
    pub fn take_unsaved(&self) -> i64 {
        let Some(counted) = self.0.get() else { return 0 };
        let mut windows = counted.windows.lock();
        let newest = i64::from(counted.counts[0].load(Ordering::Relaxed));
        mem::replace(&mut windows.unsaved, -newest) + newest
    }

    /// These were taken and could not be saved.
    pub fn give_back(&self, unsaved: i64) {
        self.0.get().inspect(|counted| counted.windows.lock().unsaved += unsaved);
    }
}

impl From<[u32; COUNTERS]> for ActivityCounts {
    fn from(counts: [u32; COUNTERS]) -> Self {
        ActivityCounts {
            requests: counts[0],
            over_limit: array::from_fn(|i| counts[1 + i]),
            refused: counts[REFUSED],
            failed: counts[FAILED],
        }
    }
}

impl Counted {
    /// Begins the slot of `now`, if it has not begun. The one that has ended is added to the windows.
    fn begin_slot(&self, now: Tick) {
        // 1,361 years of them have a number.
        let number = u32::try_from(now.since(Tick(0)).as_secs() / SLOT_SECONDS).unwrap_or(u32::MAX);
        if self.newest.load(Ordering::Acquire) >= number {
            return;
        }
        let mut windows = self.windows.lock();
        let ended = self.newest.load(Ordering::Acquire);
        if ended < number {
            let counts = self.counts.each_ref().map(|n| n.swap(0, Ordering::Relaxed));
            add(&mut windows.minute, ended, counts);
            add(&mut windows.hour, ended / IN_SLOT_OF_HOUR, counts);
            add(&mut windows.day, ended / IN_SLOT_OF_DAY, counts);
            windows.unsaved += i64::from(counts[0]);
            self.newest.store(number, Ordering::Release);
        }
    }
}

/// Adds to the slot of this number, whose place an older one may have.
fn add(slots: &mut [Slot], number: u32, counts: [u32; COUNTERS]) {
    let slot = &mut slots[number as usize % slots.len()];
    let before = if slot.number == number { slot.counts } else { [0; COUNTERS] };
    *slot = Slot { number, counts: plus(before, counts) };
}

/// What was counted in the slots up to this number that are not too old, and since.
fn sum(slots: &[Slot], number: u32, newest: [u32; COUNTERS]) -> ActivityCounts {
    let recent = slots.iter().filter(|slot| ((number - slot.number) as usize) < slots.len());
    recent.fold(newest, |sum, slot| plus(sum, slot.counts)).into()
}

fn plus(one: [u32; COUNTERS], other: [u32; COUNTERS]) -> [u32; COUNTERS] {
    array::from_fn(|i| one[i].saturating_add(other[i]))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Tick {
        Tick(0).plus(Duration::from_secs(seconds))
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
    fn each_hour_of_the_day_is_told_and_each_request_is_taken_once_to_be_saved() {
        let activity = Activity::default();
        assert_eq!((activity.hours(at(0))[0].requests, activity.take_unsaved()), (0, 0));
        for second in [5, 3000, 3601, 90_000, 90_001] {
            activity.count(None, None, at(second));
        }
        assert_eq!(activity.take_unsaved(), 5);
        activity.count(Some(4), None, at(90_002));
        let hours = activity.hours(at(90_003)).map(|hour| (hour.requests, hour.refused));
        assert_eq!(
            (hours[0], hours[1], hours[23]),
            ((3, 1), (0, 0), (0, 0)),
            "the oldest hours have their places no more"
        );
        assert_eq!((activity.take_unsaved(), activity.take_unsaved()), (1, 0));
        activity.give_back(1);
        activity.count(None, None, at(200_000));
        assert_eq!((activity.take_unsaved(), activity.take_unsaved()), (2, 0));
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
}
