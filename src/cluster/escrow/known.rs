//! What a node knows of the level of a rate, under the limit for which Redis told it.

use crate::clock::{Tick, nanos};

/// A level, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub level: i64,
    /// When, by Redis's clock; 0: nothing is known.
    pub at_us: i64,
    /// The same moment by this node's clock.
    pub at: Tick,
    pub capacity: u64,
    pub period_ns: u64,
}

impl Known {
    /// The level at `now`, if nothing was used up since.
    fn drained(self, now: Tick) -> Known {
        let passed = now.since(self.at);
        let level = self.level.saturating_sub_unsigned(nanos(passed));
        let at_us = self.at_us.saturating_add(i64::try_from(passed.as_micros()).unwrap_or(i64::MAX));
        Known { level, at_us, at: self.at.max(now), ..self }
    }

    /// The level under another limit from `now` on: what is available then stays available, up to the new burst.
    pub fn under(self, (capacity, period_ns): (u64, u64), now: Tick) -> Known {
        if (self.capacity, self.period_ns) == (capacity, period_ns) || self.at_us == 0 || capacity == 0 {
            return self;
        }
        if self.capacity == 0 {
            return Known::default(); // it was not limited
        }
        let then = self.drained(now);
        let wide = |number: u64| i128::from(number);
        let available = wide(self.capacity) * wide(self.period_ns) - i128::from(then.level.max(0));
        let available = available.max(0) * wide(period_ns) / wide(self.period_ns);
        let level = (wide(capacity) * wide(period_ns) - available).max(0);
        Known { level: i64::try_from(level).unwrap_or(i64::MAX), capacity, period_ns, ..then }
    }

    /// The one of the two that leaves less available at `now`, under the limit of the first.
    pub fn max(self, other: Known, now: Tick) -> Known {
        if self.at_us == 0 {
            return other;
        }
        let other = other.under((self.capacity, self.period_ns), now);
        if other.at_us == 0 || other.drained(now).level <= self.drained(now).level { self } else { other }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    /// At one second by this node's clock, and at two by Redis's.
    fn known(level: i64, capacity: u64, period_ns: i64) -> Known {
        let at = Tick(SECOND.unsigned_abs());
        Known { level, at_us: 2_000_000, at, capacity, period_ns: period_ns.unsigned_abs() }
    }

    /// So many seconds later.
    fn after(seconds: u64) -> Tick {
        Tick(SECOND.unsigned_abs()).plus(Duration::from_secs(seconds))
    }

    #[test]
    fn what_was_available_stays_available_under_another_limit() {
        // Ten of 40 are left, at one a second.
        let known = known(30 * SECOND, 40, SECOND);
        let under = |capacity, period_ns: i64, now| {
            let Known { level, at_us, .. } = known.under((capacity, period_ns.unsigned_abs()), now);
            (level / SECOND, at_us)
        };
        assert_eq!(under(40, SECOND, after(5)), (30, 2_000_000), "Redis knows how long ago that was");
        assert_eq!(under(40, 10 * SECOND, after(0)), (300, 2_000_000));
        assert_eq!(under(15, SECOND, after(0)), (5, 2_000_000));
        assert_eq!(under(5, SECOND, after(0)), (0, 2_000_000));
        assert_eq!(under(0, 1, after(0)), (30, 2_000_000), "it is not limited");
        assert_eq!(Known { capacity: 0, ..known }.under((40, 1), after(0)), Known::default(), "it was not limited");
        assert_eq!(Known::default().under((40, 1), after(0)), Known::default());
    }

    #[test]
    fn what_has_come_back_at_one_rate_is_not_used_up_at_a_slower_one() {
        let known = known(40 * SECOND, 40, SECOND);
        let slower = (40, 60 * SECOND.unsigned_abs());
        assert_eq!(known.under(slower, after(30)).level, 600 * SECOND, "ten are used up");
        assert_eq!(known.under(slower, after(90)).level, 0);
        assert_eq!(known.under(slower, after(90)).at_us, 92_000_000);
    }

    #[test]
    fn of_two_levels_the_one_counts_that_leaves_less() {
        let (more, less) = (known(40 * SECOND, 40, SECOND), known(35 * SECOND, 40, SECOND));
        let later = Known { at: after(10), ..less };
        assert_eq!((more.max(less, after(10)), less.max(more, after(10))), (more, more));
        assert_eq!((more.max(later, after(10)), later.max(more, after(10))), (later, later));
        assert_eq!((Known::default().max(less, after(0)), less.max(Known::default(), after(0))), (less, less));
        // Of the slower one a single request is left, which is 39 seconds of the first.
        let slower = known(390 * SECOND, 40, 10 * SECOND);
        assert_eq!(known(0, 40, SECOND).max(slower, after(0)).level, 39 * SECOND);
    }
}
