//! The successor's side of a hand-over: takes the listening sockets from the process that serves, and holds that
//! process's writes in this one's cache for as long as it reports them. It sees the gateway only through its hand-over
//! methods.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use super::PeerConnection;
use super::message::{MESSAGE_TIMEOUT, Message, VERSION, has_ended, unexpected};
use crate::edge::ListeningSocket;
use crate::gateway::Gateway;
use crate::model::MemberId;
use crate::process::ProcessError;

/// The most acknowledgements that wait to be sent.
const MAX_ACKNOWLEDGEMENTS: usize = 1024;

/// The process that this one takes over from.
#[derive(Debug)]
pub(in crate::process) struct Predecessor {
    peer: PeerConnection,
    sockets: Vec<ListeningSocket>,
}

/// Resolves once the take-over is final, or fails with the reason why it is not.
type Commit = oneshot::Sender<Result<(), String>>;

/// Sends acknowledgements: of a write's begin, or (`true`) of its end.
type Acknowledge = mpsc::Sender<(u64, bool)>;

impl Predecessor {
    /// Asks the process that serves for its listening sockets; `None`: there is no `path`, no process listens at it, or
    /// that process has ended before it had sent them.
    pub(in crate::process) async fn connect(path: Option<&Path>) -> Result<Option<Predecessor>, ProcessError> {
        let Some(path) = path else { return Ok(None) };
        let result = async {
            let Some(peer) = PeerConnection::connect(path).await? else { return Ok(None) };
            let mut predecessor = Predecessor { peer, sockets: Vec::new() };
            predecessor.receive_sockets().await.map(|()| Some(predecessor))
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

    async fn receive_sockets(&mut self) -> io::Result<()> {
        self.send(&Message::Hello { version: VERSION }).await?;
        loop {
            match self.peer.message_within(MESSAGE_TIMEOUT).await? {
                (Message::Socket { asked }, Some(socket)) => self.sockets.push(ListeningSocket::new(asked, socket)?),
                (Message::SocketsSent { sockets }, _) if sockets == self.sockets.len() => return Ok(()),
                (other, _) => return Err(unexpected(&other)),
            }
        }
    }

    pub(in crate::process) fn pid(&self) -> i32 {
        self.peer.pid()
    }

    pub(in crate::process) fn take_sockets(&mut self) -> Vec<ListeningSocket> {
        std::mem::take(&mut self.sockets)
    }

    /// Reports that this process is ready to accept, and waits until it may. `false`: the predecessor has ended.
    pub(in crate::process) async fn ready(&mut self) -> Result<bool, ProcessError> {
        let result = async {
            self.send(&Message::Ready).await?;
            match self.peer.message_within(MESSAGE_TIMEOUT).await?.0 {
                Message::Accept => Ok(()),
                other => Err(unexpected(&other)),
            }
        };
        match result.await {
            Ok(()) => Ok(true),
            Err(error) if has_ended(&error) => Ok(false),
            Err(error) => Err(ProcessError::Failed(format!("process {} did not hand over: {error}", self.pid()))),
        }
    }

    /// Sends a message. If the predecessor has closed the connection, its refusal is the error where it sent one: only a
    /// connection that ends without one means that the predecessor has ended, and this process serves alone then.
    async fn send(&mut self, message: &Message) -> io::Result<()> {
        match self.peer.send_message(message).await {
            Err(error) if has_ended(&error) => loop {
                self.peer.message_within(MESSAGE_TIMEOUT).await?;
            },
            result => result,
        }
    }

    /// Reports that this process accepts, and follows the predecessor's messages until that one ends.
    pub(super) async fn follow(mut self, gateway: Arc<Gateway>, commit: Commit) {
        let (pid, mut commit) = (self.pid(), Some(commit));
        let Err(error) = self.receive_messages(&gateway, &mut commit).await;
        let result = if has_ended(&error) {
            tracing::info!(from = pid, "the predecessor has ended");
            if commit.is_some() {
                // It may not have listed its writes.
                gateway.handover.expect_unreported_writes();
            }
            gateway.handover.predecessor_ended();
            // Taken over, even if the predecessor sent no `go`: it has ended, and only this process has its sockets.
            Ok(())
        } else {
            Err(format!("process {pid} did not hand over: {error}"))
        };
        match commit {
            Some(commit) => drop(commit.send(result)),
            None if result.is_err() => {
                tracing::error!(from = pid, %error, "lost the connection to the predecessor, which still runs");
            }
            None => {}
        }
    }

    async fn receive_messages(
        &mut self,
        gateway: &Arc<Gateway>,
        commit: &mut Option<Commit>,
    ) -> io::Result<Infallible> {
        self.send(&Message::Accepting).await?;
        let (acknowledge, mut acknowledgements) = mpsc::channel(MAX_ACKNOWLEDGEMENTS);
        let hold = |write, member| HeldWrite::start(gateway.clone(), write, member, acknowledge.clone());
        let mut writes: HashMap<u64, HeldWrite> = HashMap::new();
        loop {
            let message = tokio::select! {
                received = self.peer.message() => received?.0,
                Some((write, over)) = acknowledgements.recv() => {
                    self.send(&Message::Acknowledged { write, over }).await?;
                    continue;
                }
            };
            match message {
                Message::Committed => {
                    gateway.handover.allow_writes();
                    commit.take().into_iter().for_each(|commit| drop(commit.send(Ok(()))));
                }
                Message::WriteBegun { write, member } => {
                    let Some(member) = MemberId::new(member) else { continue };
                    match writes.entry(write) {
                        // A write that began while the predecessor listed its writes is reported twice. The first
                        // acknowledgement may have been sent before the second report, so it is repeated.
                        Entry::Occupied(held) if *held.get().is_held.borrow() => {
                            self.peer.send_message(&Message::Acknowledged { write, over: false }).await?;
                        }
                        Entry::Occupied(_) => {}
                        Entry::Vacant(entry) => drop(entry.insert(hold(write, member))),
                    }
                }
                Message::WriteEnded { write, member, settled } => {
                    let Some(member) = MemberId::new(member) else { continue };
                    // A write that ends before the predecessor listed its writes is reported by its end alone.
                    let held = writes.remove(&write).unwrap_or_else(|| hold(write, member));
                    let _ = held.end.send(settled); // received by the write's task
                }
                other => return Err(unexpected(&other)),
            }
        }
    }
}

/// A write of the predecessor, held in this process's cache by a task.
struct HeldWrite {
    /// Turns true once the cache takes account of the write; closed where it never will.
    is_held: watch::Receiver<bool>,
    /// Whether the outcome is known. Dropped: nobody will ever report the end.
    end: oneshot::Sender<bool>,
}

impl HeldWrite {
    /// Holds the write, and acknowledges its begin and its end once the cache takes account of them.
    fn start(gateway: Arc<Gateway>, write: u64, member: MemberId, acknowledge: Acknowledge) -> Self {
        let (end, has_ended) = oneshot::channel();
        let (held, is_held) = watch::channel(false);
        let held_write = HeldWrite { is_held: is_held.clone(), end };
        tokio::spawn(async move {
            let (heard, is_heard) = oneshot::channel();
            let over = async move { Some((has_ended.await.ok()?, heard)) };
            let acknowledge_begin = async {
                let mut is_held = is_held;
                if is_held.wait_for(|held| *held).await.is_ok() {
                    let _ = acknowledge.send((write, false)).await; // fails if the predecessor has ended
                }
            };
            tokio::join!(gateway.handover.track_remote_write(member, held, over), acknowledge_begin);
            if is_heard.await.is_ok() {
                let _ = acknowledge.send((write, true)).await;
            }
        });
        held_write
    }
}
