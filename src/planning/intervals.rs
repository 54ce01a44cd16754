//! Counts by the second, minute or day for `limits plan` and `limits suggest`. An event of the
//! interval before counts in the current one; a clock that is set back further begins a new count. Pure: it reads no clock and no file.

use std::cmp::Reverse;

/// Counts events in intervals of time.
#[derive(Clone, Debug, Default)]
pub struct IntervalCounter {
    interval: i64,
    count: u32,
}

impl IntervalCounter {
    /// Counts `events` in an interval, and returns its count so far.
    pub fn add(&mut self, interval: i64, events: u32) -> u32 {
        // A request that was decided just before the end of an interval may be recorded just after it.
        if self.interval != interval && self.interval != interval + 1 {
            (self.interval, self.count) = (interval, 0);
        }
        self.count = self.count.saturating_add(events);
        self.count
    }
}

/// The interval with the highest count, the earliest of equals.
#[derive(Clone, Debug, Default)]
pub struct BusiestInterval {
    counter: IntervalCounter,
    pub interval: i64,
    pub count: u32,
}

impl BusiestInterval {
    pub fn add(&mut self, interval: i64, events: u32) {
        let count = self.counter.add(interval, events);
        if (count, Reverse(interval)) > (self.count, Reverse(self.interval)) {
            (self.interval, self.count) = (interval, count);
        }
    }
}

/// How many intervals had each count: the number at index `n` is of the intervals with count `n`.
#[derive(Clone, Debug, Default)]
pub struct Histogram(Vec<u64>);

impl Histogram {
    /// Records that the count of an interval has grown by one, to `count`.
    pub fn record(&mut self, count: u32) {
        let count = count as usize;
        if self.0.len() <= count {
            self.0.resize(count + 1, 0);
        }
        self.0[count] += 1;
        if count > 1 {
            self.0[count - 1] -= 1;
        }
    }

    /// The lowest count that is not exceeded by `percent` of the intervals.
    pub fn percentile(&self, percent: u64) -> u32 {
        let mut left = (self.0.iter().sum::<u64>() * percent).div_ceil(100);
        let reaches = |intervals: &u64| {
            left = left.saturating_sub(*intervals);
            left == 0
        };
        self.0.iter().position(reaches).unwrap_or_default() as u32
    }

    pub fn peak(&self) -> u32 {
        self.0.len().saturating_sub(1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(intervals: &[i64]) -> Vec<u32> {
        let mut counter = IntervalCounter::default();
        intervals.iter().map(|interval| counter.add(*interval, 1)).collect()
    }

    #[test]
    fn each_event_is_counted_in_its_interval() {
        assert_eq!(counts(&[0, 0, 5]), [1, 2, 1]);
        assert_eq!(counts(&[7, 8, 7, 8, 9]), [1, 1, 2, 3, 1], "one that comes late counts in the current one");
        assert_eq!(counts(&[7, 8, 9, 3, 3]), [1, 1, 1, 1, 2], "the clock was set back");
    }

    #[test]
    fn percentiles_are_counts_that_occurred() {
        let of = |counts: &mut dyn Iterator<Item = u32>| {
            let mut histogram = Histogram::default();
            counts.flat_map(|count| 1..=count).for_each(|count| histogram.record(count));
            ([50, 90, 99].map(|percent| histogram.percentile(percent)), histogram.peak())
        };
        assert_eq!(of(&mut (1..=200)), ([100, 180, 198], 200));
        assert_eq!(of(&mut std::iter::once(3)), ([3, 3, 3], 3));
        assert_eq!(of(&mut std::iter::empty()), ([0, 0, 0], 0));
    }

    #[test]
    fn the_busiest_interval_is_the_earliest_of_equals() {
        let mut busiest = BusiestInterval::default();
        for (interval, events) in [(1, 2), (3, 5), (5, 5), (7, 1)] {
            busiest.add(interval, events);
        }
        assert_eq!((busiest.interval, busiest.count), (3, 5));
    }
}
