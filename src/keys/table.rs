//! The table of all keys that a store or key file lists, by digest, each with its limits and its budget. A change makes a
//! new table, in which each id keeps its budget. A guild keeps its number in the cache for the life of the process. A
//! look-up takes no lock.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Budgets, Guild, Key, ListedKey};
use crate::cache::Realm;
use crate::clock::Tick;
use crate::config::{Limits, Tier};
use crate::limits::{DayCount, Policy};
use crate::model::{Digest, GuildId, KeyId};

/// All keys, by digest.
#[derive(Debug, Default)]
pub struct KeyTable {
    by_digest: KeysByDigest,
    realms: Arc<HashMap<GuildId, Realm>>,
    /// In the order of the configuration's tiers.
    policies: Vec<Arc<Policy>>,
    budgets: Arc<Budgets>,
    /// In ticks; 0: no task follows the source.
    confirmed_at: AtomicU64,
}

type KeysByDigest = HashMap<Digest, Arc<Key>, BuildHasherDefault<DigestHasher>>;

impl KeyTable {
    /// A table without keys that knows the day's counts, as the store kept them.
    pub fn with_day_counts(counts: Vec<(KeyId, DayCount)>) -> Self {
        KeyTable { budgets: Arc::new(Budgets::with_day_counts(counts)), ..KeyTable::default() }
    }

    /// A table of the keys listed, which keep the budgets that their ids have. `now` and `unix` are the same moment.
    pub fn new(listed: Vec<ListedKey>, limits: &Limits, before: &KeyTable, now: Tick, unix: i64) -> Self {
        let policies = limits.tiers.iter().map(|tier| before.policy_for(tier)).collect();
        let (realms, budgets) = (before.realms.clone(), before.budgets.clone());
        let mut table = KeyTable { realms, policies, budgets, ..KeyTable::default() };
        table.set_confirmed_at(before.confirmed_at());
        for key in listed {
            let (policy, budget) = (table.policy_for(limits.tier(key.tier.as_deref())), table.budgets.of(&key.id));
            budget.change_tier(policy.tier(), now);
            let guild = Guild { realm: table.realm(&key.guild), id: key.guild, departed: key.guild_departed };
            let entry = Key::new(key.id, guild, key.scope, key.expires, key.tier, (policy, budget));
            // Requests under way keep the table before, and with it the keys that the two do not share.
            let same = before.by_digest.get(&key.digest).filter(|was| was.is_same(&entry)).cloned();
            table.by_digest.insert(key.digest, same.unwrap_or_else(|| Arc::new(entry)));
        }
        let ids: HashSet<&KeyId> = table.by_digest.values().map(|key| &key.id).collect();
        table.budgets.forget_idle(|id| ids.contains(id), now, unix);
        table
    }

    /// The realms that a secret of the table before belonged to and does not any more: it was removed, or is listed for
    /// another guild now.
    pub fn realms_left(&self, before: &KeyTable) -> HashSet<Realm> {
        let now = |secret| self.by_digest.get(secret).map(|key| key.guild.realm);
        let earlier = before.by_digest.iter().map(|(secret, key)| (secret, key.guild.realm));
        earlier.filter(|(secret, realm)| now(secret) != Some(*realm)).map(|(_, realm)| realm).collect()
    }

    /// The keys as they were listed.
    pub fn listed_keys(&self) -> Vec<ListedKey> {
        let listed = |(digest, key): (&Digest, &Arc<Key>)| ListedKey {
            id: key.id.clone(),
            digest: *digest,
            guild: key.guild.id.clone(),
            guild_departed: key.guild.departed,
            tier: key.tier.clone(),
            scope: key.scope,
            expires: key.expires,
        };
        self.by_digest.iter().map(listed).collect()
    }

    /// When the table was last confirmed to be what its source lists; the end of time if no task follows the source.
    pub fn confirmed_at(&self) -> Tick {
        match self.confirmed_at.load(Ordering::Acquire) {
            0 => Tick(u64::MAX),
            at => Tick(at),
        }
    }

    pub fn set_confirmed_at(&self, at: Tick) {
        self.confirmed_at.store(at.0.max(1), Ordering::Release);
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
    pub fn keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.by_digest.values()
    }

    /// How many secrets there are; a key that was rotated has two.
    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }

    /// The keys used since the last call, and when.
    pub fn take_last_uses(&self) -> Vec<(KeyId, Tick)> {
        self.by_digest.values().filter_map(|key| key.budget.take_last_use().map(|at| (key.id.clone(), at))).collect()
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

/// Uses the first bytes of the digest as its hash, since they are random already. A caller cannot choose which digests
/// are in the table, and a look-up of any other digest changes nothing.
#[derive(Debug, Default)]
struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_ne_bytes(*first);
        }
    }

    // The length of the array, which std's Hash writes first; it is the same for all.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
