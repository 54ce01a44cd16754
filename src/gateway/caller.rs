//! On whose behalf the origin is asked: the key, looked at again before each question (contract section 1, "Order"), and
//! told what the origin's answer says about it. A question may be shared and outlive the request that made it, so a
//! caller owns what it needs.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{Gateway, KeySource, State};
use crate::cache::{Realm, Realms};
use crate::clock::Tick;
use crate::config::OriginKind;
use crate::keys::{Key, KeyStatus};
use crate::model::Digest;
use crate::origin::{Authorization, ForwardedFields, OriginRequest, Owner, Permit};
use crate::telemetry::UpstreamUse;
use crate::wire::{Fault, Operation, Request, RequestId, TraceContext};

/// On whose behalf the origin is asked.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) id: RequestId,
    pub(super) secret: Digest,
    /// The key as it was last looked up.
    pub(super) key: Arc<Key>,
    pub(super) header: CallerHeader,
    /// The address of a caller whose key was never proven.
    pub(super) stranger: Option<IpAddr>,
}

/// What an HTTP origin is sent of the caller's header.
#[derive(Debug)]
pub(super) struct CallerHeader {
    authorization: Box<[u8]>,
    trace_parent: Option<Box<[u8]>>,
    trace_state: Option<Box<[u8]>>,
    #[cfg(feature = "otlp")]
    span: Option<Arc<crate::wire::RequestSpan>>,
}

impl From<ForwardedFields<'_>> for CallerHeader {
    fn from(fields: ForwardedFields<'_>) -> Self {
        CallerHeader {
            authorization: fields.authorization.0.into(),
            trace_parent: fields.trace.parent.map(Into::into),
            trace_state: fields.trace.state.map(Into::into),
            #[cfg(feature = "otlp")]
            span: fields.trace.span.cloned(),
        }
    }
}

impl CallerHeader {
    fn fields(&self) -> ForwardedFields<'_> {
        ForwardedFields {
            authorization: Authorization(&self.authorization),
            trace: TraceContext {
                parent: self.trace_parent.as_deref(),
                state: self.trace_state.as_deref(),
                #[cfg(feature = "otlp")]
                span: self.span.as_ref(),
            },
        }
    }
}

impl Caller {
    /// The owner of the places that its questions take at the origin.
    pub(super) fn owner(&self) -> Owner {
        self.stranger.map_or_else(|| Owner::Key(self.key.id.clone()), Owner::of_address)
    }

    /// The realms in which a change invalidates answers. Other learned keys may belong to the guild of this one.
    pub(super) fn realms(&self) -> Realms {
        if self.key.is_learned() { Realms::All } else { Realms::One(self.key.guild.realm) }
    }
}

/// How long a request waits for others before it, at most.
pub(super) fn queue_time(state: &State) -> Duration {
    match &state.config.origin.kind {
        OriginKind::Http(upstreams) => upstreams.queue_timeout,
        OriginKind::Builtin => Duration::ZERO,
    }
}

impl Gateway {
    /// Waits for a place at the origin, at most for `origin.queue_timeout`; then 21.
    pub(super) async fn place(&self, caller: &Caller) -> Result<Permit, Fault> {
        let origin = self.core.state().origin.clone();
        origin.permit(caller.owner(), caller.id).await
    }

    /// The key as it is now, after a wait and before the origin is asked (guarantee 7): 21, 02, 15 or 03; 21, too, if it is
    /// of another realm than this by now. Nothing is charged. `None`: the question itself asks about the key, which is not
    /// proven.
    pub(super) fn key_now(
        &self,
        secret: &Digest,
        operation: Operation,
        realm: Option<Realm>,
    ) -> Result<(Arc<State>, Option<Arc<Key>>), Fault> {
        let state = self.core.state_full();
        let found = self.look_up(&state, secret, self.core.now())?;
        let KeyStatus::Proven(key) = found else { return Ok((state, None)) };
        key.may_use(operation)?;
        match key.guild.departed {
            true => Err(Fault::GuildDeparted),
            false if realm.is_some_and(|realm| realm != key.guild.realm) => Err(Fault::Unavailable { retry_after: 1 }),
            false => Ok((state, Some(key))),
        }
    }

    /// Asks the origin, and learns from its answer what it says about the key.
    pub(super) async fn send(
        &self,
        state: &State,
        caller: &Caller,
        permit: Permit,
        request: Request,
    ) -> (Result<Arc<str>, Fault>, Option<UpstreamUse>) {
        let Caller { secret, key, header, id, .. } = caller;
        let asked = self.core.now();
        let question = OriginRequest { request, guild: &key.guild.id, forwarded: header.fields(), id: *id };
        let (answer, upstream) = state.origin.send(&permit, &question).await;
        drop(permit);
        // A reload puts the new origin in force before it sets from when on answers count, so an answer of the old
        // origin that passes this check was asked for earlier than that. Another one proves and refuses nothing: of the
        // key only what it has used up is remembered.
        let is_in_force = Arc::ptr_eq(&self.core.state().origin, &state.origin);
        let asked = if is_in_force { asked } else { Tick::default() };
        if let (KeySource::Origin(learned_keys), true) = (&state.keys, key.is_learned()) {
            match &answer {
                Err(Fault::IncorrectKey) => learned_keys.refute(secret, asked, self.core.now()),
                Err(fault) if fault.is_origin_failure() => {}
                Ok(_) | Err(_) => learned_keys.accept(secret, key, asked),
            }
        }
        (answer, upstream)
    }
}
