//! The process before this one, which serves until this one takes over.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::PeerConnection;
use super::message::{Message, VERSION, expect, unexpected};
use crate::edge::ListeningSocket;
use crate::process::ProcessError;

/// The process that this one takes over from.
#[derive(Debug)]
pub(in crate::process) struct Predecessor(PeerConnection);

impl Predecessor {
    /// Asks the process that serves for its listening sockets; `None`: there is no `path`, no process listens at it, or
    /// that process has ended before it had sent them. `schema`: of the store that this process writes.
    pub(in crate::process) async fn connect(
        path: Option<&Path>,
        schema: i64,
    ) -> Result<Option<(Predecessor, Vec<ListeningSocket>)>, ProcessError> {
        let Some(path) = path else { return Ok(None) };
        let result = async {
            let Some(peer) = PeerConnection::connect(path)? else { return Ok(None) };
            peer.say(&Message::Hello { version: VERSION, schema }, &[])?;
            match peer.hear_soon().await? {
                (Message::Sockets { names }, sockets) if names.len() == sockets.len() => {
                    Ok(Some((Predecessor(peer), names.into_iter().zip(sockets).collect())))
                }
                (other, _) => Err(unexpected(&other)),
            }
        };
        let path = path.display();
        match result.await {
            Err(error) if has_ended(&error) => {
                tracing::warn!(%path, "the predecessor has ended before it handed over; this process opens its listeners");
                Ok(None)
            }
            result => result.map_err(|error: io::Error| {
                ProcessError::Failed(format!("cannot take over from the server at {path} (server.handover): {error}"))
            }),
        }
    }

    pub(in crate::process) fn pid(&self) -> i32 {
        self.0.pid()
    }

    /// Takes over: from then on the addresses are this process's. It must be ready to accept, and answer nothing from
    /// memory. Where the predecessor has ended without a word, this process has its sockets all the same.
    pub(in crate::process) async fn take_over(&self) -> Result<(), ProcessError> {
        let result = async {
            self.0.say(&Message::Ready, &[])?;
            expect(&Message::Yours, self.0.hear_soon().await?)?;
            self.0.say(&Message::Accepting, &[])
        };
        match result.await {
            Err(error) if !has_ended(&error) => {
                Err(ProcessError::Failed(format!("process {} did not hand over: {error}", self.pid())))
            }
            _ => Ok(()),
        }
    }

    /// Waits until the predecessor sends no write any more, and returns how long its writes of unknown outcome may still
    /// take effect; `None`: nobody knows, as where it has ended without a word.
    pub(super) async fn done(&self) -> Option<Duration> {
        let error = match self.0.hear().await {
            Ok((Message::Done { unsettled_for }, _)) => return Some(unsettled_for),
            Ok((other, _)) => unexpected(&other),
            Err(error) => error,
        };
        tracing::warn!(from = self.pid(), %error, "the predecessor has ended without a word of its writes");
        None
    }
}

/// Whether the connection ended because the other process did. One that serves on says so before it closes it.
fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}
