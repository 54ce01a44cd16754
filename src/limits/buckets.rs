//! The GCRA buckets of one key under one tier, and how they pass to another tier. When the tier changes, new buckets
//! replace them for all requests at once: a request that still holds the old ones is decided by their successor. A
//! write limit that is removed and added again begins with what was left, and not full (guarantee 6).

use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;

use super::bucket::RateChange;
use super::{Bucket, Policy, Usage};
use crate::clock::Tick;
use crate::cluster::escrow;
use crate::config::{Rate, Tier};

/// The buckets of one key under one policy.
#[derive(Debug, Default)]
pub struct Buckets {
    pub(super) main: Bucket,
    pub(super) write: Bucket,
    pub(super) candidate: Bucket,
    /// When they began; 0: with the start, or with the key's first request.
    pub(super) since: Tick,
    earlier: Mutex<EarlierRates>,
    /// Set before the first of the buckets answers that it was replaced.
    successor: Mutex<Option<Successor>>,
}

/// What must be remembered of earlier rates.
#[derive(Clone, Copy, Debug, Default)]
struct EarlierRates {
    /// The rate of `write` if the policy has none: a write limit that is removed and added again refills nobody.
    last_write: Option<Rate>,
    /// The largest bursts of `main` and `write`.
    largest_bursts: (u32, u32),
}

impl EarlierRates {
    /// These, and then those of `tier`.
    fn and(self, tier: &Tier) -> Self {
        let last_write = tier.write.or(self.last_write);
        let largest_bursts = (tier.main.burst.get(), last_write.map_or(0, |rate| rate.burst.get()));
        EarlierRates { last_write, largest_bursts }.merged(self)
    }

    /// These, and those of a key that is merged into this one.
    fn merged(self, other: Self) -> Self {
        let ((main, write), (other_main, other_write)) = (self.largest_bursts, other.largest_bursts);
        EarlierRates {
            last_write: self.last_write.or(other.last_write),
            largest_bursts: (main.max(other_main), write.max(other_write)),
        }
    }
}

/// What a key has used up at one moment.
#[derive(Debug)]
pub struct UsedUp {
    policy: Arc<Policy>,
    buckets: Buckets,
}

/// A policy, and the buckets of a key under it.
pub(super) type Successor = (Arc<Policy>, Arc<Buckets>);

impl Buckets {
    /// The full buckets of a key that is listed from `since` on.
    pub fn since(since: Tick) -> Self {
        Buckets { since, ..Buckets::default() }
    }

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
        let after = Arc::new(Buckets::after(buckets, policy_before.tier(), at));
        *successor = Some((policy.clone(), after.clone()));
        // The main bucket is replaced first: a request that sees the write bucket replaced must see the new main bucket
        // with its state.
        after.take_over(buckets, policy_before.tier(), policy.tier(), at, Bucket::replace);
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
        let (policy_before, buckets) = buckets.current(policy_before);
        let (first, last) = changed.into_inner();
        let after = Buckets::after(&buckets, policy_before.tier(), last);
        after.take_over(&buckets, policy_before.tier(), policy.tier(), first, |after, before, change| {
            after.copy(before, change, last);
        });
        after
    }

    /// What these buckets have let in until now, whatever they let in later.
    pub fn used_up(self: &Arc<Self>, policy: &Arc<Policy>) -> UsedUp {
        let (policy, now) = self.current(policy);
        let [main, write, candidate] =
            [&now.main, &now.write, &now.candidate].map(|bucket| Bucket::that_is_full_at(bucket.full_at()));
        let earlier = Mutex::new(*now.earlier.lock());
        UsedUp { policy, buckets: Buckets { main, write, candidate, earlier, ..Buckets::since(now.since) } }
    }

    /// Charges these buckets, under `policy`, with what another key has used up at `at`: no more is left available than that
    /// key has.
    pub fn charge_as(&self, policy: &Policy, other: &UsedUp, at: Tick) {
        let other_rates = other.buckets.earlier.lock().and(other.policy.tier());
        let mut earlier = self.earlier.lock();
        *earlier = earlier.merged(other_rates);
        drop(earlier);
        self.take_over(&other.buckets, other.policy.tier(), policy.tier(), at, Bucket::charge_as);
    }

    /// The buckets that decide in place of these, and their policy: these under `policy` if they were not replaced.
    fn current(self: &Arc<Self>, policy: &Arc<Policy>) -> Successor {
        self.successor().unwrap_or_else(|| (policy.clone(), self.clone()))
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
    pub fn may_be_forgotten(self: &Arc<Self>, policy: &Arc<Policy>, usage: &Usage, now: Tick) -> bool {
        let (policy, buckets) = self.current(policy);
        let EarlierRates { last_write, largest_bursts: (main, write) } = *buckets.earlier.lock();
        let is_full = |bucket: &Bucket, shared, rate: Rate, most| {
            // As far as this node knows what all nodes have used up.
            let all_at = usage.escrow().map_or(Tick(0), |key| key.escrow.lease(shared).full_at(rate.period_ns));
            let of_all = Bucket::that_is_full_at(all_at);
            [bucket, &of_all].iter().all(|bucket| bucket.full_at_with_burst(rate, most) <= now)
        };
        let write_rate = policy.tier().write.or(last_write);
        is_full(&buckets.main, escrow::Bucket::Main, policy.tier().main, main)
            && write_rate.is_none_or(|rate| is_full(&buckets.write, escrow::Bucket::Write, rate, write))
    }

    /// Unused buckets, from `since` on, of a key that had `before` under `tier`.
    fn after(before: &Buckets, tier: &Tier, since: Tick) -> Buckets {
        Buckets { since, earlier: Mutex::new(before.earlier.lock().and(tier)), ..Buckets::default() }
    }

    /// Calls `take(new, old, change)` for each pair of buckets whose rates are known.
    fn take_over(
        &self,
        before: &Buckets,
        from: &Tier,
        to: &Tier,
        at: Tick,
        take: impl Fn(&Bucket, &Bucket, RateChange),
    ) {
        // A key that was admitted once is no new key, so its unused write bucket does not start full.
        let was_used = before.main.was_used();
        let change = |from, to| RateChange { from, to, at, was_used };
        let (last_write_before, last_write) = (before.earlier.lock().last_write, self.earlier.lock().last_write);
        take(&self.main, &before.main, change(from.main, to.main));
        if let Some(from) = from.write.or(last_write_before) {
            take(&self.write, &before.write, change(from, to.write.or(last_write).unwrap_or(from)));
        }
        if let (Some(from), Some(to)) = (from.candidate, to.candidate) {
            take(&self.candidate, &before.candidate, change(from, to));
        }
    }
}
