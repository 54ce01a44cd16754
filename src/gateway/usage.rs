//! What each key asked lately, and how close it is to its limits, for people who look at it. It decides and changes
//! nothing.

use std::sync::Arc;

use super::Gateway;
use crate::cache::CacheSize;
use crate::keys::Key;
use crate::limits::{KeyLevels, OverLimitCounters, RecentActivity};
use crate::model::KeyId;

/// The use of one key.
#[derive(Clone, Debug)]
pub struct KeyUsage {
    pub key: Arc<Key>,
    pub recent: RecentActivity,
    pub levels: KeyLevels,
}

impl Gateway {
    /// How often each limit was exceeded, by the names of the tiers in force.
    pub fn over_limits(&self) -> Vec<(String, Arc<OverLimitCounters>)> {
        let state = self.state_full();
        let policies = state.key_table.policies().iter();
        policies.map(|policy| (policy.tier().name.clone(), policy.over_limit().clone())).collect()
    }

    pub fn cache_size(&self) -> CacheSize {
        self.cache.size()
    }

    /// The keys that sent a request on the last day, each with how many.
    pub fn used_keys(&self) -> Vec<(u32, Arc<Key>)> {
        let now = self.now();
        let used = self.state().keys_in_force(|key| key.budget.activity.is_used()).into_iter();
        used.map(|key| (key.budget.activity.recent(now).day.requests, key))
            .filter(|(requests, _)| *requests > 0)
            .collect()
    }

    /// The use of the keys in force whose id is wanted.
    pub fn usage_of(&self, is_wanted: impl Fn(&KeyId) -> bool) -> Vec<KeyUsage> {
        self.state().keys_in_force(|key| is_wanted(&key.id)).into_iter().map(|key| self.usage(key)).collect()
    }

    /// The use of a key.
    pub fn usage(&self, key: Arc<Key>) -> KeyUsage {
        let now = self.now();
        let recent = key.budget.activity.recent(now);
        let levels = key.budget.levels(&key.policy, now, self.clock.unix());
        KeyUsage { key, recent, levels }
    }
}
