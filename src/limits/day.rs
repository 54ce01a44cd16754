//! The count of a key's requests in one UTC day (`daily`). Day and count are in one atomic word, so that midnight needs
//! no reset and no lock. It remembers how much of the count the store has been told, and adds what other processes
//! counted. A clock that is set back over midnight gives nobody a new day. Time is an argument.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Seconds in a UTC day.
const DAY: i64 = 86_400;

/// Bits of the count; the day has the others, enough for 40,000 years.
const COUNT_BITS: u32 = 40;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// A day's count of requests: the UTC day and the count in one word, so that midnight is one step.
#[derive(Debug, Default)]
pub struct DayCount {
    word: AtomicU64,
    /// As much of it as the store has been told, in the same form.
    noted: AtomicU64,
}

/// What was counted on one UTC day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Days since the Unix epoch.
    pub day: i64,
    pub count: u64,
}

/// The UTC day of a Unix second, in days since the epoch.
pub fn day_of(unix: i64) -> i64 {
    unix.div_euclid(DAY)
}

/// Until the next UTC day begins.
pub fn until_midnight(unix: i64) -> Duration {
    Duration::from_secs((DAY - unix.rem_euclid(DAY)).unsigned_abs())
}

impl DayCount {
    /// A day's count that is known from before, of which the store knows.
    pub fn known(counted: Counted) -> Self {
        let word = pack(counted);
        DayCount { word: AtomicU64::new(word), noted: AtomicU64::new(word) }
    }

    /// How many were counted on the day of `unix`.
    pub fn used(&self, unix: i64) -> u64 {
        on(self.word.load(Ordering::Acquire), day_of(unix)).count
    }

    /// Counts one more on the day of `unix`, unless there were `most` already.
    pub fn admit(&self, most: u64, unix: i64) -> bool {
        self.step(day_of(unix), |count| (count < most).then_some(count + 1))
    }

    /// What the store has not been told yet.
    pub fn unnoted(&self) -> Option<Counted> {
        let (now, noted) = (unpack(self.word.load(Ordering::Acquire)), unpack(self.noted.load(Ordering::Acquire)));
        let before = if noted.day == now.day { noted.count } else { 0 };
        (now.count > before).then_some(Counted { day: now.day, count: now.count - before })
    }

    /// The store was told `told`, and has `total` for that day now. What is more than this process
    /// counted was counted by another one, and counts here too, while the day lasts.
    pub fn noted(&self, told: Counted, total: u64) {
        let noted = unpack(self.noted.load(Ordering::Acquire));
        let mine = if noted.day == told.day { noted.count + told.count } else { told.count };
        let by_others = total.saturating_sub(mine);
        let mut before = self.word.load(Ordering::Acquire);
        // Of a day that ended meanwhile nobody will ask again.
        while unpack(before).day == told.day {
            let after = pack(Counted { day: told.day, count: unpack(before).count + by_others });
            match self.word.compare_exchange_weak(before, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let noted = Counted { day: told.day, count: mine + by_others };
                    return self.noted.store(pack(noted), Ordering::Release);
                }
                Err(now) => before = now,
            }
        }
    }

    /// Whether anything was counted on the day of `unix`.
    pub fn has_counted(&self, unix: i64) -> bool {
        self.used(unix) > 0
    }

    fn step(&self, day: i64, next: impl Fn(u64) -> Option<u64>) -> bool {
        let mut before = self.word.load(Ordering::Acquire);
        loop {
            let at = on(before, day);
            let Some(count) = next(at.count) else { return false };
            let after = pack(Counted { count, ..at });
            match self.word.compare_exchange_weak(before, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => before = now,
            }
        }
    }
}

/// The count that holds on `day`. A clock set back over midnight refills nobody: the day that was
/// begun goes on. One that comes back from further away was wrong before, and `day` begins anew.
fn on(word: u64, day: i64) -> Counted {
    let there = unpack(word);
    if there.day == day || there.day == day + 1 { there } else { Counted { day, count: 0 } }
}

fn pack(counted: Counted) -> u64 {
    (counted.day.max(0).cast_unsigned() << COUNT_BITS) | counted.count.min(COUNT)
}

fn unpack(word: u64) -> Counted {
    Counted { day: (word >> COUNT_BITS).cast_signed(), count: word & COUNT }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: i64 = 20_000 * DAY + DAY / 2;

    #[test]
    fn so_many_are_let_in_a_day_and_as_many_the_next() {
        let day = DayCount::default();
        let let_in = |unix| (0..10).filter(|_| day.admit(3, unix)).count();
        assert_eq!((let_in(NOON), let_in(NOON + 1), let_in(NOON + DAY)), (3, 0, 3));
    }

    #[test]
    fn a_clock_set_back_over_midnight_refills_nobody_and_one_that_was_wrong_starves_nobody() {
        let day = DayCount::default();
        assert!(day.admit(1, NOON + DAY));
        assert!(!day.admit(1, NOON), "set back by a day");
        assert!(day.admit(1, NOON - 300 * DAY), "set back by what no clock is set back by");
        assert!(!day.admit(1, NOON - 300 * DAY));
    }

    #[test]
    fn the_store_is_told_each_request_once_and_tells_what_others_counted() {
        let day = DayCount::default();
        assert_eq!(day.unnoted(), None);
        (0..5).for_each(|_| assert!(day.admit(10, NOON)));
        let told = day.unnoted().unwrap();
        assert_eq!(told, Counted { day: 20_000, count: 5 });
        assert!(day.admit(10, NOON));
        day.noted(told, 7);
        assert_eq!((day.used(NOON), day.unnoted().unwrap().count), (8, 1));
        day.noted(Counted { day: 20_000, count: 1 }, 8);
        assert_eq!((day.used(NOON), day.unnoted()), (8, None));
        assert!(day.admit(10, NOON + DAY));
        assert_eq!(day.unnoted(), Some(Counted { day: 20_001, count: 1 }));
    }

    #[test]
    fn what_others_counted_yesterday_is_not_counted_today() {
        let day = DayCount::default();
        assert!(day.admit(1000, NOON));
        let told = day.unnoted().unwrap();
        assert!(day.admit(1000, NOON + DAY), "midnight came before the store answered");
        day.noted(told, 901);
        assert_eq!(day.used(NOON + DAY), 1);
        assert_eq!(day.unnoted(), Some(Counted { day: 20_001, count: 1 }));
    }

    #[test]
    fn a_count_known_from_before_goes_on() {
        let day = DayCount::known(Counted { day: 20_000, count: 2 });
        assert!(day.admit(3, NOON) && !day.admit(3, NOON));
        assert_eq!(day.unnoted(), Some(Counted { day: 20_000, count: 1 }));
    }

    #[test]
    fn midnight_is_never_now() {
        assert_eq!(until_midnight(0), Duration::from_secs(86_400));
        assert_eq!(until_midnight(DAY - 1), Duration::from_secs(1));
        assert_eq!(until_midnight(-1), Duration::from_secs(1));
    }
}
