//! The keys of `keys.source = "origin"`, which only the origin's own answers prove or refuse. Both lists are bounded
//! LRU caches, so that unknown keys cannot use up memory. An answer counts from when the origin was asked, since one that
//! took long proves no more than it did then, and one of an origin that is no longer in force does not count. The origin is
//! not asked here: `gateway` asks, and reports the answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::Mutex;

use super::{Guild, Key};
use crate::cache::Realm;
use crate::clock::Tick;
use crate::limits::{Budget, DayCount, Policy};
use crate::model::{Digest, GuildId, KeyId, Scope};
use crate::wire::Fault;

/// Known keys, about 240 MB. Beyond that the key that was used longest ago is forgotten, with what it had used up, so a
/// caller with that many valid keys can have one of them refilled.
const MAX_KNOWN: u64 = 100_000;

/// Refused keys, about 18 MB; beyond that the one that was refused or used longest ago is forgotten. Each request with a
/// refused key is charged to its address.
const MAX_REFUSED: u64 = 65_536;

/// Locks of keys about which the origin is asked, about 4 MB: more than wait at once.
const MAX_PROVING: u64 = 16_384;

/// The keys that the origin's answers have proven or refused (contract section 3, `keys.source = "origin"`). Each key
/// has a realm of answers of its own, since only the origin knows its guild.
#[derive(Debug)]
pub struct LearnedKeys {
    known: Cache<Digest, Arc<Key>>,
    refused: Cache<Digest, Tick>,
    rules: ArcSwap<LearnedKeyRules>,
    /// Held while the origin is asked about a key, so that of many requests with one key one proves it. One that is
    /// forgotten while it is held costs a question.
    proving: Cache<Digest, Arc<tokio::sync::Mutex<()>>>,
    next_realm: AtomicU64,
    /// The day's counts that the store had at the start, for keys not seen since.
    day_counts: Mutex<HashMap<KeyId, DayCount>>,
}

/// The rules for all learned keys; a reload changes them.
#[derive(Debug)]
pub struct LearnedKeyRules {
    pub policy: Arc<Policy>,
    /// How long a usable answer proves a key.
    pub accepted_for: Duration,
    /// How long a key stays refused after 02.
    pub refused_for: Duration,
    /// Answers to questions from before do not count: another origin was asked.
    pub since: Tick,
}

/// What is known at one moment about a key that is not refused.
#[derive(Debug)]
pub enum KeyStatus {
    /// It is listed, or the origin has accepted it not long ago.
    Proven(Arc<Key>),
    /// The origin accepted the key once, and what it has used up is remembered.
    Lapsed(Arc<Key>),
    /// Only the origin can judge it.
    Unknown,
}

impl LearnedKeys {
    pub fn new(rules: LearnedKeyRules, day_counts: Vec<(KeyId, DayCount)>) -> Self {
        LearnedKeys {
            known: Cache::builder().max_capacity(MAX_KNOWN).eviction_policy(EvictionPolicy::lru()).build(),
            refused: Cache::builder().max_capacity(MAX_REFUSED).eviction_policy(EvictionPolicy::lru()).build(),
            rules: ArcSwap::from_pointee(rules),
            proving: Cache::builder().max_capacity(MAX_PROVING).eviction_policy(EvictionPolicy::lru()).build(),
            next_realm: AtomicU64::new(0),
            day_counts: Mutex::new(day_counts.into_iter().collect()),
        }
    }

    /// Puts other rules in force for every key from `now` on.
    pub fn set_rules(&self, rules: LearnedKeyRules, now: Tick) {
        let policy = rules.policy.clone();
        let before = self.rules.swap(Arc::new(rules));
        if Arc::ptr_eq(&before.policy, &policy) {
            return;
        }
        for (_, known) in &self.known {
            // The key is replaced at its next request; what is left of its limits is fixed now.
            known.budget.change_tier(policy.tier(), now);
        }
    }

    /// The moment from which on questions to the origin count.
    pub fn since(&self) -> Tick {
        self.rules.load().since
    }

    /// The lock of whoever asks the origin about a key.
    pub fn proving(&self, digest: &Digest) -> Arc<tokio::sync::Mutex<()>> {
        self.proving.get_with(*digest, Arc::default)
    }

    /// What is known about the key with this digest; 02 if the origin refused it so, not long ago.
    pub fn find(&self, digest: &Digest, now: Tick) -> Result<KeyStatus, Fault> {
        let rules = self.rules.load();
        let counts = |at: Tick, so_long| at >= rules.since && now < at.plus(so_long);
        match self.known.get(digest).map(|known| self.with_policy(digest, known, &rules.policy)) {
            Some(key) if key.accepted().is_some_and(|at| counts(at, rules.accepted_for)) => Ok(KeyStatus::Proven(key)),
            _ if self.refused.get(digest).is_some_and(|at| counts(at, rules.refused_for)) => Err(Fault::IncorrectKey),
            Some(key) => Ok(KeyStatus::Lapsed(key)),
            None => Ok(KeyStatus::Unknown),
        }
    }

    /// Whether an answer of the origin proves the key now.
    pub fn is_proven(&self, digest: &Digest, now: Tick) -> bool {
        matches!(self.find(digest, now), Ok(KeyStatus::Proven(_)))
    }

    /// The origin was asked at `asked` and accepted the key.
    pub fn accept(&self, digest: &Digest, key: &Arc<Key>, asked: Tick) {
        let known = self.known.get(digest);
        let known = known.unwrap_or_else(|| self.known.entry(*digest).or_insert_with(|| key.clone()).into_value());
        known.accepted.as_ref().inspect(|accepted| _ = accepted.fetch_max(asked.0.max(1), Ordering::AcqRel));
        self.refused.invalidate(digest);
    }

    /// The origin was asked at `asked` and refused the key with 02; it is `now`. The answer to a later question stays.
    pub fn refute(&self, digest: &Digest, asked: Tick, now: Tick) {
        let accepted = self.known.get(digest).and_then(|known| known.accepted.clone());
        let is_newer = accepted.as_ref().is_some_and(|accepted| accepted.load(Ordering::Acquire) > asked.0.max(1));
        if !is_newer && asked >= self.since() {
            accepted.inspect(|accepted| accepted.store(0, Ordering::Release));
            self.refused.insert(*digest, now);
        }
    }

    /// All keys that the origin has accepted.
    pub fn keys(&self) -> Vec<Arc<Key>> {
        self.known.iter().map(|(_, known)| known).collect()
    }

    /// Forgets the stored counts of these keys, which get their whole day back.
    pub fn forget_day_counts(&self, keys: &[KeyId]) {
        self.day_counts.lock().retain(|id, _| !keys.contains(id));
    }

    /// The same key under this policy.
    fn with_policy(&self, digest: &Digest, known: Arc<Key>, policy: &Arc<Policy>) -> Arc<Key> {
        if Arc::ptr_eq(&known.policy, policy) {
            return known;
        }
        let known = Arc::new(known.with_policy(policy));
        self.known.insert(*digest, known.clone());
        known
    }

    /// A key that is not known yet. No other request sees it before the origin has accepted it.
    pub fn unproven_key(&self, digest: &Digest) -> Arc<Key> {
        let policy = self.rules.load().policy.clone();
        let id = id_of(digest);
        let budget = self.day_counts.lock().get(&id).map_or_else(Budget::default, |count| Budget::with_day(*count));
        let realm = Realm(self.next_realm.fetch_add(1, Ordering::Relaxed));
        let guild = Guild { id: GuildId::of_key(&id), realm, departed: false };
        let key = Key::new(id, guild, Scope::Write, None, None, (policy, Arc::new(budget)));
        Arc::new(Key { accepted: Some(Arc::default()), ..key })
    }
}

/// The id of a learned key: `o_` and the first 16 digits of its digest, so that it is the same after a restart.
fn id_of(digest: &Digest) -> KeyId {
    let first = u64::from_be_bytes(*digest.0.first_chunk().unwrap_or(&[0; 8]));
    format!("o_{first:016x}").into()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::config::{Rate, Tier};
    use crate::limits::{DecidedBy, LimitQuery};
    use crate::wire::Operation;

    const S: u64 = 1_000_000_000;

    fn policy(burst: u32) -> Arc<Policy> {
        let main = Rate { period_ns: S, burst: NonZeroU32::new(burst).unwrap() };
        Arc::new(Policy::new(Arc::new(Tier::new("standard", main))))
    }

    fn rules(policy: Arc<Policy>) -> LearnedKeyRules {
        LearnedKeyRules {
            policy,
            accepted_for: Duration::from_secs(60),
            refused_for: Duration::from_secs(30),
            since: Tick(0),
        }
    }

    fn learned_keys() -> LearnedKeys {
        LearnedKeys::new(rules(policy(2)), Vec::new())
    }

    fn digest() -> Digest {
        Digest::of(b"somebody's key")
    }

    fn at(seconds: u64) -> Tick {
        Tick(seconds * S)
    }

    fn proven(learned_keys: &LearnedKeys, seconds: u64) -> Arc<Key> {
        match learned_keys.find(&digest(), at(seconds)) {
            Ok(KeyStatus::Proven(learned_key)) => learned_key,
            other => panic!("{other:?}"),
        }
    }

    fn spend(learned_key: &Key) -> bool {
        let ask = LimitQuery { operation: Operation::GetPoints, in_flight: 0, now: at(1) };
        learned_key.budget.decide(&learned_key.policy, ask, DecidedBy::ALONE, || 0).over.is_none()
    }

    #[test]
    fn a_proof_is_valid_for_so_long_and_then_the_key_is_asked_about_with_what_it_used_up() {
        let learned_keys = learned_keys();
        assert!(matches!(learned_keys.find(&digest(), at(1)), Ok(KeyStatus::Unknown)));
        learned_keys.accept(&digest(), &learned_keys.unproven_key(&digest()), at(1));
        assert!(spend(&proven(&learned_keys, 1)));
        proven(&learned_keys, 60);
        let Ok(KeyStatus::Lapsed(lapsed)) = learned_keys.find(&digest(), at(61)) else { panic!("it stands still") };
        learned_keys.accept(&digest(), &lapsed, at(62));
        let again = proven(&learned_keys, 63);
        assert!(spend(&again) && !spend(&again), "one of two was used before");
    }

    #[test]
    fn a_refused_key_is_remembered_for_its_time_and_then_unknown() {
        let learned_keys = learned_keys();
        learned_keys.refute(&digest(), at(1), at(2));
        assert!(matches!(learned_keys.find(&digest(), at(31)), Err(Fault::IncorrectKey)));
        assert!(matches!(learned_keys.find(&digest(), at(32)), Ok(KeyStatus::Unknown)));
    }

    #[test]
    fn a_good_key_that_is_refused_stops_at_once_and_is_not_refilled_when_it_comes_back() {
        let learned_keys = learned_keys();
        learned_keys.accept(&digest(), &learned_keys.unproven_key(&digest()), at(1));
        let learned_key = proven(&learned_keys, 1);
        assert!(spend(&learned_key) && spend(&learned_key));
        learned_keys.refute(&digest(), at(2), at(2));
        assert!(matches!(learned_keys.find(&digest(), at(3)), Err(Fault::IncorrectKey)));
        let Ok(KeyStatus::Lapsed(known)) = learned_keys.find(&digest(), at(40)) else { panic!("it was forgotten") };
        learned_keys.accept(&digest(), &known, at(40));
        assert!(!spend(&proven(&learned_keys, 41)), "asked at second 1, as if no time had passed");
    }

    #[test]
    fn the_answer_to_a_later_question_stays_whatever_comes_after_it() {
        let learned_keys = learned_keys();
        let key = learned_keys.unproven_key(&digest());
        learned_keys.accept(&digest(), &key, at(5));
        learned_keys.refute(&digest(), at(4), at(6));
        learned_keys.accept(&digest(), &key, at(3));
        proven(&learned_keys, 64);
        assert!(matches!(learned_keys.find(&digest(), at(65)), Ok(KeyStatus::Lapsed(_))));
    }

    #[test]
    fn another_policy_refills_no_learned_key() {
        let learned_keys = learned_keys();
        learned_keys.accept(&digest(), &learned_keys.unproven_key(&digest()), at(1));
        let learned_key = proven(&learned_keys, 1);
        assert!(spend(&learned_key) && spend(&learned_key));
        let realm = learned_key.guild.realm;
        learned_keys.set_rules(rules(policy(1000)), at(1));
        let learned_key = proven(&learned_keys, 1);
        assert_eq!(learned_key.policy.tier().main.burst.get(), 1000);
        assert!(!spend(&learned_key), "all of it was used up");
        assert_eq!(learned_key.guild.realm, realm);
        assert!(Arc::ptr_eq(&learned_key, &proven(&learned_keys, 1)), "it is made once");
    }

    #[test]
    fn a_burst_that_is_lowered_and_raised_again_gives_no_learned_key_a_second_one() {
        let learned_keys = LearnedKeys::new(rules(policy(40)), Vec::new());
        learned_keys.accept(&digest(), &learned_keys.unproven_key(&digest()), at(1));
        let learned_key = proven(&learned_keys, 1);
        let let_in = |seconds| {
            let key = proven(&learned_keys, seconds);
            let ask = LimitQuery { operation: Operation::GetPoints, in_flight: 0, now: at(seconds) };
            (0..100).filter(|_| key.budget.decide(&key.policy, ask, DecidedBy::ALONE, || 0).over.is_none()).count()
        };
        assert!(spend(&learned_key));
        // Nobody asks between the two: the key had one left then all the same.
        learned_keys.set_rules(rules(policy(1)), at(2));
        learned_keys.set_rules(rules(policy(40)), at(3));
        assert_eq!((let_in(3), let_in(5), let_in(45)), (1, 2, 40));
        assert!(!spend(&learned_key), "by whichever record of it");
    }

    #[test]
    fn another_origins_word_on_keys_does_not_count() {
        let learned_keys = learned_keys();
        let (good, bad) = (learned_keys.unproven_key(&digest()), Digest::of(b"bad"));
        learned_keys.accept(&digest(), &good, at(1));
        learned_keys.refute(&bad, at(1), at(1));
        learned_keys.set_rules(LearnedKeyRules { since: at(2), ..rules(policy(2)) }, at(2));
        assert!(matches!(learned_keys.find(&digest(), at(3)), Ok(KeyStatus::Lapsed(_))));
        assert!(matches!(learned_keys.find(&Digest::of(b"bad"), at(3)), Ok(KeyStatus::Unknown)));
        learned_keys.refute(&bad, at(1), at(3)); // on its way from the old one
        assert!(matches!(learned_keys.find(&Digest::of(b"bad"), at(3)), Ok(KeyStatus::Unknown)));
    }

    #[test]
    fn no_two_keys_have_a_realm_in_common() {
        let learned_keys = learned_keys();
        let (a, b) = (learned_keys.unproven_key(&Digest::of(b"a")), learned_keys.unproven_key(&Digest::of(b"b")));
        assert_ne!(a.guild.realm, b.guild.realm);
        assert_eq!(a.id.len(), 18);
        assert_ne!(a.id, b.id);
    }

    #[test]
    fn a_million_keys_leave_no_more_behind_than_the_bounds_say() {
        let learned_keys = learned_keys();
        for n in 0..1_000_000u64 {
            let digest = Digest::of(&n.to_be_bytes());
            assert!(matches!(learned_keys.find(&digest, at(1)), Ok(KeyStatus::Unknown)));
            if n < MAX_REFUSED * 2 {
                learned_keys.refute(&digest, at(1), at(1));
            }
        }
        learned_keys.refused.run_pending_tasks();
        assert!(learned_keys.refused.entry_count() <= MAX_REFUSED);
        assert_eq!(learned_keys.known.entry_count(), 0);
        assert!(matches!(
            learned_keys.find(&Digest::of(&(MAX_REFUSED * 2 - 1).to_be_bytes()), at(1)),
            Err(Fault::IncorrectKey)
        ));
    }
}
