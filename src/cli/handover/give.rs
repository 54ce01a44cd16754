//! The side of the process that serves.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::{
    Ended, Message, READY_WITHIN, SAID_WITHIN, VERSION, hear, hear_within, is_gone, say, say_with, unexpected,
};
use crate::edge::{Door, Handed, Talk};
use crate::gateway::{Gateway, TELLINGS, Telling, WriteNews};

/// How long the door stays shut after nobody could be let in (no file left to open, say).
const DOOR_STUCK: Duration = Duration::from_secs(1);

/// How long a last look at what the other process has said takes, once its time is over.
const LAST_LOOK: Duration = Duration::from_millis(100);

/// A process that has taken over, and hears of what still happens here.
struct Successor {
    talk: Talk,
    tellings: mpsc::Receiver<Telling>,
    waiting: Waiting,
}

/// Who waits for the other process to have heard of a write's beginning, or (`true`) of its end.
type Waiting = HashMap<(u64, bool), oneshot::Sender<()>>;

/// Gives the listening sockets to the next process that asks for them at the door, and tells it of
/// writes as long as this one lives. Ends with the process.
pub(super) async fn serve_the_next(
    door: Door,
    sockets: Vec<Handed>,
    gateway: Arc<Gateway>,
    tell: oneshot::Sender<Ended>,
    giving: Arc<AtomicBool>,
) {
    let mut successor = loop {
        giving.store(false, Ordering::SeqCst);
        let Some(talk) = next(&door).await else { continue };
        giving.store(true, Ordering::SeqCst);
        let to = talk.peer();
        tracing::info!(to, "a process asks to take over");
        let given = tokio::select! {
            given = give(talk, &sockets, &gateway) => given,
            () = refuse_others(&door, "another process is taking over; look at its log and try again") => continue,
        };
        match given {
            Ok(successor) => break successor,
            Err(error) => {
                gateway.step_back();
                tracing::warn!(to, %error, "the process that was to take over did not; this one goes on as before");
            }
        }
    };
    // Or their addresses would stay taken as long as this process drains.
    drop(sockets);
    let _ = tell.send(Ended::HandedOver { to: successor.talk.peer() });
    tokio::select! {
        error = successor.attend() => tracing::warn!(%error, "the process that took over is gone"),
        () = refuse_others(&door, "this process has handed over already; try again") => {}
    }
    drop(successor); // whoever waits for it waits no more
    refuse_others(&door, "this process has handed over already; try again").await;
}

/// The next one at the door, if it may come in.
async fn next(door: &Door) -> Option<Talk> {
    match door.next().await {
        Ok(talk) => Some(talk),
        Err(error) => {
            tracing::warn!(%error, path = %door.path().display(), "nobody could be let in at server.handover");
            tokio::time::sleep(DOOR_STUCK).await;
            None
        }
    }
}

/// Refuses whoever comes, for ever.
async fn refuse_others(door: &Door, why: &str) {
    loop {
        let Some(mut talk) = next(door).await else { continue };
        let why = why.to_owned();
        tokio::spawn(async move {
            // What it says is read first: a conversation closed with words unread may lose ours.
            if hear_within(&mut talk, SAID_WITHIN).await.is_ok() {
                let _ = say(&talk, &Message::Refused { why }).await; // it may be gone
            }
        });
    }
}

/// The whole conversation up to the moment from which the sockets are the other's.
async fn give(mut talk: Talk, sockets: &[Handed], gateway: &Gateway) -> io::Result<Successor> {
    match converse(&mut talk, sockets, gateway).await {
        Ok((tellings, waiting)) => Ok(Successor { talk, tellings, waiting }),
        Err(error) => {
            // One that comes too late must not serve beside this one.
            if !is_gone(&error) {
                let why = format!("the process that serves goes on: {error}");
                let _ = say(&talk, &Message::Refused { why }).await;
            }
            Err(error)
        }
    }
}

async fn converse(
    talk: &mut Talk,
    sockets: &[Handed],
    gateway: &Gateway,
) -> io::Result<(mpsc::Receiver<Telling>, Waiting)> {
    match hear_within(talk, SAID_WITHIN).await? {
        (Message::Hello { version: VERSION }, _) => {}
        (Message::Hello { version }, _) => {
            return Err(io::Error::other(format!(
                "it hands over by version {VERSION} and the new one by {version}; stop it and start the new one"
            )));
        }
        (other, _) => return Err(unexpected(&other)),
    }
    for handed in sockets {
        let message = Message::Socket { asked: handed.asked().to_owned() };
        say_with(talk, &message, Some(handed.socket())).await?;
    }
    say(talk, &Message::Whole { sockets: sockets.len() }).await?;
    match hear_within(talk, READY_WITHIN).await? {
        (Message::Ready, _) => {}
        (other, _) => return Err(unexpected(&other)),
    }
    let (tell, mut tellings) = mpsc::channel(TELLINGS);
    let under_way = gateway.step_aside(tell);
    say(talk, &Message::Go).await?;
    let mut waiting = Waiting::new();
    for (write, member) in under_way {
        let (heard, _) = oneshot::channel(); // it began without being heard of
        tell_of(talk, &mut waiting, Telling { write, member, news: WriteNews::Begun, heard }).await?;
    }
    let until = Instant::now() + SAID_WITHIN;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        tokio::select! {
            biased;
            heard = hear_within(talk, left) => {
                let heard = match heard {
                    // It may have been this process that stalled, with the word waiting.
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => hear_within(talk, LAST_LOOK).await?,
                    heard => heard?,
                };
                match heard {
                    (Message::Taken, _) => break,
                    (Message::Heard { write, over }, _) => note_heard(&mut waiting, write, over),
                    (other, _) => return Err(unexpected(&other)),
                }
            }
            Some(telling) = tellings.recv() => tell_of(talk, &mut waiting, telling).await?,
        }
    }
    say(talk, &Message::Yours).await?;
    Ok((tellings, waiting))
}

impl Successor {
    /// Tells of writes, until the other process is gone.
    async fn attend(&mut self) -> io::Error {
        loop {
            let told = tokio::select! {
                heard = hear(&mut self.talk) => match heard {
                    Ok((Message::Heard { write, over }, _)) => {
                        note_heard(&mut self.waiting, write, over);
                        Ok(())
                    }
                    Ok((other, _)) => Err(unexpected(&other)),
                    Err(error) => Err(error),
                },
                Some(telling) = self.tellings.recv() => tell_of(&self.talk, &mut self.waiting, telling).await,
            };
            if let Err(error) = told {
                return error;
            }
        }
    }
}

fn note_heard(waiting: &mut Waiting, write: u64, over: bool) {
    if let Some(heard) = waiting.remove(&(write, over)) {
        let _ = heard.send(()); // it may have given up waiting
    }
}

async fn tell_of(talk: &Talk, waiting: &mut Waiting, telling: Telling) -> io::Result<()> {
    let Telling { write, member, news, heard } = telling;
    let member = member.get();
    let (message, over) = match news {
        WriteNews::Begun => (Message::Begun { write, member }, false),
        WriteNews::Over { settled } => (Message::Over { write, member, settled }, true),
    };
    waiting.insert((write, over), heard);
    say(talk, &message).await
}
