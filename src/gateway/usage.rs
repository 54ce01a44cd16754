//! What each key asked lately, how close it is to its limits, and what all asked, for people who look at it. It decides
//! and changes nothing.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Gateway, KeySource};
use crate::cache::CacheSize;
use crate::keys::Key;
use crate::limits::{KeyLevels, OverLimitCounts, RecentActivity};
use crate::telemetry::Outcome;
use crate::telemetry::metrics::RequestTotals;

/// The use of one key.
#[derive(Clone, Debug)]
pub struct KeyUsage {
    pub key: Arc<Key>,
    pub recent: RecentActivity,
    pub levels: KeyLevels,
}

impl Gateway {
    /// The counts of all requests so far.
    pub fn totals(&self) -> RequestTotals {
        self.observer.totals()
    }

    /// The last refusals of each code, the latest first.
    pub fn last_refusals(&self) -> Vec<Outcome> {
        self.observer.last_refusals()
    }

    /// How often each limit was exceeded, by the names of the tiers in force.
    pub fn over_limits(&self) -> Vec<(String, OverLimitCounts)> {
        let state = self.core.state_full();
        let policies = state.key_table.policies().iter();
        policies.map(|policy| (policy.tier().name.clone(), policy.over_limit().read())).collect()
    }

    pub fn cache_size(&self) -> CacheSize {
        self.core.cache.size()
    }

    /// The use of every key that sent a request on the last day; with `id`, of that key, whenever it was used. A key with
    /// two secrets is there once.
    pub fn usage(&self, id: Option<&str>) -> Vec<KeyUsage> {
        let state = self.core.state_full();
        let (now, unix) = (self.core.now(), self.core.clock.unix());
        let mut keys = match &state.keys {
            KeySource::Origin(learned_keys) => learned_keys.keys(),
            KeySource::Store(_) | KeySource::File(_) => state.key_table.keys(),
        };
        keys.retain(|key| id.is_none_or(|id| *key.id == *id));
        let mut seen = HashSet::new();
        keys.retain(|key| seen.insert(key.id.clone()));
        let usage = keys.into_iter().map(|key| {
            let recent = key.usage.activity.recent(now);
            let levels = key.policy.levels(&key.buckets, &key.usage, now, unix);
            KeyUsage { key, recent, levels }
        });
        usage.filter(|usage| id.is_some() || usage.recent.day.requests > 0).collect()
    }
}
