//! The side of the process that is to serve.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use super::{Message, SAID_WITHIN, VERSION, hear, hear_within, is_gone, say, unexpected};
use crate::cli::error::CommandError;
use crate::edge::{Handed, Talk};
use crate::gateway::Gateway;
use crate::model::MemberId;

/// Writes whose news wait to be said to be heard.
const HEARDS: usize = 1024;

/// A process that takes another's place.
#[derive(Debug)]
pub struct Heir {
    talk: Talk,
    sockets: Vec<Handed>,
}

/// What a write elsewhere came to, and where it is said that it was heard.
type Outcome = (bool, oneshot::Sender<()>);

impl Heir {
    /// Asks whoever serves for its sockets; `None`: nobody does.
    pub async fn meet(path: &Path) -> Result<Option<Heir>, CommandError> {
        let asked = async {
            let Some(mut talk) = Talk::to(path).await? else { return Ok(None) };
            say(&talk, &Message::Hello { version: VERSION }).await?;
            let mut sockets = Vec::new();
            loop {
                match hear_within(&mut talk, SAID_WITHIN).await? {
                    (Message::Socket { asked }, Some(socket)) => sockets.push(Handed::taken(asked, socket)?),
                    (Message::Whole { sockets: all }, _) if all == sockets.len() => break,
                    (other, _) => return Err(unexpected(&other)),
                }
            }
            Ok(Some(Heir { talk, sockets }))
        };
        asked.await.map_err(|error: io::Error| {
            CommandError::new(format!("the server at {} (server.handover) gives nothing over: {error}", path.display()))
        })
    }

    /// The process before this one.
    pub fn from(&self) -> i32 {
        self.talk.peer()
    }

    /// The sockets that it gave.
    pub fn take_sockets(&mut self) -> Vec<Handed> {
        std::mem::take(&mut self.sockets)
    }

    /// Says that nothing is left but to accept, and waits for the word to. Whether the process
    /// before is still there.
    pub async fn ready(&mut self) -> Result<bool, CommandError> {
        let asked = async {
            say(&self.talk, &Message::Ready).await?;
            match hear_within(&mut self.talk, SAID_WITHIN).await? {
                (Message::Go, _) => Ok(()),
                (other, _) => Err(unexpected(&other)),
            }
        };
        match asked.await {
            Ok(()) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(CommandError::new(format!("process {} did not hand over: {error}", self.from()))),
        }
    }

    /// Says that this process accepts, and attends to what the other one says until that one ends.
    /// `yours` is told once the place is this one's, or why it is not.
    pub async fn taken(mut self, gateway: Arc<Gateway>, yours: oneshot::Sender<Result<(), String>>) {
        let (from, mut yours) = (self.from(), Some(yours));
        let ended = self.attend(&gateway, &mut yours).await;
        match ended {
            error if is_gone(&error) => {
                tracing::info!(from, "the process before this one has ended");
                gateway.serve_alone();
                // Before it said so: the place is this one's all the same.
                yours.into_iter().for_each(|yours| drop(yours.send(Ok(()))));
            }
            error => match yours {
                Some(yours) => drop(yours.send(Err(format!("process {from} did not hand over: {error}")))),
                None => tracing::error!(from, %error, "the process before this one is not understood any more"),
            },
        }
    }

    async fn attend(
        &mut self,
        gateway: &Arc<Gateway>,
        yours: &mut Option<oneshot::Sender<Result<(), String>>>,
    ) -> io::Error {
        if let Err(error) = say(&self.talk, &Message::Taken).await {
            return error;
        }
        let (tell, mut heards) = mpsc::channel(HEARDS);
        // Each is held by a task of its own, until it is said to be over, or nobody can say it.
        let mut under_way: HashMap<u64, Held> = HashMap::new();
        loop {
            let said = tokio::select! {
                heard = hear(&mut self.talk) => match heard {
                    Ok((message, _)) => message,
                    Err(error) => return error,
                },
                Some((write, over)) = heards.recv() => {
                    match say(&self.talk, &Message::Heard { write, over }).await {
                        Ok(()) => continue,
                        Err(error) => return error,
                    }
                }
            };
            match said {
                Message::Yours => {
                    gateway.has_the_place();
                    yours.take().into_iter().for_each(|yours| drop(yours.send(Ok(()))));
                }
                Message::Begun { write, member } => {
                    let Some(member) = MemberId::new(member) else { continue };
                    match under_way.entry(write) {
                        // Told twice: it began while the other process looked which were under way.
                        Entry::Occupied(held) => say_once_held(held.get().is_held.clone(), write, tell.clone()),
                        Entry::Vacant(entry) => {
                            entry.insert(hold(gateway.clone(), write, member, tell.clone()));
                        }
                    }
                }
                Message::Over { write, member, settled } => {
                    let Some(member) = MemberId::new(member) else { continue };
                    // One that had begun before this process was told of any.
                    let held = under_way.remove(&write);
                    let held = held.unwrap_or_else(|| hold(gateway.clone(), write, member, tell.clone()));
                    let _ = held.over.send((settled, when_over(write, tell.clone()))); // the task ends by this alone
                }
                other => return unexpected(&other),
            }
        }
    }
}

/// A write of the other process, held by a task.
struct Held {
    /// Turns true when the memory holds it; closed where it never will.
    is_held: watch::Receiver<bool>,
    over: oneshot::Sender<Outcome>,
}

/// Holds a write of the other process in a task of its own.
fn hold(gateway: Arc<Gateway>, write: u64, member: MemberId, tell: mpsc::Sender<(u64, bool)>) -> Held {
    let (over, is_over) = oneshot::channel();
    let (held, is_held) = watch::channel(false);
    tokio::spawn(async move { gateway.write_elsewhere(member, held, async { is_over.await.ok() }).await });
    say_once_held(is_held.clone(), write, tell);
    Held { is_held, over }
}

/// Says to the other process that a write's beginning was heard of, once the memory holds it.
fn say_once_held(mut is_held: watch::Receiver<bool>, write: u64, tell: mpsc::Sender<(u64, bool)>) {
    tokio::spawn(async move {
        if is_held.wait_for(|held| *held).await.is_ok() {
            let _ = tell.send((write, false)).await; // nobody listens if the other one is gone
        }
    });
}

/// Says to the other process that a write's end was heard of, when it is used.
fn when_over(write: u64, tell: mpsc::Sender<(u64, bool)>) -> oneshot::Sender<()> {
    let (heard, is_heard) = oneshot::channel();
    tokio::spawn(async move {
        if is_heard.await.is_ok() {
            let _ = tell.send((write, true)).await;
        }
    });
    heard
}
