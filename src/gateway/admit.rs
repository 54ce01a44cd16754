//! Admission: looks up a request's key, charges its limits (12), then checks its scope (15). A request without a valid
//! key is charged to its address and learns nothing else. Only this module makes an `Admitted`, and the cache is looked
//! up only with one; for a key that the origin has neither accepted nor refused yet it makes a `Stranger`. Limits are
//! charged once; after the wait for a body the key is looked up again and nothing is charged again.

use std::net::IpAddr;
use std::sync::Arc;

use super::caller::{Caller, CallerHeader};
use super::{CacheStatus, Gateway, KeySource, RequestDetails, RequestHeader, State};
use crate::clock::{Tick, seconds_up};
use crate::cluster::SharedLimits;
use crate::keys::{InFlightGuard, InFlightSlot, Key, KeyStatus, LearnedKey, is_mistyped};
use crate::limits::{AddressCharge, DecidedBy, LimitOutcome, LimitQuery};
use crate::model::Digest;
use crate::origin::{Authorization, ForwardedFields};
use crate::telemetry::Decision;
use crate::wire::{Fault, Operation, RequestId};

/// A request within the limits of its key.
#[derive(Debug)]
pub(super) struct Admitted<'h> {
    request: InFlightGuard<'h>,
    /// The key as it was last looked up.
    key: Arc<Key>,
    /// The same as it was learned from the origin, if it was.
    learned_key: Option<Arc<LearnedKey>>,
    /// Whether it may use the cache; otherwise the origin is to prove its key first.
    pub(super) is_proven: bool,
    digest: Digest,
    forwarded: ForwardedFields<'h>,
    /// When its key was last looked up.
    pub(super) checked_at: Tick,
}

/// A request with a key that the origin has neither proven nor refused.
#[derive(Debug)]
pub(super) struct Stranger<'h> {
    /// What the key is if the origin accepts it.
    pub(super) learned_key: Arc<LearnedKey>,
    pub(super) client: IpAddr,
    forwarded: ForwardedFields<'h>,
    in_flight: &'h InFlightSlot,
    /// `None`: its address was over its limit in shadow, and was not charged.
    charge: Option<AddressCharge>,
}

/// A request that was not refused for its key or its limits.
#[derive(Debug)]
pub(super) enum Admission<'h> {
    Admitted(Admitted<'h>),
    Stranger(Stranger<'h>),
}

/// What is known of a key that is not refused.
#[derive(Debug)]
pub(super) enum Found {
    Listed(Arc<Key>),
    Learned {
        key: Arc<LearnedKey>,
        is_proven: bool,
    },
    /// Only the origin can judge it.
    Unknown,
}

impl Found {
    /// Whether its caller may have answers from memory.
    pub(super) fn is_proven(&self) -> bool {
        matches!(self, Found::Listed(_) | Found::Learned { is_proven: true, .. })
    }
}

impl<'h> Admitted<'h> {
    pub(super) fn key(&self) -> &Arc<Key> {
        &self.key
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
        let (key, learned_key) = (self.key.clone(), self.learned_key.clone());
        Caller { id, secret: self.digest, key, learned_key, header, stranger: None }
    }

    /// The request with its key as it was found at `now`.
    fn with(self, found: Found, now: Tick) -> Self {
        let admitted = Admitted { checked_at: now, ..self };
        match found {
            Found::Listed(key) => Admitted { key, ..admitted },
            Found::Learned { key, is_proven } => {
                Admitted { key: key.key.clone(), learned_key: Some(key), is_proven, ..admitted }
            }
            // Only the proof of the key has lapsed.
            Found::Unknown => Admitted { is_proven: false, ..admitted },
        }
    }
}

impl Stranger<'_> {
    /// Refunds the address, since the key has been proven, or is refused for what it has used up itself.
    pub(super) fn refund(&self) {
        if let Some(charge) = &self.charge {
            charge.refund();
        }
    }
}

impl<'h> Admission<'h> {
    pub(super) fn secret(&self) -> Digest {
        match self {
            Admission::Admitted(admitted) => admitted.digest,
            Admission::Stranger(stranger) => stranger.learned_key.digest,
        }
    }

    /// The request among those of its key in flight, if its key is known.
    pub(super) fn in_flight(&self) -> Option<&InFlightGuard<'h>> {
        match self {
            Admission::Admitted(admitted) => Some(&admitted.request),
            Admission::Stranger(_) => None,
        }
    }

    /// Whether the bot has left the key's guild. Of a learned key only the origin knows that.
    pub(super) fn guild_is_departed(&self) -> bool {
        matches!(self, Admission::Admitted(admitted) if admitted.key.guild.departed)
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
        let digest = Digest::of(raw);
        let found =
            if is_mistyped(raw) { Err(Fault::IncorrectKey) } else { self.look_up(state, &digest, header.began) };
        let forwarded = ForwardedFields { authorization: Authorization(raw), trace: header.trace };
        let RequestHeader { client, in_flight, began, .. } = *header;
        let (key, learned_key, is_proven) = match found {
            Ok(Found::Listed(key)) => (key, None, true),
            // Charged to the key and not to its address: others at that address cannot exhaust its limits.
            Ok(Found::Learned { key, is_proven }) => (key.key.clone(), Some(key), is_proven),
            Ok(Found::Unknown) => {
                let charge = self.charge_address(state, header, details)?;
                details.cache = Some(CacheStatus::before(operation));
                let KeySource::Origin(learned_keys) = &state.keys else { return Err(Fault::IncorrectKey) };
                let learned_key = learned_keys.unproven_key(digest);
                return Ok(Admission::Stranger(Stranger { learned_key, client, forwarded, in_flight, charge }));
            }
            Err(Fault::IncorrectKey) => {
                self.charge_address(state, header, details)?;
                return Err(Fault::IncorrectKey);
            }
            Err(fault) => {
                details.key = state.key_table.find(&digest, || self.core.clock.unix()).cloned();
                return Err(fault);
            }
        };
        let request = self.charge(state, &key, operation, began, in_flight, details)?;
        let checked_at = began;
        Ok(Admission::Admitted(Admitted { request, key, learned_key, is_proven, digest, forwarded, checked_at }))
    }

    /// What is known of the key with this digest: 02 if nothing or nothing good is, 21 if the keys are too old to tell.
    pub(super) fn look_up(&self, state: &State, digest: &Digest, now: Tick) -> Result<Found, Fault> {
        match &state.keys {
            KeySource::Store(_) | KeySource::File(_) => {
                self.find_listed(state, digest, now).cloned().map(Found::Listed)
            }
            KeySource::Origin(learned_keys) => match learned_keys.find(digest, now) {
                KeyStatus::Proven(key) => Ok(Found::Learned { key, is_proven: true }),
                KeyStatus::Lapsed(key) => Ok(Found::Learned { key, is_proven: false }),
                KeyStatus::Unknown => Ok(Found::Unknown),
                KeyStatus::Refused => Err(Fault::IncorrectKey),
            },
        }
    }

    /// The listed key with this digest: 02 if there is none, 21 if the keys are too old to tell.
    fn find_listed<'s>(&self, state: &'s State, digest: &Digest, now: Tick) -> Result<&'s Arc<Key>, Fault> {
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
    ) -> Result<Admission<'h>, Fault> {
        let now = self.core.now();
        let found = self.look_up(state, &admission.secret(), now)?;
        let Admission::Admitted(admitted) = admission else { return Ok(admission) };
        let admitted = admitted.with(found, now);
        admitted.key.may_use(operation)?;
        Ok(Admission::Admitted(admitted))
    }

    /// Charges a stranger's request to its key, whose limits hold before the origin is asked about it, too: a restart must
    /// not give it more requests than its day has.
    pub(super) async fn charge_stranger<'h>(
        &self,
        stranger: &Stranger<'h>,
        key: Arc<LearnedKey>,
        operation: Operation,
        details: &mut RequestDetails,
    ) -> Result<Admitted<'h>, Fault> {
        let (state, now) = (self.core.state_full(), self.core.now());
        let Stranger { in_flight, forwarded, .. } = *stranger;
        let request = self.charge(&state, &key.key, operation, now, in_flight, details)?;
        if details.awaits_limits {
            self.charge_after_wait(Some(&request), operation, details).await?;
        }
        let (learned_key, digest) = (Some(key.clone()), key.digest);
        let (key, checked_at) = (key.key.clone(), self.core.now());
        Ok(Admitted { request, key, learned_key, is_proven: true, digest, forwarded, checked_at })
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
