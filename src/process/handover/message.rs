//! The messages of a hand-over, each a frame of JSON, and the time limits within which they are expected.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{PeerConnection, PeerSender};
use crate::json::from_object;

/// The version of these messages. Both processes must have the same one; a change of the messages increases it.
pub(super) const VERSION: u32 = 1;

/// How long a process may take for a message that it has only to send. One that takes longer is stopped, or is no
/// server of ours.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a successor may take to open the store, read the keys and resolve its upstreams: more than the store's
/// opening may take. Meanwhile no other process can take over, and nothing else is lost.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(90);

/// A message. The names on the wire, among them those of all fields, are those of version 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Message {
    Hello {
        version: u32,
    },
    /// The hand-over has failed, and why; the connection is closed next.
    Refused {
        why: String,
    },
    /// A listening socket, which comes with the frame, and its address as the configuration names it.
    Socket {
        asked: String,
    },
    #[serde(rename = "whole")]
    SocketsSent {
        sockets: usize,
    },
    Ready,
    #[serde(rename = "go")]
    Accept,
    #[serde(rename = "taken")]
    Accepting,
    #[serde(rename = "yours")]
    Committed,
    #[serde(rename = "begun")]
    WriteBegun {
        write: u64,
        member: u64,
    },
    /// `settled`: the write's outcome is known.
    #[serde(rename = "over")]
    WriteEnded {
        write: u64,
        member: u64,
        settled: bool,
    },
    /// The successor's cache takes account of the write's begin, or (`over`) of its end.
    #[serde(rename = "heard")]
    Acknowledged {
        write: u64,
        over: bool,
    },
}

impl PeerSender {
    /// Sends a message within [`MESSAGE_TIMEOUT`], and a socket with it.
    pub(super) async fn send_message(&self, message: &Message, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let payload = serde_json::to_vec(message).map_err(io::Error::other)?;
        timeout(MESSAGE_TIMEOUT, self.send(&payload, socket)).await.map_err(|_| no_message(MESSAGE_TIMEOUT))?
    }
}

impl PeerConnection {
    /// Sends a message within [`MESSAGE_TIMEOUT`].
    pub(super) async fn send_message(&self, message: &Message) -> io::Result<()> {
        self.sender().send_message(message, None).await
    }

    /// Receives the next message within this time. The end of the connection is an error, and so is a refusal.
    pub(super) async fn message_within(&mut self, limit: Duration) -> io::Result<(Message, Option<OwnedFd>)> {
        timeout(limit, self.message()).await.map_err(|_| no_message(limit))?
    }

    /// As [`PeerConnection::message_within`], without a time limit.
    pub(super) async fn message(&mut self) -> io::Result<(Message, Option<OwnedFd>)> {
        let (payload, socket) = self.receive().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let message: Message = from_object(&payload).map_err(io::Error::other)?;
        if let Message::Refused { why } = message {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        if socket.is_some() != matches!(message, Message::Socket { .. }) {
            return Err(io::Error::other(
                "a message came with a socket that does not belong to it, or without its socket",
            ));
        }
        Ok((message, socket))
    }
}

pub(super) fn no_message(limit: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("it did not respond within {limit:?}"))
}

/// The error for a message that does not belong at this point.
pub(super) fn unexpected(message: &Message) -> io::Error {
    let message = serde_json::to_string(message).unwrap_or_default();
    io::Error::other(format!("it sent an unexpected message: {message}"))
}

/// Whether the connection ended because the other process did.
pub(super) fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}
