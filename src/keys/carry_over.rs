//! What keys have used up passes from one key table to the next, so that no change of keys raises what is available
//! (guarantee 6). A listed key goes on with the state of the key that had its secret before, else with that of the key
//! that had its id, and is charged with what both had used up. A key begins with full buckets only if neither its id
//! nor its secrets are in the table before or still remembered.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::ListedKey;
use super::table::KeysByDigest;
use crate::clock::Tick;
use crate::config::Limits;
use crate::limits::{
    self, Buckets, DayCount, Policy, SharedUsedUp, Usage, charge_shared_as, is_shared_under_another_id,
    leave_shared_id, shared_used_up,
};
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

    /// Whether it is the state of the same key.
    fn is(&self, other: &LimitState) -> bool {
        Arc::ptr_eq(&self.usage, &other.usage)
    }

    /// What the key has used up until now, for one that has this id from now on.
    fn used_up(&self, id: &KeyId) -> UsedUp {
        let shared = shared_used_up(&self.usage, id);
        UsedUp { buckets: self.buckets.used_up(&self.policy), day: self.usage.day.last(), shared }
    }

    /// Leaves the key, which has this id from now on, no more available than another one has.
    fn charge_as(&self, id: &KeyId, other: &UsedUp, now: Tick) {
        self.buckets.charge_as(&self.policy, &other.buckets, now);
        self.usage.day.charge_as(other.day);
        if let Some(shared) = &other.shared {
            charge_shared_as(&self.usage, id, &self.policy, shared);
        }
    }

    /// Whether the key's largest burst is refilled at `now`, so that nothing need be remembered.
    fn may_be_forgotten(&self, now: Tick) -> bool {
        self.buckets.may_be_forgotten(&self.policy, &self.usage, now)
    }
}

/// What a key has used up at one moment.
struct UsedUp {
    buckets: limits::UsedUp,
    day: DayCount,
    /// Of the limits that several nodes share; `None`: nothing, or it is known under the same id.
    shared: Option<SharedUsedUp>,
}

/// Removed secrets that are remembered, about 100 bytes each; a key that is rotated for ever has no end of them.
const MAX_REMOVED_SECRETS: usize = 65_536;

/// What is remembered of removed keys and secrets, so that they are not refilled when they are added again.
#[derive(Debug, Default)]
pub(super) struct RemovedKeys {
    pub(super) states: HashMap<KeyId, LimitState>,
    /// The removed secrets, each with the state of its key; another secret of that key may still be listed.
    pub(super) secrets: HashMap<Digest, LimitState>,
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
    /// The states of those that go on, by the ids that they have now.
    continued: HashMap<KeyId, LimitState>,
    /// Identifies the states that go on, each of them in one key only.
    taken: HashSet<*const Usage>,
    /// The states made so far for the next table, by the ids that it lists.
    states_made: HashMap<KeyId, LimitState>,
    /// Which of them are to be charged with what another key has used up.
    charges: Vec<(KeyId, LimitState)>,
}

impl<'t> CarryOver<'t> {
    pub(super) fn new(keys: &'t KeysByDigest, removed: &'t RemovedKeys, listed: &[ListedKey]) -> Self {
        let mut states_before = removed.states.clone();
        states_before.extend(keys.values().map(|key| (key.id.clone(), key.limit_state())));
        let (continued, taken) = (HashMap::with_capacity(listed.len()), HashSet::with_capacity(listed.len()));
        let states_made = HashMap::with_capacity(listed.len());
        let charges = Vec::new();
        let mut carry_over = CarryOver { keys, removed, states_before, continued, taken, states_made, charges };
        // A key that keeps its id and a secret comes before those that got its other secrets; and a secret takes its
        // requests in flight and its permits along, whatever id it gets.
        carry_over.carry_on(listed, |of_secret, of_id| of_secret.filter(|state| of_id.is_some_and(|of| of.is(state))));
        carry_over.carry_on(listed, |of_secret, _| of_secret);
        carry_over.carry_on(listed, |_, of_id| of_id.cloned());
        carry_over
    }

    /// Lets each listed key that has no state yet go on with the one that `choose` takes of its secret's and its id's,
    /// unless another key goes on with that.
    fn carry_on(
        &mut self,
        listed: &[ListedKey],
        choose: impl Fn(Option<LimitState>, Option<&LimitState>) -> Option<LimitState>,
    ) {
        for key in listed {
            if !self.continued.contains_key(&key.id)
                && let Some(state) = choose(self.state_of_secret(&key.digest), self.states_before.get(&key.id))
                && self.taken.insert(Arc::as_ptr(&state.usage))
            {
                self.continued.insert(key.id.clone(), state);
            }
        }
    }

    /// The state of the key that had this secret.
    fn state_of_secret(&self, secret: &Digest) -> Option<LimitState> {
        self.keys.get(secret).map(|key| key.limit_state()).or_else(|| self.removed.secrets.get(secret).cloned())
    }

    /// The state of a listed key under `policy`; to be called for each of its secrets, and [`CarryOver::charge`] after them.
    pub(super) fn state_of(&mut self, key: &ListedKey, policy: &Arc<Policy>, now: Tick) -> LimitState {
        let of_secret = self.state_of_secret(&key.digest);
        let state = self.states_made.entry(key.id.clone()).or_insert_with(|| {
            let own = self.continued.get(&key.id);
            let begins = || LimitState { buckets: Arc::new(Buckets::since(now)), ..LimitState::new(policy.clone()) };
            own.map_or_else(begins, |own| own.with_policy(policy, now))
        });
        let others = of_secret.iter().chain(self.states_before.get(&key.id));
        let others = others.filter(|other| !other.is(state) || is_shared_under_another_id(&other.usage, &key.id));
        self.charges.extend(others.map(|other| (key.id.clone(), other.clone())));
        state.clone()
    }

    /// Charges each key that has its state by now with what others have used up that had its id or one of its secrets. That is
    /// looked at before any is charged: no key is charged with what such a one is charged with in turn.
    pub(super) fn charge(&mut self, now: impl Fn() -> Tick) {
        let CarryOver { charges, taken, states_made, .. } = self;
        // What this node has not told under an id is told by whichever key has it afterwards.
        let _escrows: Vec<_> = charges.iter().filter_map(|(_, other)| other.usage.escrow()).collect();
        let removed = charges.iter().filter(|(_, other)| !taken.contains(&Arc::as_ptr(&other.usage)));
        let leave = removed.filter_map(|(id, other)| {
            let LimitState { policy, usage, .. } = &states_made[id];
            leave_shared_id((&other.usage, other.policy.tier()), id, (usage, policy))
        });
        let leave = leave.collect::<Vec<_>>();
        let used_up: Vec<_> = charges.iter().map(|(id, other)| (id, other.used_up(id))).collect();
        for (id, used_up) in used_up {
            states_made[id].charge_as(id, &used_up, now());
        }
        leave.into_iter().for_each(|leave| leave());
    }

    /// What is remembered once all listed keys have their states: each key that was removed and not renamed, and each
    /// removed secret, until what the key has used up would have come back. `now` and `unix` are the same moment.
    pub(super) fn into_removed(self, is_listed: impl Fn(&Digest) -> bool, now: Tick, unix: i64) -> RemovedKeys {
        let CarryOver { keys, removed, states_before: mut states, taken, states_made, .. } = self;
        let is_worth_remembering = |state: &LimitState| !state.may_be_forgotten(now) || !state.usage.is_idle(unix);
        states.retain(|id, state| {
            !states_made.contains_key(id) && !taken.contains(&Arc::as_ptr(&state.usage)) && is_worth_remembering(state)
        });
        // A listed key may have lost a secret: if that is added again as another key, it is charged with what this one
        // has used up.
        let secrets = keys.iter().map(|(secret, key)| (*secret, key.limit_state()));
        let secrets = secrets.chain(removed.secrets.iter().map(|(secret, state)| (*secret, state.clone())));
        let secrets = secrets.filter(|(secret, state)| !is_listed(secret) && is_worth_remembering(state));
        RemovedKeys { states, secrets: secrets.take(MAX_REMOVED_SECRETS).collect() }
    }
}
