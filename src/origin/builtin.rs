//! The built-in backend: answers each operation from the store, in the contract's words. It keeps nothing in memory;
//! the gateway caches. An answer over 1 MiB is refused, as one of an HTTP origin would be. A write that takes longer
//! than 5 s is answered 22. Errors of the store become faults here; the cause goes to the process log and never to the
//! caller.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::OriginRequest;
use crate::clock::Clock;
use crate::store::{AnyStore, Store, StoreError};
use crate::telemetry::metrics::{DescriptorEncoder, Histogram, histograms, latency};
use crate::wire::{self, Fault, MAX_ORIGIN_ANSWER, Read, Request};

/// How long a caller waits for a write to the store, so that a disk that stalls does not hold callers for ever. Longer
/// than the 2 s that a write waits for another process's lock.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// The whole service, over a store.
#[derive(Debug)]
pub struct Builtin {
    store: Arc<AnyStore>,
    clock: Clock,
    reads: Histogram,
    writes: Histogram,
}

impl Builtin {
    pub fn new(store: Arc<AnyStore>, clock: Clock) -> Self {
        Builtin { store, clock, reads: latency(), writes: latency() }
    }

    pub(super) async fn answer(&self, origin_request: &OriginRequest<'_>) -> Result<Arc<str>, Fault> {
        let (store, guild) = (&self.store, origin_request.guild);
        let began = self.clock.now();
        let answer = match origin_request.request {
            Request::Read { read: Read::Points, member } => {
                store.points(guild, member).await.map(|points| points.to_string())
            }
            Request::Read { read: Read::Warns, member } => {
                let warns = store.warns(guild, member, self.clock.unix()).await;
                warns.map(|warns| wire::warns(member, &warns))
            }
            Request::Read { read: Read::Reviews, member } => {
                store.reviews(guild, member).await.map(|reviews| wire::reviews(member, &reviews))
            }
            Request::SetPoints { member, amount } => {
                let written = tokio::time::timeout(WRITE_TIMEOUT, store.set_points(guild, member, amount)).await;
                let written = written.map_err(|_| {
                    store.hear_late_write();
                    tracing::error!(request_id = %origin_request.id, "the store took longer than 5 s to write; check its disk");
                    Fault::OriginTimeout
                })?;
                written.map(|name| wire::set_points_line(&name, amount))
            }
        };
        let took = if origin_request.request.operation().is_write() { &self.writes } else { &self.reads };
        took.observe(self.clock.now().since(began).as_secs_f64());
        let answer = answer.map_err(|error| fault(&error, origin_request))?;
        if let Request::Read { member, .. } = origin_request.request
            && answer.len() > MAX_ORIGIN_ANSWER
        {
            let bytes = answer.len();
            tracing::error!(
                request_id = %origin_request.id, guild = guild.as_str(), %member, bytes,
                "the answer is larger than 1 MiB; remove some of the member's warns or reviews"
            );
            return Err(Fault::NoUsableAnswer);
        }
        Ok(answer.into())
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
    match error {
        StoreError::GuildDeparted(_) => Fault::GuildDeparted,
        StoreError::Busy(_) => {
            tracing::warn!(request_id = %origin_request.id, %error, "the store is busy");
            Fault::Unavailable { retry_after: 1 }
        }
        StoreError::Unreachable(_) => {
            tracing::warn!(request_id = %origin_request.id, %error, "the store cannot be reached");
            Fault::Unavailable { retry_after: 1 }
        }
        StoreError::Failed(_) => {
            tracing::error!(request_id = %origin_request.id, %error, "the store failed");
            Fault::Unavailable { retry_after: 1 }
        }
        StoreError::NotFound(_) | StoreError::Refused(_) | StoreError::Unknown(_) => {
            tracing::error!(request_id = %origin_request.id, %error, "the store failed");
            Fault::NoUsableAnswer
        }
    }
}
