//! Admission: looks up a request's key, charges its limits (12), then checks its scope (15). A request without a valid
//! key is charged to its address and learns nothing else. Only this module makes an `Admitted`, and the cache is looked
//! up only with one; for a key that the origin has neither accepted nor refused yet it makes an `Unproven`. Limits are
//! charged once; after the wait for a body the key is looked up again and nothing is charged again.

use std::net::IpAddr;
use std::sync::Arc;

use super::caller::{Caller, CallerHeader};
use super::{CacheStatus, Gateway, KeySource, RequestDetails, RequestHeader, State};
use crate::clock::{Tick, seconds_up};
use crate::cluster::SharedLimits;
use crate::keys::{InFlightGuard, InFlightSlot, Key, KeyStatus, LearnedKey, LearnedKeys, is_mistyped};
use crate::limits::{AddressCharge, DecidedBy, LimitOutcome, LimitQuery};
use crate::model::Digest;
use crate::origin::{Authorization, ForwardedFields};
use crate::telemetry::Decision;
use crate::wire::{Fault, Operation, RequestId};

/// A request that may use the cache and the origin.
#[derive(Debug)]
pub(super) struct Admitted<'h> {
    request: InFlightGuard<'h>,
    /// The key as it was looked up again after the body came.
    rechecked_key: Option<Arc<Key>>,
    /// The key as it was learned from the origin, if it was.
    learned_key: Option<Arc<LearnedKey>>,
    digest: Digest,
    forwarded: ForwardedFields<'h>,
    /// When its key was last looked up.
    pub(super) checked_at: Tick,
}

/// A request whose key only the origin can judge (`keys.source = "origin"`).
#[derive(Debug)]
pub(super) struct Unproven<'h> {
    /// What the key is if the origin accepts it.
    pub(super) learned_key: Arc<LearnedKey>,
    pub(super) forwarded: ForwardedFields<'h>,
    pub(super) payer: Payer<'h>,
    pub(super) client: IpAddr,
    pub(super) in_flight: &'h InFlightSlot,
}

/// What is charged for a request whose key is not proven.
#[derive(Debug)]
pub(super) enum Payer<'h> {
    /// The key, which was proven before: the request is within its limits.
    Key(Admitted<'h>),
    /// The address, which gets a refund if the key is proven. `None`: it was over its limit in shadow, and was not
    /// charged.
    Address(Option<AddressCharge>),
}

impl Payer<'_> {
    /// Refunds the address, since the key has been proven, or is refused for what it has used up itself.
    pub(super) fn refund(&self) {
        if let Payer::Address(Some(charge)) = self {
            charge.refund();
        }
    }
}

/// A request that was not refused for its key or its limits.
#[derive(Debug)]
pub(super) enum Admission<'h> {
    Admitted(Admitted<'h>),
    Unproven(Unproven<'h>),
}

impl<'h> Admitted<'h> {
    pub(super) fn key(&self) -> &Arc<Key> {
        self.rechecked_key.as_ref().unwrap_or(self.request.key())
    }

    pub(super) fn in_flight(&self) -> &InFlightGuard<'h> {
        &self.request
    }

    pub(super) fn secret(&self) -> Digest {
        self.digest
    }

    pub(super) fn caller(&self, id: RequestId) -> Caller {
        self.caller_with(id, self.forwarded.into())
    }

    /// For a question that no caller waits for, so that it belongs to no trace.
    pub(super) fn caller_without_trace(&self) -> Caller {
        self.caller_with(RequestId::random(), CallerHeader::without_trace(self.forwarded))
    }

    fn caller_with(&self, id: RequestId, header: CallerHeader) -> Caller {
        let (key, learned_key) = (self.key().clone(), self.learned_key.clone());
        Caller { id, secret: self.digest, key, learned_key, header, stranger: None }
    }
}

impl<'h> Admission<'h> {
    fn unproven(
        learned_key: Arc<LearnedKey>,
        forwarded: ForwardedFields<'h>,
        payer: Payer<'h>,
        header: &RequestHeader<'h>,
    ) -> Self {
        let RequestHeader { client, in_flight, .. } = *header;
        Admission::Unproven(Unproven { learned_key, forwarded, payer, client, in_flight })
    }

    /// The request among those of its key in flight, if its key is known.
    pub(super) fn in_flight(&self) -> Option<&InFlightGuard<'h>> {
        match self {
            Admission::Admitted(admitted) | Admission::Unproven(Unproven { payer: Payer::Key(admitted), .. }) => {
                Some(&admitted.request)
            }
            Admission::Unproven(_) => None,
        }
    }

    /// Whether the bot has left the key's guild. Of an unproven key only the origin knows that.
    pub(super) fn guild_is_departed(&self) -> bool {
        match self {
            Admission::Admitted(admitted) => admitted.key().guild.departed,
            Admission::Unproven(_) => false,
        }
    }
}

impl Gateway {
    /// Key, then its limits (12), then its scope (15). A request without a key or with an unknown one is charged to
    /// its address.
    pub(super) fn admit<'h>(
        &self,
        state: &State,
        operation: Operation,
        header: &RequestHeader<'h>,
        details: &mut RequestDetails,
    ) -> Result<Admission<'h>, Fault> {
        let Some(raw) = header.authorization.filter(|value| !value.is_empty()) else {
            self.charge_address(state, header, details)?;
            return Err(Fault::NoKey);
        };
        if is_mistyped(raw) {
            self.charge_address(state, header, details)?;
            return Err(Fault::IncorrectKey);
        }
        let (digest, forwarded) =
            (Digest::of(raw), ForwardedFields { authorization: Authorization(raw), trace: header.trace });
        if let KeySource::Origin(learned_keys) = &state.keys {
            return self.admit_learned(state, learned_keys, (digest, forwarded), operation, header, details);
        }
        let now = header.began;
        let key = match self.find_listed(state, &digest, now) {
            Ok(key) => key,
            Err(Fault::IncorrectKey) => {
                self.charge_address(state, header, details)?;
                return Err(Fault::IncorrectKey);
            }
            Err(fault) => {
                details.key = state.key_table.find(&digest, || self.core.clock.unix()).cloned();
                return Err(fault);
            }
        };
        let request = self.charge(state, key, operation, now, header.in_flight, details)?;
        let (rechecked_key, learned_key, checked_at) = (None, None, now);
        Ok(Admission::Admitted(Admitted { request, rechecked_key, learned_key, digest, forwarded, checked_at }))
    }

    /// The listed key with this digest: 02 if there is none, 21 if the keys are too old to tell.
    pub(super) fn find_listed<'s>(&self, state: &'s State, digest: &Digest, now: Tick) -> Result<&'s Arc<Key>, Fault> {
        if self.follower.keys_are_stale(state, now) {
            // An unknown key may have been made meanwhile, so it is not refused as incorrect either.
            return Err(Fault::Unavailable { retry_after: 1 });
        }
        state.key_table.find(digest, || self.core.clock.unix()).ok_or(Fault::IncorrectKey)
    }

    /// Looks the key up again once the body has come: 21, 02 or 15. Nothing is charged again.
    pub(super) fn readmit<'h>(
        &self,
        state: &State,
        admission: Admission<'h>,
        operation: Operation,
        header: &RequestHeader<'h>,
    ) -> Result<Admission<'h>, Fault> {
        let now = self.core.now();
        match (admission, &state.keys) {
            (Admission::Admitted(admitted), KeySource::Store(_) | KeySource::File(_)) => {
                let key = self.find_listed(state, &admitted.digest, now)?.clone();
                key.may_use(operation)?;
                Ok(Admission::Admitted(Admitted { rechecked_key: Some(key), checked_at: now, ..admitted }))
            }
            (Admission::Admitted(admitted), KeySource::Origin(learned_keys)) => {
                match learned_keys.find(&admitted.digest, now) {
                    KeyStatus::Refused => Err(Fault::IncorrectKey),
                    KeyStatus::Proven(learned_key) => {
                        let rechecked_key = Some(learned_key.key.clone());
                        let learned_key = Some(learned_key);
                        Ok(Admission::Admitted(Admitted { rechecked_key, learned_key, checked_at: now, ..admitted }))
                    }
                    // The request is within the key's limits; only the proof of the key has lapsed.
                    KeyStatus::Lapsed(_) | KeyStatus::Unknown => {
                        let learned_key = admitted.learned_key.clone().ok_or(Fault::IncorrectKey)?;
                        let forwarded = admitted.forwarded;
                        Ok(Admission::unproven(learned_key, forwarded, Payer::Key(admitted), header))
                    }
                }
            }
            (Admission::Unproven(unproven), KeySource::Origin(learned_keys)) => {
                match learned_keys.find(&unproven.learned_key.digest(), now) {
                    KeyStatus::Refused => Err(Fault::IncorrectKey),
                    // If it is proven by now, the look-up before the request to the origin finds that.
                    KeyStatus::Proven(_) | KeyStatus::Lapsed(_) | KeyStatus::Unknown => {
                        Ok(Admission::Unproven(unproven))
                    }
                }
            }
            (unproven, KeySource::Store(_) | KeySource::File(_)) => Ok(unproven),
        }
    }

    /// Admits a request as far as the origin's answers about its key are known.
    fn admit_learned<'h>(
        &self,
        state: &State,
        learned_keys: &LearnedKeys,
        (digest, forwarded): (Digest, ForwardedFields<'h>),
        operation: Operation,
        header: &RequestHeader<'h>,
        details: &mut RequestDetails,
    ) -> Result<Admission<'h>, Fault> {
        match learned_keys.find(&digest, header.began) {
            KeyStatus::Proven(learned_key) => {
                let admitted = self.admit_proven(
                    state,
                    learned_key,
                    forwarded,
                    operation,
                    (header.in_flight, header.began),
                    details,
                )?;
                Ok(Admission::Admitted(admitted))
            }
            // Charged to the key and not to its address: others at that address cannot exhaust its limits.
            KeyStatus::Lapsed(learned_key) => {
                let key = learned_key.clone();
                let admitted =
                    self.admit_proven(state, key, forwarded, operation, (header.in_flight, header.began), details)?;
                Ok(Admission::unproven(learned_key, forwarded, Payer::Key(admitted), header))
            }
            KeyStatus::Unknown => {
                let charge = self.charge_address(state, header, details)?;
                details.cache = Some(CacheStatus::before(operation));
                let learned_key = learned_keys.unproven_key(digest);
                Ok(Admission::unproven(learned_key, forwarded, Payer::Address(charge), header))
            }
            KeyStatus::Refused => {
                self.charge_address(state, header, details)?;
                Err(Fault::IncorrectKey)
            }
        }
    }

    /// Admits a request with a key that the origin has proven.
    pub(super) fn admit_proven<'h>(
        &self,
        state: &State,
        learned_key: Arc<LearnedKey>,
        forwarded: ForwardedFields<'h>,
        operation: Operation,
        (in_flight, now): (&'h InFlightSlot, Tick),
        details: &mut RequestDetails,
    ) -> Result<Admitted<'h>, Fault> {
        let request = self.charge(state, &learned_key.key, operation, now, in_flight, details)?;
        let (rechecked_key, digest) = (None, learned_key.digest());
        Ok(Admitted { request, rechecked_key, learned_key: Some(learned_key), digest, forwarded, checked_at: now })
    }

    /// Charges one request to a known key: its limits (12), then its scope (15).
    fn charge<'h>(
        &self,
        state: &State,
        key: &Arc<Key>,
        operation: Operation,
        now: Tick,
        in_flight: &'h InFlightSlot,
        details: &mut RequestDetails,
    ) -> Result<InFlightGuard<'h>, Fault> {
        details.key = Some(key.clone());
        let request = in_flight.take(key);
        key.budget.touch(now);
        let query = LimitQuery { operation, in_flight: request.others(), now };
        let outcome = match &self.shared_limits {
            None => self.decide(key, query, DecidedBy::ALONE),
            Some(limits) if query.is_over_in_flight(key.policy.tier()) => self.decide(key, query, limits.by(None)),
            Some(limits) => match limits.refusal(key, operation.is_write(), now) {
                Some(told) => self.decide(key, query, limits.by(Some(told))),
                None if limits.is_away() => self.without_redis(state, limits, key, query)?,
                None => {
                    details.awaits_limits = true;
                    return Ok(request);
                }
            },
        };
        self.take_outcome(state, key, query, outcome, details)?;
        Ok(request)
    }

    /// Charges a request whose limits other nodes have a part in: Redis decides, or `cluster.when_away` where it does not
    /// answer within `cluster.timeout`.
    pub(super) async fn charge_after_wait(
        &self,
        request: Option<&InFlightGuard<'_>>,
        operation: Operation,
        details: &mut RequestDetails,
    ) -> Result<(), Fault> {
        let (Some(request), Some(limits)) = (request, &self.shared_limits) else { return Ok(()) };
        let key = request.key();
        details.awaits_limits = false;
        let told = limits.ask(key, operation.is_write()).await;
        // Those that were in flight before it may have ended.
        let in_flight = request.others().min(key.budget.in_flight().saturating_sub(1));
        let query = LimitQuery { operation, in_flight, now: self.core.now() };
        let state = self.core.state_full();
        let outcome = match told {
            Some(told) => self.decide(key, query, limits.by(Some(told))),
            None => self.without_redis(&state, limits, key, query)?,
        };
        self.take_outcome(&state, key, query, outcome, details)
    }

    fn decide(&self, key: &Key, query: LimitQuery, by: DecidedBy) -> LimitOutcome {
        key.budget.decide(&key.policy, query, by, || self.core.clock.unix())
    }

    /// What becomes of a request that Redis does not decide. With `cluster.when_away` "refuse" it is 21, but in shadow,
    /// where nobody is refused.
    fn without_redis(
        &self,
        state: &State,
        limits: &SharedLimits,
        key: &Key,
        query: LimitQuery,
    ) -> Result<LimitOutcome, Fault> {
        if limits.refuses_alone() && !state.config.limits.shadow {
            return Err(Fault::Unavailable { retry_after: 1 });
        }
        limits.count_decided_away();
        Ok(self.decide(key, query, limits.by(None)))
    }

    /// Goes on with what the limits decided: records it, refuses the request (12), or checks its scope (15).
    fn take_outcome(
        &self,
        state: &State,
        key: &Key,
        query: LimitQuery,
        outcome: LimitOutcome,
        details: &mut RequestDetails,
    ) -> Result<(), Fault> {
        let LimitQuery { operation, in_flight, now } = query;
        let shadow = state.config.limits.shadow;
        self.observer.decided(|| Decision {
            at: now,
            key: key.id.clone(),
            tier: key.tier.clone(),
            operation,
            over: outcome.over.map(|(limit, _)| limit),
            refused: outcome.over.is_some() && !shadow,
            over_candidate: outcome.over_candidate,
            in_flight,
            used_today: outcome.used_today,
        });
        details.levels = Some(outcome.levels);
        details.over_candidate = outcome.over_candidate;
        if let Some((limit, wait)) = outcome.over {
            details.over_limit = Some(limit);
            if !shadow {
                return Err(Fault::TooManyRequests { retry_after: seconds_up(wait).max(1) });
            }
        }
        key.may_use(operation)?;
        details.cache = Some(CacheStatus::before(operation));
        Ok(())
    }

    /// Charges one request to the address of a caller whose key is not known to be valid.
    fn charge_address(
        &self,
        state: &State,
        header: &RequestHeader<'_>,
        details: &mut RequestDetails,
    ) -> Result<Option<AddressCharge>, Fault> {
        match state.strangers.charge(header.client, header.began) {
            Ok(charge) => Ok(Some(charge)),
            Err(wait) => {
                details.over_strangers = true;
                self.observer.over_address_limit();
                if state.config.limits.shadow {
                    return Ok(None);
                }
                Err(Fault::TooManyRequests { retry_after: seconds_up(wait).max(1) })
            }
        }
    }
}
