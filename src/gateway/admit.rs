//! Admission: looks up a request's key, charges its limits (12), then checks its scope (15). A request without a valid
//! key is charged to its address and learns nothing else. Only this module makes an `Admitted`, and the cache is looked
//! up only with one whose key is proven. Limits are charged once; after the wait for a body the key is looked up again and
//! nothing is charged again.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::caller::Caller;
use super::{CacheStatus, Gateway, KeySource, RequestDetails, RequestHeader, State};
use crate::clock::{Tick, seconds_up};
use crate::cluster::SharedLimits;
use crate::keys::{InFlightGuard, InFlightSlot, Key, KeyStatus, is_mistyped};
use crate::limits::{AddressCharge, DecidedBy, LimitOutcome, LimitQuery};
use crate::model::Digest;
use crate::origin::{Authorization, ForwardedFields};
use crate::telemetry::Decision;
use crate::wire::{Fault, Operation, RequestId, TraceContext};

/// A request that was not refused for its key or its limits.
#[derive(Debug)]
pub(super) struct Admitted<'h> {
    /// The request among those of its key in flight; `None` until a stranger's key is charged.
    pub(super) request: Option<InFlightGuard<'h>>,
    /// The key as it was last looked up, or what it is if the origin accepts it.
    pub(super) key: Arc<Key>,
    /// Whether it may use the cache; otherwise the origin is to prove its key first.
    pub(super) is_proven: bool,
    pub(super) secret: Digest,
    forwarded: ForwardedFields<'h>,
    /// When its key was last looked up.
    pub(super) checked_at: Tick,
    /// Set if the origin had neither proven nor refused its key when it came.
    pub(super) stranger: Option<Stranger<'h>>,
}

/// Whose request one with an unknown key is.
#[derive(Debug)]
pub(super) struct Stranger<'h> {
    client: IpAddr,
    in_flight: &'h InFlightSlot,
    /// `None`: its address was over its limit in shadow, and was not charged.
    charge: Option<AddressCharge>,
}

impl Admitted<'_> {
    pub(super) fn caller(&self, id: RequestId) -> Caller {
        let stranger = self.stranger.as_ref().filter(|_| !self.is_proven).map(|stranger| stranger.client);
        Caller { id, secret: self.secret, key: self.key.clone(), header: self.forwarded.into(), stranger }
    }

    /// For a question that no caller waits for, so that it belongs to no trace.
    pub(super) fn caller_without_trace(&self) -> Caller {
        let forwarded = ForwardedFields { trace: TraceContext::default(), ..self.forwarded };
        Caller { header: forwarded.into(), ..self.caller(RequestId::random()) }
    }

    /// The request with its key as it was found at `now`.
    pub(super) fn with(self, found: KeyStatus, now: Tick) -> Self {
        let admitted = Admitted { checked_at: now, ..self };
        match found {
            KeyStatus::Proven(key) => Admitted { key, is_proven: true, ..admitted },
            KeyStatus::Lapsed(key) => Admitted { key, is_proven: false, ..admitted },
            // Only the proof of the key has lapsed.
            KeyStatus::Unknown => Admitted { is_proven: false, ..admitted },
        }
    }

    /// Refunds a stranger's address, since the key has been proven, or is refused for what it has used up itself.
    pub(super) fn refund(&self) {
        if let Some(charge) = self.stranger.as_ref().and_then(|stranger| stranger.charge.as_ref()) {
            charge.refund();
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
    ) -> Result<Admitted<'h>, Fault> {
        let Some(raw) = header.authorization.filter(|value| !value.is_empty()) else {
            self.charge_address(state, header, details)?;
            return Err(Fault::NoKey);
        };
        let secret = Digest::of(raw);
        let found =
            if is_mistyped(raw) { Err(Fault::IncorrectKey) } else { self.look_up(state, &secret, header.began) };
        let RequestHeader { client, in_flight, began: checked_at, .. } = *header;
        let (key, is_proven, stranger) = match (found, &state.keys) {
            (Ok(KeyStatus::Proven(key)), _) => (key, true, None),
            // Charged to the key and not to its address: others at that address cannot exhaust its limits.
            (Ok(KeyStatus::Lapsed(key)), _) => (key, false, None),
            (Ok(KeyStatus::Unknown), KeySource::Origin(learned_keys)) => {
                let charge = self.charge_address(state, header, details)?;
                details.cache = Some(CacheStatus::before(operation));
                (learned_keys.unproven_key(&secret), false, Some(Stranger { client, in_flight, charge }))
            }
            (Ok(KeyStatus::Unknown) | Err(Fault::IncorrectKey), _) => {
                self.charge_address(state, header, details)?;
                return Err(Fault::IncorrectKey);
            }
            (Err(fault), _) => return Err(fault),
        };
        let request = match stranger {
            Some(_) => None,
            None => Some(self.charge(state, &key, operation, checked_at, in_flight, details)?),
        };
        let forwarded = ForwardedFields { authorization: Authorization(raw), trace: header.trace };
        Ok(Admitted { request, key, is_proven, secret, forwarded, checked_at, stranger })
    }

    /// What is known of the key with this digest: 02 if it is refused, 21 if the keys are too old to tell.
    pub(super) fn look_up(&self, state: &State, secret: &Digest, now: Tick) -> Result<KeyStatus, Fault> {
        match &state.keys {
            KeySource::Origin(learned_keys) => learned_keys.find(secret, now),
            // An unknown key may have been made meanwhile, so it is not refused as incorrect either.
            _ if self.follower.keys_are_stale(state, now) => Err(Fault::Unavailable { retry_after: 1 }),
            KeySource::Store(_) | KeySource::File(_) => {
                let key = state.key_table.find(secret, || self.core.clock.unix());
                key.cloned().map(KeyStatus::Proven).ok_or(Fault::IncorrectKey)
            }
        }
    }

    /// Looks the key up again once the body has come: 21, 02 or 15. Nothing is charged again.
    pub(super) fn readmit<'h>(
        &self,
        state: &State,
        admitted: Admitted<'h>,
        operation: Operation,
    ) -> Result<Admitted<'h>, Fault> {
        let now = self.core.now();
        let found = self.look_up(state, &admitted.secret, now)?;
        if admitted.stranger.is_some() {
            return Ok(admitted); // its key is charged first
        }
        let admitted = admitted.with(found, now);
        admitted.key.may_use(operation)?;
        Ok(admitted)
    }

    /// Charges a stranger's request to its key, whose limits hold before the origin is asked about it, too: a restart must
    /// not give it more requests than its day has.
    pub(super) async fn charge_stranger(
        &self,
        admitted: &mut Admitted<'_>,
        operation: Operation,
        details: &mut RequestDetails,
    ) -> Result<(), Fault> {
        let Some(stranger) = &admitted.stranger else { return Ok(()) };
        let (state, now) = (self.core.state_full(), self.core.now());
        let request = self.charge(&state, &admitted.key, operation, now, stranger.in_flight, details)?;
        if details.awaits_limits {
            self.charge_after_wait(Some(&request), operation, details).await?;
        }
        admitted.request = Some(request);
        Ok(())
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
            unix_ms: self.core.clock.unix_ms(),
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
