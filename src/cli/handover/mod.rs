//! One server takes another's place (`server.handover`): who asks whom for what, and when.
//!
//! ```text
//! the new one                          the one that serves
//!   Hello            ──────────────▶
//!                    ◀──────────────   Socket (each listening socket), Whole
//!   opens and reads everything
//!   Ready            ──────────────▶
//!                                      answers nothing from memory any more
//!                    ◀──────────────   Go
//!   accepts
//!   Taken            ──────────────▶
//!                    ◀──────────────   Yours
//!   puts its own socket               accepts no more, and drains
//!   in the place of the other's
//!                    ◀──────────────   Begun, Over: of each write that still comes there
//!   Heard            ──────────────▶
//! ```
//!
//! Until Yours, the one that serves goes on if the other one fails, dies or stalls. The new one
//! accepts after Go, not before Ready: with two that serve, each write must be known to both
//! memories, and that costs as long as it lasts.

mod give;
mod take;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(super) use take::Heir;

use super::error::CommandError;
use super::manager;
use crate::edge::{Bound, Door, Handed, Talk};
use crate::gateway::Gateway;

/// What both sides must speak. One that changes what is said counts it up.
const VERSION: u32 = 1;

/// For a process to say what it has ready: who takes longer is stopped, or is something else.
const SAID_WITHIN: Duration = Duration::from_secs(5);

/// For a new process to open the store, read the keys, resolve its upstreams: more than the store's
/// opening may take for itself. All that is lost meanwhile is another one's chance.
const READY_WITHIN: Duration = Duration::from_secs(90);

/// How the time ends in which this process serves alone.
#[derive(Debug)]
pub(super) enum Ended {
    /// Another process has taken over.
    HandedOver { to: i32 },
    /// What this one was to take over stays with the one before.
    Withdrawn { why: String },
    /// A task has ended without which this process is of no use.
    Broken { what: &'static str },
}

/// The place that this process has among those that follow each other.
pub(super) struct Place {
    door: Door,
    sockets: Vec<Handed>,
}

/// The place, once there are callers.
pub(super) struct Attended {
    ended: oneshot::Receiver<Ended>,
    /// Attends to the process before, until that one ends.
    before: Option<JoinHandle<()>>,
    after: JoinHandle<()>,
    /// Another process is being given the sockets.
    giving: Arc<AtomicBool>,
}

impl Place {
    pub(super) fn prepare(path: &Path, bound: &[Bound]) -> Result<Self, CommandError> {
        let failed = |e: io::Error| CommandError::new(format!("{} cannot be server.handover: {e}", path.display()));
        let sockets = bound.iter().map(Bound::share).collect::<io::Result<_>>().map_err(failed)?;
        Ok(Place { door: Door::prepare(path).map_err(failed)?, sockets })
    }

    pub(super) fn attend(self, before: Option<Heir>, gateway: Arc<Gateway>) -> Attended {
        let (tell, ended) = oneshot::channel();
        let from = before.as_ref().map(Heir::from);
        let (yours, is_yours) = oneshot::channel();
        let before = before.map(|heir| tokio::spawn(heir.taken(gateway.clone(), yours)));
        let giving = Arc::new(AtomicBool::new(false));
        let is_giving = giving.clone();
        let after = tokio::spawn(async move {
            if let Some(from) = from {
                if let Ok(Err(why)) = is_yours.await {
                    // The one before serves on, and hears nothing of what still comes here.
                    gateway.fall_silent();
                    let _ = tell.send(Ended::Withdrawn { why }); // it is stopping already
                    return;
                }
                manager::took_over();
                tracing::info!(from, "took over");
            }
            self.hold(gateway, tell, is_giving).await;
        });
        Attended { ended, before, after, giving }
    }

    /// Takes the place at the path, and hands it over to the process after. Ends with the process,
    /// or where there can be no next one.
    async fn hold(mut self, gateway: Arc<Gateway>, tell: oneshot::Sender<Ended>, giving: Arc<AtomicBool>) {
        if let Err(error) = self.door.put_in_place() {
            let path = self.door.path().display();
            tracing::error!(%error, %path, "server.handover cannot be listened on; nobody can take over");
            return;
        }
        give::serve_the_next(self.door, self.sockets, gateway, tell, giving).await;
    }
}

impl Attended {
    /// Waits until the place is another process's.
    pub(super) async fn ended(&mut self) -> Ended {
        match (&mut self.ended).await {
            Ok(ended) => ended,
            // There can be no next one.
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether the process before has ended: until then it tells this one what the one after is to
    /// hear.
    pub(super) fn is_last_of_its_line(&self) -> bool {
        self.before.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Hands over to nobody else, and holds the listeners open no more. A process that is being given
    /// them goes on to be: as long as this one has callers, both must know of each write.
    pub(super) async fn close(&mut self) {
        if self.giving.load(Ordering::SeqCst) {
            return;
        }
        self.after.abort();
        let _ = (&mut self.after).await; // it was aborted
    }
}

/// What is said, as JSON in a frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase", deny_unknown_fields)]
enum Message {
    Hello {
        version: u32,
    },
    /// It will not be; the conversation is over.
    Refused {
        why: String,
    },
    /// A listening socket comes with it.
    Socket {
        asked: String,
    },
    Whole {
        sockets: usize,
    },
    Ready,
    Go,
    Taken,
    Yours,
    /// A write begins.
    Begun {
        write: u64,
        member: u64,
    },
    /// It is over; `settled`: its outcome is known.
    Over {
        write: u64,
        member: u64,
        settled: bool,
    },
    /// What was said of a write is heard.
    Heard {
        write: u64,
        over: bool,
    },
}

/// Says it, within [`SAID_WITHIN`].
async fn say(talk: &Talk, message: &Message) -> io::Result<()> {
    say_with(talk, message, None).await
}

async fn say_with(talk: &Talk, message: &Message, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let words = serde_json::to_vec(message).map_err(io::Error::other)?;
    timeout(SAID_WITHIN, talk.say(&words, socket)).await.map_err(|_| silent(SAID_WITHIN))?
}

/// What is said next, within so long; a socket comes with `Socket` alone. The end of the
/// conversation is an error, and so is a refusal.
async fn hear_within(talk: &mut Talk, within: Duration) -> io::Result<(Message, Option<OwnedFd>)> {
    timeout(within, hear(talk)).await.map_err(|_| silent(within))?
}

/// As [`hear_within`], however long it takes.
async fn hear(talk: &mut Talk) -> io::Result<(Message, Option<OwnedFd>)> {
    let (words, socket) = talk.hear().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let message: Message = serde_json::from_slice(&words).map_err(io::Error::other)?;
    if let Message::Refused { why } = message {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    if socket.is_some() != matches!(message, Message::Socket { .. }) {
        return Err(io::Error::other("a socket came where none was to come, or none where one was"));
    }
    Ok((message, socket))
}

fn silent(within: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("nothing was heard of it within {within:?}"))
}

/// What was said instead of what had to be.
fn unexpected(message: &Message) -> io::Error {
    let message = serde_json::to_string(message).unwrap_or_default();
    io::Error::other(format!("it said {message} out of turn"))
}

/// Whether the conversation ended because the other process did.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}
