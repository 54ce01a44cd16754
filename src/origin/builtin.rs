//! The built-in backend: answers each operation from the store, in the contract's words. It keeps nothing in memory;
//! the gateway caches. An answer over 1 MiB is refused, as one of an HTTP origin would be. Errors of the store become
//! faults here; the cause goes to the process log and never to the caller.

use std::fmt;
use std::sync::Arc;

use super::OriginRequest;
use crate::clock::Clock;
use crate::model::{GuildId, MemberId, NoteKind};
use crate::store::{Store, StoreError};
use crate::telemetry::metrics::{DescriptorEncoder, Histogram, histograms, latency};
use crate::wire::{self, Fault, Kind, MAX_ORIGIN_ANSWER, Request, Source};

/// The whole service, over a store.
#[derive(Debug)]
pub struct Builtin {
    store: Arc<Store>,
    clock: Clock,
    reads: Histogram,
    writes: Histogram,
}

impl Builtin {
    pub fn new(store: Arc<Store>, clock: Clock) -> Self {
        Builtin { store, clock, reads: latency(), writes: latency() }
    }

    pub(super) async fn answer(&self, origin_request: &OriginRequest<'_>) -> Result<Arc<str>, Fault> {
        let (store, guild) = (&self.store, origin_request.guild);
        let began = self.clock.now();
        let Request { operation, member, amount } = origin_request.request;
        let answer = match operation.row().kind {
            Kind::Read { source: Source::Points, .. } => {
                store.points(guild, member).await.map(|points| points.to_string())
            }
            Kind::Read { source: Source::Notes(kind), .. } => self.notes(kind, guild, member).await,
            Kind::Write { .. } => {
                let amount = amount.ok_or(Fault::NoUsableAnswer)?; // a write has one
                let name = store.set_points(guild, member, amount).await;
                name.map(|name| wire::set_points_line(&name, amount))
            }
            Kind::Pass { .. } => return Err(Fault::NoUsableAnswer), // `check` wants an HTTP origin for these
        };
        let took = if operation.is_write() { &self.writes } else { &self.reads };
        took.observe(self.clock.now().since(began).as_secs_f64());
        let answer = answer.map_err(|error| fault(&error, origin_request))?;
        if !operation.is_write() && answer.len() > MAX_ORIGIN_ANSWER {
            let bytes = answer.len();
            tracing::error!(
                request_id = %origin_request.id, guild = guild.as_str(), %member, bytes,
                "the answer is larger than 1 MiB; remove some of the member's warns or reviews"
            );
            return Err(Fault::NoUsableAnswer);
        }
        Ok(answer.into())
    }

    async fn notes(&self, kind: &'static NoteKind, guild: &GuildId, member: MemberId) -> Result<String, StoreError> {
        let mut notes = self.store.notes_of(kind, guild, member, self.clock.unix()).await?;
        let now = self.clock.unix(); // the read may have waited
        notes.retain(|note| !kind.expires() || note.number > now);
        Ok(kind.answer(member, &notes))
    }

    pub(super) fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        histograms(
            encoder,
            "guildgate_store_duration_seconds",
            "How long the store took for a read, and for a write with its commit",
            [([("part", "read")], &self.reads), ([("part", "write")], &self.writes)],
        )
    }
}

fn fault(error: &StoreError, origin_request: &OriginRequest<'_>) -> Fault {
    let fault = match error {
        StoreError::GuildDeparted(_) => return Fault::GuildDeparted,
        StoreError::Busy(_) | StoreError::Failed(_) => Fault::Unavailable { retry_after: 1 },
        StoreError::NotFound(_) | StoreError::Refused(_) | StoreError::Unknown(_) => Fault::NoUsableAnswer,
        StoreError::Late(_) => Fault::OriginTimeout,
    };
    tracing::warn!(request_id = %origin_request.id, %error, "the store gave no answer");
    fault
}
