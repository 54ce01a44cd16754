//! A key as a request finds it, with its limits, and as a store or a file lists it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::Realm;
use crate::clock::Tick;
use crate::limits::{Budget, Policy};
use crate::model::{Digest, GuildId, KeyId, Scope};
use crate::wire::{Fault, Operation};

/// A key with its budget, so that a request needs one look-up and no lock.
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
    /// What all of its secrets have used up together.
    pub budget: Arc<Budget>,
    /// Of a key that was learned from the origin: the tick at which the origin was asked for the newest answer that
    /// accepts it; 0: none does any more.
    pub(super) accepted: Option<Arc<AtomicU64>>,
}

impl Key {
    /// 15 if the key's scope does not cover `operation`.
    pub fn may_use(&self, operation: Operation) -> Result<(), Fault> {
        match (operation.row().scope, self.scope) {
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
        (policy, budget): (Arc<Policy>, Arc<Budget>),
    ) -> Self {
        let in_force = policy.tier().name.as_str();
        let tier_in_force = tier.clone().filter(|tier| **tier == *in_force).unwrap_or_else(|| in_force.into());
        Key { id, guild, scope, expires, tier, tier_in_force, policy, budget, accepted: None }
    }

    /// The same key under another policy, with what it has used up.
    pub(super) fn with_policy(&self, policy: &Arc<Policy>) -> Self {
        let limits = (policy.clone(), self.budget.clone());
        let key = Key::new(self.id.clone(), self.guild.clone(), self.scope, self.expires, self.tier.clone(), limits);
        Key { accepted: self.accepted.clone(), ..key }
    }

    /// Whether it was, or may be, learned from the origin.
    pub fn is_learned(&self) -> bool {
        self.accepted.is_some()
    }

    pub(super) fn accepted(&self) -> Option<Tick> {
        let at = self.accepted.as_ref()?.load(Ordering::Acquire);
        (at > 0).then_some(Tick(at))
    }

    /// Whether `other` is this key with nothing changed, down to what it has used up.
    pub(super) fn is_same(&self, other: &Key) -> bool {
        self.id == other.id
            && self.guild == other.guild
            && self.scope == other.scope
            && self.expires == other.expires
            && self.tier == other.tier
            && Arc::ptr_eq(&self.policy, &other.policy)
            && Arc::ptr_eq(&self.budget, &other.budget)
    }
}

/// A key's guild.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guild {
    pub id: GuildId,
    /// The realm of its answers in the cache.
    pub realm: Realm,
    /// The bot has left it: 03.
    pub departed: bool,
}

/// A key as a store or a file lists it: once for each of its secrets, always with the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedKey {
    pub id: KeyId,
    pub digest: Digest,
    pub guild: GuildId,
    pub guild_departed: bool,
    pub tier: Option<Arc<str>>,
    pub scope: Scope,
    pub expires: Option<i64>,
}
