//! What a node admitted by itself while Redis was away, until Redis is told of it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Tick;
use crate::config::Rate;

/// What this node admitted from its own bucket.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// When that bucket is full again; 0: of a day, or nothing.
    full_at: AtomicU64,
    period_ns: AtomicU64,
    requests: AtomicU64,
}

impl Owed {
    /// Adds a request that the bucket admitted under `rate`, and when it is full again. `whole`: the rate of all nodes.
    pub(super) fn add(&self, full_at: Tick, rate: Rate, whole: Rate) {
        let burst_of_all = u64::from(rate.burst.get()) * (rate.period_ns / whole.period_ns.max(1));
        // What cannot be divided of the burst was used up before, too.
        let rest = if burst_of_all < u64::from(whole.burst.get()) { rate.period_ns } else { 0 };
        self.period_ns.store(rate.period_ns, Ordering::Release);
        self.full_at.fetch_max(full_at.0.saturating_add(rest), Ordering::AcqRel);
        self.requests.fetch_add(1, Ordering::AcqRel);
    }

    /// Adds a request of the day.
    pub(super) fn add_of_day(&self) {
        self.requests.fetch_add(1, Ordering::AcqRel);
    }

    /// Adds what another one holds, and so many requests more.
    pub(super) fn add_all(&self, other: &Owed, requests: u64) {
        let full_at = other.full_at.load(Ordering::Acquire);
        if full_at > self.full_at.fetch_max(full_at, Ordering::AcqRel) {
            self.period_ns.store(other.period_ns.load(Ordering::Acquire), Ordering::Release);
        }
        self.requests.fetch_add(requests.saturating_add(other.requests.load(Ordering::Acquire)), Ordering::AcqRel);
    }

    pub(super) fn is_any(&self) -> bool {
        self.full_at.load(Ordering::Acquire) > 0 || self.requests.load(Ordering::Acquire) > 0
    }

    /// The requests that have not come back at `now`; those of a day never do. The bucket that admitted them began empty, and
    /// that emptiness is none of them.
    pub(super) fn take(&self, now: Tick) -> u64 {
        let requests = self.requests.swap(0, Ordering::AcqRel);
        match self.full_at.swap(0, Ordering::AcqRel) {
            0 => requests,
            full_at => {
                let left = full_at.saturating_sub(now.0).div_ceil(self.period_ns.load(Ordering::Acquire).max(1));
                requests.min(left)
            }
        }
    }
}
