//! The count of a key's requests in one UTC day (`daily`): so many, and how many of them the store does not have yet. A clock
//! that is set back over midnight gives nobody a new day. Time is an argument.

use std::time::Duration;

/// Seconds in a UTC day.
const DAY: i64 = 86_400;

/// A count of one UTC day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DayCount {
    /// Days since the Unix epoch.
    pub day: i64,
    pub count: u64,
}

/// The requests of a key on its last day, by whichever process.
#[derive(Clone, Copy, Debug, Default)]
pub struct DayUse {
    /// The last day on which a request was counted, and its count.
    pub known: DayCount,
    /// How many of them this process has counted and the store does not have.
    unsaved: u64,
}

/// The UTC day of a Unix second, in days since the epoch.
pub fn day_of(unix: i64) -> i64 {
    unix.div_euclid(DAY)
}

/// The time until the next UTC day begins.
pub(super) fn until_midnight(unix: i64) -> Duration {
    Duration::from_secs((DAY - unix.rem_euclid(DAY)).unsigned_abs())
}

impl DayUse {
    /// Goes on with a count of the store.
    pub fn from_store(known: DayCount) -> Self {
        DayUse { known, unsaved: 0 }
    }

    /// This on the day of `unix`. After a clock was set back over midnight, the day that was begun goes on; a count of a
    /// later day comes from a clock that was wrong.
    fn on(self, unix: i64) -> Self {
        let (day, known) = (day_of(unix), self.known.day);
        let is_current = known == day || known == day + 1;
        if is_current { self } else { DayUse { known: DayCount { day, count: 0 }, unsaved: 0 } }
    }

    /// The count on the day of `unix`.
    pub(super) fn used(&self, unix: i64) -> u64 {
        self.on(unix).known.count
    }

    /// Counts one more on the day of `unix`.
    pub(super) fn count(&mut self, unix: i64) {
        *self = self.on(unix);
        self.known.count += 1;
        self.unsaved += 1;
    }

    /// Others know of so many, in which this process's are contained; `admits_one`: one of them is new, and to be saved by it.
    pub(super) fn learn(&mut self, count: DayCount, admits_one: bool) {
        if self.known.day == count.day {
            self.known.count = self.known.count.max(count.count);
        } else {
            *self = DayUse::from_store(count);
        }
        self.unsaved += u64::from(admits_one);
    }

    /// The part of the count that is not in the store yet.
    pub fn unsaved(&self) -> Option<DayCount> {
        (self.unsaved > 0).then_some(DayCount { day: self.known.day, count: self.unsaved })
    }

    /// Gives the whole day back.
    pub fn reset(&mut self) {
        *self = DayUse::from_store(DayCount { count: 0, ..self.known });
    }

    /// `added` was added in the store, which has `total` for that day now, with what other processes counted; 0: it may have
    /// been added.
    pub fn saved(&mut self, added: DayCount, total: u64) {
        // If the day ended meanwhile, its count is not needed any more.
        if self.known.day == added.day {
            self.unsaved = self.unsaved.saturating_sub(added.count);
            self.known.count = self.known.count.max(total + self.unsaved);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: i64 = 20_000 * DAY + DAY / 2;

    fn counted(times: u64) -> DayUse {
        let mut day = DayUse::default();
        (0..times).for_each(|_| day.count(NOON));
        day
    }

    #[test]
    fn a_day_begins_at_nothing_and_a_clock_set_back_over_midnight_begins_none() {
        let mut day = counted(3);
        assert_eq!((day.used(NOON), day.used(NOON - DAY), day.used(NOON + DAY)), (3, 3, 0));
        assert_eq!(day.used(NOON - 300 * DAY), 0, "set back by what no clock is set back by");
        day.count(NOON + DAY);
        assert_eq!((day.used(NOON + DAY), day.unsaved()), (1, Some(DayCount { day: 20_001, count: 1 })));
    }

    #[test]
    fn each_request_is_added_to_the_store_once_and_counts_of_others_are_read_back() {
        let mut day = counted(5);
        let told = day.unsaved().unwrap();
        assert_eq!(told, DayCount { day: 20_000, count: 5 });
        day.count(NOON);
        day.saved(told, 7);
        assert_eq!((day.used(NOON), day.unsaved().unwrap().count), (8, 1));
        day.saved(DayCount { day: 20_000, count: 1 }, 8);
        assert_eq!((day.used(NOON), day.unsaved()), (8, None));
        day.count(NOON + DAY);
        day.saved(DayCount { day: 20_000, count: 1 }, 900);
        assert_eq!(day.used(NOON + DAY), 1, "what others counted yesterday is not counted today");
    }

    #[test]
    fn what_redis_knows_counts_and_only_this_processs_part_is_saved() {
        let mut day = counted(2);
        day.learn(DayCount { day: 20_000, count: 9 }, true);
        assert_eq!((day.used(NOON), day.unsaved().unwrap().count), (9, 3));
        day.saved(day.unsaved().unwrap(), 3);
        assert_eq!((day.used(NOON), day.unsaved()), (9, None));
        day.learn(DayCount { day: 20_000, count: 4 }, false);
        assert_eq!(day.used(NOON), 9, "Redis has lost its data");
        day.learn(DayCount { day: 20_001, count: 1 }, false);
        assert_eq!(day.used(NOON + DAY), 1);
    }

    #[test]
    fn a_day_that_was_given_back_begins_at_nothing() {
        let mut day = counted(2);
        day.reset();
        assert_eq!((day.used(NOON), day.unsaved()), (0, None));
    }

    #[test]
    fn midnight_is_never_now() {
        assert_eq!(until_midnight(0), Duration::from_secs(86_400));
        assert_eq!(until_midnight(DAY - 1), Duration::from_secs(1));
        assert_eq!(until_midnight(-1), Duration::from_secs(1));
    }
}
