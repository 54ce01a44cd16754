//! The built-in backend: answers each operation from the store, in the words of the contract. It keeps nothing in
//! memory: the gateway caches. An answer over 1 MiB is refused, as an HTTP origin's would be, and a write is waited for
//! no longer than 5 s (then 22). Errors of the store become faults here; the cause goes to the log and never to the
//! caller.

use std::sync::Arc;
use std::time::Duration;

use super::Question;
use crate::clock::Clock;
use crate::store::{AnyStore, Store, StoreError};
use crate::wire::{self, Fault, MAX_ORIGIN_ANSWER, Read, Request};

/// How long a caller waits for the store to answer a write before 22: a disk that stalls must not
/// hold callers for ever. Longer than the 2 s that a write waits for another process's lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// The built-in backend: the whole service, over a store, by a call.
#[derive(Debug)]
pub struct Builtin {
    store: Arc<AnyStore>,
    clock: Clock,
}

impl Builtin {
    pub fn new(store: Arc<AnyStore>, clock: Clock) -> Self {
        Builtin { store, clock }
    }

    pub(super) async fn ask(&self, question: &Question<'_>) -> Result<String, Fault> {
        let (store, guild) = (&self.store, question.guild);
        let answer = match question.request {
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
                let written = tokio::time::timeout(PATIENCE, store.set_points(guild, member, amount)).await;
                let written = written.map_err(|_| {
                    tracing::error!(request_id = %question.id, "the store took too long to write; is its disk stalled?");
                    Fault::OriginTimeout
                })?;
                written.map(|name| wire::set_points_line(&name, amount))
            }
        };
        let answer = answer.map_err(|error| fault(&error, question))?;
        if let Request::Read { member, .. } = question.request
            && answer.len() > MAX_ORIGIN_ANSWER
        {
            let bytes = answer.len();
            tracing::error!(
                request_id = %question.id, guild = guild.as_str(), %member, bytes,
                "the store holds more of a member than an answer may have, which is 1 MiB; remove some of its warns or reviews"
            );
            return Err(Fault::NoUsableAnswer);
        }
        Ok(answer)
    }
}

fn fault(error: &StoreError, question: &Question<'_>) -> Fault {
    match error {
        StoreError::GuildGone(_) => Fault::GuildGone,
        StoreError::Busy(_) => {
            tracing::warn!(request_id = %question.id, %error, "the store is busy");
            Fault::Unavailable { retry_after: 1 }
        }
        StoreError::Unreachable(_) => {
            tracing::warn!(request_id = %question.id, %error, "the store cannot be reached");
            Fault::Unavailable { retry_after: 1 }
        }
        StoreError::Failed(_) => {
            tracing::error!(request_id = %question.id, %error, "the store failed");
            Fault::Unavailable { retry_after: 1 }
        }
        StoreError::Refused(_) | StoreError::Unknown(_) => {
            tracing::error!(request_id = %question.id, %error, "the store failed");
            Fault::NoUsableAnswer
        }
    }
}
