use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::Realm;
use crate::clock::Tick;
use crate::config::Limits;
use crate::limits::{Meters, Policy};
use crate::model::{Digest, GuildId, KeyId, Scope};

/// A key as the gateway knows it. Its buckets are in it: no second look-up, no lock.
#[derive(Debug)]
pub struct Key {
    pub id: KeyId,
    pub guild: Guild,
    pub scope: Scope,
    /// Unix seconds; refused from then on.
    pub expires: Option<i64>,
    pub policy: Arc<Policy>,
    pub meters: Arc<Meters>,
    pub last_use: Arc<LastUse>,
}

impl Key {
    fn counted(&self) -> Counted {
        Counted { policy: self.policy.clone(), meters: self.meters.clone(), last_use: self.last_use.clone() }
    }
}

/// When a key was used last, since that was last written down: no write per request.
#[derive(Debug, Default)]
pub struct LastUse(AtomicU64);

impl LastUse {
    /// Notes a use. (0 stands for none; a use in the clock's first nanosecond is the second's.)
    pub fn touch(&self, now: Tick) {
        self.0.store(now.0.max(1), Ordering::Relaxed);
    }

    /// The last use, once.
    fn take(&self) -> Option<Tick> {
        match self.0.swap(0, Ordering::Relaxed) {
            0 => None,
            tick => Some(Tick(tick)),
        }
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
    pub tier: Option<String>,
    pub scope: Scope,
    pub expires: Option<i64>,
}

/// All keys, by digest. It never changes; a change makes another book, which takes over the
/// buckets of the keys that stay, so that nobody is refilled.
#[derive(Debug, Default)]
pub struct Book {
    by_digest: HashMap<Digest, Arc<Key>, BuildHasherDefault<DigestHasher>>,
    realms: HashMap<GuildId, Realm>,
    /// Keys that are gone and had used something up: taken away and put back, they are not refilled.
    departed: HashMap<KeyId, Counted>,
}

/// What is counted of one key, whichever of its secrets it is asked with.
#[derive(Clone, Debug)]
struct Counted {
    policy: Arc<Policy>,
    meters: Arc<Meters>,
    last_use: Arc<LastUse>,
}

impl Counted {
    /// The same key under `policy`, from now on.
    fn under(self, policy: Arc<Policy>, now: Tick) -> Self {
        if self.policy == policy {
            return self;
        }
        let meters = Arc::new(Meters::after(&self.policy, &self.meters, now));
        Counted { policy, meters, last_use: self.last_use }
    }
}

impl Book {
    /// A book of the keys listed, with what was used up under `before` carried over.
    pub fn new(listed: Vec<Listed>, limits: &Limits, before: &Book, now: Tick) -> Self {
        let mut book = Book { realms: before.realms.clone(), ..Book::default() };
        let policies: Vec<Arc<Policy>> = limits.tiers.iter().map(|t| Arc::new(Policy::new(t.clone()))).collect();
        let mut known = before.departed.clone();
        known.extend(before.by_digest.values().map(|key| (key.id.clone(), key.counted())));
        let mut made: HashMap<KeyId, Counted> = HashMap::with_capacity(listed.len());
        for key in listed {
            let tier = limits.tier(key.tier.as_deref());
            let policy = policies.iter().find(|p| Arc::ptr_eq(p.tier(), tier));
            let policy = policy.cloned().unwrap_or_else(|| Arc::new(Policy::new(tier.clone())));
            let counted = made.entry(key.id.clone()).or_insert_with(|| match known.remove(&key.id) {
                Some(counted) => counted.under(policy.clone(), now),
                None => Counted { policy, meters: Arc::default(), last_use: Arc::default() },
            });
            let Counted { policy, meters, last_use } = counted.clone();
            let guild = Guild { realm: book.realm(&key.guild), id: key.guild, gone: key.guild_gone };
            let entry = Key { id: key.id, guild, scope: key.scope, expires: key.expires, policy, meters, last_use };
            book.by_digest.insert(key.digest, Arc::new(entry));
        }
        known.retain(|_, counted| !counted.meters.are_full(&counted.policy, now));
        book.departed = known;
        book
    }

    /// The key with this digest; an expired one is not there.
    pub fn find(&self, digest: &Digest, unix: impl FnOnce() -> i64) -> Option<&Arc<Key>> {
        let key = self.by_digest.get(digest)?;
        let expired = key.expires.is_some_and(|expires| expires <= unix());
        (!expired).then_some(key)
    }

    /// The keys used since the last call, and when.
    pub fn used(&self) -> Vec<(KeyId, Tick)> {
        self.by_digest.values().filter_map(|key| key.last_use.take().map(|at| (key.id.clone(), at))).collect()
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
    use crate::config::{Rate, Tier};
    use crate::wire::{Operation, Read};

    fn limits(burst: u32) -> Limits {
        let rate = Rate { period_ns: 1_000_000_000, burst: NonZeroU32::new(burst).unwrap() };
        let tier = Arc::new(Tier { name: "standard".into(), main: rate, write: None });
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
        let book = Book::new(vec![listed("a", "g")], &limits(2), &Book::default(), Tick(0));
        assert_eq!(&*book.find(&Digest::of(b"a"), never).unwrap().id, "a");
        assert!(book.find(&Digest::of(b"b"), never).is_none());
    }

    #[test]
    fn an_expired_key_is_not_there() {
        let key = Listed { expires: Some(100), ..listed("a", "g") };
        let book = Book::new(vec![key], &limits(2), &Book::default(), Tick(0));
        assert!(book.find(&Digest::of(b"a"), || 99).is_some());
        assert!(book.find(&Digest::of(b"a"), || 100).is_none());
    }

    #[test]
    fn a_new_book_refills_no_key_and_keeps_each_guild_its_realm() {
        let first = Book::new(vec![listed("a", "g1"), listed("b", "g2")], &limits(2), &Book::default(), Tick(0));
        let get = Operation::Read(Read::Points);
        let spend = |book: &Book| {
            let key = book.find(&Digest::of(b"a"), never).unwrap();
            key.policy.decide(&key.meters, get, Tick(0)).0
        };
        assert_eq!((spend(&first), spend(&first)), (None, None));
        // The key is listed under another digest (rotated) and another burst; it is the same key.
        let second = Book::new(vec![listed("b", "g2"), listed("a", "g1")], &limits(8), &first, Tick(0));
        assert!(spend(&second).is_some());
        // Taken away and put back, it is the same key still, until its buckets would be full.
        let without = Book::new(vec![listed("b", "g2")], &limits(2), &second, Tick(0));
        let back = Book::new(vec![listed("a", "g1")], &limits(2), &without, Tick(0));
        assert!(spend(&back).is_some());
        let later = Book::new(vec![], &limits(2), &without, Tick(9_000_000_000));
        assert!(later.departed.is_empty());
        let realm = |book: &Book, key: &[u8]| book.find(&Digest::of(key), never).unwrap().guild.realm;
        assert_eq!(realm(&first, b"a"), realm(&second, b"a"));
        assert_ne!(realm(&second, b"a"), realm(&second, b"b"));
    }
}
