//! What keys have used up passes from one key table to the next, so that no change of keys raises what is available
//! (guarantee 6). A listed key keeps the buckets of the key that had its id before; a renamed key keeps those from its
//! old id. If one of its secrets belonged to another key before, it is also charged with what that key had used up. A
//! key begins with full buckets only if neither its id nor its secrets are in the table before or still remembered.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::ListedKey;
use super::table::KeysByDigest;
use crate::clock::Tick;
use crate::config::Limits;
use crate::limits::{Buckets, DayCount, Policy, Usage};
use crate::model::{Digest, KeyId};

/// The policy of one key, and what the key has used up, with all of its secrets together.
#[derive(Clone, Debug)]
pub(super) struct LimitState {
    pub(super) policy: Arc<Policy>,
    pub(super) buckets: Arc<Buckets>,
    pub(super) usage: Arc<Usage>,
}

impl LimitState {
    /// The state of a key that has used up nothing.
    fn new(policy: Arc<Policy>) -> Self {
        LimitState { policy, buckets: Arc::default(), usage: Arc::default() }
    }

    /// The state of the same key under `policy`, from `now` on.
    pub(super) fn with_policy(&self, policy: &Arc<Policy>, now: Tick) -> Self {
        let buckets = Buckets::with_policy(&self.policy, &self.buckets, policy, now);
        LimitState { policy: policy.clone(), buckets, usage: self.usage.clone() }
    }

    /// Leaves no more available than `other` has.
    fn charge_as(&self, other: &LimitState, now: Tick) {
        self.buckets.charge_as(&self.policy, &other.buckets, &other.policy, now);
        self.usage.day.charge_as(&other.usage.day);
    }

    /// Whether the key's largest burst is refilled at `now`, so that nothing need be remembered.
    fn may_be_forgotten(&self, now: Tick) -> bool {
        self.buckets.may_be_forgotten(&self.policy, now)
    }
}

/// What is remembered of removed keys and secrets, so that they are not refilled when they are added again.
#[derive(Debug, Default)]
pub(super) struct RemovedKeys {
    pub(super) states: HashMap<KeyId, LimitState>,
    /// The removed secrets, each with the id of its key; another secret of that key may still be listed.
    pub(super) secrets: HashMap<Digest, KeyId>,
}

impl RemovedKeys {
    /// Keys of which only the day's counts are known.
    pub(super) fn with_day_counts(counts: Vec<(KeyId, DayCount)>, limits: &Limits) -> Self {
        let policy = Arc::new(Policy::new(limits.default_tier.clone()));
        let state = |(id, count)| {
            let usage = Arc::new(Usage::with_count(count));
            (id, LimitState { usage, ..LimitState::new(policy.clone()) })
        };
        RemovedKeys { states: counts.into_iter().map(state).collect(), secrets: HashMap::new() }
    }
}

/// The change from one key table to the next.
pub(super) struct CarryOver<'t> {
    /// What the table before listed and remembered.
    keys: &'t KeysByDigest,
    removed: &'t RemovedKeys,
    /// The states of all these keys, by their old ids.
    states_before: HashMap<KeyId, LimitState>,
    /// The old id of each key that was renamed.
    renamed_from: HashMap<KeyId, KeyId>,
    /// The states made so far for the next table, by the ids that it lists.
    states_made: HashMap<KeyId, LimitState>,
}

impl<'t> CarryOver<'t> {
    pub(super) fn new(keys: &'t KeysByDigest, removed: &'t RemovedKeys, listed: &[ListedKey]) -> Self {
        let mut states_before = removed.states.clone();
        states_before.extend(keys.values().map(|key| (key.id.clone(), key.limit_state())));
        let (renamed_from, states_made) = (HashMap::new(), HashMap::with_capacity(listed.len()));
        let mut carry_over = CarryOver { keys, removed, states_before, renamed_from, states_made };
        carry_over.find_renamed(listed);
        carry_over
    }

    /// A key with a new id is an earlier key renamed if it has a secret of that key, whose id is not listed any more.
    /// If the secrets of one old key are now several keys, only the first of them counts as the renamed one.
    fn find_renamed(&mut self, listed: &[ListedKey]) {
        let ids: HashSet<&KeyId> = listed.iter().map(|key| &key.id).collect();
        let mut taken = HashSet::new(); // old ids
        for key in listed.iter().filter(|key| !self.states_before.contains_key(&key.id)) {
            if let Some(from) = self.earlier_id(&key.digest)
                && !ids.contains(from)
                && !self.renamed_from.contains_key(&key.id)
                && taken.insert(from)
            {
                self.renamed_from.insert(key.id.clone(), from.clone());
            }
        }
    }

    /// The id that the key of this secret had.
    fn earlier_id(&self, secret: &Digest) -> Option<&'t KeyId> {
        self.keys.get(secret).map(|key| &key.id).or_else(|| self.removed.secrets.get(secret))
    }

    /// The state of a listed key under `policy`; to be called for each of its secrets. The key goes on with its own
    /// state, also if it was renamed. If the secret was another key's, this key is charged with what that one had used
    /// up.
    pub(super) fn state_of(&mut self, key: &ListedKey, policy: &Arc<Policy>, now: Tick) -> LimitState {
        let secret_id = self.earlier_id(&key.digest);
        let state = self.states_made.entry(key.id.clone()).or_insert_with(|| {
            let own = self.states_before.get(self.renamed_from.get(&key.id).unwrap_or(&key.id));
            own.map_or_else(|| LimitState::new(policy.clone()), |own| own.with_policy(policy, now))
        });
        if let Some(other) = secret_id.filter(|id| **id != key.id).and_then(|id| self.states_before.get(id)) {
            state.charge_as(other, now);
        }
        state.clone()
    }

    /// What is remembered once all listed keys have their states: each key that was removed and not renamed, and each
    /// removed secret, until what the key has used up would have come back. `now` and `unix` are the same moment.
    pub(super) fn into_removed(self, is_listed: impl Fn(&Digest) -> bool, now: Tick, unix: i64) -> RemovedKeys {
        let CarryOver { keys, removed, states_before: mut states, renamed_from, states_made } = self;
        let renamed_to: HashMap<KeyId, KeyId> = renamed_from.into_iter().map(|(to, from)| (from, to)).collect();
        let is_worth_remembering = |state: &LimitState| !state.may_be_forgotten(now) || !state.usage.is_idle(unix);
        states.retain(|id, state| {
            !states_made.contains_key(id) && !renamed_to.contains_key(id) && is_worth_remembering(state)
        });
        // A listed key may have lost a secret: if that is added again as another key, it is charged with what this one
        // has used up.
        let is_remembered =
            |id: &KeyId| states.contains_key(id) || states_made.get(id).is_some_and(is_worth_remembering);
        let secrets = keys.iter().map(|(secret, key)| (secret, &key.id)).chain(&removed.secrets);
        let secrets = secrets.filter(|(secret, _)| !is_listed(secret));
        let secrets = secrets.map(|(secret, id)| (*secret, renamed_to.get(id).unwrap_or(id).clone()));
        let secrets = secrets.filter(|(_, id)| is_remembered(id)).collect();
        RemovedKeys { states, secrets }
    }
}
