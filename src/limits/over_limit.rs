//! Counts how many requests of a tier were over each limit. It decides nothing: `policy` counts, and
//! `gateway/limit_report` writes the numbers to the process log. The counts continue over a reload as long as the tier
//! keeps its name.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::Limit;

/// The counters of one tier. A request within its limits does not touch them.
#[derive(Debug, Default)]
pub struct OverLimitCounters {
    over: [AtomicU64; Limit::ALL.len()],
    over_candidate: AtomicU64,
}

/// The values of the counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverLimitCounts {
    pub over: [u64; Limit::ALL.len()],
    pub over_candidate: u64,
}

impl OverLimitCounters {
    pub fn count_over(&self, limit: Limit) {
        self.over[limit.index()].fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_over_candidate(&self) {
        self.over_candidate.fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self) -> OverLimitCounts {
        OverLimitCounts {
            over: std::array::from_fn(|i| self.over[i].load(Ordering::Relaxed)),
            over_candidate: self.over_candidate.load(Ordering::Relaxed),
        }
    }
}
