use std::sync::Arc;

use super::ask::Caller;
use super::doubt::is_too_old;
use super::{CacheUse, Facts, Gateway, Head, KeySource, State};
use crate::clock::{Tick, seconds_up};
use crate::keys::{Key, Learned, Standing, Taught, UnderWay, is_mistyped};
use crate::limits::{Ask, Paid};
use crate::model::{Digest, Scope};
use crate::origin::Authorization;
use crate::telemetry::Decision;
use crate::wire::{Fault, Operation};

/// One who may ask: the only way to the cache, and only [`Gateway`]'s admission makes one.
#[derive(Debug)]
pub(super) struct Admitted<'h> {
    request: UnderWay,
    /// Where the key was learned from the origin.
    taught: Option<Arc<Taught>>,
    authorization: Authorization<'h>,
}

/// One of whom only the origin can say whether it may ask (`keys.source = "origin"`).
#[derive(Debug)]
pub(super) struct Unproven<'h> {
    /// What the key is if the origin says so.
    pub(super) taught: Arc<Taught>,
    pub(super) authorization: Authorization<'h>,
    pub(super) pays: Pays<'h>,
}

/// Who pays for a request whose key is not proven.
#[derive(Debug)]
pub(super) enum Pays<'h> {
    /// The key, which was good before: its own limits let it in.
    Itself(Admitted<'h>),
    /// Its address, which is paid back if the key is good. `None`: it could not, which is not held
    /// against it in shadow.
    Address(Option<Paid>),
}

/// Who comes past the key and its limits.
#[derive(Debug)]
pub(super) enum Admission<'h> {
    Admitted(Admitted<'h>),
    Unproven(Unproven<'h>),
}

impl<'h> Admitted<'h> {
    pub(super) fn key(&self) -> &Key {
        self.request.key()
    }

    pub(super) fn caller(&self) -> Caller<'_> {
        Caller { key: self.key(), taught: self.taught.as_ref(), authorization: self.authorization }
    }

    /// The same, to be taken along by a task that outlives the request.
    pub(super) fn owned(&self) -> (Arc<Key>, Option<Arc<Taught>>, Vec<u8>) {
        (self.request.key().clone(), self.taught.clone(), self.authorization.0.to_vec())
    }
}

impl Admission<'_> {
    /// The bot has left the key's guild. Of an unproven key only the origin knows that.
    pub(super) fn guild_is_gone(&self) -> bool {
        match self {
            Admission::Admitted(admitted) => admitted.key().guild.gone,
            Admission::Unproven(_) => false,
        }
    }
}

impl Gateway {
    /// Key, then its limit (12), then its scope (15). Whoever has no key or an unknown one pays
    /// the address's strangers budget and learns nothing else.
    pub(super) fn admit<'h>(
        &self,
        state: &State,
        operation: Operation,
        head: &Head<'h>,
        facts: &mut Facts,
    ) -> Result<Admission<'h>, Fault> {
        let Some(raw) = head.authorization.filter(|value| !value.is_empty()) else {
            self.stranger(state, head, facts)?;
            return Err(Fault::NoKey);
        };
        if is_mistyped(raw) {
            self.stranger(state, head, facts)?;
            return Err(Fault::IncorrectKey);
        }
        let (digest, authorization) = (Digest::of(raw), Authorization(raw));
        if let KeySource::Origin(learned) = &state.keys {
            return self.admit_learned(state, learned, (digest, authorization), operation, head, facts);
        }
        let found = state.book.find(&digest, || self.clock.unix());
        let now = self.now();
        // The book's own age: the one that was looked into may have been replaced since.
        let is_old = self.doubt.is_doubted() || is_too_old(state.book.known_until(), now);
        if is_old && matches!(state.keys, KeySource::Store(_)) {
            // Nor is one known to be wrong: it may have been made meanwhile.
            facts.key = found.cloned();
            return Err(Fault::Unavailable { retry_after: 1 });
        }
        let Some(key) = found else {
            self.stranger(state, head, facts)?;
            return Err(Fault::IncorrectKey);
        };
        let request = self.charge(state, key, operation, now, facts)?;
        Ok(Admission::Admitted(Admitted { request, taught: None, authorization }))
    }

    /// As far as what the origin taught goes: what it does not cover, the request itself will ask.
    fn admit_learned<'h>(
        &self,
        state: &State,
        learned: &Learned,
        (digest, authorization): (Digest, Authorization<'h>),
        operation: Operation,
        head: &Head<'h>,
        facts: &mut Facts,
    ) -> Result<Admission<'h>, Fault> {
        match learned.find(&digest, self.now()) {
            Standing::Proven(taught) => {
                Ok(Admission::Admitted(self.admit_taught(state, taught, authorization, operation, facts)?))
            }
            // It pays as the key it was: a neighbour who spends the address's budget costs it nothing.
            Standing::Lapsed(taught) => {
                let admitted = self.admit_taught(state, taught.clone(), authorization, operation, facts)?;
                Ok(Admission::Unproven(Unproven { taught, authorization, pays: Pays::Itself(admitted) }))
            }
            Standing::Unknown(known) => {
                let paid = self.stranger(state, head, facts)?;
                facts.cache = Some(CacheUse::before(operation));
                let taught = known.unwrap_or_else(|| learned.applicant(digest));
                Ok(Admission::Unproven(Unproven { taught, authorization, pays: Pays::Address(paid) }))
            }
            Standing::Refused => {
                self.stranger(state, head, facts)?;
                Err(Fault::IncorrectKey)
            }
        }
    }

    /// Lets a key in that the origin has proven.
    pub(super) fn admit_taught<'h>(
        &self,
        state: &State,
        taught: Arc<Taught>,
        authorization: Authorization<'h>,
        operation: Operation,
        facts: &mut Facts,
    ) -> Result<Admitted<'h>, Fault> {
        let request = self.charge(state, &taught.key, operation, self.now(), facts)?;
        Ok(Admitted { request, taught: Some(taught), authorization })
    }

    /// Charges a known key for one request: its limits (12), then its scope (15).
    fn charge(
        &self,
        state: &State,
        key: &Arc<Key>,
        operation: Operation,
        now: Tick,
        facts: &mut Facts,
    ) -> Result<UnderWay, Fault> {
        facts.key = Some(key.clone());
        let request = key.begin();
        key.usage.touch(now);
        let ask = Ask { operation, others: request.others(), now };
        let shadow = state.config.limits.shadow;
        let decided = key.policy.decide(&key.meters, &key.usage, ask, || self.clock.unix());
        if let Some(decisions) = &self.decisions {
            decisions.record(Decision {
                at: now,
                key: key.id.clone(),
                tier: key.tier.clone(),
                operation,
                over: decided.over.map(|(limit, _)| limit),
                refused: decided.over.is_some() && !shadow,
                over_candidate: decided.over_candidate,
                in_flight: request.others(),
                used_today: decided.used_today,
            });
        }
        facts.spent = Some(decided.spent);
        facts.over_candidate = decided.over_candidate;
        if let Some((limit, wait)) = decided.over {
            facts.over_limit = Some(limit);
            if !shadow {
                return Err(Fault::TooManyRequests { retry_after: seconds_up(wait).max(1) });
            }
        }
        if operation.scope() == Scope::Write && key.scope == Scope::Read {
            return Err(Fault::NotAllowed(operation));
        }
        facts.cache = Some(CacheUse::before(operation));
        Ok(request)
    }

    /// Charges the address of one whose key is not known to be good.
    fn stranger(&self, state: &State, head: &Head<'_>, facts: &mut Facts) -> Result<Option<Paid>, Fault> {
        match state.strangers.charge(head.client, self.now()) {
            Ok(paid) => Ok(Some(paid)),
            Err(wait) => {
                facts.over_strangers = true;
                if state.config.limits.shadow {
                    return Ok(None);
                }
                Err(Fault::TooManyRequests { retry_after: seconds_up(wait).max(1) })
            }
        }
    }
}
