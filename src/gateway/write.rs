//! Writes. Before the origin is asked, the gate is told: what was asked for until now is not current any more, and what is
//! asked for until the write has ended is not kept (guarantee 2). The origin is asked once (guarantee 5). Other nodes are
//! told before the caller is answered.

use std::sync::Arc;
use std::time::Duration;

use super::caller::Caller;
use super::{Gateway, RequestDetails, State};
use crate::config::OriginKind;
use crate::origin::may_have_happened;
use crate::wire::{Fault, Operation, Request};

/// The longest time that a write of the built-in backend takes: a second to begin, two for its commit, and two to spare.
const STORE_WRITES_WITHIN: Duration = Duration::from_secs(5);

impl Gateway {
    pub(super) async fn write(
        &self,
        mut caller: Caller,
        request: Request,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let Request { operation, member, .. } = request;
        let _counted = self.alone.begin_write().ok_or(Fault::Unavailable { retry_after: 1 })?;
        let place = self.place(&caller).await?;
        let (state, key) = self.key_now(&caller.secret, operation, None)?;
        if let Some(key) = key {
            caller.key = key; // of another guild, where it has moved
        }
        let now = self.core.now();
        if !self.core.hears_peers(&state, now) {
            return Err(Fault::Unavailable { retry_after: 1 }); // they could not be told in time
        }
        let gate = &self.core.cache.gate;
        let (ttl, latest_end) = (unknown_for(&state), now.plus(write_time(&state)));
        let write = gate.begin_write(member, operation.invalidates(), caller.realms(), ttl, latest_end);
        let (answer, upstream) = self.send(&state, &caller, place, request).await;
        details.upstream = upstream;
        if !Arc::ptr_eq(&state, &self.core.state()) {
            gate.invalidate_member(member); // the key may be of another guild by now, whose answers the write changed
        }
        let settled = !answer.as_ref().is_err_and(|fault| may_have_happened(*fault));
        match settled {
            true => write.end(),
            false => write.end_unknown(self.core.now().plus(ttl)),
        }
        if answer.is_err() && settled {
            return answer; // nothing has changed
        }
        match self.core.tell_peers(&state, member, settled).await {
            // Other nodes may answer what was before the write for longer than a second.
            Err(_) if answer.is_ok() => Err(Fault::OriginTimeout),
            _ => answer,
        }
    }
}

/// How long nothing about a member is kept after a write of unknown outcome.
pub(super) fn unknown_for(state: &State) -> Duration {
    match state.config.cache.of(Operation::GetPoints).ttl {
        Duration::ZERO => write_time(state),
        ttl => ttl,
    }
}

/// How long a write takes at most until its caller is answered.
pub(super) fn write_time(state: &State) -> Duration {
    match &state.config.origin.kind {
        OriginKind::Http(upstreams) => upstreams.timeout,
        OriginKind::Builtin => STORE_WRITES_WITHIN,
    }
}
