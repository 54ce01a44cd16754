//! The key on behalf of which the origin is asked: looked up again after everything that is waited for, and told what
//! the origin's answer says about it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Gateway, KeySource, RequestDetails, State};
use crate::cache::{EntryKey, FetchError, Realm, Realms};
use crate::cluster::bus::BusWrite;
use crate::keys::{Key, KeyStatus, LearnedKey};
use crate::model::Digest;
use crate::origin::{ForwardedFields, OriginRequest, Owner, Permit};
use crate::wire::{Fault, Operation, Request};

/// On whose behalf the origin is asked.
#[derive(Clone, Debug)]
pub(super) struct Caller<'c> {
    /// The key as it was last looked up.
    pub(super) key: Arc<Key>,
    /// The key as it was, or may be, learned from the origin.
    pub(super) learned_key: Option<Arc<LearnedKey>>,
    pub(super) digest: Digest,
    pub(super) forwarded: ForwardedFields<'c>,
    /// The address of a caller whose key was never proven.
    pub(super) stranger: Option<IpAddr>,
}

impl Caller<'_> {
    /// The owner of the permits that its requests take.
    pub(super) fn owner(&self) -> Owner {
        self.stranger.map_or_else(|| Owner::Key(self.key.usage.id.clone()), Owner::of_address)
    }

    /// The realms in which a change in `realm` invalidates answers. Other learned keys may belong to the guild of this
    /// one.
    pub(super) fn realms(&self, realm: Realm) -> Realms {
        if self.learned_key.is_some() { Realms::All } else { Realms::One(realm) }
    }

    pub(super) fn entry_key(&self, request: &Request) -> EntryKey {
        EntryKey { realm: self.key.guild.realm, member: request.member, read: request.operation }
    }
}

impl Gateway {
    /// Looks the caller's key up again, after a wait and before the origin is asked or memory is read (contract section 1,
    /// "Order"): 21, 02, 15 or 03. Nothing is charged. Returns the state to go on under.
    pub(super) fn recheck(&self, caller: &mut Caller<'_>, operation: Operation) -> Result<Arc<State>, Fault> {
        let (state, now) = (self.core.state_full(), self.core.now());
        self.invalidate_if_cut_off(&state, now);
        if let KeySource::Origin(learned_keys) = &state.keys {
            // If the proof of the key has lapsed, this request asks the origin itself.
            return match learned_keys.find(&caller.digest, now) {
                KeyStatus::Refused => Err(Fault::IncorrectKey),
                KeyStatus::Proven(_) | KeyStatus::Lapsed(_) | KeyStatus::Unknown(_) => Ok(state),
            };
        }
        let key = self.find_listed(&state, &caller.digest, now)?;
        key.may_use(operation)?;
        if key.guild.departed {
            return Err(Fault::GuildDeparted);
        }
        caller.key = key.clone();
        Ok(state)
    }

    /// As [`Gateway::recheck`]. The built-in backend is told the guild, so a key that has moved to another is refused: 21.
    fn recheck_guild(&self, state: &State, caller: &Caller<'_>, operation: Operation) -> Result<(), Fault> {
        let mut now = caller.clone();
        self.recheck(&mut now, operation)?;
        let is_same = !state.origin.is_builtin() || now.key.guild.id == caller.key.guild.id;
        if is_same { Ok(()) } else { Err(Fault::Unavailable { retry_after: 1 }) }
    }

    /// Whether the caller's key still belongs to the guild under which the answer would be stored.
    pub(super) fn is_of_realm(&self, caller: &Caller<'_>, realm: Realm) -> bool {
        let state = self.core.state();
        let unix = || self.core.clock.unix();
        matches!(state.keys, KeySource::Origin(_))
            || state.key_table.find(&caller.digest, unix).is_some_and(|key| key.guild.realm == realm)
    }

    /// Whether the caller may receive answers from memory: with a learned key only while it is proven.
    pub(super) fn may_use_cache(&self, caller: &Caller<'_>) -> bool {
        match &self.core.state().keys {
            KeySource::Origin(learned_keys) => {
                matches!(learned_keys.find(&caller.digest, self.core.now()), KeyStatus::Proven(_))
            }
            KeySource::Store(_) | KeySource::File(_) => true,
        }
    }

    /// Whether the origin of `state` is still the one in force.
    pub(super) fn is_in_force(&self, state: &State) -> bool {
        Arc::ptr_eq(&self.core.state().origin, &state.origin)
    }

    /// Waits for a permit of the origin, unless the caller has one: at most `origin.queue_timeout`, of which it has
    /// `details.queued` behind it. The key must be looked up again afterwards.
    pub(super) async fn acquire_permit(
        &self,
        caller: &Caller<'_>,
        permit: Option<Permit>,
        details: &RequestDetails,
    ) -> Result<Permit, Fault> {
        if let Some(permit) = permit {
            return Ok(permit);
        }
        let origin = self.core.state().origin.clone();
        origin.permit(caller.owner(), details.queued, details.id).await
    }

    /// Asks the origin, and learns from its answer what it says about the key. A write that other nodes were told of is
    /// sent only while they know of it.
    pub(super) async fn ask_origin(
        &self,
        state: &State,
        caller: &Caller<'_>,
        permit: Permit,
        request: Request,
        announced: Option<&BusWrite<'_>>,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, FetchError> {
        let Caller { key, learned_key, forwarded, .. } = caller;
        let asked = self.core.now();
        let origin_request = OriginRequest { request, guild: &key.guild.id, forwarded: *forwarded, id: details.id };
        // A learned key needs no check: this request asks the origin itself.
        let not_sent = AtomicBool::new(false);
        let may_send = || {
            let may_send = match learned_key {
                _ if !announced.is_none_or(BusWrite::is_announced) => Err(Fault::Unavailable { retry_after: 1 }),
                Some(_) => Ok(()),
                None => self.recheck_guild(state, caller, request.operation),
            };
            may_send.inspect_err(|_| not_sent.store(true, Ordering::Relaxed))
        };
        let (answer, upstream) = state.origin.send(&permit, &origin_request, &may_send).await;
        drop(permit);
        details.upstream = upstream;
        // A reload puts the new origin in force before it sets from when on answers count, so an answer of the old
        // origin that passes this check was asked for earlier than that.
        if let (KeySource::Origin(learned_keys), Some(learned_key), true) =
            (&state.keys, learned_key, self.is_in_force(state))
        {
            match &answer {
                Err(Fault::IncorrectKey) => learned_keys.refute(learned_key, asked, self.core.now()),
                Err(fault) if fault.is_origin_failure() => {}
                Ok(_) | Err(_) => drop(learned_keys.accept(learned_key, asked)),
            }
        }
        answer.map_err(|fault| match not_sent.into_inner() {
            true => FetchError::NotSent(fault),
            false if fault.is_of_key() && learned_key.is_none() => FetchError::KeyRefused(caller.digest, fault),
            false => FetchError::Fault(fault),
        })
    }
}
