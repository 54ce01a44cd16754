//! Writes. Before the origin is asked, the gate is told: what was asked for until now is not current any more, and what is
//! asked for until the write has ended is not kept (guarantee 2). The origin is asked once (guarantee 5). Other nodes are
//! told before the caller is answered.

use std::sync::Arc;

use super::caller::Caller;
use super::{Gateway, RequestDetails};
use crate::cache::Realms;
use crate::origin::may_have_happened;
use crate::wire::{Fault, Request};

impl Gateway {
    pub(super) async fn write(
        &self,
        mut caller: Caller,
        request: Request,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let Request { operation, member, .. } = request;
        let _counted = self.writes.begin().ok_or(Fault::Unavailable { retry_after: 1 })?;
        let place = self.place(&self.state_full(), &caller).await?;
        let (state, now) = (self.state_full(), self.now());
        if let Some(key) = self.key_now(&state, now, &caller.key.digest, operation, None)? {
            caller.key = key; // of another guild, where it has moved
        }
        if !self.hears_peers(&state, now) {
            return Err(Fault::Unavailable { retry_after: 1 }); // they could not be told in time
        }
        let gate = &self.cache.gate;
        let latest = now.plus(state.write_time()).plus(state.unknown_for());
        let write = gate.begin_write(member, operation.invalidates(), caller.realms(), latest);
        let (answer, upstream) = self.send(&state, &caller, place, request, now).await;
        details.upstream = upstream;
        if !Arc::ptr_eq(&state, &self.state()) {
            gate.invalidate_member(member, Realms::All); // the key may be of another guild by now, whose answers the write changed
        }
        let settled = !answer.as_ref().is_err_and(|fault| may_have_happened(*fault));
        write.end((!settled).then(|| self.now().plus(state.unknown_for())));
        if answer.is_err() && settled {
            return answer; // nothing has changed
        }
        match self.tell_peers(&state, member, settled).await {
            // Other nodes may answer what was before the write for longer than a second.
            Err(_) if answer.is_ok() => Err(Fault::OriginTimeout),
            _ => answer,
        }
    }
}
