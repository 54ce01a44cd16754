//! The GCRA buckets of one key under one tier, and how they pass to another tier. Others replace them for every caller
//! at once: a request that still holds the old ones is decided by their successor. A write limit that is removed and
//! added again begins with what was left, and not full (guarantee 6).

use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;

use super::bucket::RateChange;
use super::{Bucket, Policy};
use crate::clock::Tick;
use crate::config::{Rate, Tier};

/// The buckets of one key under one policy.
#[derive(Debug, Default)]
pub struct Buckets {
    pub(super) main: Bucket,
    pub(super) write: Bucket,
    pub(super) candidate: Bucket,
    /// The rate of `write` if the policy has none: a write limit that is removed and added again refills nobody.
    last_write_rate: Option<Rate>,
    /// The largest bursts of `main` and `write` under earlier policies.
    largest_bursts: (u32, u32),
    /// Set before the first of the buckets answers that it was replaced.
    successor: Mutex<Option<Successor>>,
}

/// A policy, and the buckets of a key under it.
type Successor = (Arc<Policy>, Arc<Buckets>);

impl Buckets {
    /// The buckets of a key that is under `policy` from `at` on: the same ones if the limits are the same, else others
    /// that replace them.
    pub fn with_policy(
        policy_before: &Arc<Policy>,
        buckets: &Arc<Buckets>,
        policy: &Arc<Policy>,
        at: Tick,
    ) -> Arc<Buckets> {
        let mut successor = buckets.successor.lock();
        if let Some((policy_before, buckets)) = &mut *successor {
            // The successor is replaced in place, so that a chain of changes leaves no chain of buckets.
            *buckets = Buckets::with_policy(policy_before, buckets, policy, at);
            *policy_before = policy.clone();
            return buckets.clone();
        }
        if policy_before.tier() == policy.tier() {
            return buckets.clone();
        }
        let after = Arc::new(Buckets::for_change(policy_before.tier(), buckets));
        *successor = Some((policy.clone(), after.clone()));
        // The main bucket is replaced first: a request that finds another one replaced finds the main one filled.
        buckets
            .each_change(policy_before.tier(), policy.tier(), at, |of, change| of(&after).replace(of(buckets), change));
        after
    }

    /// As [`Buckets::with_policy`], for another key that begins with what is left of this one. Its limits were changed
    /// at an unknown moment within `changed`; it gets the most that may be left.
    pub fn copy_with_policy(
        policy_before: &Arc<Policy>,
        buckets: &Arc<Buckets>,
        policy: &Policy,
        changed: RangeInclusive<Tick>,
    ) -> Buckets {
        let (policy_before, buckets) = buckets.successor().unwrap_or_else(|| (policy_before.clone(), buckets.clone()));
        let after = Buckets::for_change(policy_before.tier(), &buckets);
        let (first, last) = changed.into_inner();
        buckets.each_change(policy_before.tier(), policy.tier(), first, |of, change| {
            of(&after).copy(of(&buckets), change, last)
        });
        after
    }

    /// Leaves no more available than `other` has under the same policy.
    pub fn charge_as(&self, other: &Buckets) {
        self.main.charge_as(&other.main);
        self.write.charge_as(&other.write);
    }

    /// The buckets that replaced these, if any did.
    pub(super) fn successor(&self) -> Option<Successor> {
        let (policy, buckets) = self.successor.lock().clone()?;
        Some(buckets.successor().unwrap_or((policy, buckets)))
    }

    /// Whether other buckets have replaced these.
    pub fn are_replaced(&self) -> bool {
        self.main.is_replaced()
    }

    /// Whether a removed key may be forgotten: since its last request, the largest burst that it ever had would have
    /// come back, so it may begin full when it is added again.
    pub fn may_be_forgotten(&self, policy: &Policy, now: Tick) -> bool {
        let (tier, (main, write)) = (policy.tier(), self.largest_bursts);
        self.main.full_at_with_burst(tier.main, main) <= now
            && tier.write.or(self.last_write_rate).is_none_or(|rate| self.write.full_at_with_burst(rate, write) <= now)
    }

    /// Buckets that will replace `before`, of a key under `from`.
    fn for_change(from: &Tier, before: &Buckets) -> Buckets {
        let last_write_rate = from.write.or(before.last_write_rate);
        let largest_bursts = (
            before.largest_bursts.0.max(from.main.burst.get()),
            before.largest_bursts.1.max(last_write_rate.map_or(0, |rate| rate.burst.get())),
        );
        Buckets { last_write_rate, largest_bursts, ..Buckets::default() }
    }

    /// Calls `take` for each bucket that passes from one tier to another, with its change of rate.
    fn each_change(&self, from: &Tier, to: &Tier, at: Tick, mut take: impl FnMut(fn(&Buckets) -> &Bucket, RateChange)) {
        // A key that was admitted once is no new key, whatever operation it used.
        let was_used = self.main.was_used();
        let mut change = |of: fn(&Buckets) -> &Bucket, from, to| take(of, RateChange { from, to, at, was_used });
        change(|buckets| &buckets.main, from.main, to.main);
        if let Some(was) = from.write.or(self.last_write_rate) {
            change(|buckets| &buckets.write, was, to.write.unwrap_or(was));
        }
        if let (Some(from), Some(to)) = (from.candidate, to.candidate) {
            change(|buckets| &buckets.candidate, from, to);
        }
    }
}
