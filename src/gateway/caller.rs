//! On whose behalf the origin is asked: the key, looked at again before each question (contract section 1, "Order"), and
//! told what the origin's answer says about it. A question may be shared and outlive the request that made it, so a
//! caller owns what it needs.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Gateway, KeySource, State};
use crate::cache::{Realm, Realms};
use crate::clock::Tick;
use crate::keys::{Key, Proof};
use crate::model::Digest;
use crate::origin::{OriginRequest, Owner, Permit};
use crate::telemetry::UpstreamUse;
use crate::wire::{Fault, Operation, Request, RequestId, TraceContext};

/// On whose behalf the origin is asked, and what an HTTP origin is sent of its header.
pub(super) struct Caller {
    pub(super) id: RequestId,
    /// The key as it was last looked up.
    pub(super) key: Arc<Key>,
    pub(super) proof: Proof,
    client: IpAddr,
    authorization: Box<[u8]>,
    trace_parent: Option<Box<[u8]>>,
    trace_state: Option<Box<[u8]>>,
    span: Option<Arc<crate::wire::RequestSpan>>,
}

impl Caller {
    pub(super) fn new(
        id: RequestId,
        (key, proof): (Arc<Key>, Proof),
        client: IpAddr,
        authorization: &[u8],
        trace: TraceContext<'_>,
    ) -> Self {
        Caller {
            id,
            key,
            proof,
            client,
            authorization: authorization.into(),
            trace_parent: trace.parent.map(Into::into),
            trace_state: trace.state.map(Into::into),
            span: trace.span.cloned(),
        }
    }

    fn trace(&self) -> TraceContext<'_> {
        TraceContext {
            parent: self.trace_parent.as_deref(),
            state: self.trace_state.as_deref(),
            span: self.span.as_ref(),
        }
    }

    /// The realms in which a change invalidates answers. Other learned keys may belong to the guild of this one.
    pub(super) fn realms(&self) -> Realms {
        if self.key.is_learned() { Realms::All } else { Realms::One(self.key.realm) }
    }
}

impl Gateway {
    /// Waits for a place at the origin, at most for `origin.queue_timeout`; then 21.
    pub(super) async fn place(&self, state: &State, caller: &Caller) -> Result<Permit, Fault> {
        let owner = match caller.proof {
            Proof::Missing => Owner::of_address(caller.client),
            Proof::Valid | Proof::Lapsed => Owner::Key(caller.key.id.clone()),
        };
        state.origin.permit(owner, caller.id).await
    }

    /// The key by the state of now, after a wait and before the origin is asked (guarantee 7): 21, 02, 15 or 03; 21, too, if it is
    /// of another realm than this by now. Nothing is charged. `None`: the question itself asks about the key, which is not
    /// proven.
    pub(super) fn key_now(
        &self,
        state: &State,
        now: Tick,
        secret: &Digest,
        operation: Operation,
        realm: Option<Realm>,
    ) -> Result<Option<Arc<Key>>, Fault> {
        let found = self.look_up(state, secret, now)?;
        if found.proof != Proof::Valid {
            return Ok(None);
        }
        found.key.may_use(operation)?;
        match found.key.guild_departed {
            true => Err(Fault::GuildDeparted),
            false if realm.is_some_and(|realm| realm != found.key.realm) => Err(Fault::Unavailable { retry_after: 1 }),
            false => Ok(Some(found.key)),
        }
    }

    /// Asks the origin, from `asked` on, and learns from its answer what it says about the key.
    pub(super) async fn send(
        &self,
        state: &State,
        caller: &Caller,
        permit: Permit,
        request: Request,
        asked: Tick,
    ) -> (Result<Arc<str>, Fault>, Option<UpstreamUse>) {
        let key = &caller.key;
        let (authorization, trace) = (&*caller.authorization, caller.trace());
        let question = OriginRequest { request, asked, guild: &key.guild, authorization, trace, id: caller.id };
        let (answer, upstream) = state.origin.send(&permit, &question).await;
        drop(permit);
        // A reload puts the new origin in force before it sets from when on answers count, so an answer of the old
        // origin that passes this check was asked for earlier than that. Another one proves and refuses nothing: of the
        // key only what it has used up is remembered.
        let is_in_force = Arc::ptr_eq(&self.state().origin, &state.origin);
        let asked = if is_in_force { asked } else { Tick::default() };
        if let (KeySource::Origin(learned_keys), true) = (&state.keys, key.is_learned()) {
            match &answer {
                Err(Fault::IncorrectKey) => learned_keys.refute(&key.digest, asked, self.now()),
                Err(fault) if fault.is_origin_failure() => {}
                Ok(_) | Err(_) => learned_keys.accept(key, asked),
            }
        }
        (answer, upstream)
    }
}
