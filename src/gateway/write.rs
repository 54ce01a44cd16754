//! Writes: the epoch of the member advances before the origin is asked and after it, whatever came back, and the
//! origin is asked once (guarantees 2 and 5). Other nodes are told before the origin is asked, and before the caller is.

use std::sync::Arc;

use super::caller::Caller;
use super::handover::no_store_time;
use super::{Gateway, RequestDetails};
use crate::cache::FetchError;
use crate::cluster::bus::NotConfirmed;
use crate::origin::{Permit, may_have_happened};
use crate::wire::{Fault, Request};

impl Gateway {
    /// Sends one write. `permit` is given if the caller has one already.
    pub(super) async fn write(
        &self,
        mut caller: Caller<'_>,
        request: Request,
        permit: Option<Permit>,
        details: &mut RequestDetails,
    ) -> Result<Arc<str>, Fault> {
        let operation = request.operation;
        let unavailable = Fault::Unavailable { retry_after: 1 };
        if !self.handover.wait_to_write().await {
            return Err(unavailable);
        }
        // The write begins only once it has its permit: before that, no epoch advances and no other process is told of
        // it.
        let permit = self.acquire_permit(&caller, permit, details).await?;
        let begun_under = self.recheck(&mut caller, operation)?;
        let (realms, no_store_for) = (caller.realms(caller.key.guild.realm), no_store_time(&begun_under));
        let write = self.handover.begin_write(realms, &request, no_store_for).await.map_err(|_| unavailable)?;
        let announced = self.core.announce_to_peers(&begun_under, request.member).await;
        let rechecked = self.recheck(&mut caller, operation);
        let (announced, state) = match (announced, rechecked) {
            (Ok(announced), Ok(state)) => (announced, state),
            (Err(fault), _) | (Ok(None), Err(fault)) => {
                write.end(true).await; // settled: the origin was not asked
                return Err(fault);
            }
            (Ok(Some(announced)), Err(fault)) => {
                write.end(true).await;
                let _ = announced.end(true).await; // nothing has changed that others would have to know
                return Err(fault);
            }
        };
        let asked = self.ask_origin(&state, &caller, permit, request, announced.as_ref(), details);
        let answer = asked.await.map_err(FetchError::fault);
        // A reload may have moved the key to another guild meanwhile: the write changes that guild's answers as well.
        if !Arc::ptr_eq(&begun_under, &self.core.state()) {
            self.core.cache.epochs().invalidate_member(request.member);
        }
        let settled = !answer.as_ref().is_err_and(|fault| may_have_happened(*fault));
        write.end(settled).await;
        let Some(announced) = announced else { return answer };
        match announced.end(settled).await {
            // Other nodes may answer what was before the write for longer than a second.
            Err(NotConfirmed) if answer.is_ok() => Err(Fault::OriginTimeout),
            Ok(()) | Err(NotConfirmed) => answer,
        }
    }
}
