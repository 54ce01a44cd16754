//! Counts how many requests of a tier were over each limit. It decides nothing: `policy` counts, and `gateway/tell`
//! writes the numbers to the log. Only requests over a limit are counted, so a request within its limits costs nothing
//! here. The counts go on over a reload as long as the tier keeps its name.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::Limit;

/// How many requests of a tier were over which limit. Counted only where one was, so what is
/// within its limits pays nothing for it.
#[derive(Debug, Default)]
pub struct Tally {
    over: [AtomicU64; Limit::ALL.len()],
    over_candidate: AtomicU64,
}

/// What a [`Tally`] had counted at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tallied {
    pub over: [u64; Limit::ALL.len()],
    pub over_candidate: u64,
}

impl Tally {
    pub fn count_over(&self, limit: Limit) {
        self.over[limit.index()].fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_over_candidate(&self) {
        self.over_candidate.fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self) -> Tallied {
        Tallied {
            over: std::array::from_fn(|i| self.over[i].load(Ordering::Relaxed)),
            over_candidate: self.over_candidate.load(Ordering::Relaxed),
        }
    }
}
