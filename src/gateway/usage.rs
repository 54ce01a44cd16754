//! What each key asked lately, how close it is to its limits, and what all asked, for people who look at it. It decides
//! and changes nothing.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Gateway, KeySource, State};
use crate::cache::CacheSize;
use crate::keys::Key;
use crate::limits::{KeyLevels, OverLimitCounters, RecentActivity};
use crate::model::KeyId;
use crate::telemetry::AccessLine;
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
    pub fn last_refusals(&self) -> Vec<AccessLine> {
        self.observer.last_refusals()
    }

    /// How often each limit was exceeded, by the names of the tiers in force.
    pub fn over_limits(&self) -> Vec<(String, Arc<OverLimitCounters>)> {
        let state = self.core.state_full();
        let policies = state.key_table.policies().iter();
        policies.map(|policy| (policy.tier().name.clone(), policy.over_limit().clone())).collect()
    }

    pub fn cache_size(&self) -> CacheSize {
        self.core.cache.size()
    }

    /// The keys that sent a request on the last day, each with how many.
    pub fn used_keys(&self) -> Vec<(u32, Arc<Key>)> {
        let now = self.core.now();
        let used = self.core.state().keys_in_force(|key| key.budget.activity.is_used()).into_iter();
        used.map(|key| (key.budget.activity.recent(now).day.requests, key))
            .filter(|(requests, _)| *requests > 0)
            .collect()
    }

    /// The use of the keys in force whose id is wanted.
    pub fn usage_of(&self, is_wanted: impl Fn(&KeyId) -> bool) -> Vec<KeyUsage> {
        self.core.state().keys_in_force(|key| is_wanted(&key.id)).into_iter().map(|key| self.usage(key)).collect()
    }

    /// The use of a key.
    pub fn usage(&self, key: Arc<Key>) -> KeyUsage {
        let now = self.core.now();
        let recent = key.budget.activity.recent(now);
        let levels = key.budget.levels(&key.policy, now, self.core.clock.unix());
        KeyUsage { key, recent, levels }
    }
}

impl State {
    /// The wanted ones of all keys. A key with two secrets is there once.
    pub(super) fn keys_in_force(&self, is_wanted: impl Fn(&Key) -> bool) -> Vec<Arc<Key>> {
        let mut keys: Vec<Arc<Key>> = match &self.keys {
            KeySource::Origin(learned_keys) => learned_keys.keys().into_iter().filter(|key| is_wanted(key)).collect(),
            KeySource::Store(_) | KeySource::File(_) => {
                self.key_table.keys().filter(|key| is_wanted(key)).cloned().collect()
            }
        };
        let mut seen = HashSet::new();
        keys.retain(|key| seen.insert(key.id.clone()));
        keys
    }
}
