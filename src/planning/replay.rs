//! Makes recorded decisions again under other limits. It calls the same [`Budget::decide`] that the gateway calls, with the
//! recorded time, so that there is no second implementation of a limit. It reads no clock and no file.

use std::sync::Arc;

use super::record::RecordedDecision;
use crate::config::Limits;
use crate::limits::{Budget, DayCount, DayUse, DecidedBy, LimitOutcome, LimitQuery, Policy, day_of};

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
    budget: Budget,
    run: u32,
    /// `None`: before its first decision, where decisions may be missing as in a gap.
    gap: Option<u32>,
}

impl<'l> Replay<'l> {
    pub fn new(limits: &'l Limits) -> Self {
        let policies = limits.tiers.iter().map(|tier| Arc::new(Policy::new(tier.clone()))).collect();
        Replay { limits, policies, keys: Vec::new() }
    }

    /// Decides a request again. All recorded decisions have to come here, in their order. Another tier than in the decision
    /// before takes effect with this one, since the record does not say when it was given.
    pub fn decide(&mut self, recorded: RecordedDecision<'_>) -> LimitOutcome {
        let RecordedDecision { decision, run, gap, .. } = recorded;
        let unix = decision.unix_ms.div_euclid(1000);
        let policy = self.policy(decision.tier.as_deref());
        if recorded.key == self.keys.len() {
            self.keys.push(Key { budget: Budget::default(), run, gap: None });
        }
        let key = &mut self.keys[recorded.key];
        if key.run != run {
            // Budgets are full at a start, but for the day.
            (key.run, key.budget) = (run, Budget::with_day(key.budget.day().known));
        }
        if key.gap != Some(gap) {
            // What was counted of the day in a gap is known by the next decision.
            let (counted, day) = (key.budget.day().known, day_of(unix));
            let before = if counted.day == day { counted.count } else { 0 };
            *key.budget.day() = DayUse::from_store(DayCount { day, count: before.max(decision.used_today) });
            key.gap = Some(gap);
        }
        let query = LimitQuery { operation: decision.operation, in_flight: decision.in_flight, now: decision.at };
        key.budget.decide(&policy, query, DecidedBy::ALONE, || unix)
    }

    /// The policy of a key with this tier.
    fn policy(&self, tier: Option<&str>) -> Arc<Policy> {
        let tier = self.limits.tier(tier);
        let known = self.policies.iter().find(|policy| Arc::ptr_eq(policy.tier(), tier));
        known.cloned().unwrap_or_else(|| Arc::new(Policy::new(tier.clone())))
    }
}
