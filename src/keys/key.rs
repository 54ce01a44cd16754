//! A key as a store or a file lists it, and as a request finds it, with its limits.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::Realm;
use crate::clock::Tick;
use crate::limits::{Budget, Policy};
use crate::model::{Digest, GuildId, KeyId, Scope};
use crate::wire::{Fault, Operation};

/// A key as a store or a file lists it: once for each of its secrets, always with the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedKey {
    pub id: KeyId,
    pub digest: Digest,
    pub guild: GuildId,
    /// The bot has left the guild: 03.
    pub guild_departed: bool,
    /// `None`: the default tier.
    pub tier: Option<Arc<str>>,
    pub scope: Scope,
    /// Unix seconds; the key is refused from then on.
    pub expires: Option<i64>,
}

/// A listed or a learned key with its budget, so that a request needs one look-up and no lock.
#[derive(Debug)]
pub struct Key {
    pub(super) listed: ListedKey,
    /// The realm of its guild's answers in the cache.
    pub realm: Realm,
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
    pub(super) fn new(listed: ListedKey, realm: Realm, policy: Arc<Policy>, budget: Arc<Budget>) -> Self {
        let in_force = policy.tier().name.as_str();
        let tier = listed.tier.clone().filter(|tier| **tier == *in_force);
        Key { realm, tier_in_force: tier.unwrap_or_else(|| in_force.into()), policy, budget, accepted: None, listed }
    }

    /// 15 if the key's scope does not cover `operation`.
    pub fn may_use(&self, operation: Operation) -> Result<(), Fault> {
        match (operation.row().scope, self.scope) {
            (Scope::Write, Scope::Read) => Err(Fault::NotAllowed(operation)),
            (Scope::Read, _) | (_, Scope::Write) => Ok(()),
        }
    }

    /// Whether it was, or may be, learned from the origin.
    pub fn is_learned(&self) -> bool {
        self.accepted.is_some()
    }

    pub(super) fn accepted(&self) -> Option<Tick> {
        let at = self.accepted.as_ref()?.load(Ordering::Acquire);
        (at > 0).then_some(Tick(at))
    }
}

impl Deref for Key {
    type Target = ListedKey;

    fn deref(&self) -> &ListedKey {
        &self.listed
    }
}
