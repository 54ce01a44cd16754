//! The table of all keys that a store or key file lists, by digest, each with its limits and counters. The keys in a
//! table never change: a change makes a new table, which takes over what each key has used up, also for a key that was
//! renamed, rotated, or removed and added again (guarantee 6). A guild keeps its number in the cache for the life of
//! the process. A lookup takes no lock.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::Realm;
use crate::clock::Tick;
use crate::config::{Limits, Tier};
use crate::limits::{Counted, Meters, Policy, Usage};
use crate::model::{Digest, GuildId, KeyId, Scope};
use crate::wire::{Fault, Operation};

/// A key as the gateway knows it. Its buckets are in it: no second look-up, no lock.
#[derive(Debug)]
pub struct Key {
    pub id: KeyId,
    pub guild: Guild,
    pub scope: Scope,
    /// Unix seconds; refused from then on.
    pub expires: Option<i64>,
    /// The tier it is listed with; `None`: the default one.
    pub tier: Option<Arc<str>>,
    pub policy: Arc<Policy>,
    pub meters: Arc<Meters>,
    pub usage: Arc<Usage>,
}

impl Key {
    /// 15 where the key's scope does not cover `operation`.
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
        let Budget { policy, meters, usage } = budget;
        Key { id, guild, scope, expires, tier, policy, meters, usage }
    }

    /// The same key under another policy, with what it has used up.
    pub(super) fn under(&self, policy: &Arc<Policy>, now: Tick) -> Self {
        let budget = self.budget().under(policy.clone(), now);
        Key::new(self.id.clone(), self.guild.clone(), self.scope, self.expires, self.tier.clone(), budget)
    }

    fn budget(&self) -> Budget {
        Budget { policy: self.policy.clone(), meters: self.meters.clone(), usage: self.usage.clone() }
    }
}

/// A key's guild.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guild {
    pub id: GuildId,
    /// Under which its answers are cached.
    pub realm: Realm,
    /// The bot left it: 03.
    pub gone: bool,
}

/// A key as a store or a file lists it: once for each secret it has, always by the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub id: KeyId,
    pub digest: Digest,
    pub guild: GuildId,
    pub guild_gone: bool,
    pub tier: Option<Arc<str>>,
    pub scope: Scope,
    pub expires: Option<i64>,
}

/// All keys, by digest. It never changes; a change makes another book, which takes over the
/// budgets of the keys that stay, so that nobody is refilled.
#[derive(Debug, Default)]
pub struct Book {
    by_digest: HashMap<Digest, Arc<Key>, BuildHasherDefault<DigestHasher>>,
    realms: HashMap<GuildId, Realm>,
    /// In the order of the configuration's tiers.
    policies: Vec<Arc<Policy>>,
    /// Keys that are gone: taken away and put back, they are not refilled. Each is forgotten once the largest
    /// burst that it was held to would have come back, from when on it may as well begin with a full one.
    departed: HashMap<KeyId, Budget>,
    /// Those keys by their secrets: one that is put back under another id is the same key.
    departed_secrets: HashMap<Digest, KeyId>,
    known_until: Known,
}

/// A tick until which a book is known to be what its source lists.
#[derive(Debug)]
struct Known(AtomicU64);

impl Default for Known {
    fn default() -> Self {
        Known(AtomicU64::new(u64::MAX))
    }
}

/// What one key has used up of its limits, whichever of its secrets it is asked with.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    pub(super) policy: Arc<Policy>,
    pub(super) meters: Arc<Meters>,
    pub(super) usage: Arc<Usage>,
}

impl Budget {
    /// That of a key of which nothing is known.
    fn new(policy: Arc<Policy>) -> Self {
        Budget { policy, meters: Arc::default(), usage: Arc::default() }
    }

    /// The same key under `policy`, from now on.
    fn under(self, policy: Arc<Policy>, now: Tick) -> Self {
        let meters = Meters::under(&self.policy, &self.meters, &policy, now);
        Budget { policy, meters, usage: self.usage }
    }

    /// Another key under `policy`, which begins with what is left of this one's.
    fn split(&self, policy: Arc<Policy>, now: Tick) -> Self {
        let meters = Arc::new(Meters::copy_under(&self.policy, &self.meters, &policy, now..=now));
        Budget { policy, meters, usage: Arc::default() }
    }
}

impl Book {
    /// A book without keys that knows what was counted of them on the day: what a store kept.
    pub fn remembering(counted: Vec<(KeyId, Counted)>, limits: &Limits) -> Self {
        let policy = Arc::new(Policy::new(limits.default_tier.clone()));
        let budget = |(id, counted)| {
            let usage = Arc::new(Usage::known(counted));
            (id, Budget { policy: policy.clone(), meters: Arc::default(), usage })
        };
        Book { departed: counted.into_iter().map(budget).collect(), ..Book::default() }
    }

    /// A book of the keys listed, with what was used up under `before` carried over. `now` and
    /// `unix` are the same moment.
    pub fn new(listed: Vec<Listed>, limits: &Limits, before: &Book, now: Tick, unix: i64) -> Self {
        let policies = limits.tiers.iter().map(|tier| before.policy_for(tier)).collect();
        let mut book = Book { realms: before.realms.clone(), policies, ..Book::default() };
        let mut known = before.departed.clone();
        known.extend(before.by_digest.values().map(|key| (key.id.clone(), key.budget())));
        let ids: HashSet<KeyId> = listed.iter().map(|key| key.id.clone()).collect();
        let mut made: HashMap<KeyId, Budget> = HashMap::with_capacity(listed.len());
        for key in listed {
            let tier = limits.tier(key.tier.as_deref());
            let policy = limits.tiers.iter().position(|t| Arc::ptr_eq(t, tier)).and_then(|i| book.policies.get(i));
            let policy = policy.cloned().unwrap_or_else(|| Arc::new(Policy::new(tier.clone())));
            let budget = made.entry(key.id.clone()).or_insert_with(|| {
                let same = known.remove(&key.id);
                // By the secret it is a known key, whatever it is called now.
                let was = same.is_none().then(|| before.by_digest.get(&key.digest)).flatten();
                let called = was.map(|was| &was.id).or_else(|| before.departed_secrets.get(&key.digest));
                let renamed = called.filter(|id| same.is_none() && !ids.contains(*id)).and_then(|id| known.remove(id));
                match (same.or(renamed), was) {
                    (Some(budget), _) => budget.under(policy, now),
                    // The other of its secrets has kept the name, or got another one.
                    (None, Some(was)) => was.budget().split(policy, now),
                    (None, None) => Budget::new(policy),
                }
            });
            let budget = budget.clone();
            let guild = Guild { realm: book.realm(&key.guild), id: key.guild, gone: key.guild_gone };
            let entry = Key::new(key.id, guild, key.scope, key.expires, key.tier, budget);
            book.by_digest.insert(key.digest, Arc::new(entry));
        }
        known.retain(|_, b| !b.meters.may_be_forgotten(&b.policy, now) || !b.usage.is_idle(unix));
        let secrets = before.by_digest.iter().map(|(digest, key)| (digest, &key.id)).chain(&before.departed_secrets);
        let departed = secrets.filter(|(digest, id)| known.contains_key(*id) && !book.by_digest.contains_key(*digest));
        book.departed_secrets = departed.map(|(digest, id)| (*digest, id.clone())).collect();
        book.departed = known;
        book
    }

    /// Until when it is known to be what its source lists: to the end of time where nobody follows that.
    pub fn known_until(&self) -> Tick {
        Tick(self.known_until.0.load(Ordering::Acquire))
    }

    pub fn set_known_until(&self, at: Tick) {
        self.known_until.0.store(at.0, Ordering::Release);
    }

    /// The policy of a tier: the one there is, or one that goes on with its namesake's counts.
    fn policy_for(&self, tier: &Arc<Tier>) -> Arc<Policy> {
        match self.policies.iter().find(|p| p.tier().name == tier.name) {
            Some(same) if same.tier() == tier => same.clone(),
            Some(other) => Arc::new(Policy::counting(tier.clone(), other.tally().clone())),
            None => Arc::new(Policy::new(tier.clone())),
        }
    }

    /// The policy of the keys that name no tier.
    pub fn default_policy(&self, limits: &Limits) -> Arc<Policy> {
        self.policy_for(&limits.default_tier)
    }

    /// The policies in force, in order of their tiers' names.
    pub fn policies(&self) -> &[Arc<Policy>] {
        &self.policies
    }

    /// The key with this digest; an expired one is not there.
    pub fn find(&self, digest: &Digest, unix: impl FnOnce() -> i64) -> Option<&Arc<Key>> {
        let key = self.by_digest.get(digest)?;
        let expired = key.expires.is_some_and(|expires| expires <= unix());
        (!expired).then_some(key)
    }

    /// The keys used since the last call, and when.
    pub fn used(&self) -> Vec<(KeyId, Tick)> {
        self.by_digest.values().filter_map(|key| key.usage.take_last_use().map(|at| (key.id.clone(), at))).collect()
    }

    /// What was counted of the day, key by key, since it was last written down. The guard of the
    /// usage is told what became of it ([`crate::limits::DayCount::noted`]).
    pub fn counted(&self) -> Vec<(KeyId, Arc<Usage>, Counted)> {
        let here = self.by_digest.values().map(|key| (&key.id, &key.usage));
        let gone = self.departed.iter().map(|(id, budget)| (id, &budget.usage));
        let mut seen = HashSet::new();
        let unnoted = |(id, usage): (&KeyId, &Arc<Usage>)| {
            let counted = usage.day.unnoted().filter(|_| seen.insert(id.clone()))?;
            Some((id.clone(), usage.clone(), counted))
        };
        here.chain(gone).filter_map(unnoted).collect()
    }

    /// A guild's realm: the one it has had since it was first seen, so that a number never comes
    /// to mean another guild.
    fn realm(&mut self, guild: &GuildId) -> Realm {
        let next = Realm(self.realms.len() as u64);
        *self.realms.entry(guild.clone()).or_insert(next)
    }
}

/// A digest is as good as random already; hashing it again would cost and add nothing. A caller
/// cannot choose which digests are in the book, and a look-up of any other changes nothing.
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
    use crate::keys::InFlightPlace;
    use crate::limits::Ask;
    use crate::wire::Read;

    fn limits(burst: u32) -> Limits {
        let rate = Rate { period_ns: 1_000_000_000, burst: NonZeroU32::new(burst).unwrap() };
        let (write, daily, in_flight, candidate) = (None, None, None, None);
        let tier = Arc::new(Tier { name: "standard".into(), main: rate, write, daily, in_flight, candidate });
        Limits { default_tier: tier.clone(), tiers: vec![tier], shadow: false, strangers: rate }
    }

    fn listed(id: &str, guild: &str) -> Listed {
        Listed {
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
    fn a_key_is_found_by_its_digest_alone() {
        let book = Book::new(vec![listed("a", "g")], &limits(2), &Book::default(), Tick(0), 0);
        assert_eq!(&*book.find(&Digest::of(b"a"), never).unwrap().id, "a");
        assert!(book.find(&Digest::of(b"b"), never).is_none());
    }

    #[test]
    fn an_expired_key_is_not_there() {
        let key = Listed { expires: Some(100), ..listed("a", "g") };
        let book = Book::new(vec![key], &limits(2), &Book::default(), Tick(0), 0);
        assert!(book.find(&Digest::of(b"a"), || 99).is_some());
        assert!(book.find(&Digest::of(b"a"), || 100).is_none());
    }

    #[test]
    fn a_new_book_refills_no_key_and_keeps_each_guild_its_realm() {
        let first = Book::new(vec![listed("a", "g1"), listed("b", "g2")], &limits(2), &Book::default(), Tick(0), 0);
        let spend = |book: &Book| {
            let key = book.find(&Digest::of(b"a"), never).unwrap();
            let ask = Ask { operation: Operation::Read(Read::Points), others: 0, now: Tick(0) };
            key.policy.decide(&key.meters, &key.usage, ask, || 0).over
        };
        assert_eq!((spend(&first), spend(&first)), (None, None));
        // The key is listed under another digest (rotated) and another burst; it is the same key.
        let second = Book::new(vec![listed("b", "g2"), listed("a", "g1")], &limits(8), &first, Tick(0), 0);
        assert!(spend(&second).is_some());
        // Taken away and put back, it is the same key still, until a bucket of 8 would be full.
        let without = Book::new(vec![listed("b", "g2")], &limits(2), &second, Tick(0), 0);
        let departed = |at: u64| Book::new(vec![], &limits(2), &without, Tick(at * 1_000_000_000), 9).departed.len();
        assert_eq!((departed(7), departed(8)), (1, 0));
        let back = Book::new(vec![listed("a", "g1")], &limits(2), &without, Tick(0), 0);
        assert!(spend(&back).is_some());
        // Called by another id, it is the same key too.
        // So it is where it is put back by another id only later.
        let gone = Book::new(vec![], &limits(2), &back, Tick(0), 0);
        let gone = Book::new(vec![], &limits(2), &gone, Tick(0), 0);
        let other = Listed { id: "c".into(), ..listed("a", "g1") };
        assert!(spend(&Book::new(vec![other], &limits(2), &gone, Tick(0), 0)).is_some());
        let renamed = Listed { id: "c".into(), ..listed("a", "g1") };
        let renamed = Book::new(vec![renamed], &limits(2), &back, Tick(0), 0);
        assert!(spend(&renamed).is_some());
        let realm = |book: &Book, key: &[u8]| book.find(&Digest::of(key), never).unwrap().guild.realm;
        assert_eq!(realm(&first, b"a"), realm(&second, b"a"));
        assert_ne!(realm(&second, b"a"), realm(&second, b"b"));
    }

    /// How many of so many requests a key's limits let in, at a second.
    fn let_in(book: &Book, secret: &str, second: u64) -> usize {
        let key = book.find(&Digest::of(secret.as_bytes()), never).unwrap();
        let ask = Ask { operation: Operation::Read(Read::Points), others: 0, now: Tick(second * 1_000_000_000) };
        (0..100).filter(|_| key.policy.decide(&key.meters, &key.usage, ask, || 0).over.is_none()).count()
    }

    #[test]
    fn a_key_that_was_away_while_the_burst_was_lowered_and_raised_is_let_in_no_oftener() {
        let book = |listed: Vec<Listed>, burst, before: &Book, second: u64| {
            Book::new(listed, &limits(burst), before, Tick(second * 1_000_000_000), 0)
        };
        let all = book(vec![listed("a", "g")], 40, &Book::default(), 0);
        assert_eq!(let_in(&all, "a", 0), 40);
        let lowered = book(vec![listed("a", "g")], 1, &all, 0);
        assert_eq!(let_in(&lowered, "a", 5), 1);
        // It goes with a full bucket of one, and is remembered for as long as forty take to come back.
        let gone = [6, 20, 44].iter().fold(lowered, |before, second| book(vec![], 1, &before, *second));
        assert_eq!(gone.departed.len(), 1);
        let forgotten = book(vec![], 1, &gone, 45);
        assert_eq!(forgotten.departed.len(), 0);
        let back = book(vec![listed("a", "g")], 40, &gone, 44);
        assert_eq!((let_in(&back, "a", 44), let_in(&back, "a", 45)), (1, 1));
        let back = book(vec![listed("a", "g")], 40, &forgotten, 45);
        assert_eq!(let_in(&back, "a", 45), 40, "41 seconds after its last request: as if nothing had been changed");
    }

    #[test]
    fn two_secrets_of_a_key_that_become_two_keys_begin_with_what_is_left_of_it() {
        let twice = |second: &str| vec![listed("a", "g"), Listed { id: second.into(), ..listed("b", "g") }];
        for (limits_then, left) in [(limits(4), 1), (limits(9), 1)] {
            let one = Book::new(twice("a"), &limits(4), &Book::default(), Tick(0), 0);
            assert_eq!((let_in(&one, "a", 0), let_in(&one, "b", 1)), (4, 1), "it is one key");
            let two = Book::new(twice("b"), &limits_then, &one, Tick(2_000_000_000), 2);
            assert_eq!((let_in(&two, "a", 2), let_in(&two, "b", 2)), (left, left));
            let renamed = vec![Listed { id: "c".into(), ..listed("a", "g") }, listed("b", "g")];
            let others = Book::new(renamed, &limits_then, &two, Tick(2_000_000_000), 2);
            assert_eq!((let_in(&others, "a", 2), let_in(&others, "b", 2)), (0, 0));
            assert!(others.departed.is_empty(), "the name that nobody has any more is forgotten");
        }
    }

    #[test]
    fn a_key_taken_away_amid_requests_and_put_back_has_them_under_way_still() {
        let first = Book::new(vec![listed("a", "g")], &limits(2), &Book::default(), Tick(0), 0);
        let (one, two, three) = (InFlightPlace::default(), InFlightPlace::default(), InFlightPlace::default());
        let request = one.take(first.find(&Digest::of(b"a"), never).unwrap());
        let without = Book::new(vec![], &limits(2), &first, Tick(0), 0);
        let back = Book::new(vec![listed("a", "g")], &limits(2), &without, Tick(0), 0);
        assert_eq!(two.take(back.find(&Digest::of(b"a"), never).unwrap()).others(), 1);
        drop(request);
        assert_eq!(three.take(back.find(&Digest::of(b"a"), never).unwrap()).others(), 0);
    }

    #[test]
    fn a_place_in_flight_is_given_back_once_and_not_taken_after_that() {
        let book = Book::new(vec![listed("a", "g")], &limits(2), &Book::default(), Tick(0), 0);
        let key = book.find(&Digest::of(b"a"), never).unwrap();
        let others = || InFlightPlace::default().take(key).others();
        let (gone, stays, late) = (InFlightPlace::default(), InFlightPlace::default(), InFlightPlace::default());
        let (request, _another) = (gone.take(key), stays.take(key));
        assert_eq!(others(), 2);
        gone.give_back();
        gone.give_back();
        assert_eq!(others(), 1);
        drop(request);
        assert_eq!(others(), 1);
        late.give_back();
        let request = late.take(key);
        assert_eq!((request.others(), others()), (1, 1), "its caller had hung up before it was let in");
        drop(request);
        assert_eq!(others(), 1);
    }
}
