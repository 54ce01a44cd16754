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
    /// Those of which no bucket of this node says when they have come back.
    of_leases: AtomicU64,
}

/// What is owed at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwedNow {
    full_at: u64,
    period_ns: u64,
    requests: u64,
    pub of_leases: u64,
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

    pub(super) fn now(&self) -> OwedNow {
        let [full_at, period_ns, requests, of_leases] =
            [&self.full_at, &self.period_ns, &self.requests, &self.of_leases].map(|n| n.load(Ordering::Acquire));
        OwedNow { full_at, period_ns, requests, of_leases }
    }

    /// Owes no less than another one does, which goes on to owe it.
    pub(super) fn charge_as(&self, other: OwedNow) {
        let OwedNow { full_at, period_ns, requests, of_leases } = other;
        if full_at > self.full_at.fetch_max(full_at, Ordering::AcqRel) {
            self.period_ns.store(period_ns, Ordering::Release);
        }
        self.requests.fetch_max(requests, Ordering::AcqRel);
        self.of_leases.fetch_max(of_leases, Ordering::AcqRel);
    }

    pub(super) fn is_any(&self) -> bool {
        [&self.full_at, &self.requests, &self.of_leases].iter().any(|n| n.load(Ordering::Acquire) > 0)
    }

    /// The requests that have not come back at `now`; those of a day never do. The bucket that admitted them began empty, and
    /// that emptiness is none of them.
    pub(super) fn take(&self, now: Tick) -> u64 {
        let requests = self.requests.swap(0, Ordering::AcqRel);
        let of_leases = self.of_leases.swap(0, Ordering::AcqRel);
        let of_buckets = match self.full_at.swap(0, Ordering::AcqRel) {
            0 => requests,
            full_at => {
                let left = full_at.saturating_sub(now.0).div_ceil(self.period_ns.load(Ordering::Acquire).max(1));
                requests.min(left)
            }
        };
        of_buckets.saturating_add(of_leases)
    }
}
