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

use super::{Key, ListedKey};
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

/// Keys about which the origin is to be asked, about 12 MB: more than wait at once. Beyond that the one that came longest
/// ago is forgotten, which costs a question and gives that key another budget.
const MAX_UNPROVEN: u64 = 16_384;

/// The keys that the origin's answers have proven or refused (contract section 3, `keys.source = "origin"`). Each key
/// has a realm of answers of its own, since only the origin knows its guild.
#[derive(Debug)]
pub struct LearnedKeys {
    known: Cache<Digest, Arc<Key>>,
    refused: Cache<Digest, Tick>,
    rules: ArcSwap<LearnedKeyRules>,
    unproven: Cache<Digest, Arc<Unproven>>,
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

/// A key that only the origin can judge.
#[derive(Debug)]
pub struct Unproven {
    /// The key as it is if the origin accepts it.
    pub key: Arc<Key>,
    /// Held while the origin is asked about it, so that of many requests with one key one proves it.
    pub asking: tokio::sync::Mutex<()>,
}

/// A key that is not refused, and what is known of it at one moment.
#[derive(Clone, Debug)]
pub struct FoundKey {
    pub key: Arc<Key>,
    pub proof: Proof,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The key is listed, or the origin has accepted it not long ago.
    Valid,
    /// The origin accepted the key once, and what it has used up is remembered.
    Lapsed,
    /// The origin is to judge it.
    Missing,
}

impl LearnedKeys {
    pub fn new(rules: LearnedKeyRules, day_counts: Vec<(KeyId, DayCount)>) -> Self {
        LearnedKeys {
            known: Cache::builder().max_capacity(MAX_KNOWN).eviction_policy(EvictionPolicy::lru()).build(),
            refused: Cache::builder().max_capacity(MAX_REFUSED).eviction_policy(EvictionPolicy::lru()).build(),
            rules: ArcSwap::from_pointee(rules),
            unproven: Cache::builder().max_capacity(MAX_UNPROVEN).eviction_policy(EvictionPolicy::lru()).build(),
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
        self.unproven.invalidate_all();
    }

    /// The moment from which on questions to the origin count.
    pub fn since(&self) -> Tick {
        self.rules.load().since
    }

    /// What whoever asks the origin about a key shares with others.
    pub fn unproven(&self, digest: &Digest) -> Arc<Unproven> {
        let unproven = || Unproven { key: Arc::new(self.unproven_key(digest)), asking: tokio::sync::Mutex::default() };
        self.unproven.get_with(*digest, || Arc::new(unproven()))
    }

    /// What is known about the key with this digest; 02 if the origin refused it so, not long ago.
    pub fn find(&self, digest: &Digest, now: Tick) -> Result<FoundKey, Fault> {
        let rules = self.rules.load();
        let counts = |at: Tick, so_long| at >= rules.since && now < at.plus(so_long);
        match self.known.get(digest).map(|known| self.with_policy(digest, known, &rules.policy)) {
            Some(key) if key.accepted().is_some_and(|at| counts(at, rules.accepted_for)) => {
                Ok(FoundKey { key, proof: Proof::Valid })
            }
            _ if self.refused.get(digest).is_some_and(|at| counts(at, rules.refused_for)) => Err(Fault::IncorrectKey),
            Some(key) => Ok(FoundKey { key, proof: Proof::Lapsed }),
            None => {
                let unproven = self.unproven.get(digest).map(|unproven| unproven.key.clone());
                let key = unproven.unwrap_or_else(|| Arc::new(self.unproven_key(digest)));
                Ok(FoundKey { key, proof: Proof::Missing })
            }
        }
    }

    /// Whether an answer of the origin proves the key now.
    pub fn is_proven(&self, digest: &Digest, now: Tick) -> bool {
        self.find(digest, now).is_ok_and(|found| found.proof == Proof::Valid)
    }

    /// The origin was asked at `asked` and accepted the key.
    pub fn accept(&self, key: &Arc<Key>, asked: Tick) {
        let known = self.known.get(&key.digest);
        let known = known.unwrap_or_else(|| self.known.entry(key.digest).or_insert_with(|| key.clone()).into_value());
        known.accepted.as_ref().inspect(|accepted| _ = accepted.fetch_max(asked.0.max(1), Ordering::AcqRel));
        self.refused.invalidate(&key.digest);
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
        self.unproven.invalidate_all();
    }

    /// The same key under this policy.
    fn with_policy(&self, digest: &Digest, known: Arc<Key>, policy: &Arc<Policy>) -> Arc<Key> {
        if Arc::ptr_eq(&known.policy, policy) {
            return known;
        }
        let key = Key::new(known.listed.clone(), known.realm, policy.clone(), known.budget.clone());
        let known = Arc::new(Key { accepted: known.accepted.clone(), ..key });
        self.known.insert(*digest, known.clone());
        known
    }

    fn unproven_key(&self, digest: &Digest) -> Key {
        let first = u64::from_be_bytes(*digest.0.first_chunk().unwrap_or(&[0; 8]));
        // The same after a restart.
        let id: KeyId = format!("o_{first:016x}").into();
        let budget = self.day_counts.lock().get(&id).map_or_else(Budget::default, |count| Budget::with_day(*count));
        let listed = ListedKey {
            digest: *digest,
            guild: GuildId::of_key(&id),
            id,
            guild_departed: false,
            tier: None,
            scope: Scope::Write,
            expires: None,
        };
        let realm = Realm(self.next_realm.fetch_add(1, Ordering::Relaxed));
        let key = Key::new(listed, realm, self.rules.load().policy.clone(), Arc::new(budget));
        Key { accepted: Some(Arc::default()), ..key }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
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
            Ok(FoundKey { key, proof: Proof::Valid }) => key,
            other => panic!("{other:?}"),
        }
    }

    fn proof(learned_keys: &LearnedKeys, seconds: u64) -> Option<Proof> {
        learned_keys.find(&digest(), at(seconds)).ok().map(|found| found.proof)
    }

    /// Accepts the key at second 1.
    fn learn(learned_keys: &LearnedKeys) -> Arc<Key> {
        learned_keys.accept(&learned_keys.unproven(&digest()).key, at(1));
        proven(learned_keys, 1)
    }

    /// How many requests are let in at a second.
    fn let_in(key: &Key, seconds: u64, requests: usize) -> usize {
        let ask = LimitQuery { operation: Operation::GetPoints, in_flight: 0, now: at(seconds) };
        (0..requests).filter(|_| key.budget.decide(&key.policy, ask, DecidedBy::ALONE, || 0).over.is_none()).count()
    }

    #[test]
    fn a_proof_is_valid_for_so_long_and_then_the_key_is_asked_about_with_what_it_used_up() {
        let learned_keys = learned_keys();
        assert_eq!(proof(&learned_keys, 1), Some(Proof::Missing));
        assert_eq!(let_in(&learn(&learned_keys), 1, 1), 1);
        proven(&learned_keys, 60);
        assert_eq!(proof(&learned_keys, 61), Some(Proof::Lapsed));
        learned_keys.accept(&learned_keys.find(&digest(), at(61)).unwrap().key, at(62));
        assert_eq!(let_in(&proven(&learned_keys, 63), 1, 9), 1, "one of two was used before");
    }

    #[test]
    fn a_refused_key_is_remembered_for_its_time_and_not_refilled_when_it_comes_back() {
        let (known, unknown) = (learned_keys(), learned_keys());
        assert_eq!(let_in(&learn(&known), 1, 9), 2);
        for (learned_keys, then) in [(&known, Proof::Lapsed), (&unknown, Proof::Missing)] {
            learned_keys.refute(&digest(), at(1), at(2));
            assert_eq!((proof(learned_keys, 31), proof(learned_keys, 32)), (None, Some(then)));
        }
        known.accept(&known.find(&digest(), at(40)).unwrap().key, at(40));
        assert_eq!(let_in(&proven(&known, 41), 1, 9), 0, "as if no time had passed");
    }

    #[test]
    fn the_answer_to_a_later_question_stays_whatever_comes_after_it() {
        let learned_keys = learned_keys();
        let key = learn(&learned_keys);
        learned_keys.accept(&key, at(5));
        learned_keys.refute(&digest(), at(4), at(6));
        learned_keys.accept(&key, at(3));
        proven(&learned_keys, 64);
        assert_eq!(proof(&learned_keys, 65), Some(Proof::Lapsed));
    }

    #[test]
    fn a_burst_that_is_lowered_and_raised_again_gives_no_learned_key_a_second_one() {
        let learned_keys = LearnedKeys::new(rules(policy(40)), Vec::new());
        let before = learn(&learned_keys);
        assert_eq!(let_in(&before, 1, 1), 1);
        // Nobody asks between the two: the key had one left then all the same.
        learned_keys.set_rules(rules(policy(1)), at(2));
        learned_keys.set_rules(rules(policy(40)), at(3));
        let after = proven(&learned_keys, 3);
        assert_eq!([3, 5, 45].map(|seconds| let_in(&after, seconds, 99)), [1, 2, 40]);
        assert_eq!(let_in(&before, 45, 1), 0, "by whichever record of it");
        assert!(before.realm == after.realm && Arc::ptr_eq(&after, &proven(&learned_keys, 3)), "it is made once");
    }

    #[test]
    fn another_origins_word_on_keys_does_not_count() {
        let (known, unknown) = (learned_keys(), learned_keys());
        learn(&known);
        unknown.refute(&digest(), at(1), at(1));
        for (learned_keys, then) in [(&known, Proof::Lapsed), (&unknown, Proof::Missing)] {
            learned_keys.set_rules(LearnedKeyRules { since: at(2), ..rules(policy(2)) }, at(2));
            assert_eq!(proof(learned_keys, 3), Some(then));
            learned_keys.refute(&digest(), at(1), at(3)); // on its way from the old one
            assert_eq!(proof(learned_keys, 3), Some(then));
        }
    }

    #[test]
    fn very_many_keys_leave_no_more_behind_than_the_bounds_say() {
        let learned_keys = learned_keys();
        let (mut realms, mut ids) = (HashSet::new(), HashSet::new());
        for n in 0..MAX_REFUSED * 2 {
            let digest = Digest::of(&n.to_be_bytes());
            let key = learned_keys.find(&digest, at(1)).unwrap().key;
            assert!(realms.insert(key.realm) && ids.insert(key.id.clone()), "no two keys have either in common");
            learned_keys.refute(&digest, at(1), at(1));
        }
        learned_keys.refused.run_pending_tasks();
        learned_keys.unproven.run_pending_tasks();
        assert!(learned_keys.refused.entry_count() <= MAX_REFUSED);
        assert!(learned_keys.unproven.entry_count() <= MAX_UNPROVEN);
        assert_eq!(learned_keys.known.entry_count(), 0);
        let last = Digest::of(&(MAX_REFUSED * 2 - 1).to_be_bytes());
        assert_eq!(learned_keys.find(&last, at(1)).unwrap_err(), Fault::IncorrectKey);
    }
}
