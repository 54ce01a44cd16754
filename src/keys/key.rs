//! A key as a request finds it, with its limits, and as a store or a file lists it.

use std::sync::Arc;

use super::LimitState;
use crate::cache::Realm;
use crate::clock::Tick;
use crate::limits::{Buckets, Policy, Usage};
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
        state: LimitState,
    ) -> Self {
        let LimitState { policy, buckets, usage } = state;
        let in_force = policy.tier().name.as_str();
        let tier_in_force = tier.clone().filter(|tier| **tier == *in_force).unwrap_or_else(|| in_force.into());
        Key { id, guild, scope, expires, tier, tier_in_force, policy, buckets, usage }
    }

    /// The same key under another policy, with what it has used up.
    pub(super) fn with_policy(&self, policy: &Arc<Policy>, now: Tick) -> Self {
        let state = self.limit_state().with_policy(policy, now);
        Key::new(self.id.clone(), self.guild.clone(), self.scope, self.expires, self.tier.clone(), state)
    }

    /// Whether `other` is this key with nothing changed, down to what it has used up.
    pub(super) fn is_same(&self, other: &Key) -> bool {
        self.id == other.id
            && self.guild == other.guild
            && self.scope == other.scope
            && self.expires == other.expires
            && self.tier == other.tier
            && Arc::ptr_eq(&self.policy, &other.policy)
            && Arc::ptr_eq(&self.buckets, &other.buckets)
            && Arc::ptr_eq(&self.usage, &other.usage)
    }

    pub(super) fn limit_state(&self) -> LimitState {
        LimitState { policy: self.policy.clone(), buckets: self.buckets.clone(), usage: self.usage.clone() }
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
