use std::sync::Arc;

use super::{Gateway, KeySource, State};
use crate::cache::Realms;
use crate::keys::{Key, Taught};
use crate::origin::{Authorization, Question};
use crate::wire::{Fault, Request, RequestId};

/// For whom the origin is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller<'c> {
    pub(super) key: &'c Key,
    /// Where the key was learned, or may be, from the origin.
    pub(super) taught: Option<&'c Arc<Taught>>,
    pub(super) authorization: Authorization<'c>,
}

impl Caller<'_> {
    /// Whether other keys' answers may be about this caller's guild.
    pub(super) fn realms(&self) -> Realms {
        if self.taught.is_some() { Realms::MayOverlap } else { Realms::Apart }
    }
}

impl Gateway {
    /// Asks the origin, and learns from its answer what it says of the key.
    pub(super) async fn ask_origin(
        &self,
        state: &State,
        caller: Caller<'_>,
        request: Request,
        id: RequestId,
    ) -> Result<String, Fault> {
        let Caller { key, taught, authorization } = caller;
        let asked = self.now();
        let answer = state.origin.ask(&Question { request, guild: &key.guild.id, authorization, id }).await;
        if let (KeySource::Origin(learned), Some(taught)) = (&state.keys, taught) {
            match &answer {
                Err(Fault::IncorrectKey) => learned.refute(taught, asked, self.now()),
                Err(fault) if fault.is_origin_failure() => {}
                Ok(_) | Err(_) => drop(learned.accept(taught, asked)),
            }
        }
        answer
    }
}
