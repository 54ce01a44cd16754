//! The count of a key's requests in one UTC day (`daily`). Day and count are in one atomic word, so that midnight needs
//! no reset and no lock. It remembers how much of the count is in the store, and adds what other processes counted. A
//! clock that is set back over midnight gives nobody a new day. Time is an argument.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Seconds in a UTC day.
const DAY: i64 = 86_400;

/// Bits of the count; the others hold the day, enough for 40,000 years.
const COUNT_BITS: u32 = 40;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// Counts requests of a UTC day.
#[derive(Debug, Default)]
pub struct DayCounter {
    word: AtomicU64,
    /// The part of the count that is in the store, in the same form.
    saved: AtomicU64,
}

/// A count of one UTC day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DayCount {
    /// Days since the Unix epoch.
    pub day: i64,
    pub count: u64,
}

/// The UTC day of a Unix second, in days since the epoch.
pub fn day_of(unix: i64) -> i64 {
    unix.div_euclid(DAY)
}

/// The time until the next UTC day begins.
pub fn until_midnight(unix: i64) -> Duration {
    Duration::from_secs((DAY - unix.rem_euclid(DAY)).unsigned_abs())
}

impl DayCounter {
    /// A counter that continues a count of the store.
    pub fn from_store(count: DayCount) -> Self {
        let word = pack(count);
        DayCounter { word: AtomicU64::new(word), saved: AtomicU64::new(word) }
    }

    /// The count on the day of `unix`.
    pub fn used(&self, unix: i64) -> u64 {
        self.count(unix).count
    }

    /// The count at `unix`, and its day: the one after that of `unix` if the clock was set back over midnight.
    pub fn count(&self, unix: i64) -> DayCount {
        on(self.word.load(Ordering::Acquire), day_of(unix))
    }

    /// Counts one more on the day of `unix`, unless `max` are counted already.
    pub fn admit(&self, max: u64, unix: i64) -> bool {
        let mut before = self.word.load(Ordering::Acquire);
        loop {
            let there = on(before, day_of(unix));
            if there.count >= max {
                return false;
            }
            let after = pack(DayCount { count: there.count + 1, ..there });
            match self.word.compare_exchange_weak(before, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => before = now,
            }
        }
    }

    /// The part of the count that is not in the store yet.
    pub fn unsaved(&self) -> Option<DayCount> {
        let (now, saved) = (unpack(self.word.load(Ordering::Acquire)), unpack(self.saved.load(Ordering::Acquire)));
        let before = if saved.day == now.day { saved.count } else { 0 };
        (now.count > before).then_some(DayCount { day: now.day, count: now.count - before })
    }

    /// The last day on which a request was counted, and its count.
    pub fn last(&self) -> DayCount {
        unpack(self.word.load(Ordering::Acquire))
    }

    /// Leaves no more of the day than `other` leaves, another key's count. The store has that count under the other key's id, so it is not
    /// written under this one's as well.
    pub fn charge_as(&self, other: DayCount) {
        let mut before = self.word.load(Ordering::Acquire);
        while before < pack(other) {
            match self.word.compare_exchange_weak(before, pack(other), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let on_the_day = |word| if unpack(word).day == other.day { unpack(word).count } else { 0 };
                    let unsaved = on_the_day(before).saturating_sub(on_the_day(self.saved.load(Ordering::Acquire)));
                    let saved = DayCount { count: other.count - unsaved, ..other };
                    return self.saved.store(pack(saved), Ordering::Release);
                }
                Err(now) => before = now,
            }
        }
    }

    /// Gives the whole day back.
    pub fn reset(&self) {
        let none = pack(DayCount { count: 0, ..unpack(self.word.load(Ordering::Acquire)) });
        self.saved.store(none, Ordering::Release);
        self.word.store(none, Ordering::Release);
    }

    /// `added` was added in the store, which has `total` for that day now. What exceeds this process's count was counted
    /// by other processes, and counts here too while the day lasts.
    pub fn saved(&self, added: DayCount, total: u64) {
        let saved = unpack(self.saved.load(Ordering::Acquire));
        let own = if saved.day == added.day { saved.count + added.count } else { added.count };
        let by_others = total.saturating_sub(own);
        let mut before = self.word.load(Ordering::Acquire);
        // If the day ended meanwhile, its count is not needed any more.
        while unpack(before).day == added.day {
            let after = pack(DayCount { day: added.day, count: unpack(before).count + by_others });
            match self.word.compare_exchange_weak(before, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let saved = DayCount { day: added.day, count: own + by_others };
                    return self.saved.store(pack(saved), Ordering::Release);
                }
                Err(now) => before = now,
            }
        }
    }
}

/// The count that holds on `day`. A clock set back over midnight refills nobody: the day that was begun goes on. A count
/// of a later day comes from a clock that was wrong, and `day` starts again at 0.
fn on(word: u64, day: i64) -> DayCount {
    let there = unpack(word);
    if there.day == day || there.day == day + 1 { there } else { DayCount { day, count: 0 } }
}

fn pack(count: DayCount) -> u64 {
    (count.day.max(0).cast_unsigned() << COUNT_BITS) | count.count.min(COUNT)
}

fn unpack(word: u64) -> DayCount {
    DayCount { day: (word >> COUNT_BITS).cast_signed(), count: word & COUNT }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: i64 = 20_000 * DAY + DAY / 2;

    #[test]
    fn so_many_are_let_in_a_day_and_as_many_the_next() {
        let day = DayCounter::default();
        let let_in = |unix| (0..10).filter(|_| day.admit(3, unix)).count();
        assert_eq!((let_in(NOON), let_in(NOON + 1), let_in(NOON + DAY)), (3, 0, 3));
    }

    #[test]
    fn a_clock_set_back_over_midnight_refills_no_key_and_a_wrong_one_locks_out_no_key() {
        let day = DayCounter::default();
        assert!(day.admit(1, NOON + DAY));
        assert!(!day.admit(1, NOON), "set back by a day");
        assert!(day.admit(1, NOON - 300 * DAY), "set back by what no clock is set back by");
        assert!(!day.admit(1, NOON - 300 * DAY));
    }

    #[test]
    fn each_request_is_added_to_the_store_once_and_counts_of_others_are_read_back() {
        let day = DayCounter::default();
        assert_eq!(day.unsaved(), None);
        (0..5).for_each(|_| assert!(day.admit(10, NOON)));
        let told = day.unsaved().unwrap();
        assert_eq!(told, DayCount { day: 20_000, count: 5 });
        assert!(day.admit(10, NOON));
        day.saved(told, 7);
        assert_eq!((day.used(NOON), day.unsaved().unwrap().count), (8, 1));
        day.saved(DayCount { day: 20_000, count: 1 }, 8);
        assert_eq!((day.used(NOON), day.unsaved()), (8, None));
        assert!(day.admit(10, NOON + DAY));
        assert_eq!(day.unsaved(), Some(DayCount { day: 20_001, count: 1 }));
    }

    #[test]
    fn what_others_counted_yesterday_is_not_counted_today() {
        let day = DayCounter::default();
        assert!(day.admit(1000, NOON));
        let told = day.unsaved().unwrap();
        assert!(day.admit(1000, NOON + DAY), "midnight came before the store answered");
        day.saved(told, 901);
        assert_eq!(day.used(NOON + DAY), 1);
        assert_eq!(day.unsaved(), Some(DayCount { day: 20_001, count: 1 }));
    }

    #[test]
    fn a_count_known_from_before_goes_on() {
        let day = DayCounter::from_store(DayCount { day: 20_000, count: 2 });
        assert!(day.admit(3, NOON) && !day.admit(3, NOON));
        assert_eq!(day.unsaved(), Some(DayCount { day: 20_000, count: 1 }));
    }

    #[test]
    fn a_count_is_raised_to_that_of_another_key_and_only_what_is_its_own_is_written() {
        let (day, other) = (DayCounter::default(), DayCounter::from_store(DayCount { day: 20_000, count: 5 }));
        assert!(day.admit(9, NOON));
        day.charge_as(other.last());
        assert_eq!((day.used(NOON), day.unsaved()), (5, Some(DayCount { day: 20_000, count: 1 })));
        day.saved(day.unsaved().unwrap(), 1);
        assert_eq!((day.used(NOON), day.unsaved()), (5, None));
        other.charge_as(day.last());
        day.charge_as(DayCount { day: 19_999, count: 9 });
        assert_eq!((day.used(NOON), other.used(NOON), other.unsaved()), (5, 5, None));
        let next = DayCounter::default();
        assert!(next.admit(9, NOON - DAY));
        next.charge_as(day.last());
        assert_eq!((next.used(NOON), next.unsaved()), (5, None), "of the day before nothing counts");
    }

    #[test]
    fn a_day_that_was_given_back_begins_at_nothing() {
        let day = DayCounter::from_store(DayCount { day: 20_000, count: 2 });
        assert!(day.admit(3, NOON) && !day.admit(3, NOON));
        day.reset();
        assert_eq!((day.used(NOON), day.unsaved()), (0, None));
        assert!(day.admit(3, NOON));
        assert_eq!(day.unsaved(), Some(DayCount { day: 20_000, count: 1 }));
    }

    #[test]
    fn midnight_is_never_now() {
        assert_eq!(until_midnight(0), Duration::from_secs(86_400));
        assert_eq!(until_midnight(DAY - 1), Duration::from_secs(1));
        assert_eq!(until_midnight(-1), Duration::from_secs(1));
    }
}
