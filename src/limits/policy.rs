//! A tier in force: the limiters of its rates, and how many requests were over each limit. [`Budget::decide`](super::Budget::decide) is the decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::budget::BucketLevels;
use super::rate::Limiter;
use super::rate_limit_fields::policy_field;
use crate::config::{Rate, Tier};
use crate::model::{Limit, PerRate};

/// A tier in force, with its counters and the parts of its headers that never change.
#[derive(Debug)]
pub struct Policy {
    tier: Arc<Tier>,
    pub(super) rates: PerRate<Option<Limiter>>,
    pub(super) candidate: Option<Limiter>,
    pub(super) header: String,
    over_limit: Arc<OverLimitCounters>,
}

/// How many requests of a tier were over each limit. They go on over a reload while the tier keeps its name.
#[derive(Debug, Default)]
pub struct OverLimitCounters {
    /// By [`Limit::index`].
    pub over: [AtomicU64; Limit::ALL.len()],
    pub over_candidate: AtomicU64,
}

impl OverLimitCounters {
    /// Counts a decision.
    pub(super) fn count(&self, over: Option<Limit>, over_candidate: bool) {
        if let Some(limit) = over {
            self.over[limit.index()].fetch_add(1, Ordering::Relaxed);
        }
        if over_candidate {
            self.over_candidate.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Policy {
    pub fn new(tier: Arc<Tier>) -> Self {
        Self::counting(tier, Arc::default())
    }

    /// A tier that goes on with the counters that the tier of that name had before.
    pub fn counting(tier: Arc<Tier>, over_limit: Arc<OverLimitCounters>) -> Self {
        let header = policy_field(&tier);
        let limiter = |rate: Option<Rate>| rate.map(Limiter::new);
        Policy { rates: tier.rates().map(limiter), candidate: limiter(tier.candidate), tier, header, over_limit }
    }

    pub fn tier(&self) -> &Arc<Tier> {
        &self.tier
    }

    pub fn over_limit(&self) -> &Arc<OverLimitCounters> {
        &self.over_limit
    }
}

impl BucketLevels {
    /// The time until no bucket is empty: a caller that waits for one bucket only would come back too soon for another.
    pub(super) fn wait(&self) -> Duration {
        let levels = self.rates.into_iter().chain([self.daily]).flatten();
        levels.filter(|level| level.remaining == 0).map(|level| level.next).max().unwrap_or_default()
    }
}
