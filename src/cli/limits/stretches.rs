//! Counts by the second, minute or day for `limits plan` and `limits suggest`: a counter that keeps only the last two
//! intervals and reports each one once, the interval with the highest count, and a histogram for percentiles. Records
//! may come out of order by one interval. Pure: it reads no clock and no file.

use std::collections::BTreeMap;

/// Counts by stretches of time (seconds, minutes, days), each told when it is over. What comes
/// may be out of order by one stretch; a clock that is set back further begins a new one.
#[derive(Clone, Debug, Default)]
pub(super) struct Stretches {
    now: (i64, u32),
    before: (i64, u32),
}

impl Stretches {
    /// Counts one in a stretch, and tells what is over by then.
    pub(super) fn add(&mut self, stretch: i64, over: impl FnMut(i64, u32)) {
        self.add_many(stretch, 1, over);
    }

    /// As [`Stretches::add`], of so many.
    pub(super) fn add_many(&mut self, stretch: i64, many: u32, over: impl FnMut(i64, u32)) {
        if self.now.1 > 0 && self.now.0 == stretch {
            self.now.1 = self.now.1.saturating_add(many);
        } else if self.before.1 > 0 && self.before.0 == stretch {
            self.before.1 = self.before.1.saturating_add(many);
        } else {
            let last = std::mem::replace(&mut self.now, (stretch, many));
            tell(std::mem::replace(&mut self.before, last), over);
        }
    }

    /// Tells what is left.
    pub(super) fn finish(self, mut over: impl FnMut(i64, u32)) {
        tell(self.before, &mut over);
        tell(self.now, over);
    }
}

fn tell((stretch, count): (i64, u32), mut over: impl FnMut(i64, u32)) {
    if count > 0 {
        over(stretch, count);
    }
}

/// The stretch with the highest count, the first of its equals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Worst {
    pub(super) stretch: i64,
    pub(super) count: u32,
}

impl Worst {
    pub(super) fn see(&mut self, stretch: i64, count: u32) {
        if count > self.count {
            *self = Worst { stretch, count };
        }
    }
}

/// How many stretches had which count.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram(BTreeMap<u32, u64>);

impl Histogram {
    pub(super) fn see(&mut self, count: u32) {
        *self.0.entry(count).or_default() += 1;
    }

    /// The least count that so many in a hundred stretches do not exceed.
    pub(super) fn percentile(&self, percent: u64) -> u32 {
        let all: u64 = self.0.values().sum();
        let mut left = (all * percent).div_ceil(100);
        for (count, stretches) in &self.0 {
            left = left.saturating_sub(*stretches);
            if left == 0 {
                return *count;
            }
        }
        0
    }

    pub(super) fn peak(&self) -> u32 {
        self.0.last_key_value().map_or(0, |(count, _)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(stretches: &[i64]) -> Vec<(i64, u32)> {
        let (mut counts, mut told) = (Stretches::default(), Vec::new());
        for stretch in stretches {
            counts.add(*stretch, |stretch, count| told.push((stretch, count)));
        }
        counts.finish(|stretch, count| told.push((stretch, count)));
        told
    }

    #[test]
    fn each_stretch_is_told_once_with_all_that_came_in_it() {
        assert_eq!(counted(&[]), []);
        assert_eq!(counted(&[0, 0, 5]), [(0, 2), (5, 1)]);
        assert_eq!(counted(&[7, 8, 7, 8, 9, 8]), [(7, 2), (8, 3), (9, 1)], "out of order by one");
        assert_eq!(counted(&[7, 8, 9, 3, 3]), [(7, 1), (8, 1), (9, 1), (3, 2)], "the clock was set back");
    }

    #[test]
    fn percentiles_are_counts_that_occurred() {
        let mut histogram = Histogram::default();
        (1..=200).for_each(|count| histogram.see(count));
        let at = |percent| histogram.percentile(percent);
        assert_eq!((at(50), at(90), at(99), histogram.peak()), (100, 180, 198, 200));
        let mut one = Histogram::default();
        one.see(3);
        assert_eq!((one.percentile(50), one.percentile(99), one.peak()), (3, 3, 3));
        assert_eq!((Histogram::default().percentile(50), Histogram::default().peak()), (0, 0));
    }

    #[test]
    fn the_worst_is_the_first_of_its_equals() {
        let mut worst = Worst::default();
        [(1, 2), (2, 5), (3, 5), (4, 1)].into_iter().for_each(|(stretch, count)| worst.see(stretch, count));
        assert_eq!(worst, Worst { stretch: 2, count: 5 });
    }
}
