//! getPoints, getWarns and getReviews. Whether an answer may be kept, shared or must not be is the gate's word
//! (`cache/gate.rs`), and this is all that is made of it:
//!
//! - *Keep*: a fresh answer of this epoch is given from memory. Else the origin is asked once for a key's callers, and its
//!   answer is kept if the gate still says *Keep* for the same epoch when it comes (guarantees 2 and 3).
//! - *Ask*: the origin is asked, once for those who came before the question was sent, and nothing is kept.
//!
//! Key and configuration are looked at after the gate and after the wait for a place; what is asked then is answered to
//! all who share it (guarantee 7). A stale answer may stand in for a failed origin only while its epoch is current.

use std::pin::pin;
use std::sync::Arc;

use super::admit::Admitted;
use super::caller::Caller;
use super::order::or_wait;
use super::{CacheStatus, Gateway, RequestDetails, State};
use crate::cache::{Entry, EntryKey, EntryState, FlightKey, GateState, Joinable};
use crate::clock::Tick;
use crate::config::Freshness;
use crate::keys::Proof;
use crate::model::Digest;
use crate::telemetry::UpstreamUse;
use crate::wire::{Answer, Fault, Kind, Request, first_expiry};

/// What all who share a question receive.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) answer: Result<Arc<Entry>, Fault>,
    /// Whether it was kept; `None`: another question brought it.
    pub(super) is_stored: Option<bool>,
    pub(super) upstream: Option<UpstreamUse>,
}

impl From<Fault> for Asked {
    fn from(fault: Fault) -> Self {
        Asked { answer: Err(fault), is_stored: Some(false), upstream: None }
    }
}

impl Gateway {
    pub(super) async fn read(
        self: &Arc<Self>,
        state: &State,
        admitted: &Admitted<'_>,
        request: Request,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let (now, realm) = (admitted.checked_at, admitted.key.realm);
        let entry_key = EntryKey { realm, member: request.member, read: request.operation };
        let gate = self.gate(state, &entry_key, now);
        // A key that is not proven has nothing from memory.
        let epoch = gate.epoch().filter(|_| admitted.proof == Proof::Valid);
        let kept = epoch.and_then(|epoch| self.cache.get(&entry_key, epoch));
        if let Some(entry) = &kept {
            match entry.state_at(now, || self.clock.unix_ms()) {
                EntryState::Fresh { ttl } => {
                    details.cache = Some(CacheStatus::Hit { ttl, age: entry.age(now) });
                    return Ok(entry.text.clone());
                }
                EntryState::StaleWhileRevalidate => {
                    details.cache = Some(CacheStatus::WhileRevalidating { age: entry.age(now) });
                    self.revalidate(admitted, entry);
                    return Ok(entry.text.clone());
                }
                EntryState::StaleIfError | EntryState::Expired => {}
            }
        }
        // Boxed, so that the future of a connection with nothing but hits reserves no memory for a miss.
        Box::pin(self.miss(admitted.caller(), (entry_key, gate), kept, details)).await
    }

    /// The gate of an entry: *Ask* where this node does not hear of what others change.
    pub(super) fn gate(&self, state: &State, entry_key: &EntryKey, now: Tick) -> GateState {
        match self.hears_store(state, now) && self.hears_peers(state, now) {
            true => self.cache.gate.state(entry_key, now),
            false => GateState::Ask,
        }
    }

    /// A read that is not answered from memory: joins the question that is under way, or asks it.
    async fn miss(
        self: &Arc<Self>,
        caller: Caller,
        (entry, gate): (EntryKey, GateState),
        stale: Option<Arc<Entry>>,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let secret = caller.key.digest;
        let flight = FlightKey { secret, entry, gate, is_proof: caller.proof != Proof::Valid };
        let (question, is_own) = self.cache.flights.join(flight, |open| self.clone().ask(caller, flight, open));
        let Asked { answer, is_stored, upstream } = question.await;
        details.cache = Some(match is_stored.filter(|_| is_own) {
            Some(stored) => CacheStatus::Forwarded { stale: stale.is_some(), stored },
            None => CacheStatus::Collapsed,
        });
        details.upstream = upstream.filter(|_| is_own);
        match answer {
            Err(fault) if fault.is_origin_failure() => self.stale_if_error(&secret, stale, fault, details),
            answer => answer.map(|entry| entry.text.clone()),
        }
    }

    /// A question that callers may join: waits for its place, looks at the key again, asks the origin, and keeps its answer
    /// if the gate allows that. Another key of the guild may be answered meanwhile.
    async fn ask(self: Arc<Self>, caller: Caller, flight: FlightKey, mut joinable: Joinable<Asked>) -> Asked {
        let FlightKey { secret, entry: key, gate, .. } = flight;
        let state = self.state_full();
        let may_send = async {
            joinable.wait_for_previous(state.queue_time()).await;
            self.place(&state, &caller).await
        };
        let (place, has_waited) = or_wait(pin!(may_send)).await;
        let state = if has_waited { self.state_full() } else { state };
        let asked = self.now(); // before, so that an answer is never older than its age says
        let proven = match self.key_now(&state, asked, &secret, key.read, Some(key.realm)) {
            Ok(found) => found,
            Err(fault) => return fault.into(),
        };
        // Another question may have brought the answer meanwhile, even where nothing was waited for: on another thread.
        let kept = proven.and_then(|_| self.fresh(&key, gate, asked));
        let place = match (kept, place) {
            (Some(entry), _) => return Asked { answer: Ok(entry), is_stored: None, upstream: None },
            (None, Err(fault)) => return fault.into(),
            (None, Ok(place)) => place,
        };
        joinable.sent();
        let (answer, upstream) = self.send(&state, &caller, place, Request::read(key.read, key.member), asked).await;
        let text = match answer {
            Ok(text) => text,
            Err(fault) => return Asked { upstream, ..fault.into() },
        };
        let row = key.read.row();
        let expires = match (row.answer, row.kind) {
            (Answer::Map { expires: true }, Kind::Read { section, .. }) => first_expiry(&text, section, key.member),
            _ => None,
        };
        // If a warn has expired, the origin's clock is behind ours, and its next answer will differ (guarantee 4).
        let has_expired = expires.is_some_and(|expires| expires <= self.clock.unix());
        let freshness = if has_expired { Freshness::NONE } else { state.config.cache.of(key.read) };
        let entry = Arc::new(Entry::new((key, gate.epoch().unwrap_or_default()), text, asked, freshness, expires));
        let gate_now = || self.gate(&self.state(), &key, self.now());
        let is_stored = gate != GateState::Ask && self.cache.insert(&entry, gate_now());
        Asked { answer: Ok(entry), is_stored: Some(is_stored), upstream }
    }

    /// The answer in memory, if it is of this epoch and fresh.
    fn fresh(&self, key: &EntryKey, gate: GateState, now: Tick) -> Option<Arc<Entry>> {
        let entry = self.cache.get(key, gate.epoch()?)?;
        let is_fresh = matches!(entry.state_at(now, || self.clock.unix_ms()), EntryState::Fresh { .. });
        is_fresh.then_some(entry)
    }

    /// The stale answer that may stand in for a failed origin (RFC 5861), unless something has changed or the key may not
    /// have it any more.
    fn stale_if_error(
        &self,
        secret: &Digest,
        stale: Option<Arc<Entry>>,
        fault: Fault,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let (entry, state, now) = (stale.ok_or(fault)?, self.state_full(), self.now());
        let key = self.key_now(&state, now, secret, entry.key.read, Some(entry.key.realm));
        let proven = key.map_err(|_| fault)?;
        let is_current = self.gate(&state, &entry.key, now) == GateState::Keep(entry.epoch);
        if proven.is_none() || !is_current || entry.state_at(now, || self.clock.unix_ms()) == EntryState::Expired {
            return Err(fault);
        }
        details.cache = Some(CacheStatus::IfError { age: entry.age(now) });
        Ok(entry.text.clone())
    }

    /// Asks for a new answer in a task, unless that is under way. No caller waits for it: the origin has logged a failure,
    /// and the stale answer stays.
    fn revalidate(self: &Arc<Self>, admitted: &Admitted<'_>, stale: &Entry) {
        let (secret, gate) = (admitted.key.digest, GateState::Keep(stale.epoch));
        let flight = FlightKey { secret, entry: stale.key, gate, is_proof: false };
        let ask = |open| self.clone().ask(admitted.caller_of_nobody(), flight, open);
        let (question, is_own) = self.cache.flights.join(flight, ask);
        if is_own {
            tokio::spawn(question);
        }
    }
}
