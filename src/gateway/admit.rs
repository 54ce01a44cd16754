//! Admission: looks up a request's key, charges its limits (12), then checks its scope (15). A request without a valid
//! key is charged to its address and learns nothing else. Only this module makes an `Admitted`, and nothing is answered
//! from memory but to one whose key is proven. Limits are charged once; after the wait for a body the key is looked up
//! again and nothing is charged again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::timeout;

use super::caller::Caller;
use super::{CacheStatus, Gateway, KeySource, RequestDetails, RequestHeader, State};
use crate::clock::{Tick, seconds_up};
use crate::cluster::SharedLimits;
use crate::keys::{FoundKey, InFlightGuard, Key, Proof, is_mistyped};
use crate::limits::{AddressCharge, DecidedBy, LimitOutcome, LimitQuery};
use crate::model::Digest;
use crate::telemetry::Decision;
use crate::wire::{Fault, Operation, Request, RequestId, TraceContext};

/// A request that was not refused for its key or its limits.
pub(super) struct Admitted<'h> {
    header: &'h RequestHeader<'h>,
    /// The request among those of its key in flight.
    pub(super) request: InFlightGuard<'h>,
    /// The key as it was last looked up, or what it is if the origin accepts it.
    pub(super) key: Arc<Key>,
    pub(super) proof: Proof,
    /// When its key was last looked up.
    pub(super) checked_at: Tick,
    /// What its address was charged, if the origin had neither proven nor refused its key when it came.
    charge: Option<AddressCharge>,
}

impl Admitted<'_> {
    pub(super) fn caller(&self) -> Caller {
        self.asks(self.header.id, self.header.trace)
    }

    /// For a question that no caller waits for, so that it belongs to no trace.
    pub(super) fn caller_of_nobody(&self) -> Caller {
        self.asks(RequestId::random(), TraceContext::default())
    }

    fn asks(&self, id: RequestId, trace: TraceContext<'_>) -> Caller {
        let RequestHeader { authorization, client, .. } = *self.header;
        Caller::new(id, (self.key.clone(), self.proof), client, authorization.unwrap_or_default(), trace)
    }

    /// Refunds a stranger's address, since the key has been proven, or is refused for what it has used up itself.
    pub(super) fn refund(&mut self, details: &mut RequestDetails) {
        refund(self.charge.take(), details);
    }
}

fn refund(charge: Option<AddressCharge>, details: &mut RequestDetails) {
    details.is_stranger = false;
    if let Some(charge) = charge {
        charge.refund();
    }
}

impl Gateway {
    /// Key, then its limits (12), then its scope (15). A request without a key or with an unknown one is charged to
    /// its address.
    pub(super) fn admit<'h>(
        &self,
        state: &State,
        operation: Operation,
        header: &'h RequestHeader<'h>,
        details: &mut RequestDetails,
    ) -> Result<Admitted<'h>, Fault> {
        let found = match header.authorization.filter(|value| !value.is_empty()) {
            None => Err(Fault::NoKey),
            Some(raw) if is_mistyped(raw) => Err(Fault::IncorrectKey),
            Some(raw) => self.look_up(state, &Digest::of(raw), header.began),
        };
        // Others at its address cannot exhaust the limits of a key that was proven once.
        let is_stranger = match &found {
            Ok(found) => found.proof == Proof::Missing,
            Err(fault) => matches!(fault, Fault::NoKey | Fault::IncorrectKey),
        };
        let charge = if is_stranger { self.charge_address(state, header, details)? } else { None };
        let FoundKey { mut key, proof } = found?;
        if let (KeySource::Origin(learned_keys), Proof::Missing) = (&state.keys, proof) {
            // After its address has paid: keys that are refused for that displace no other.
            key = learned_keys.unproven(&key.digest).key.clone();
        }
        details.is_stranger = is_stranger;
        match self.charge(state, &key, operation, header, details) {
            Ok(request) => Ok(Admitted { header, request, key, proof, checked_at: header.began, charge }),
            Err(fault) => {
                refund(charge, details);
                Err(fault)
            }
        }
    }

    /// What is known of the key with this digest: 02 if it is refused, 21 if the keys are too old to tell.
    pub(super) fn look_up(&self, state: &State, secret: &Digest, now: Tick) -> Result<FoundKey, Fault> {
        match &state.keys {
            KeySource::Origin(learned_keys) => learned_keys.find(secret, now),
            // An unknown key may have been made meanwhile, so it is not refused as incorrect either.
            _ if self.keys_are_stale(state, now) => Err(Fault::Unavailable { retry_after: 1 }),
            KeySource::Store(_) | KeySource::File(_) => {
                let key = state.key_table.find(secret, || self.clock.unix());
                key.cloned().map(|key| FoundKey { key, proof: Proof::Valid }).ok_or(Fault::IncorrectKey)
            }
        }
    }

    /// Looks the key up again after a wait: 21 or 02. Nothing is charged again.
    pub(super) fn look_again(
        &self,
        state: &State,
        admitted: &mut Admitted<'_>,
        details: &mut RequestDetails,
    ) -> Result<(), Fault> {
        admitted.checked_at = self.now();
        let found = self.look_up(state, &admitted.key.digest, admitted.checked_at)?;
        (admitted.key, admitted.proof) = (found.key, found.proof);
        if found.proof == Proof::Valid {
            admitted.refund(details);
        }
        Ok(())
    }

    /// A request whose key only the origin can judge (`keys.source = "origin"`): the request itself is the proof of its key.
    /// Others with the same key wait for it, at most for `origin.queue_timeout`, and are sent one after the other until one
    /// of them proves it.
    pub(super) async fn prove(
        self: &Arc<Self>,
        state: &State,
        mut admitted: Admitted<'_>,
        request: Request,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let KeySource::Origin(learned_keys) = &state.keys else { return Err(Fault::IncorrectKey) };
        let unproven = learned_keys.unproven(&admitted.key.digest);
        let turn = timeout(self.state().queue_time(), unproven.asking.lock()).await;
        let turn = turn.map_err(|_| Fault::Unavailable { retry_after: 1 })?;
        self.look_again(state, &mut admitted, details)?;
        let _turn = (admitted.proof != Proof::Valid).then_some(turn);
        let answer = self.perform(&self.state_full(), &admitted, request, details).await;
        if learned_keys.is_proven(&admitted.key.digest, self.now()) {
            admitted.refund(details);
        }
        answer
    }

    /// Charges one request to a key, whose limits hold before the origin is asked about it, too: a restart must not give it
    /// more requests than its day has. Its limits (12), then its scope (15).
    fn charge<'h>(
        &self,
        state: &State,
        key: &Arc<Key>,
        operation: Operation,
        header: &RequestHeader<'h>,
        details: &mut RequestDetails,
    ) -> Result<InFlightGuard<'h>, Fault> {
        details.key = Some(key.clone());
        let (request, now) = (header.in_flight.take(key), header.began);
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
        request: &InFlightGuard<'_>,
        operation: Operation,
        details: &mut RequestDetails,
    ) -> Result<(), Fault> {
        let Some(limits) = &self.shared_limits else { return Ok(()) };
        let key = request.key();
        details.awaits_limits = false;
        let told = limits.ask(key, operation.is_write()).await;
        // Those that were in flight before it may have ended.
        let in_flight = request.others().min(key.budget.in_flight().saturating_sub(1));
        let query = LimitQuery { operation, in_flight, now: self.now() };
        let state = self.state_full();
        let outcome = match told {
            Some(told) => self.decide(key, query, limits.by(Some(told))),
            None => self.without_redis(&state, limits, key, query)?,
        };
        self.take_outcome(&state, key, query, outcome, details)
    }

    fn decide(&self, key: &Key, query: LimitQuery, by: DecidedBy) -> LimitOutcome {
        key.budget.decide(&key.policy, query, by, || self.clock.unix())
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
        limits.decided_away.fetch_add(1, Ordering::Relaxed);
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
            unix_ms: self.clock.unix_ms(),
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
