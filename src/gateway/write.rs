use std::sync::Arc;

use super::ask::Caller;
use super::{Gateway, State};
use crate::model::MemberId;
use crate::origin::may_have_happened;
use crate::wire::{Fault, Request, RequestId};

impl Gateway {
    /// setPoints: move the member's epoch, ask the origin once, move it again whatever came back. A
    /// process that serves beside this one does the same at the same moments.
    pub(super) async fn write(
        &self,
        state: &State,
        caller: Caller<'_>,
        member: MemberId,
        amount: i64,
        id: RequestId,
    ) -> Result<Arc<str>, Fault> {
        if !self.may_write().await {
            return Err(Fault::Unavailable { retry_after: 1 });
        }
        let (realm, hold) = (caller.key.guild.realm, state.config.cache.points.ttl);
        let write = self.begin_write((realm, caller.realms()), member, hold);
        let Ok(told) = self.tell_begun(member).await else {
            write.settled(); // it did not begin
            return Err(Fault::Unavailable { retry_after: 1 });
        };
        let answer = self.ask_origin(state, caller, Request::SetPoints { member, amount }, id).await;
        let settled = !answer.as_ref().is_err_and(|fault| may_have_happened(*fault));
        if settled {
            write.settled();
        } else {
            write.unknown(self.now());
        }
        // A reload may have put the key into another guild meanwhile, whose readers this write concerns.
        if !std::ptr::eq(state, &**self.state.load()) {
            self.memory.fence().changed(member);
        }
        told.over(settled).await;
        answer.map(Into::into)
    }
}
