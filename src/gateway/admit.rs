//! Admission: looks up a request's key, charges its limits (12), then checks its scope (15). A request without a valid
//! key pays from its address's budget and learns nothing else. Only this module can make an `Admitted`, and the cache
//! is looked into only with one; a key that the origin has yet to judge leaves as `Unproven`. Limits are charged once;
//! after the wait for a body the key is looked up again and nothing is charged again.

use std::sync::Arc;

use super::ask::Caller;
use super::doubt::is_too_old;
use super::{CacheUse, Facts, Gateway, Head, KeySource, State};
use crate::clock::{Tick, seconds_up};
use crate::keys::{InFlight, InFlightPlace, Key, Learned, Standing, Taught, is_mistyped};
use crate::limits::{Ask, Paid};
use crate::model::Digest;
use crate::origin::Authorization;
use crate::telemetry::Decision;
use crate::wire::{Fault, Operation};

/// One who may ask: the only way to the cache, and only [`Gateway`]'s admission makes one.
#[derive(Debug)]
pub(super) struct Admitted<'h> {
    request: InFlight<'h>,
    /// The key as it was looked up again after the body came.
    later: Option<Arc<Key>>,
    /// Where the key was learned from the origin.
    taught: Option<Arc<Taught>>,
    digest: Digest,
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
    pub(super) fn key(&self) -> &Arc<Key> {
        self.later.as_ref().unwrap_or(self.request.key())
    }

    pub(super) fn caller(&self) -> Caller<'h> {
        let (key, taught) = (self.key().clone(), self.taught.clone());
        Caller { key, taught, digest: self.digest, authorization: self.authorization, stranger: None }
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
        let now = self.now();
        let key = match self.listed_at(state, &digest, now) {
            Ok(key) => key,
            Err(Fault::IncorrectKey) => {
                self.stranger(state, head, facts)?;
                return Err(Fault::IncorrectKey);
            }
            Err(fault) => {
                facts.key = state.book.find(&digest, || self.clock.unix()).cloned();
                return Err(fault);
            }
        };
        let request = self.charge(state, key, operation, now, head.in_flight, facts)?;
        Ok(Admission::Admitted(Admitted { request, later: None, taught: None, digest, authorization }))
    }

    /// The listed key with this digest, as it is now: 02 where there is none, 21 where the keys are too old to say so.
    pub(super) fn listed<'s>(&self, state: &'s State, digest: &Digest) -> Result<&'s Arc<Key>, Fault> {
        self.listed_at(state, digest, self.now())
    }

    fn listed_at<'s>(&self, state: &'s State, digest: &Digest, now: Tick) -> Result<&'s Arc<Key>, Fault> {
        // The book's own age: the one that was looked into may have been replaced since.
        let is_old = self.doubt.is_doubted() || is_too_old(state.book.known_until(), now);
        if is_old && matches!(state.keys, KeySource::Store(_)) {
            // An unknown key is not known to be wrong either: it may have been made meanwhile.
            return Err(Fault::Unavailable { retry_after: 1 });
        }
        state.book.find(digest, || self.clock.unix()).ok_or(Fault::IncorrectKey)
    }

    /// Looks the key up again once the body is here: 21, 02 or 15. Nothing is charged again.
    pub(super) fn readmit<'h>(
        &self,
        state: &State,
        admission: Admission<'h>,
        operation: Operation,
    ) -> Result<Admission<'h>, Fault> {
        match (admission, &state.keys) {
            (Admission::Admitted(admitted), KeySource::Store(_) | KeySource::File { .. }) => {
                let later = self.listed(state, &admitted.digest)?.clone();
                later.may_use(operation)?;
                Ok(Admission::Admitted(Admitted { later: Some(later), ..admitted }))
            }
            (admission, KeySource::Origin(learned)) => {
                let digest = match &admission {
                    Admission::Admitted(admitted) => admitted.digest,
                    Admission::Unproven(unproven) => unproven.taught.digest(),
                };
                match (learned.find(&digest, self.now()), admission) {
                    (Standing::Refused, _) => Err(Fault::IncorrectKey),
                    (Standing::Proven(taught), Admission::Admitted(admitted)) => {
                        let later = Some(taught.key.clone());
                        Ok(Admission::Admitted(Admitted { later, taught: Some(taught), ..admitted }))
                    }
                    // Its limits have let it in; only its proof is over.
                    (_, Admission::Admitted(admitted)) => {
                        let (taught, authorization) = (admitted.taught.clone(), admitted.authorization);
                        let taught = taught.ok_or(Fault::IncorrectKey)?;
                        Ok(Admission::Unproven(Unproven { taught, authorization, pays: Pays::Itself(admitted) }))
                    }
                    // If it is proven by now, the look before the question finds that.
                    (_, unproven) => Ok(unproven),
                }
            }
            (unproven, KeySource::Store(_) | KeySource::File { .. }) => Ok(unproven),
        }
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
                let admitted = self.admit_taught(state, taught, authorization, operation, head.in_flight, facts)?;
                Ok(Admission::Admitted(admitted))
            }
            // It pays as the key it was: a neighbour who spends the address's budget costs it nothing.
            Standing::Lapsed(taught) => {
                let known = taught.clone();
                let admitted = self.admit_taught(state, known, authorization, operation, head.in_flight, facts)?;
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
        in_flight: &'h InFlightPlace,
        facts: &mut Facts,
    ) -> Result<Admitted<'h>, Fault> {
        let request = self.charge(state, &taught.key, operation, self.now(), in_flight, facts)?;
        let digest = taught.digest();
        Ok(Admitted { request, later: None, taught: Some(taught), digest, authorization })
    }

    /// Charges a known key for one request: its limits (12), then its scope (15).
    fn charge<'h>(
        &self,
        state: &State,
        key: &Arc<Key>,
        operation: Operation,
        now: Tick,
        in_flight: &'h InFlightPlace,
        facts: &mut Facts,
    ) -> Result<InFlight<'h>, Fault> {
        facts.key = Some(key.clone());
        let request = in_flight.take(key);
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
        key.may_use(operation)?;
        facts.cache = Some(CacheUse::before(operation));
        Ok(request)
    }

    /// Charges the address of one whose key is not known to be good.
    fn stranger(&self, state: &State, head: &Head<'_>, facts: &mut Facts) -> Result<Option<Paid>, Fault> {
        match state.strangers.charge(head.client, self.now()) {
            Ok(paid) => Ok(Some(paid)),
            Err(wait) => {
                facts.over_strangers = true;
                if let Some(decisions) = &self.decisions {
                    decisions.count_stranger();
                }
                if state.config.limits.shadow {
                    return Ok(None);
                }
                Err(Fault::TooManyRequests { retry_after: seconds_up(wait).max(1) })
            }
        }
    }
}
