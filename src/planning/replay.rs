//! Makes recorded decisions again under other limits. It calls the same `Policy::decide` that the gateway calls, with
//! the recorded time, so that there is no second implementation of a limit. Where the record does not say how much a
//! key had left, the most that is possible is assumed: no refusal may come from a guess. It reads no clock and no file.

use std::sync::Arc;

use super::record::RecordedDecision;
use crate::clock::Tick;
use crate::config::Limits;
use crate::limits::{Buckets, DayCount, DayCounter, LimitOutcome, LimitQuery, Policy, Usage, day_of};

/// Decides recorded requests again under these limits.
#[derive(Debug)]
pub struct Replay<'l> {
    limits: &'l Limits,
    /// In the order of the limits' tiers.
    policies: Vec<Arc<Policy>>,
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    tier: Option<Arc<str>>,
    policy: Arc<Policy>,
    buckets: Arc<Buckets>,
    usage: Usage,
    /// When its last request was decided.
    last: Tick,
    run: u32,
    gap: u32,
    day: RecordedDay,
}

/// A key's count of the day according to the record.
#[derive(Clone, Copy, Debug, Default)]
struct RecordedDay {
    day: i64,
    /// The count that follows from the decisions replayed so far.
    count: u64,
    /// By how much the count in the last decision was higher.
    excess: u64,
}

impl<'l> Replay<'l> {
    pub fn new(limits: &'l Limits) -> Self {
        let policies = limits.tiers.iter().map(|tier| Arc::new(Policy::new(tier.clone()))).collect();
        Replay { limits, policies, keys: Vec::new() }
    }

    /// Decides a request again. All recorded decisions have to come here, in their order.
    pub fn decide(&mut self, recorded: RecordedDecision<'_>) -> LimitOutcome {
        let RecordedDecision { decision, unix_ms, run, gap, .. } = recorded;
        let unix = unix_ms.div_euclid(1000);
        if recorded.key == self.keys.len() {
            let (policy, tier) = (self.policy(decision.tier.as_deref()), decision.tier.clone());
            let (buckets, usage, day) = (Arc::default(), Usage::default(), RecordedDay::default());
            // The usage of the day before the first decision is only in the record, as after a gap.
            let gap = gap.wrapping_sub(1);
            self.keys.push(Key { tier, policy, buckets, usage, last: decision.at, run, gap, day });
        }
        if self.keys[recorded.key].tier != decision.tier {
            let policy = self.policy(decision.tier.as_deref());
            let key = &mut self.keys[recorded.key];
            if !Arc::ptr_eq(&policy, &key.policy) {
                // The record does not say when the tier was changed. The most that may be left is assumed.
                let changed = key.last..=decision.at.max(key.last);
                key.buckets = Arc::new(Buckets::copy_with_policy(&key.policy, &key.buckets, &policy, changed));
                key.policy = policy;
            }
            key.tier = decision.tier.clone();
        }
        let key = &mut self.keys[recorded.key];
        if key.run != run {
            (key.run, key.buckets) = (run, Arc::default());
        }
        key.last = decision.at;
        key.update_day(recorded, unix);
        let query = LimitQuery { operation: decision.operation, in_flight: decision.in_flight, now: decision.at };
        key.policy.decide(&key.buckets, &key.usage, query, || unix)
    }

    /// The policy of a key with this tier.
    fn policy(&self, tier: Option<&str>) -> Arc<Policy> {
        let tier = self.limits.tier(tier);
        let known = self.policies.iter().find(|policy| Arc::ptr_eq(policy.tier(), tier));
        known.cloned().unwrap_or_else(|| Arc::new(Policy::new(tier.clone())))
    }
}

impl Key {
    /// Adds to the day's count what was counted but not replayed: before the record began, in a gap, or by another
    /// process.
    fn update_day(&mut self, recorded: RecordedDecision<'_>, unix: i64) {
        let RecordedDecision { decision, gap, .. } = recorded;
        let day = day_of(unix);
        if self.day.day != day {
            self.day = RecordedDay { day, ..RecordedDay::default() };
        }
        let RecordedDay { count, excess: last_excess, .. } = self.day;
        let used = self.usage.day.used(unix);
        let set = |count| DayCounter::from_store(DayCount { day, count });
        let excess = decision.used_today.saturating_sub(count);
        if self.gap == gap {
            // Two concurrent requests may have been counted in the other order. The first of them then shows an excess
            // of one, so only an excess that two decisions show is certain.
            let certain = excess.min(last_excess);
            if certain > 0 {
                self.usage.day = set(used + certain);
            }
            (self.day.count, self.day.excess) = (count + certain, excess - certain);
        } else if decision.used_today > 0 {
            let deficit = count.saturating_sub(decision.used_today);
            self.usage.day = set((used + excess).saturating_sub(deficit));
            (self.day.count, self.day.excess) = (decision.used_today, 0);
        }
        self.gap = gap;
        self.day.count += u64::from(decision.over.is_none());
    }
}
