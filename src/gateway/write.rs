use std::sync::Arc;

use super::admit::Admitted;
use super::{Facts, Gateway, State};
use crate::model::MemberId;
use crate::origin::may_have_happened;
use crate::wire::{Fault, Request};

impl Gateway {
    /// setPoints: move the member's epoch, ask the origin once, move it again whatever came back.
    pub(super) async fn write(
        &self,
        state: &State,
        admitted: &Admitted<'_>,
        member: MemberId,
        amount: i64,
        facts: &Facts,
    ) -> Result<Arc<str>, Fault> {
        let question = admitted.question(Request::SetPoints { member, amount }, facts.id);
        let write = self.fence.begin_write(member, state.config.cache.points.ttl, self.now());
        let answer = state.origin.ask(&question).await;
        match &answer {
            Err(fault) if may_have_happened(*fault) => write.unknown(self.now()),
            Ok(_) | Err(_) => write.settled(),
        }
        answer.map(Into::into)
    }
}
