//! setPoints.

use std::sync::Arc;

use super::Gateway;
use super::ask::Caller;
use crate::model::MemberId;
use crate::origin::{Place, may_have_happened};
use crate::wire::{Fault, Operation, Request, RequestId};

impl Gateway {
    /// setPoints: move the member's epoch, ask the origin once, move it again whatever came back. A
    /// process that serves beside this one does the same at the same moments.
    pub(super) async fn write(
        &self,
        mut caller: Caller<'_>,
        member: MemberId,
        amount: i64,
        place: Option<Place>,
        id: RequestId,
    ) -> Result<Arc<str>, Fault> {
        if !self.may_write().await {
            return Err(Fault::Unavailable { retry_after: 1 });
        }
        // A write that waits for its place has not begun: it moves no epoch, and no other process is told of it.
        let place = self.place(&caller, place, id).await?;
        let state = self.recheck(&mut caller, Operation::SetPoints)?;
        let (realm, hold) = (caller.key.guild.realm, state.config.cache.points.ttl);
        let write = self.begin_write((realm, caller.realms()), member, hold);
        let Ok(told) = self.tell_begun(member).await else {
            write.settled(); // it did not begin
            return Err(Fault::Unavailable { retry_after: 1 });
        };
        let asked_under = match self.recheck(&mut caller, Operation::SetPoints) {
            Ok(state) => state,
            Err(fault) => {
                write.settled();
                told.over(true).await;
                return Err(fault);
            }
        };
        let answer = self.ask_origin(&asked_under, &caller, place, Request::SetPoints { member, amount }, id).await;
        let settled = !answer.as_ref().is_err_and(|fault| may_have_happened(*fault));
        if settled {
            write.settled();
        } else {
            write.unknown(self.now());
        }
        // A reload may have put the key into another guild meanwhile, whose readers this write concerns.
        if !Arc::ptr_eq(&state, &self.state.load()) {
            self.memory.fence().changed(member);
        }
        told.over(settled).await;
        answer.map(Into::into)
    }
}
