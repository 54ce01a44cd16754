//! The table of all keys that a store or key file lists, by digest, each with its limits and its budget. A change makes a
//! new table, in which each id keeps its budget (guarantee 6). A guild keeps its number in the cache for the life of the
//! process. A look-up takes no lock.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ahash::RandomState;
use parking_lot::Mutex;

use super::{Key, ListedKey};
use crate::cache::Realm;
use crate::clock::Tick;
use crate::config::{Limits, Tier};
use crate::limits::{Budget, DayCount, Policy};
use crate::model::{Digest, GuildId, KeyId};

/// All keys, by digest.
#[derive(Debug, Default)]
pub struct KeyTable {
    by_digest: HashMap<Digest, Arc<Key>, RandomState>,
    realms: Arc<HashMap<GuildId, Realm>>,
    /// In the order of the configuration's tiers.
    policies: Vec<Arc<Policy>>,
    /// The budgets of all keys that are listed, by id, and of keys that were listed until everything has come back that
    /// they used up: so a key that is removed and added again, or rotated, begins with what was left.
    budgets: Arc<Mutex<HashMap<KeyId, Arc<Budget>>>>,
}

impl KeyTable {
    /// A table without keys that knows the day's counts, as the store kept them.
    pub fn with_day_counts(counts: Vec<(KeyId, DayCount)>) -> Self {
        let budgets = counts.into_iter().map(|(id, count)| (id, Arc::new(Budget::with_day(count))));
        KeyTable { budgets: Arc::new(Mutex::new(budgets.collect())), ..KeyTable::default() }
    }

    /// A table of the keys listed, which keep the budgets that their ids have. `now` and `unix` are the same moment.
    pub fn new(listed: Vec<ListedKey>, limits: &Limits, before: &KeyTable, now: Tick, unix: i64) -> Self {
        let policies = limits.tiers.iter().map(|tier| before.policy_for(tier)).collect();
        let (realms, budgets) = (before.realms.clone(), before.budgets.clone());
        let mut table = KeyTable { realms, policies, budgets, ..KeyTable::default() };
        let mut budgets = before.budgets.lock();
        for listed in listed {
            let policy = table.policy_for(limits.tier(listed.tier.as_deref()));
            let budget = budgets.entry(listed.id.clone()).or_default().clone();
            budget.change_tier(policy.tier(), now);
            let (digest, realm) = (listed.digest, table.realm(&listed.guild));
            // Requests under way keep the table before, and with it the keys that the two do not share.
            let same = before.by_digest.get(&digest).filter(|was| {
                was.listed == listed && Arc::ptr_eq(&was.policy, &policy) && Arc::ptr_eq(&was.budget, &budget)
            });
            let key = same.cloned().unwrap_or_else(|| Arc::new(Key::new(listed, realm, policy, budget)));
            table.by_digest.insert(digest, key);
        }
        let ids: HashSet<&KeyId> = table.by_digest.values().map(|key| &key.id).collect();
        budgets.retain(|id, budget| ids.contains(id) || !budget.is_idle(now, unix));
        drop(budgets);
        table
    }

    /// The realms that a secret of the table before belonged to and does not any more: it was removed, or is listed for
    /// another guild now.
    pub fn realms_left(&self, before: &KeyTable) -> HashSet<Realm> {
        let now = |secret| self.by_digest.get(secret).map(|key| key.realm);
        let earlier = before.by_digest.iter().map(|(secret, key)| (secret, key.realm));
        earlier.filter(|(secret, realm)| now(secret) != Some(*realm)).map(|(_, realm)| realm).collect()
    }

    /// The keys as they were listed.
    pub fn listed_keys(&self) -> Vec<ListedKey> {
        self.keys().map(|key| key.listed.clone()).collect()
    }

    /// The policy of a tier: the existing one, or a new one that continues the counts of the tier of that name.
    fn policy_for(&self, tier: &Arc<Tier>) -> Arc<Policy> {
        match self.policies.iter().find(|p| p.tier().name == tier.name) {
            Some(same) if same.tier() == tier => same.clone(),
            Some(other) => Arc::new(Policy::counting(tier.clone(), other.over_limit().clone())),
            None => Arc::new(Policy::new(tier.clone())),
        }
    }

    /// The policy of keys without a tier.
    pub fn default_policy(&self, limits: &Limits) -> Arc<Policy> {
        self.policy_for(&limits.default_tier)
    }

    /// The policies in force, in the order of the configuration's tiers.
    pub fn policies(&self) -> &[Arc<Policy>] {
        &self.policies
    }

    /// The key with this digest, unless it has expired.
    pub fn find(&self, digest: &Digest, unix: impl FnOnce() -> i64) -> Option<&Arc<Key>> {
        let key = self.by_digest.get(digest)?;
        let expired = key.expires.is_some_and(|expires| expires <= unix());
        (!expired).then_some(key)
    }

    /// All keys; one that was rotated is there with each of its secrets.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Arc<Key>> {
        self.by_digest.values()
    }

    /// The realm of a guild that has or had a key.
    pub fn realm_of(&self, guild: &GuildId) -> Option<Realm> {
        self.realms.get(guild).copied()
    }

    /// A guild's realm. It stays the same from when the guild was first seen, and is never another guild's.
    fn realm(&mut self, guild: &GuildId) -> Realm {
        let next = Realm(self.realms.len() as u64);
        match self.realms.get(guild) {
            Some(realm) => *realm,
            None => *Arc::make_mut(&mut self.realms).entry(guild.clone()).or_insert(next),
        }
    }
}
