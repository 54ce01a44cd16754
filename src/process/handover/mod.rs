//! The hand-over from one process to the next (`server.handover`). A process that starts is the *successor* of the one
//! that serves, its *predecessor*. While both live, neither answers from memory nor keeps anything (`gateway/alone.rs`),
//! so they tell each other nothing of their writes.
//!
//! ```text
//! successor                            predecessor
//!   Hello            ──────────────▶
//!                    ◀──────────────   Sockets
//!   opens and reads everything,
//!   answers from the origin only
//!   Ready            ──────────────▶
//!                                      answers from the origin only
//!                    ◀──────────────   Yours
//!   Accepting        ──────────────▶
//!   accepts                            accepts no more, and drains
//!                    ◀──────────────   Done: no write is under way, and none can begin
//!   answers from memory
//! ```
//!
//! A conversation that ends before Accepting means that the successor never served: the predecessor goes on as before.
//! So the predecessor ends it after Sockets only where it ends itself, and waits for Ready and Accepting as long as the
//! successor lives. One that ends after Accepting without Done leaves the successor in the dark about writes that may still
//! take effect, so it keeps nothing for one `points.ttl`. Another process that connects during a hand-over gets no answer,
//! and gives up after 5 s.

mod message;
mod predecessor;
mod socket;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use message::{Message, VERSION, expect, unexpected};

pub(super) use predecessor::Predecessor;
pub use socket::{HandoverListener, PeerConnection, Received};

use super::{ProcessError, systemd};
use crate::edge::ListeningSocket;
use crate::gateway::Gateway;

/// How long to wait after a connection could not be accepted, for example at the limit of open files.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// What this process needs to hand over: its own socket, not published yet, and its listening sockets.
pub(super) struct Handover {
    listener: HandoverListener,
    sockets: Vec<ListeningSocket>,
    schema: i64,
}

/// The hand-over in a process that serves.
pub(super) struct HandoverTask {
    handed_over: oneshot::Receiver<PeerConnection>,
    task: JoinHandle<()>,
    successor: Option<PeerConnection>,
}

impl Handover {
    pub(super) fn prepare(path: &Path, sockets: Vec<ListeningSocket>, schema: i64) -> Result<Self, ProcessError> {
        let listener = HandoverListener::prepare(path)
            .map_err(|e| ProcessError::Failed(format!("{} cannot be server.handover: {e}", path.display())))?;
        Ok(Handover { listener, sockets, schema })
    }

    /// Waits until this process is alone, and then for a successor.
    pub(super) fn start(self, predecessor: Option<Predecessor>, gateway: Arc<Gateway>) -> HandoverTask {
        if let Some(predecessor) = &predecessor {
            // From now on this one's end is the service's end, and not the predecessor's.
            systemd::notify(&format!("READY=1\nMAINPID={}\n", std::process::id()));
            tracing::info!(from = predecessor.pid(), "took over");
        }
        let (hand_over, handed_over) = oneshot::channel();
        let task = tokio::spawn(self.run(predecessor, gateway, hand_over));
        HandoverTask { handed_over, task, successor: None }
    }

    /// Ends once another process has taken over, or where none can connect.
    async fn run(
        mut self,
        predecessor: Option<Predecessor>,
        gateway: Arc<Gateway>,
        hand_over: oneshot::Sender<PeerConnection>,
    ) {
        let path = self.listener.path().display().to_string();
        let published = self.listener.publish();
        if let Some(predecessor) = predecessor {
            gateway.alone(predecessor.done().await);
            tracing::info!(from = predecessor.pid(), "the predecessor answers no more requests");
        }
        if let Err(error) = published {
            tracing::error!(%error, %path, "cannot listen on server.handover; no other process can take over");
            return;
        }
        let successor = loop {
            let peer = match self.listener.accept().await {
                Ok(peer) => peer,
                Err(error) => {
                    tracing::warn!(%error, %path, "cannot accept a connection at server.handover");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let to = peer.pid();
            tracing::info!(to, "a process asks to take over");
            let Err(error) = self.give(&peer, &gateway).await else { break peer };
            tracing::warn!(to, %error, "the other process did not take over; this one goes on as before");
            let why = format!("the process that serves goes on: {error}");
            let _ = peer.say(&Message::Refused { why }, &[]); // it may have ended
        };
        // Open copies would keep the addresses in use as long as this process drains.
        drop(self);
        let _ = hand_over.send(successor); // fails if this process is stopping
    }

    /// Gives the successor the addresses. Once this returns `Ok`, they are its own; until then it has accepted nothing.
    async fn give(&self, peer: &PeerConnection, gateway: &Gateway) -> io::Result<()> {
        let (hello, _) = peer.hear_soon().await?;
        let Message::Hello { version, schema } = hello else { return Err(unexpected(&hello)) };
        if (version, schema) != (VERSION, self.schema) {
            return Err(io::Error::other(format!(
                "it hands over by version {VERSION} for schema {} of the store, and the new one by version {version} for \
                 schema {schema}; stop it, and start the new one",
                self.schema
            )));
        }
        let names = self.sockets.iter().map(|(name, _)| name.clone()).collect();
        let sockets: Vec<BorrowedFd<'_>> = self.sockets.iter().map(|(_, socket)| socket.as_fd()).collect();
        peer.say(&Message::Sockets { names }, &sockets)?;
        expect(&Message::Ready, peer.hear().await?)?;
        gateway.not_alone();
        let result = give_way(peer).await;
        if result.is_err() {
            gateway.alone(Some(Duration::ZERO));
        }
        result
    }
}

/// Lets the successor accept, and waits until it does.
async fn give_way(peer: &PeerConnection) -> io::Result<()> {
    peer.say(&Message::Yours, &[])?;
    expect(&Message::Accepting, peer.hear().await?)
}

impl HandoverTask {
    /// Waits until another process serves the addresses. Returns its id.
    pub(super) async fn ended(&mut self) -> i32 {
        if !self.handed_over.is_terminated()
            && let Ok(successor) = (&mut self.handed_over).await
        {
            let to = successor.pid();
            self.successor = Some(successor);
            return to;
        }
        // No successor can connect.
        std::future::pending().await
    }

    /// Accepts no successor any more, and closes this task's copies of the listening sockets. A successor that is amid a
    /// hand-over takes this process for one that has ended.
    pub(super) async fn close(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await; // it was aborted
    }

    /// Tells the successor, if there is one, that it is alone.
    /// `unsettled_for`: how long writes of unknown outcome may take effect.
    pub(super) fn done(&mut self, unsettled_for: Duration) {
        if let Some(successor) = self.successor.take() {
            let _ = successor.say(&Message::Done { unsettled_for }, &[]); // it may have ended
        }
    }
}
