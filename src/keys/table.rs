//! The table of all keys that a store or key file lists, by digest, each with its limits and counters. The keys in a
//! table never change: a change makes a new table, which takes over what each key has used up, also for a key that was
//! renamed, rotated, or removed and added again (guarantee 6). A guild keeps its number in the cache for the life of
//! the process. A look-up takes no lock.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::Realm;
use crate::clock::Tick;
use crate::config::{Limits, Tier};
use crate::limits::{Buckets, DayCount, Policy, Usage};
use crate::model::{Digest, GuildId, KeyId, Scope};
use crate::wire::{Fault, Operation};

/// A key with its buckets, so that a request needs one look-up and no lock.
#[derive(Debug)]
pub struct Key {
    pub id: KeyId,
    pub guild: Guild,
    pub scope: Scope,
    /// Unix seconds; the key is refused from then on.
    pub expires: Option<i64>,
    /// The tier it is listed with; `None`: the default tier.
    pub tier: Option<Arc<str>>,
    /// The tier in force for it. Each key has a copy of its own: one counter for all keys of a tier would be contended.
    pub tier_in_force: Arc<str>,
    pub policy: Arc<Policy>,
    pub buckets: Arc<Buckets>,
    pub usage: Arc<Usage>,
}

impl Key {
    /// 15 if the key's scope does not cover `operation`.
    pub fn may_use(&self, operation: Operation) -> Result<(), Fault> {
        match (operation.scope(), self.scope) {
            (Scope::Write, Scope::Read) => Err(Fault::NotAllowed(operation)),
            (Scope::Read, _) | (_, Scope::Write) => Ok(()),
        }
    }

    pub(super) fn new(
        id: KeyId,
        guild: Guild,
        scope: Scope,
        expires: Option<i64>,
        tier: Option<Arc<str>>,
        budget: Budget,
    ) -> Self {
        let Budget { policy, buckets, usage } = budget;
        let in_force = policy.tier().name.as_str();
        let tier_in_force = tier.clone().filter(|tier| **tier == *in_force).unwrap_or_else(|| in_force.into());
        Key { id, guild, scope, expires, tier, tier_in_force, policy, buckets, usage }
    }

    /// The same key under another policy, with what it has used up.
    pub(super) fn with_policy(&self, policy: &Arc<Policy>, now: Tick) -> Self {
        let budget = self.budget().with_policy(policy.clone(), now);
        Key::new(self.id.clone(), self.guild.clone(), self.scope, self.expires, self.tier.clone(), budget)
    }

    fn budget(&self) -> Budget {
        Budget { policy: self.policy.clone(), buckets: self.buckets.clone(), usage: self.usage.clone() }
    }
}

/// A key's guild.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guild {
    pub id: GuildId,
    /// The realm of its answers in the cache.
    pub realm: Realm,
    /// The bot has left it: 03.
    pub gone: bool,
}

/// A key as a store or a file lists it: once for each of its secrets, always with the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedKey {
    pub id: KeyId,
    pub digest: Digest,
    pub guild: GuildId,
    pub guild_gone: bool,
    pub tier: Option<Arc<str>>,
    pub scope: Scope,
    pub expires: Option<i64>,
}

/// All keys, by digest.
#[derive(Debug, Default)]
pub struct KeyTable {
    by_digest: HashMap<Digest, Arc<Key>, BuildHasherDefault<DigestHasher>>,
    realms: HashMap<GuildId, Realm>,
    /// In the order of the configuration's tiers.
    policies: Vec<Arc<Policy>>,
    /// Removed keys: a key that is removed and added again is not refilled. Each is forgotten once the largest burst
    /// that it ever had would have come back; then it may begin with a full one.
    removed: HashMap<KeyId, Budget>,
    /// The removed keys by their secrets: one that is added under another id is the same key.
    removed_digests: HashMap<Digest, KeyId>,
    current_as_of: AsOf,
}

/// The tick as of which a table is known to be what its source lists.
#[derive(Debug)]
struct AsOf(AtomicU64);

impl Default for AsOf {
    fn default() -> Self {
        AsOf(AtomicU64::new(u64::MAX))
    }
}

/// What one key has used up of its limits, with all of its secrets together.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    pub(super) policy: Arc<Policy>,
    pub(super) buckets: Arc<Buckets>,
    pub(super) usage: Arc<Usage>,
}

impl Budget {
    /// The budget of a key that has used up nothing.
    fn new(policy: Arc<Policy>) -> Self {
        Budget { policy, buckets: Arc::default(), usage: Arc::default() }
    }

    /// The budget of the same key under `policy`, from now on.
    fn with_policy(self, policy: Arc<Policy>, now: Tick) -> Self {
        let buckets = Buckets::with_policy(&self.policy, &self.buckets, &policy, now);
        Budget { policy, buckets, usage: self.usage }
    }

    /// The budget of the same key under `policy`, with no more left than `other` has under it.
    fn charged_as(self, other: Budget, policy: Arc<Policy>, now: Tick) -> Self {
        let budget = self.with_policy(policy, now);
        budget.buckets.charge_as(&other.buckets);
        budget
    }

    /// The budget of another key under `policy`, which begins with what is left of this one.
    fn split_off(&self, policy: Arc<Policy>, now: Tick) -> Self {
        let buckets = Arc::new(Buckets::copy_with_policy(&self.policy, &self.buckets, &policy, now..=now));
        Budget { policy, buckets, usage: Arc::default() }
    }
}

impl KeyTable {
    /// A table without keys that knows the day's counts, as the store kept them.
    pub fn with_day_counts(counts: Vec<(KeyId, DayCount)>, limits: &Limits) -> Self {
        let policy = Arc::new(Policy::new(limits.default_tier.clone()));
        let budget = |(id, count)| {
            let usage = Arc::new(Usage::with_count(count));
            (id, Budget { policy: policy.clone(), buckets: Arc::default(), usage })
        };
        KeyTable { removed: counts.into_iter().map(budget).collect(), ..KeyTable::default() }
    }

    /// A table of the keys listed, with what was used up under `before` carried over. `now` and `unix` are the same
    /// moment.
    pub fn new(listed: Vec<ListedKey>, limits: &Limits, before: &KeyTable, now: Tick, unix: i64) -> Self {
        let policies = limits.tiers.iter().map(|tier| before.policy_for(tier)).collect();
        let mut table = KeyTable { realms: before.realms.clone(), policies, ..KeyTable::default() };
        table.set_current_as_of(before.current_as_of());
        let mut known = before.removed.clone();
        known.extend(before.by_digest.values().map(|key| (key.id.clone(), key.budget())));
        let ids: HashSet<KeyId> = listed.iter().map(|key| key.id.clone()).collect();
        let mut made: HashMap<KeyId, Budget> = HashMap::with_capacity(listed.len());
        let mut renames: HashMap<KeyId, KeyId> = HashMap::new();
        for key in listed {
            let tier = limits.tier(key.tier.as_deref());
            let policy = limits.tiers.iter().position(|t| Arc::ptr_eq(t, tier)).and_then(|i| table.policies.get(i));
            let policy = policy.cloned().unwrap_or_else(|| Arc::new(Policy::new(tier.clone())));
            let budget = match made.get(&key.id) {
                Some(budget) => budget.clone(),
                None => {
                    let same = known.remove(&key.id);
                    // A key with a known secret is that key, whatever its id is now.
                    let old_id = before.by_digest.get(&key.digest).map(|old| &old.id);
                    let old_id = old_id.or_else(|| before.removed_digests.get(&key.digest));
                    let renamed = old_id.filter(|id| !ids.contains(*id)).and_then(|id| known.remove(id));
                    if let (Some(_), Some(old_id)) = (&renamed, old_id) {
                        renames.insert(old_id.clone(), key.id.clone());
                    }
                    let other =
                        old_id.filter(|id| **id != key.id).and_then(|id| known.get(id).or_else(|| made.get(id)));
                    let budget = match (same, renamed, other) {
                        // Its id was another key's: what either has used up counts.
                        (Some(same), Some(renamed), _) => {
                            same.charged_as(renamed.with_policy(policy.clone(), now), policy, now)
                        }
                        (Some(same), None, Some(other)) => {
                            same.charged_as(other.split_off(policy.clone(), now), policy, now)
                        }
                        (Some(budget), None, None) | (None, Some(budget), _) => budget.with_policy(policy, now),
                        // Another secret has kept the id, or has got another one.
                        (None, None, Some(other)) => other.split_off(policy, now),
                        (None, None, None) => Budget::new(policy),
                    };
                    made.insert(key.id.clone(), budget.clone());
                    budget
                }
            };
            let guild = Guild { realm: table.realm(&key.guild), id: key.guild, gone: key.guild_gone };
            let entry = Key::new(key.id, guild, key.scope, key.expires, key.tier, budget);
            table.by_digest.insert(key.digest, Arc::new(entry));
        }
        known.retain(|_, b| !b.buckets.may_be_forgotten(&b.policy, now) || !b.usage.is_idle(unix));
        let secrets = before.by_digest.iter().map(|(digest, key)| (digest, &key.id)).chain(&before.removed_digests);
        let renamed = |id: &KeyId| renames.get(id).unwrap_or(id).clone();
        let secrets = secrets.map(|(digest, id)| (digest, renamed(id)));
        // A removed secret is remembered until what its key has used up has come back.
        let is_spent = |id: &KeyId| {
            known.contains_key(id) || made.get(id).is_some_and(|b| !b.buckets.may_be_forgotten(&b.policy, now))
        };
        let removed = secrets.filter(|(digest, id)| is_spent(id) && !table.by_digest.contains_key(*digest));
        table.removed_digests = removed.map(|(digest, id)| (*digest, id)).collect();
        table.removed = known;
        table
    }

    /// Whether a key belongs to another guild than under `before`.
    pub fn has_moved_keys(&self, before: &KeyTable) -> bool {
        let realm_before = |digest| before.by_digest.get(digest).map(|key| key.guild.realm);
        self.by_digest.iter().any(|(digest, key)| realm_before(digest).is_some_and(|realm| realm != key.guild.realm))
    }

    /// The keys as they were listed.
    pub fn listed_keys(&self) -> Vec<ListedKey> {
        let listed = |(digest, key): (&Digest, &Arc<Key>)| ListedKey {
            id: key.id.clone(),
            digest: *digest,
            guild: key.guild.id.clone(),
            guild_gone: key.guild.gone,
            tier: key.tier.clone(),
            scope: key.scope,
            expires: key.expires,
        };
        self.by_digest.iter().map(listed).collect()
    }

    /// The tick as of which the table is known to be what its source lists; the end of time if nobody follows that.
    pub fn current_as_of(&self) -> Tick {
        Tick(self.current_as_of.0.load(Ordering::Acquire))
    }

    pub fn set_current_as_of(&self, at: Tick) {
        self.current_as_of.0.store(at.0, Ordering::Release);
    }

    /// The policy of a tier: the existing one, or a new one that continues the counts of the tier of that name.
    fn policy_for(&self, tier: &Arc<Tier>) -> Arc<Policy> {
        match self.policies.iter().find(|p| p.tier().name == tier.name) {
            Some(same) if same.tier() == tier => same.clone(),
            Some(other) => Arc::new(Policy::with_counters(tier.clone(), other.over_limit().clone())),
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
    pub fn keys(&self) -> Vec<Arc<Key>> {
        self.by_digest.values().cloned().collect()
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
        let removed = self.removed.iter().map(|(id, budget)| (id, &budget.usage));
        self.by_digest.values().map(|key| (&key.id, &key.usage)).chain(removed)
    }

    /// A guild's realm. It stays the same from when the guild was first seen, and is never another guild's.
    fn realm(&mut self, guild: &GuildId) -> Realm {
        let next = Realm(self.realms.len() as u64);
        *self.realms.entry(guild.clone()).or_insert(next)
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::config::Rate;
    use crate::keys::InFlightSlot;
    use crate::limits::LimitQuery;
    use crate::wire::Read;

    fn limits(burst: u32) -> Limits {
        let rate = Rate { period_ns: 1_000_000_000, burst: NonZeroU32::new(burst).unwrap() };
        let (write, daily, in_flight, candidate) = (None, None, None, None);
        let tier = Arc::new(Tier { name: "standard".into(), main: rate, write, daily, in_flight, candidate });
        Limits { default_tier: tier.clone(), tiers: vec![tier], shadow: false, strangers: rate }
    }

    fn listed(id: &str, guild: &str) -> ListedKey {
        ListedKey {
            id: id.into(),
            digest: Digest::of(id.as_bytes()),
            guild: guild.parse().unwrap(),
            guild_gone: false,
            tier: None,
            scope: Scope::Write,
            expires: None,
        }
    }

    fn never() -> i64 {
        unreachable!("the wall clock is read only for keys that expire")
    }

    #[test]
    fn a_key_is_found_by_its_digest() {
        let key_table = KeyTable::new(vec![listed("a", "g")], &limits(2), &KeyTable::default(), Tick(0), 0);
        assert_eq!(&*key_table.find(&Digest::of(b"a"), never).unwrap().id, "a");
        assert!(key_table.find(&Digest::of(b"b"), never).is_none());
    }

    #[test]
    fn an_expired_key_is_not_there() {
        let key = ListedKey { expires: Some(100), ..listed("a", "g") };
        let key_table = KeyTable::new(vec![key], &limits(2), &KeyTable::default(), Tick(0), 0);
        assert!(key_table.find(&Digest::of(b"a"), || 99).is_some());
        assert!(key_table.find(&Digest::of(b"a"), || 100).is_none());
    }

    #[test]
    fn a_new_table_refills_no_key_and_keeps_each_guild_its_realm() {
        let first =
            KeyTable::new(vec![listed("a", "g1"), listed("b", "g2")], &limits(2), &KeyTable::default(), Tick(0), 0);
        let spend = |key_table: &KeyTable| {
            let key = key_table.find(&Digest::of(b"a"), never).unwrap();
            let ask = LimitQuery { operation: Operation::Read(Read::Points), in_flight: 0, now: Tick(0) };
            key.policy.decide(&key.buckets, &key.usage, ask, || 0).over
        };
        assert_eq!((spend(&first), spend(&first)), (None, None));
        // The key is listed under another digest (rotated) and another burst; it is the same key.
        let second = KeyTable::new(vec![listed("b", "g2"), listed("a", "g1")], &limits(8), &first, Tick(0), 0);
        assert!(spend(&second).is_some());
        // Taken away and put back, it is the same key still, until a bucket of 8 would be full.
        let without = KeyTable::new(vec![listed("b", "g2")], &limits(2), &second, Tick(0), 0);
        let removed = |at: u64| KeyTable::new(vec![], &limits(2), &without, Tick(at * 1_000_000_000), 9).removed.len();
        assert_eq!((removed(7), removed(8)), (1, 0));
        let back = KeyTable::new(vec![listed("a", "g1")], &limits(2), &without, Tick(0), 0);
        assert!(spend(&back).is_some());
        // Called by another id, it is the same key too.
        // So it is where it is put back by another id only later.
        let gone = KeyTable::new(vec![], &limits(2), &back, Tick(0), 0);
        let gone = KeyTable::new(vec![], &limits(2), &gone, Tick(0), 0);
        let other = ListedKey { id: "c".into(), ..listed("a", "g1") };
        assert!(spend(&KeyTable::new(vec![other], &limits(2), &gone, Tick(0), 0)).is_some());
        let renamed = ListedKey { id: "c".into(), ..listed("a", "g1") };
        let renamed = KeyTable::new(vec![renamed], &limits(2), &back, Tick(0), 0);
        assert!(spend(&renamed).is_some());
        let realm = |key_table: &KeyTable, key: &[u8]| key_table.find(&Digest::of(key), never).unwrap().guild.realm;
        assert_eq!(realm(&first, b"a"), realm(&second, b"a"));
        assert_ne!(realm(&second, b"a"), realm(&second, b"b"));
    }

    /// How many of so many requests a key's limits let in, at a second.
    fn let_in(key_table: &KeyTable, secret: &str, second: u64) -> usize {
        let key = key_table.find(&Digest::of(secret.as_bytes()), never).unwrap();
        let ask =
            LimitQuery { operation: Operation::Read(Read::Points), in_flight: 0, now: Tick(second * 1_000_000_000) };
        (0..100).filter(|_| key.policy.decide(&key.buckets, &key.usage, ask, || 0).over.is_none()).count()
    }

    #[test]
    fn a_key_that_was_away_while_the_burst_was_lowered_and_raised_is_let_in_no_oftener() {
        let key_table = |listed: Vec<ListedKey>, burst, before: &KeyTable, second: u64| {
            KeyTable::new(listed, &limits(burst), before, Tick(second * 1_000_000_000), 0)
        };
        let all = key_table(vec![listed("a", "g")], 40, &KeyTable::default(), 0);
        assert_eq!(let_in(&all, "a", 0), 40);
        let lowered = key_table(vec![listed("a", "g")], 1, &all, 0);
        assert_eq!(let_in(&lowered, "a", 5), 1);
        // It goes with a full bucket of one, and is remembered for as long as forty take to come back.
        let gone = [6, 20, 44].iter().fold(lowered, |before, second| key_table(vec![], 1, &before, *second));
        assert_eq!(gone.removed.len(), 1);
        let forgotten = key_table(vec![], 1, &gone, 45);
        assert_eq!(forgotten.removed.len(), 0);
        let back = key_table(vec![listed("a", "g")], 40, &gone, 44);
        assert_eq!((let_in(&back, "a", 44), let_in(&back, "a", 45)), (1, 1));
        let back = key_table(vec![listed("a", "g")], 40, &forgotten, 45);
        assert_eq!(let_in(&back, "a", 45), 40, "41 seconds after its last request: as if nothing had been changed");
    }

    #[test]
    fn two_secrets_of_a_key_that_become_two_keys_begin_with_what_is_left_of_it() {
        let twice = |second: &str| vec![listed("a", "g"), ListedKey { id: second.into(), ..listed("b", "g") }];
        for (limits_then, left) in [(limits(4), 1), (limits(9), 1)] {
            let one = KeyTable::new(twice("a"), &limits(4), &KeyTable::default(), Tick(0), 0);
            assert_eq!((let_in(&one, "a", 0), let_in(&one, "b", 1)), (4, 1), "it is one key");
            let two = KeyTable::new(twice("b"), &limits_then, &one, Tick(2_000_000_000), 2);
            assert_eq!((let_in(&two, "a", 2), let_in(&two, "b", 2)), (left, left));
            let renamed = vec![ListedKey { id: "c".into(), ..listed("a", "g") }, listed("b", "g")];
            let others = KeyTable::new(renamed, &limits_then, &two, Tick(2_000_000_000), 2);
            assert_eq!((let_in(&others, "a", 2), let_in(&others, "b", 2)), (0, 0));
            assert!(others.removed.is_empty(), "the name that nobody has any more is forgotten");
        }
    }

    #[test]
    fn a_used_up_secret_gets_no_second_burst_while_its_id_has_another_secret() {
        let with = |id: &str, secret: &str| ListedKey { id: id.into(), ..listed(secret, "g") };
        let table = |listed: Vec<ListedKey>, before: &KeyTable| KeyTable::new(listed, &limits(4), before, Tick(0), 0);
        let first = table(vec![with("a", "one")], &KeyTable::default());
        assert_eq!(let_in(&first, "one", 0), 4);
        let both = || vec![with("a", "two"), with("c", "one")];
        for between in [vec![], vec![with("a", "two")], vec![with("a", "three")]] {
            let between = table(between, &first);
            for listed in [both(), both().into_iter().rev().collect()] {
                let after = table(listed, &between);
                assert_eq!((let_in(&after, "one", 0), let_in(&after, "two", 0)), (0, 0));
            }
        }
        let refilled = KeyTable::new(vec![with("a", "two")], &limits(4), &first, Tick(4_000_000_000), 4);
        assert!(refilled.removed_digests.is_empty(), "a secret is forgotten when its burst has come back");
    }

    #[test]
    fn a_used_up_secret_gets_no_second_burst_under_the_id_of_another_key_that_goes() {
        let with = |id: &str, secret: &str| ListedKey { id: id.into(), ..listed(secret, "g") };
        let table = |listed: Vec<ListedKey>, before: &KeyTable| KeyTable::new(listed, &limits(4), before, Tick(0), 0);
        for (used_before, left) in [(["one"].as_slice(), 0), (&["two"], 0), (&[], 4)] {
            let first = table(vec![with("a", "one"), with("c", "two")], &KeyTable::default());
            used_before.iter().for_each(|secret| assert_eq!(let_in(&first, secret, 0), 4));
            let at_once = table(vec![with("c", "one")], &first);
            assert_eq!(let_in(&at_once, "one", 0), left, "{used_before:?}");
        }
    }

    #[test]
    fn secrets_that_change_places_or_ids_get_no_second_burst() {
        let with = |id: &str, secret: &str| ListedKey { id: id.into(), ..listed(secret, "g") };
        let table = |listed: Vec<ListedKey>, before: &KeyTable| KeyTable::new(listed, &limits(4), before, Tick(0), 0);
        // Two that change secrets, and three that move up by one.
        let swapped = |n: usize| {
            if n.is_multiple_of(2) {
                vec![with("a", "A"), with("b", "B")]
            } else {
                vec![with("a", "B"), with("b", "A")]
            }
        };
        let shifted = |n: usize| vec![with(&format!("k{n}"), "A"), with(&format!("k{}", n + 1), "B")];
        for lists in [&swapped as &dyn Fn(usize) -> Vec<ListedKey>, &shifted] {
            let mut before = table(lists(0), &KeyTable::default());
            assert_eq!((let_in(&before, "A", 0), let_in(&before, "B", 0)), (4, 4));
            for n in 1..5 {
                before = table(lists(n), &before);
                assert_eq!((let_in(&before, "A", 0), let_in(&before, "B", 0)), (0, 0), "round {n}");
            }
        }
        // One whose id got another secret and was renamed then.
        let mut before = table(vec![with("a", "A")], &KeyTable::default());
        assert_eq!(let_in(&before, "A", 0), 4);
        for list in [vec![with("a", "X")], vec![with("b", "X")], vec![with("b", "X"), with("n", "A")]] {
            before = table(list, &before);
        }
        assert_eq!((let_in(&before, "A", 0), let_in(&before, "X", 0)), (0, 0));
    }

    #[test]
    fn a_key_removed_during_requests_and_put_back_still_counts_them() {
        let first = KeyTable::new(vec![listed("a", "g")], &limits(2), &KeyTable::default(), Tick(0), 0);
        let (one, two, three) = (InFlightSlot::default(), InFlightSlot::default(), InFlightSlot::default());
        let request = one.take(first.find(&Digest::of(b"a"), never).unwrap());
        let without = KeyTable::new(vec![], &limits(2), &first, Tick(0), 0);
        let back = KeyTable::new(vec![listed("a", "g")], &limits(2), &without, Tick(0), 0);
        assert_eq!(two.take(back.find(&Digest::of(b"a"), never).unwrap()).others(), 1);
        drop(request);
        assert_eq!(three.take(back.find(&Digest::of(b"a"), never).unwrap()).others(), 0);
    }

    #[test]
    fn a_slot_in_flight_is_released_once_and_not_taken_again() {
        let key_table = KeyTable::new(vec![listed("a", "g")], &limits(2), &KeyTable::default(), Tick(0), 0);
        let key = key_table.find(&Digest::of(b"a"), never).unwrap();
        let others = || InFlightSlot::default().take(key).others();
        let (gone, stays, late) = (InFlightSlot::default(), InFlightSlot::default(), InFlightSlot::default());
        let (request, _another) = (gone.take(key), stays.take(key));
        assert_eq!(others(), 2);
        gone.release();
        gone.release();
        assert_eq!(others(), 1);
        drop(request);
        assert_eq!(others(), 1);
        late.release();
        let request = late.take(key);
        assert_eq!((request.others(), others()), (1, 1), "its caller had hung up before it was let in");
        drop(request);
        assert_eq!(others(), 1);
    }
}
