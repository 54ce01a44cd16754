//! The table of all keys that a store or key file lists, by digest, each with its limits and counters. The keys in a
//! table never change: a change makes a new table, to which `carry_over` passes what each key has used up. A guild keeps
//! its number in the cache for the life of the process. A look-up takes no lock.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::carry_over::{CarryOver, RemovedKeys};
use super::{Guild, Key, ListedKey};
use crate::cache::Realm;
use crate::clock::Tick;
use crate::config::{Limits, Tier};
use crate::limits::{DayCount, Policy, Usage, charge_shared_as, share_in_flight, shared_used_up};
use crate::model::{Digest, GuildId, KeyId};

/// All keys, by digest.
#[derive(Debug, Default)]
pub struct KeyTable {
    by_digest: KeysByDigest,
    realms: Arc<HashMap<GuildId, Realm>>,
    /// In the order of the configuration's tiers.
    policies: Vec<Arc<Policy>>,
    pub(super) removed: RemovedKeys,
    /// The realms of removed secrets, for [`KeyTable::realms_left`].
    former_realms: HashMap<Digest, Realm, BuildHasherDefault<DigestHasher>>,
    realms_of_new_keys: HashSet<Realm>,
    /// In ticks; 0: no task follows the source.
    confirmed_at: AtomicU64,
}

pub(super) type KeysByDigest = HashMap<Digest, Arc<Key>, BuildHasherDefault<DigestHasher>>;

/// Removed secrets whose realms are remembered, 40 bytes each.
const MAX_FORMER_REALMS: usize = 65_536;

impl KeyTable {
    /// A table without keys that knows the day's counts, as the store kept them.
    pub fn with_day_counts(counts: Vec<(KeyId, DayCount)>, limits: &Limits) -> Self {
        KeyTable { removed: RemovedKeys::with_day_counts(counts, limits), ..KeyTable::default() }
    }

    /// A table of the keys listed, with what was used up under `before` carried over. `now` reads the clock, for each key
    /// anew: requests are charged meanwhile. `unix` is the same moment.
    pub fn new(listed: Vec<ListedKey>, limits: &Limits, before: &KeyTable, now: impl Fn() -> Tick, unix: i64) -> Self {
        let policies = limits.tiers.iter().map(|tier| before.policy_for(tier, now())).collect();
        let mut table = KeyTable { realms: before.realms.clone(), policies, ..KeyTable::default() };
        table.set_confirmed_at(before.confirmed_at());
        let mut carry_over = CarryOver::new(&before.by_digest, &before.removed, &listed);
        let (mut new, mut kept) = (HashSet::new(), HashSet::new());
        for key in listed {
            let state = carry_over.state_of(&key, &table.policy_of(&key, limits), now());
            let guild = Guild { realm: table.realm(&key.guild), id: key.guild, departed: key.guild_departed };
            let entry = Key::new(key.id, guild, key.scope, key.expires, key.tier, state);
            // Requests under way keep the table before, and with it the keys that the two do not share.
            let was = before.by_digest.get(&key.digest);
            let is_kept = was.is_some_and(|was| was.guild.realm == entry.guild.realm);
            if is_kept { &mut kept } else { &mut new }.insert(entry.guild.realm);
            let same = was.filter(|was| was.is_same(&entry)).cloned();
            table.by_digest.insert(key.digest, same.unwrap_or_else(|| Arc::new(entry)));
        }
        table.realms_of_new_keys = &new - &kept;
        let former = before.former_realms.iter().map(|(secret, realm)| (*secret, *realm));
        let former = former.chain(before.by_digest.iter().map(|(secret, key)| (*secret, key.guild.realm)));
        let former = former.filter(|(secret, _)| !table.by_digest.contains_key(secret));
        table.former_realms = former.take(MAX_FORMER_REALMS).collect();
        carry_over.charge(&now);
        table.removed = carry_over.into_removed(|secret| table.by_digest.contains_key(secret), now(), unix);
        table
    }

    /// The policy of a key that is listed with this table's tiers.
    fn policy_of(&self, key: &ListedKey, limits: &Limits) -> Arc<Policy> {
        let tier = limits.tier(key.tier.as_deref());
        let policy = self.policies.iter().find(|policy| policy.tier().name == tier.name);
        policy.cloned().unwrap_or_else(|| Arc::new(Policy::new(tier.clone())))
    }

    /// The realms that a secret belonged to and does not any more: it is listed for another guild now, also if it was
    /// removed in between, or it was removed and its realm is not remembered.
    pub fn realms_left(&self, before: &KeyTable) -> HashSet<Realm> {
        let listed = |secret| self.by_digest.get(secret).map(|key| key.guild.realm);
        let now = |secret| listed(secret).or_else(|| self.former_realms.get(secret).copied());
        let earlier = before.by_digest.iter().map(|(secret, key)| (secret, key.guild.realm));
        let earlier = earlier.chain(before.former_realms.iter().map(|(secret, realm)| (secret, *realm)));
        earlier.filter(|(secret, realm)| now(secret) != Some(*realm)).map(|(_, realm)| realm).collect()
    }

    /// The realms of which no key was listed in the table before. Such a guild may be one that was removed and added again
    /// under its id.
    pub fn realms_of_new_keys(&self) -> &HashSet<Realm> {
        &self.realms_of_new_keys
    }

    /// Lets keys that have another id than in the table before count under it where several nodes share the limits, also those
    /// that were first asked with while this table was made.
    pub fn charge_renamed(&self, before: &KeyTable) {
        let is_renamed = |digest, key: &Key| before.by_digest.get(digest).is_some_and(|was| was.id != key.id);
        let renamed = self.by_digest.iter().filter(|(digest, key)| is_renamed(digest, key)).map(|(_, key)| key);
        let renamed: Vec<_> = renamed.collect();
        // What this node has not told under an id is told by whichever key has it afterwards.
        let _escrows: Vec<_> = renamed.iter().filter_map(|key| key.usage.escrow()).collect();
        let used_up = renamed.iter().filter_map(|key| Some((key, shared_used_up(&key.usage, &key.id)?)));
        let used_up = used_up.collect::<Vec<_>>();
        used_up.iter().for_each(|(key, used_up)| charge_shared_as(&key.usage, &key.id, &key.policy, used_up));
    }

    /// Lets other nodes know of the requests in flight of keys that have other limits than in the table before.
    pub fn share_in_flight(&self, now: Tick) {
        self.by_digest.values().for_each(|key| share_in_flight(&key.usage, &key.policy, now));
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

    /// The policy of a tier at `now`: the existing one, or a new one that continues the counts of the tier of that name.
    fn policy_for(&self, tier: &Arc<Tier>, now: Tick) -> Arc<Policy> {
        match self.policies.iter().find(|p| p.tier().name == tier.name) {
            Some(same) if same.tier() == tier => same.clone(),
            Some(other) => Arc::new(Policy::since(now, tier.clone(), other.over_limit().clone())),
            None => Arc::new(Policy::since(now, tier.clone(), Arc::default())),
        }
    }

    /// The policy at `now` of keys without a tier.
    pub fn default_policy(&self, limits: &Limits, now: Tick) -> Arc<Policy> {
        self.policy_for(&limits.default_tier, now)
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
        self.by_digest.values().filter_map(|key| key.usage.take_last_use().map(|at| (key.id.clone(), at))).collect()
    }

    /// What was counted of the day for each key and is not in the store yet. [`crate::limits::DayCounter::saved`] is to
    /// be called once it is.
    pub fn unsaved_counts(&self) -> Vec<(KeyId, Arc<Usage>, DayCount)> {
        let mut seen = HashSet::new();
        let unsaved = |(id, usage): (&KeyId, &Arc<Usage>)| {
            let count = usage.day.unsaved().filter(|_| seen.insert(id.clone()))?;
            Some((id.clone(), usage.clone(), count))
        };
        self.usages().filter_map(unsaved).collect()
    }

    /// The realm of a guild that has or had a key.
    pub fn realm_of(&self, guild: &GuildId) -> Option<Realm> {
        self.realms.get(guild).copied()
    }

    /// The usage of every key, of removed ones too: once for each secret.
    pub fn usages(&self) -> impl Iterator<Item = (&KeyId, &Arc<Usage>)> {
        self.by_digest.values().map(|key| (&key.id, &key.usage)).chain(self.removed_usages())
    }

    /// The usage of removed keys.
    pub fn removed_usages(&self) -> impl Iterator<Item = (&KeyId, &Arc<Usage>)> {
        self.removed.states.iter().map(|(id, state)| (id, &state.usage))
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
pub(super) struct DigestHasher(u64);

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
