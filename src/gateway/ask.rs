//! Asking the origin on behalf of a key, and looking that key up again after whatever was waited for.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Gateway, KeySource, State};
use crate::cache::{EntryKey, Realms};
use crate::keys::{Key, Standing, Taught};
use crate::model::{Digest, MemberId};
use crate::origin::{Authorization, Owner, Place, Question};
use crate::wire::{Fault, Operation, Read, Request, RequestId};

/// For whom the origin is asked.
#[derive(Clone, Debug)]
pub(super) struct Caller<'c> {
    /// The key as it was last looked up.
    pub(super) key: Arc<Key>,
    /// Where the key was learned, or may be, from the origin.
    pub(super) taught: Option<Arc<Taught>>,
    pub(super) digest: Digest,
    pub(super) authorization: Authorization<'c>,
    /// Where it comes from, if it has no key that was ever proven.
    pub(super) stranger: Option<IpAddr>,
}

impl Caller<'_> {
    /// Whose places its requests take at the origin.
    pub(super) fn owner(&self) -> Owner {
        self.stranger.map_or_else(|| Owner::Key(self.key.id.clone()), Owner::of_address)
    }

    /// Whether other keys' answers may be about this caller's guild.
    pub(super) fn realms(&self) -> Realms {
        if self.taught.is_some() { Realms::MayOverlap } else { Realms::Apart }
    }

    /// Where a read's answer is kept.
    pub(super) fn entry_key(&self, read: Read, member: MemberId) -> EntryKey {
        EntryKey { realm: self.key.guild.realm, member, read }
    }
}

impl Gateway {
    /// Looks the caller's key up again, after a wait and before the origin is asked (contract section 1,
    /// "Order"): 21, 02, 15 or 03. Nothing is charged. The state to go on under.
    pub(super) fn recheck(&self, caller: &mut Caller<'_>, operation: Operation) -> Result<Arc<State>, Fault> {
        let state = self.state.load_full();
        if let KeySource::Origin(learned) = &state.keys {
            // Of a key that is not proven any more this request asks the origin itself.
            return match learned.find(&caller.digest, self.now()) {
                Standing::Refused => Err(Fault::IncorrectKey),
                Standing::Proven(_) | Standing::Lapsed(_) | Standing::Unknown(_) => Ok(state),
            };
        }
        let key = self.listed(&state, &caller.digest)?;
        key.may_use(operation)?;
        if key.guild.gone {
            return Err(Fault::GuildGone);
        }
        caller.key = key.clone();
        Ok(state)
    }

    /// Whether the caller's key still speaks for the guild under which the answer would be kept.
    pub(super) fn is_of_realm(&self, caller: &Caller<'_>, at: &EntryKey) -> bool {
        let state = self.state.load();
        matches!(state.keys, KeySource::Origin(_))
            || state.book.find(&caller.digest, || self.clock.unix()).is_some_and(|key| key.guild.realm == at.realm)
    }

    /// Whether the caller may still be given what is held: a learned key only while it is proven.
    pub(super) fn may_have_held(&self, caller: &Caller<'_>) -> bool {
        match &self.state.load().keys {
            KeySource::Origin(learned) => {
                matches!(learned.find(&caller.digest, self.now()), Standing::Proven(_))
            }
            KeySource::Store(_) | KeySource::File { .. } => true,
        }
    }

    /// Whether the origin that a request was asked of is still the one in force.
    pub(super) fn is_in_force(&self, state: &State) -> bool {
        Arc::ptr_eq(&self.state.load().origin, &state.origin)
    }

    /// A place at the origin, waited for in turn where `had` is none. The key is to be looked up again after it.
    pub(super) async fn place(&self, caller: &Caller<'_>, had: Option<Place>, id: RequestId) -> Result<Place, Fault> {
        if let Some(place) = had {
            return Ok(place);
        }
        let origin = self.state.load().origin.clone();
        origin.place(caller.owner(), id).await
    }

    /// Asks the origin, and learns from its answer what it says of the key.
    pub(super) async fn ask_origin(
        &self,
        state: &State,
        caller: &Caller<'_>,
        place: Place,
        request: Request,
        id: RequestId,
    ) -> Result<String, Fault> {
        let Caller { key, taught, authorization, .. } = caller;
        let asked = self.now();
        let question = Question { request, guild: &key.guild.id, authorization: *authorization, id };
        // Of a learned key this request asks the origin itself.
        let may_send = || match taught {
            Some(_) => Ok(()),
            None => self.recheck(&mut caller.clone(), request.operation()).map(drop),
        };
        let answer = state.origin.ask(&place, &question, &may_send).await;
        drop(place);
        // A reload puts the new origin in force before it says since when answers count: an answer of the old one
        // that passes here was asked for earlier than that.
        if let (KeySource::Origin(learned), Some(taught), true) = (&state.keys, taught, self.is_in_force(state)) {
            match &answer {
                Err(Fault::IncorrectKey) => learned.refute(taught, asked, self.now()),
                Err(fault) if fault.is_origin_failure() => {}
                Ok(_) | Err(_) => drop(learned.accept(taught, asked)),
            }
        }
        answer
    }
}
