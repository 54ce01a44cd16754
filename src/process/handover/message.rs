//! The messages of a hand-over, each a JSON object.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::PeerConnection;
use crate::json::from_object;

/// The version of these messages. Both processes must have the same one; a change of the messages increases it.
pub(super) const VERSION: u32 = 4;

/// How long a process may take for a message that it has only to send. One that takes longer is stopped, busy with another
/// hand-over, or no server of ours.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// A message. Fields that are not known are ignored, so that the hello of a later version is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase")]
pub(super) enum Message {
    /// `schema`: the number of the store's schema that this process writes.
    Hello {
        version: u32,
        schema: i64,
    },
    /// The hand-over has failed, and why; the connection is closed next.
    Refused {
        why: String,
    },
    /// The listening sockets, which come with the message, and their addresses as the configuration names them.
    Sockets {
        names: Vec<String>,
    },
    Ready,
    Yours,
    Accepting,
    /// No write is under way, and none can begin. Writes of unknown outcome may take effect for so long.
    Done {
        unsettled_for: Duration,
    },
}

impl PeerConnection {
    /// Sends a message, and these sockets with it.
    pub(super) fn say(&self, message: &Message, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(&serde_json::to_vec(message)?, sockets)
    }

    /// Receives the next message, however long it takes. The end of the connection is an error, and so is a refusal.
    pub(super) async fn hear(&self) -> io::Result<(Message, Vec<OwnedFd>)> {
        let (bytes, sockets) = self.receive().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        match from_object(&bytes)? {
            Message::Refused { why } => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
            message => Ok((message, sockets)),
        }
    }

    /// Receives the next message from a process that has only to send it.
    pub(super) async fn hear_soon(&self) -> io::Result<(Message, Vec<OwnedFd>)> {
        timeout(MESSAGE_TIMEOUT, self.hear()).await.unwrap_or_else(|_| {
            let why = "it did not answer within 5 s; it may be amid another hand-over: look at its log and try again";
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        })
    }
}

/// The error for a message that does not belong at this point.
pub(super) fn unexpected(message: &Message) -> io::Error {
    io::Error::other(format!("it sent an unexpected message: {message:?}"))
}

/// Whether this is the message that belongs at this point.
pub(super) fn expect(expected: &Message, (heard, _): (Message, Vec<OwnedFd>)) -> io::Result<()> {
    if heard == *expected { Ok(()) } else { Err(unexpected(&heard)) }
}
