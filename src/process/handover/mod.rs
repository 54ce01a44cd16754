//! The hand-over from one process to the next (`server.handover`). A process that starts is the *successor* of the one
//! that serves, its *predecessor*: `predecessor` is the connection to the process before this one, `successor` the
//! connection to the process after it. A process may have both at once.
//!
//! ```text
//! successor                            predecessor
//!   Hello            ──────────────▶
//!                    ◀──────────────   Socket (each listening socket), SocketsSent
//!   opens and reads everything
//!   Ready            ──────────────▶
//!                                      answers from the origin only
//!                    ◀──────────────   Accept
//!   accepts
//!   Accepting        ──────────────▶
//!                    ◀──────────────   Committed
//!   publishes its own socket          accepts no more, and drains
//!                    ◀──────────────   WriteBegun, WriteEnded: for each write that still reaches the predecessor
//!   Acknowledged     ──────────────▶
//! ```
//!
//! Until Committed, the predecessor goes on serving if the successor fails, dies or stalls. The successor accepts after
//! Accept and not before Ready: while two processes serve, each write must be known to both caches, which is slow.

mod message;
mod predecessor;
mod socket;
mod successor;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use message::MESSAGE_TIMEOUT;

pub(super) use predecessor::Predecessor;
pub use socket::{Frame, HandoverListener, PeerConnection, PeerSender};

use super::{ProcessError, StopReason, systemd};
use crate::edge::{Listener, ListeningSocket};
use crate::gateway::Gateway;

/// What this process needs to hand over: its own socket, not published yet, and its listening sockets.
pub(super) struct Handover {
    listener: HandoverListener,
    sockets: Vec<ListeningSocket>,
}

/// The tasks of the hand-over in a process that serves.
pub(super) struct HandoverTasks {
    ended: oneshot::Receiver<StopReason>,
    /// Runs until the predecessor has ended.
    predecessor: Option<JoinHandle<()>>,
    successor: JoinHandle<()>,
    /// Whether it is decided which of the two processes serves.
    is_decided: watch::Receiver<bool>,
    /// Whether a successor is being given the sockets.
    is_in_progress: Arc<AtomicBool>,
}

impl Handover {
    pub(super) fn prepare(path: &Path, listeners: &[Listener]) -> Result<Self, ProcessError> {
        let failed = |e: io::Error| ProcessError::Failed(format!("{} cannot be server.handover: {e}", path.display()));
        let sockets = listeners.iter().map(Listener::share).collect::<io::Result<_>>().map_err(failed)?;
        Ok(Handover { listener: HandoverListener::prepare(path).map_err(failed)?, sockets })
    }

    /// Completes the take-over from the predecessor, and then waits for a successor.
    pub(super) fn start(self, predecessor: Option<Predecessor>, gateway: Arc<Gateway>) -> HandoverTasks {
        let (end, ended) = oneshot::channel();
        let (commit, committed) = oneshot::channel();
        let from = predecessor.as_ref().map(Predecessor::pid);
        let predecessor = predecessor.map(|p| tokio::spawn(p.follow(gateway.clone(), commit)));
        let is_in_progress = Arc::new(AtomicBool::new(false));
        let in_progress = is_in_progress.clone();
        let (decided, is_decided) = watch::channel(false);
        let successor = tokio::spawn(async move {
            if let Some(from) = from {
                if let Ok(Err(reason)) = committed.await {
                    // The predecessor goes on serving, and neither process learns of the other's writes.
                    gateway.handover.stop_caching_and_writing();
                    let _ = end.send(StopReason::TakeOverFailed { reason }); // fails if this process is stopping
                    return;
                }
                systemd::main_process_changed();
                tracing::info!(from, "took over");
            }
            decided.send_replace(true);
            successor::run(self, gateway, end, in_progress).await;
        });
        HandoverTasks { ended, predecessor, successor, is_decided, is_in_progress }
    }
}

impl HandoverTasks {
    /// Waits until another process serves the addresses.
    pub(super) async fn ended(&mut self) -> StopReason {
        if !self.ended.is_terminated()
            && let Ok(reason) = (&mut self.ended).await
        {
            return reason;
        }
        // No successor can connect.
        std::future::pending().await
    }

    /// Whether the predecessor has ended. Until then it reports writes, which this process passes on to its successor.
    pub(super) fn predecessor_has_ended(&self) -> bool {
        self.predecessor.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Accepts no successor any more, and closes this task's copies of the listening sockets. A hand-over in progress
    /// goes on: as long as this process has callers, both processes must know of each write. Whether this process has
    /// taken over is decided first, since it accepts connections already.
    pub(super) async fn close(&mut self) {
        // It ends by itself: the predecessor is given `MESSAGE_TIMEOUT` for each message.
        let _ = timeout(MESSAGE_TIMEOUT, self.is_decided.wait_for(|is_decided| *is_decided)).await;
        if self.is_in_progress.load(Ordering::SeqCst) {
            return;
        }
        self.successor.abort();
        let _ = (&mut self.successor).await; // it was aborted
    }
}
