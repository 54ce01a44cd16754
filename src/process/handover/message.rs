//! The messages of a hand-over, each a JSON object, and the time limits within which they are expected.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::PeerConnection;
use crate::json::from_object;

/// The version of these messages. Both processes must have the same one; a change of the messages, or of the
/// gate's numbers of members, increases it.
pub(super) const VERSION: u32 = 3;

/// How long a process may take for a message that it has only to send. One that takes longer is stopped, or is no
/// server of ours.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a successor may take to open the store, read the keys and resolve its upstreams: more than the store's
/// opening may take. Meanwhile no other process can take over, and nothing else is lost.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(90);

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
    /// No write is under way, and none can begin. The gate's numbers of the members whose write may
    /// still take effect; `None`: too many to name.
    Done {
        unsettled: Option<Vec<usize>>,
    },
}

impl PeerConnection {
    /// Sends a message, and these sockets with it.
    pub(super) fn say(&self, message: &Message, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(&serde_json::to_vec(message)?, sockets)
    }

    /// Receives the next message within this time. The end of the connection is an error, and so is a refusal.
    pub(super) async fn hear(&self, limit: Duration) -> io::Result<(Message, Vec<OwnedFd>)> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("it did not respond within {limit:?}"));
        let received = timeout(limit, self.receive()).await.map_err(|_| late())??;
        let (bytes, sockets) = received.ok_or(io::ErrorKind::UnexpectedEof)?;
        match from_object(&bytes)? {
            Message::Refused { why } => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
            message => Ok((message, sockets)),
        }
    }

    /// Receives this message within this time.
    pub(super) async fn expect(&self, expected: Message, limit: Duration) -> io::Result<()> {
        let (message, _) = self.hear(limit).await?;
        if message == expected { Ok(()) } else { Err(unexpected(&message)) }
    }
}

/// The error for a message that does not belong at this point.
pub(super) fn unexpected(message: &Message) -> io::Error {
    io::Error::other(format!("it sent an unexpected message: {message:?}"))
}

/// Whether the connection ended because the other process did.
pub(super) fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}
