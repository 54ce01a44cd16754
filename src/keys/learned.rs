//! The keys of `keys.source = "origin"`, which only the origin's own answers prove or refuse. Both lists are bounded
//! LRU caches, so that unknown keys cannot use up memory. An answer counts from when the origin was asked, and one of
//! an origin that is no longer in force does not count. It asks nobody itself: `gateway` asks, and reports the answer
//! here.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::Mutex;

use super::book::{Budget, Guild};
use super::{Key, Proof};
use crate::cache::{Flights, Realm};
use crate::clock::Tick;
use crate::limits::{Counted, Meters, Policy, Usage};
use crate::model::{Digest, GuildId, KeyId, Scope};
use crate::wire::Fault;

/// Keys that are remembered as good, about 50 MB. One more, and the key that was used longest ago
/// is forgotten, and what it had used up with it: so many keys within one refill are the price.
const KNOWN: u64 = 100_000;

/// Keys that are remembered as refused, about 10 MB; one more, and that refused or asked for
/// longest ago is forgotten. Whoever sends so many pays for each from the address's budget.
const REFUSED: u64 = 65_536;

/// The keys that an origin's own answers taught (contract section 3, `keys.source = "origin"`).
/// Each has its answers for itself: whose guild it speaks for, only the origin knows.
#[derive(Debug)]
pub struct Learned {
    known: Cache<Digest, Arc<Taught>>,
    refused: Cache<Digest, Tick>,
    rules: ArcSwap<Rules>,
    /// Keys that nobody knows yet and that the origin is being asked about.
    questions: Flights<Digest, (), Told>,
    next_realm: AtomicU64,
    /// What a store kept of the day's counts, for keys not seen since the start.
    counted: HashMap<KeyId, Counted>,
    /// Held while a key is put under another policy, so that its budget is taken over once.
    changing: Mutex<()>,
}

/// What holds for every learned key; changed by a reload.
#[derive(Debug)]
pub struct Rules {
    pub policy: Arc<Policy>,
    /// How long a usable answer proves a key.
    pub accepted_for: Duration,
    /// How long 02 is remembered.
    pub refused_for: Duration,
    /// What the origin was asked before this does not count: it was another one.
    pub since: Tick,
}

/// A key, and what the origin's answers said of it.
#[derive(Debug)]
pub struct Taught {
    pub key: Arc<Key>,
    digest: Digest,
    proof: Arc<Proof>,
}

/// What is known of a key at one moment.
#[derive(Debug)]
pub enum Standing {
    Proven(Arc<Taught>),
    /// It was good when the origin was last asked, which is too long ago to go by.
    Lapsed(Arc<Taught>),
    /// Nothing that counts. `Some`: it was good before the origin said 02 of it, and what it had
    /// used up is not forgotten.
    Unknown(Option<Arc<Taught>>),
    /// 02, not long ago.
    Refused,
}

/// What everyone who waited for one question about a key is told.
#[derive(Clone, Debug)]
pub enum Told {
    Proven(Arc<Taught>),
    Refused,
    /// The origin failed: nothing was learned.
    Failed(Fault),
}

impl Taught {
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

impl Learned {
    pub fn new(rules: Rules, counted: Vec<(KeyId, Counted)>) -> Self {
        Learned {
            known: Cache::builder().max_capacity(KNOWN).eviction_policy(EvictionPolicy::lru()).build(),
            refused: Cache::builder().max_capacity(REFUSED).eviction_policy(EvictionPolicy::lru()).build(),
            rules: ArcSwap::from_pointee(rules),
            questions: Flights::default(),
            next_realm: AtomicU64::new(0),
            counted: counted.into_iter().collect(),
            changing: Mutex::new(()),
        }
    }

    /// Puts other rules in force for every key, from `now` on.
    pub fn hold_to(&self, rules: Rules, now: Tick) {
        let policy = rules.policy.clone();
        let before = self.rules.swap(Arc::new(rules));
        if Arc::ptr_eq(&before.policy, &policy) {
            return;
        }
        let _changing = self.changing.lock();
        for (_, taught) in &self.known {
            // Its record follows when it asks; what it has left is what it has left now.
            Meters::under(&taught.key.policy, &taught.key.meters, &policy, now);
        }
    }

    /// Since when the origin's word on keys counts.
    pub fn since(&self) -> Tick {
        self.rules.load().since
    }

    /// The questions about keys that are being asked now.
    pub fn questions(&self) -> &Flights<Digest, (), Told> {
        &self.questions
    }

    /// What is known of the key with this digest.
    pub fn find(&self, digest: &Digest, now: Tick) -> Standing {
        let rules = self.rules.load();
        let there = self.known.get(digest).map(|taught| self.under(taught, &rules.policy, now));
        if let Some(taught) = &there
            && taught.proof.stands(now, rules.accepted_for, rules.since)
        {
            return Standing::Proven(taught.clone());
        }
        if self.refused.get(digest).is_some_and(|at| at >= rules.since && now < at.plus(rules.refused_for)) {
            return Standing::Refused;
        }
        match there {
            Some(taught) if taught.proof.was_good() => Standing::Lapsed(taught),
            unknown => Standing::Unknown(unknown),
        }
    }

    /// The origin, asked at `asked`, answered so that the key is proven. The key as it is known
    /// from now on.
    pub fn accept(&self, taught: &Arc<Taught>, asked: Tick) -> Arc<Taught> {
        let digest = taught.digest;
        let known = self.known.get(&digest);
        let known = known.unwrap_or_else(|| self.known.entry(digest).or_insert_with(|| taught.clone()).into_value());
        if known.proof.accept(asked) {
            self.refused.invalidate(&digest);
        }
        known
    }

    /// A key as it is known to all, or as this caller knows it.
    pub fn known(&self, taught: &Arc<Taught>) -> Arc<Taught> {
        self.known.get(&taught.digest).unwrap_or_else(|| taught.clone())
    }

    /// The origin, asked at `asked`, said 02 to this key; it is `now`.
    pub fn refute(&self, taught: &Taught, asked: Tick, now: Tick) {
        // Another record of it may be the one that is known, where this one came first.
        let known = self.known.get(&taught.digest);
        if known.as_deref().unwrap_or(taught).proof.refute(asked) && asked >= self.since() {
            self.refused.insert(taught.digest, now);
        }
    }

    /// What was counted of the day, key by key, since it was last written down.
    pub fn counted(&self) -> Vec<(KeyId, Arc<Usage>, Counted)> {
        let unnoted = |taught: Arc<Taught>| {
            let counted = taught.key.usage.day.unnoted()?;
            Some((taught.key.id.clone(), taught.key.usage.clone(), counted))
        };
        self.known.iter().filter_map(|(_, taught)| unnoted(taught)).collect()
    }

    /// The same key under the policy in force.
    fn under(&self, taught: Arc<Taught>, policy: &Arc<Policy>, now: Tick) -> Arc<Taught> {
        let is_held_to = |key: &Key| Arc::ptr_eq(&key.policy, policy) && !key.meters.are_replaced();
        if is_held_to(&taught.key) {
            return taught;
        }
        let _changing = self.changing.lock();
        let taught = self.known.get(&taught.digest).unwrap_or(taught);
        if is_held_to(&taught.key) {
            return taught;
        }
        let key = Arc::new(taught.key.under(policy, now));
        let taught = Arc::new(Taught { key, digest: taught.digest, proof: taught.proof.clone() });
        self.known.insert(taught.digest, taught.clone());
        taught
    }

    /// A key that is not known yet. Nobody else sees it before the origin has proven it.
    pub fn applicant(&self, digest: Digest) -> Arc<Taught> {
        let policy = self.rules.load().policy.clone();
        let id = id_of(&digest);
        let usage = self.counted.get(&id).copied().map(Usage::known).unwrap_or_default();
        let realm = Realm(self.next_realm.fetch_add(1, Ordering::Relaxed));
        let guild = Guild { id: GuildId::of_key(&id), realm, gone: false };
        let budget = Budget { policy, meters: Arc::default(), usage: Arc::new(usage) };
        let key = Key::new(id, guild, Scope::Write, None, None, budget);
        Arc::new(Taught { key: Arc::new(key), digest, proof: Arc::default() })
    }
}

/// The id of a learned key: `o_` and the first 16 digits of its digest, so that it is the same
/// after a restart.
fn id_of(digest: &Digest) -> KeyId {
    let first = u64::from_be_bytes(*digest.0.first_chunk().unwrap_or(&[0; 8]));
    format!("o_{first:016x}").into()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::config::{Rate, Tier};
    use crate::limits::Ask;
    use crate::wire::{Operation, Read};

    const S: u64 = 1_000_000_000;

    fn policy(burst: u32) -> Arc<Policy> {
        let main = Rate { period_ns: S, burst: NonZeroU32::new(burst).unwrap() };
        let (write, daily, in_flight, candidate) = (None, None, None, None);
        Arc::new(Policy::new(Arc::new(Tier { name: "standard".into(), main, write, daily, in_flight, candidate })))
    }

    fn rules(policy: Arc<Policy>) -> Rules {
        Rules { policy, accepted_for: Duration::from_secs(60), refused_for: Duration::from_secs(30), since: Tick(0) }
    }

    fn learned() -> Learned {
        Learned::new(rules(policy(2)), Vec::new())
    }

    fn digest() -> Digest {
        Digest::of(b"somebody's key")
    }

    fn at(seconds: u64) -> Tick {
        Tick(seconds * S)
    }

    fn proven(learned: &Learned, seconds: u64) -> Arc<Taught> {
        match learned.find(&digest(), at(seconds)) {
            Standing::Proven(taught) => taught,
            other => panic!("{other:?}"),
        }
    }

    fn spend(taught: &Taught) -> bool {
        let ask = Ask { operation: Operation::Read(Read::Points), others: 0, now: at(1) };
        taught.key.policy.decide(&taught.key.meters, &taught.key.usage, ask, || 0).over.is_none()
    }

    #[test]
    fn a_key_is_gone_by_for_so_long_and_then_asked_about_with_what_it_used_up() {
        let learned = learned();
        assert!(matches!(learned.find(&digest(), at(1)), Standing::Unknown(None)));
        learned.accept(&learned.applicant(digest()), at(1));
        assert!(spend(&proven(&learned, 1)));
        proven(&learned, 60);
        let Standing::Lapsed(lapsed) = learned.find(&digest(), at(61)) else { panic!("it stands still") };
        learned.accept(&lapsed, at(62));
        let again = proven(&learned, 63);
        assert!(spend(&again) && !spend(&again), "one of two was used before");
    }

    #[test]
    fn a_refused_key_is_refused_for_so_long_and_then_nobody() {
        let learned = learned();
        let applicant = learned.applicant(digest());
        learned.refute(&applicant, at(1), at(2));
        assert!(matches!(learned.find(&digest(), at(31)), Standing::Refused));
        assert!(matches!(learned.find(&digest(), at(32)), Standing::Unknown(None)));
    }

    #[test]
    fn a_good_key_that_is_refused_stops_at_once_and_is_not_refilled_when_it_comes_back() {
        let learned = learned();
        let taught = learned.accept(&learned.applicant(digest()), at(1));
        assert!(spend(&taught) && spend(&taught));
        learned.refute(&taught, at(2), at(2));
        assert!(matches!(learned.find(&digest(), at(3)), Standing::Refused));
        let Standing::Unknown(Some(known)) = learned.find(&digest(), at(40)) else { panic!("it was forgotten") };
        learned.accept(&known, at(40));
        assert!(!spend(&proven(&learned, 41)), "asked at second 1, as if no time had passed");
    }

    #[test]
    fn another_policy_refills_no_learned_key() {
        let learned = learned();
        let taught = learned.accept(&learned.applicant(digest()), at(1));
        assert!(spend(&taught) && spend(&taught));
        let realm = taught.key.guild.realm;
        learned.hold_to(rules(policy(1000)), at(1));
        let taught = proven(&learned, 1);
        assert_eq!(taught.key.policy.tier().main.burst.get(), 1000);
        assert!(!spend(&taught), "all of it was used up");
        assert_eq!(taught.key.guild.realm, realm);
        assert!(Arc::ptr_eq(&taught, &proven(&learned, 1)), "it is made once");
    }

    #[test]
    fn a_burst_that_is_lowered_and_raised_again_gives_no_learned_key_a_second_one() {
        let learned = Learned::new(rules(policy(40)), Vec::new());
        let taught = learned.accept(&learned.applicant(digest()), at(1));
        let let_in = |seconds| {
            let key = &proven(&learned, seconds).key;
            let ask = Ask { operation: Operation::Read(Read::Points), others: 0, now: at(seconds) };
            (0..100).filter(|_| key.policy.decide(&key.meters, &key.usage, ask, || 0).over.is_none()).count()
        };
        assert!(spend(&taught));
        // Nobody asks between the two: the key had one left then all the same.
        learned.hold_to(rules(policy(1)), at(2));
        learned.hold_to(rules(policy(40)), at(3));
        assert_eq!((let_in(3), let_in(5), let_in(45)), (1, 2, 40));
        assert!(!spend(&taught), "by whichever record of it");
        assert!(!proven(&learned, 46).key.meters.are_replaced());
    }

    #[test]
    fn another_origins_word_on_keys_does_not_count() {
        let learned = learned();
        let (good, bad) = (learned.applicant(digest()), learned.applicant(Digest::of(b"bad")));
        learned.accept(&good, at(1));
        learned.refute(&bad, at(1), at(1));
        learned.hold_to(Rules { since: at(2), ..rules(policy(2)) }, at(2));
        assert!(matches!(learned.find(&digest(), at(3)), Standing::Lapsed(_)));
        assert!(matches!(learned.find(&Digest::of(b"bad"), at(3)), Standing::Unknown(None)));
        learned.refute(&bad, at(1), at(3)); // on its way from the old one
        assert!(matches!(learned.find(&Digest::of(b"bad"), at(3)), Standing::Unknown(None)));
    }

    #[test]
    fn no_two_keys_have_a_realm_in_common() {
        let learned = learned();
        let (a, b) = (learned.applicant(Digest::of(b"a")), learned.applicant(Digest::of(b"b")));
        assert_ne!(a.key.guild.realm, b.key.guild.realm);
        assert_eq!(a.key.id.len(), 18);
        assert_ne!(a.key.id, b.key.id);
    }

    #[test]
    fn a_million_keys_leave_no_more_behind_than_the_bounds_say() {
        let learned = learned();
        for n in 0..1_000_000u64 {
            let digest = Digest::of(&n.to_be_bytes());
            assert!(matches!(learned.find(&digest, at(1)), Standing::Unknown(None)));
            if n < REFUSED * 2 {
                learned.refute(&learned.applicant(digest), at(1), at(1));
            }
        }
        learned.refused.run_pending_tasks();
        assert!(learned.refused.entry_count() <= REFUSED);
        assert_eq!(learned.known.entry_count(), 0);
        assert!(matches!(learned.find(&Digest::of(&(REFUSED * 2 - 1).to_be_bytes()), at(1)), Standing::Refused));
    }
}
