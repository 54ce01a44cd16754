//! What is no operation and goes on to an upstream (contract section 1, "Everything else"): key, limits, scope and place as
//! for an operation, and what of memory its answer makes invalid. The edge sends it.

use std::sync::Arc;

use futures_util::FutureExt;
use parking_lot::Mutex;

use super::alone::CountedWrite;
use super::{CacheStatus, Gateway, RequestDetails, RequestHeader, State};
use crate::cluster::bus::Notice;
use crate::config::Config;
use crate::keys::{InFlightSlot, Key, Proof, is_mistyped};
use crate::model::Digest;
use crate::origin::{HttpOrigin, Origin, Owner, Permit};
use crate::wire::{Fault, Operation};

/// A request that may be sent to an upstream.
#[derive(Debug)]
pub struct Passage {
    gateway: Arc<Gateway>,
    /// What it was admitted under.
    pub config: Arc<Config>,
    pub origin: Arc<HttpOrigin>,
    /// The place at the origin while the body comes. It is then `kept`, unless it was given back meanwhile.
    place: Arc<Mutex<Option<Permit>>>,
    kept: Option<Permit>,
    held: Option<Held>,
}

/// What a request holds until its answer's header has come.
#[derive(Debug)]
struct Held {
    state: Arc<State>,
    in_flight: InFlightSlot,
    /// The key whose guild's answers it may make invalid.
    changes: Option<Arc<Key>>,
    counted: Option<CountedWrite>,
}

impl Gateway {
    /// Admits a request that is to be passed on, in the order of an operation's refusals. `in_flight` is the slot that
    /// `header` names.
    pub async fn pass(
        self: &Arc<Self>,
        state: &Arc<State>,
        header: &RequestHeader<'_>,
        details: &mut RequestDetails,
    ) -> Result<Passage, Fault> {
        let rules = &state.config.pass;
        let is_write = !matches!(header.method, b"GET" | b"HEAD" | b"OPTIONS");
        let operation = if is_write { Operation::PassWrite } else { Operation::Pass };
        details.operation = Some(Operation::Pass);
        if header.content_length.is_some_and(|length| length > rules.max_body) {
            return Err(Fault::BodyTooLarge);
        }
        let (owner, mut key) = if rules.key {
            let key = self.admit_to_pass(state, operation, header, details).await?;
            (Owner::Key(key.id.clone()), Some(key))
        } else {
            (Owner::of_address(header.client), self.key_of(state, header))
        };
        details.cache = Some(CacheStatus::Bypass);
        key = key.filter(|_| is_write);
        let counted =
            key.as_ref().map(|_| self.writes.begin().ok_or(Fault::Unavailable { retry_after: 1 })).transpose()?;
        let permit = self.state().origin.clone().permit(owner, header.id).await?;
        let (state, now) = (self.state_full(), self.now());
        if let (true, Some(admitted)) = (rules.key, &details.key) {
            let found = self.key_now(&state, now, &admitted.digest, operation, None)?;
            key = found.filter(|_| is_write);
        }
        if key.is_some() && !self.hears_peers(&state, now) {
            return Err(Fault::Unavailable { retry_after: 1 }); // they could not be told in time
        }
        let Origin::Http(origin) = &*state.origin else { return Err(Fault::UnknownOperation) };
        let (config, origin) = (state.config.clone(), origin.clone());
        let held = Held { state, in_flight: InFlightSlot::default(), changes: key, counted };
        let place = Arc::new(Mutex::new(Some(permit)));
        Ok(Passage { gateway: self.clone(), config, origin, place, kept: None, held: Some(held) })
    }

    /// Key, limits and scope, and 03.
    async fn admit_to_pass(
        &self,
        state: &State,
        operation: Operation,
        header: &RequestHeader<'_>,
        details: &mut RequestDetails,
    ) -> Result<Arc<Key>, Fault> {
        let mut admitted = self.admit(state, operation, header, details)?;
        if details.awaits_limits {
            let charged = self.charge_after_wait(&admitted.request, operation, details).await;
            charged.inspect_err(|_| admitted.refund(details))?;
            self.look_again(&self.state_full(), &mut admitted, details)?;
            admitted.key.may_use(operation)?;
        }
        if admitted.key.guild_departed {
            return Err(Fault::GuildDeparted);
        }
        admitted.request.leave();
        Ok(admitted.key)
    }

    /// The valid key that a request came with, where none is needed.
    fn key_of(&self, state: &State, header: &RequestHeader<'_>) -> Option<Arc<Key>> {
        let raw = header.authorization.filter(|raw| !raw.is_empty() && !is_mistyped(raw))?;
        let found = self.look_up(state, &Digest::of(raw), header.began).ok()?;
        (found.proof != Proof::Missing).then_some(found.key)
    }
}

impl Passage {
    /// The place at the origin until the body has come whole, to be taken out where that takes too long.
    pub fn place(&self) -> Arc<Mutex<Option<Permit>>> {
        self.place.clone()
    }

    /// The body has come whole: the place is kept until the answer's header has come.
    pub fn keep_place(&mut self) {
        self.kept = self.kept.take().or_else(|| self.place.lock().take());
    }

    /// Takes the slot that the request's header named, so that it is released with the place at the origin.
    pub fn hold(&mut self, in_flight: InFlightSlot) {
        if let Some(held) = &mut self.held {
            held.in_flight = in_flight;
        }
    }

    /// The answer's header has come, or the request has failed: gives everything back. What was asked for before a request
    /// that may have changed something is neither kept nor shared any more, here and at other nodes (RFC 9111, 4.4).
    ///
    /// # Errors
    /// 22 where the other nodes could not be told in time.
    pub async fn answered(&mut self) -> Result<(), Fault> {
        let Some(Held { state, in_flight, changes, counted }) = self.held.take() else { return Ok(()) };
        drop((self.kept.take(), self.place.lock().take(), in_flight));
        let Some(key) = changes else { return Ok(()) };
        let gate = &self.gateway.cache.gate;
        // The key may be of another guild by now, whose answers have changed.
        let is_everything = key.is_learned() || !Arc::ptr_eq(&state, &self.gateway.state());
        match is_everything {
            true => gate.invalidate_all(),
            false => gate.invalidate_realm(key.realm),
        }
        let guild = (!is_everything).then(|| key.guild.clone());
        let told = match self.gateway.peers_of(&state) {
            Some(peers) => peers.bus.tell(Notice::Purge { guild, member: None }, state.write_time()).await,
            None => Ok(()),
        };
        drop(counted);
        told.map_err(|_| Fault::OriginTimeout)
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        // A request that is cancelled or panics: one poll does all but to wait for the others.
        let _ = self.answered().now_or_never();
    }
}
