//! Makes recorded decisions again under other limits. It calls the same `Policy::decide` that the gateway calls, with
//! the recorded time, so that there is no second implementation of a limit. Where the record does not say how much a
//! key had left, the most that is possible is assumed: no refusal may come from a guess. It reads no clock and no file.

use std::sync::Arc;

use super::record::Passing;
use crate::clock::Tick;
use crate::config::Limits;
use crate::limits::{Buckets, DayCount, DayCounter, LimitOutcome, LimitQuery, Policy, Usage, day_of};

/// Makes decisions again, under limits of one's choice, by the code that makes them live.
#[derive(Debug)]
pub(super) struct Replay<'l> {
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
    /// When it was last asked with.
    last: Tick,
    run: u32,
    gap: u32,
    today: Today,
}

/// What is known of a key's day as it was lived.
#[derive(Clone, Copy, Debug, Default)]
struct Today {
    day: i64,
    /// What its count should be by what has passed.
    count: u64,
    /// By how much it was more, at the last look.
    more: u64,
}

impl<'l> Replay<'l> {
    pub(super) fn new(limits: &'l Limits) -> Self {
        let policies = limits.tiers.iter().map(|tier| Arc::new(Policy::new(tier.clone()))).collect();
        Replay { limits, policies, keys: Vec::new() }
    }

    /// Decides what passes. Everything that passes has to, and in its order.
    pub(super) fn decide(&mut self, passing: Passing<'_>) -> LimitOutcome {
        let Passing { decision, unix_ms, run, gap, .. } = passing;
        let unix = unix_ms.div_euclid(1000);
        if passing.key == self.keys.len() {
            let (policy, tier) = (self.policy(decision.tier.as_deref()), decision.tier.clone());
            let (buckets, usage, today) = (Arc::default(), Usage::default(), Today::default());
            // Of what was used of the day before this, only the record knows: that is a gap too.
            let last = decision.at;
            self.keys.push(Key { tier, policy, buckets, usage, last, run, gap: gap.wrapping_sub(1), today });
        }
        if self.keys[passing.key].tier != decision.tier {
            let policy = self.policy(decision.tier.as_deref());
            let key = &mut self.keys[passing.key];
            if !Arc::ptr_eq(&policy, &key.policy) {
                // When in between, the record does not say. The most that may be left is, so that no
                // refusal comes of a guess.
                let changed = key.last..=decision.at.max(key.last);
                key.buckets = Arc::new(Buckets::copy_with_policy(&key.policy, &key.buckets, &policy, changed));
                key.policy = policy;
            }
            key.tier = decision.tier.clone();
        }
        let key = &mut self.keys[passing.key];
        if key.run != run {
            (key.run, key.buckets) = (run, Arc::default());
        }
        key.last = decision.at;
        key.follow_the_day(passing, unix);
        let ask = LimitQuery { operation: decision.operation, in_flight: decision.in_flight, now: decision.at };
        key.policy.decide(&key.buckets, &key.usage, ask, || unix)
    }

    /// The limits that a key listed with this tier is held to.
    fn policy(&self, tier: Option<&str>) -> Arc<Policy> {
        let tier = self.limits.tier(tier);
        let known = self.policies.iter().find(|policy| Arc::ptr_eq(policy.tier(), tier));
        known.cloned().unwrap_or_else(|| Arc::new(Policy::new(tier.clone())))
    }
}

impl Key {
    /// Takes over what was counted of the day and did not pass: before the record began, in a gap,
    /// or by another process.
    fn follow_the_day(&mut self, passing: Passing<'_>, unix: i64) {
        let Passing { decision, gap, .. } = passing;
        let today = &mut self.today;
        let day = day_of(unix);
        if today.day != day {
            *today = Today { day, ..Today::default() };
        }
        let count = self.usage.day.used(unix);
        let set = |count| DayCounter::from_store(DayCount { day, count });
        let more = decision.used_today.saturating_sub(today.count);
        if self.gap == gap {
            // Two that came at once may have been counted the other way round, and the first of
            // them then seems to tell of one more.
            let sure = more.min(today.more);
            if sure > 0 {
                self.usage.day = set(count + sure);
            }
            (today.count, today.more) = (today.count + sure, more - sure);
        } else if decision.used_today > 0 {
            let less = today.count.saturating_sub(decision.used_today);
            self.usage.day = set((count + more).saturating_sub(less));
            (today.count, today.more) = (decision.used_today, 0);
        }
        self.gap = gap;
        today.count += u64::from(decision.over.is_none());
    }
}
