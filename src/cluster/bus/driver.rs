//! Runs a node over a stream: opens connections, appends what is to be told, reads what others told, and lets writes
//! wait for their confirmations. Each step has a deadline, after which the connection is given up and another is opened.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::Listener;
use super::entry::{Incarnation, Notice, StreamId};
use super::node::{Fetched, Node};
use crate::clock::{Clock, Tick};
use crate::cluster::Freshness;
use crate::model::{GuildId, MemberId};

/// How long opening the connections may take.
const OPEN_WITHIN: Duration = Duration::from_secs(1);

/// How long the stream may take to confirm a batch. What remains of the time after which a node counts as silent, once
/// it was heard a second ago, is longer.
const APPEND_WITHIN: Duration = Duration::from_millis(500);

/// How long a read may take. There is something to read after each beat of this node.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// Pause before the stream is opened again after it failed.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// How often a write is announced before it is given up: each time, the node was silent or reconnected meanwhile.
const MAX_ANNOUNCEMENTS: usize = 3;

/// Where the stream is, as the other half of a [`Bus`]. A future that is dropped ends its call.
pub trait Transport: Send + Sync {
    type Writer: StreamWriter;
    type Reader: StreamReader;

    /// Opens a connection to append and one to read, both to the same server.
    fn open(&self) -> impl Future<Output = Result<Opened<Self::Writer, Self::Reader>, TransportError>> + Send;
}

/// An open stream.
#[derive(Debug)]
pub struct Opened<W, R> {
    /// Which server this is, and which history of its data: another text after each restart and each fail-over.
    pub server: String,
    pub writer: W,
    pub reader: R,
}

pub trait StreamWriter: Send {
    /// Appends all entries in their order, or none. An error leaves open which.
    fn append(&mut self, entries: &[String]) -> impl Future<Output = Result<(), TransportError>> + Send;
}

pub trait StreamReader: Send {
    /// Waits a fraction of a second at most for entries after this one.
    fn read(&mut self, after: Option<StreamId>) -> impl Future<Output = Result<Fetched, TransportError>> + Send;
}

/// Why a connection to the stream cannot be used, in words for the process log.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct TransportError(pub String);

/// The stream did not confirm an entry in time: other nodes may know of it or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other nodes could not be told in time")]
pub struct NotConfirmed;

/// What is known of the other nodes.
#[derive(Clone, Debug)]
pub struct BusStatus {
    pub is_connected: bool,
    /// How old what is known of the others' writes is.
    pub age: Duration,
    /// The others, and how long ago each was heard.
    pub others: Vec<(Incarnation, Duration)>,
}

/// This process's end of the bus.
#[derive(Debug)]
pub struct Bus {
    clock: Clock,
    node: Mutex<Node>,
    freshness: Arc<Freshness>,
    /// How long a request waits for a confirmation.
    timeout: Duration,
    /// There is something to send.
    wake: Notify,
    /// The number of the last confirmed entry.
    confirmed: watch::Sender<u64>,
    /// Since when the stream is away, which was said.
    away_since: Mutex<Option<Tick>>,
}

impl Bus {
    /// For a process whose cache is empty now. A request waits for `timeout` at most.
    pub fn new(incarnation: Incarnation, clock: Clock, timeout: Duration) -> Self {
        let node = Node::new(incarnation, clock.now());
        let freshness = node.freshness();
        let confirmed = watch::Sender::new(0);
        let (node, away_since) = (Mutex::new(node), Mutex::new(None));
        Bus { clock, node, freshness, timeout, wake: Notify::new(), confirmed, away_since }
    }

    /// How old what is known of the others is: whether an answer in memory may be used.
    pub fn freshness(&self) -> &Freshness {
        &self.freshness
    }

    pub fn status(&self) -> BusStatus {
        let (now, node) = (self.clock.now(), self.node.lock());
        let age = self.freshness.age(now).unwrap_or_default();
        BusStatus { is_connected: node.is_connected(), age, others: node.others(now) }
    }

    /// Connects to the stream, and does so again whenever that fails, until it is dropped.
    pub async fn run<T: Transport>(&self, transport: &T, listener: impl Listener + Send) {
        let listener = Mutex::new(listener);
        loop {
            let error = match timeout(OPEN_WITHIN, transport.open()).await {
                Ok(Ok(opened)) => self.serve(opened, &listener).await,
                Ok(Err(error)) => error,
                Err(_) => TransportError("no connection within a second".to_owned()),
            };
            if self.away_since.lock().replace(self.clock.now()).is_none() {
                tracing::error!(%error, "the bus is away: setPoints is answered with 21, and nothing from memory");
            }
            sleep(RETRY_AFTER).await;
        }
    }

    /// Says that the stream is back once this node has heard what it sent since: a connection alone proves nothing.
    fn note_heard(&self) {
        let mut away_since = self.away_since.lock();
        let now = self.clock.now();
        if away_since.is_some_and(|since| self.freshness.age(now) < Some(now.since(since))) {
            *away_since = None;
            tracing::info!("the bus works again");
        }
    }

    /// Uses the connections until one of them fails.
    async fn serve<W: StreamWriter, R: StreamReader>(
        &self,
        opened: Opened<W, R>,
        listener: &Mutex<impl Listener + Send>,
    ) -> TransportError {
        let Opened { server, writer, reader } = opened;
        self.node.lock().connected(&server, self.clock.now(), &mut *listener.lock());
        let error = tokio::select! {
            error = self.append_all(writer, listener) => error,
            error = self.read_all(reader, listener) => error,
        };
        self.node.lock().disconnected();
        error
    }

    async fn append_all(
        &self,
        mut writer: impl StreamWriter,
        listener: &Mutex<impl Listener + Send>,
    ) -> TransportError {
        loop {
            let now = self.clock.now();
            let (batch, until_beat) = {
                let mut node = self.node.lock();
                (node.next_batch(now), node.until_beat(now))
            };
            let Some(batch) = batch else {
                let _ = timeout(until_beat, self.wake.notified()).await;
                continue;
            };
            match timeout(APPEND_WITHIN, writer.append(&batch)).await {
                Ok(Ok(())) => {
                    let confirmed = self.node.lock().batch_confirmed(&mut *listener.lock());
                    self.confirmed.send_replace(confirmed);
                    self.note_heard();
                }
                Ok(Err(error)) => return error,
                Err(_) => return TransportError(format!("nothing was confirmed within {APPEND_WITHIN:?}")),
            }
        }
    }

    async fn read_all(&self, mut reader: impl StreamReader, listener: &Mutex<impl Listener + Send>) -> TransportError {
        loop {
            let position = self.node.lock().position();
            match timeout(READ_WITHIN, reader.read(position)).await {
                Ok(Ok(fetched)) => {
                    self.node.lock().read(&fetched, self.clock.now(), &mut *listener.lock());
                    self.note_heard();
                    // What was lost is announced anew at once.
                    self.wake.notify_one();
                }
                Ok(Err(error)) => return error,
                Err(_) => return TransportError(format!("nothing was read within {READ_WITHIN:?}")),
            }
        }
    }

    /// Announces a write to the other nodes, before the origin is asked.
    ///
    /// # Errors
    /// The stream did not confirm it in time: the write must not begin.
    pub async fn begin(&self, member: MemberId) -> Result<BusWrite<'_>, NotConfirmed> {
        let (number, begun) = self.node.lock().begin(member).ok_or(NotConfirmed)?;
        let write = BusWrite { bus: self, number, is_asked: false, is_ended: false };
        self.confirm(begun).await?;
        Ok(write)
    }

    /// Makes the cached answers to the keys of a guild, about a member, or both invalid at the other nodes; all where
    /// neither is given. They are told later if they cannot be told now.
    pub fn purge(&self, guild: Option<GuildId>, member: Option<MemberId>) {
        self.node.lock().tell(Notice::Purge { guild, member });
        self.wake.notify_one();
    }

    /// Tells the others that this process stops, after its last write.
    pub async fn leave(&self) {
        let bye = self.node.lock().tell(Notice::Bye);
        // Who does not hear it takes this node for silent.
        let _ = self.confirm(bye).await;
    }

    /// Waits until this node's first entry is confirmed: from then on writes can begin.
    pub async fn has_begun(&self) {
        // It is not closed while `self` has the sender.
        let _ = self.confirmed.subscribe().wait_for(|confirmed| *confirmed > 0).await;
    }

    /// Waits until an entry is confirmed.
    async fn confirm(&self, number: u64) -> Result<(), NotConfirmed> {
        self.wake.notify_one();
        let mut confirmed = self.confirmed.subscribe();
        match timeout(self.timeout, confirmed.wait_for(|confirmed| *confirmed >= number)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(NotConfirmed),
        }
    }
}

/// A write of which the other nodes know. If it is dropped without an end, its outcome is unknown, unless the origin was
/// not asked.
#[derive(Debug)]
pub struct BusWrite<'b> {
    bus: &'b Bus,
    number: u64,
    is_asked: bool,
    is_ended: bool,
}

impl BusWrite<'_> {
    /// Whether the other nodes know of the write now.
    pub fn is_announced(&self) -> bool {
        self.bus.node.lock().is_announced(self.number, self.bus.clock.now())
    }

    /// To be called before the origin is asked: announces the write again if this process stood still since it was
    /// announced, or if the connection is another one.
    ///
    /// # Errors
    /// The stream did not confirm it in time: the origin must not be asked.
    pub async fn before_asking(&mut self) -> Result<(), NotConfirmed> {
        for _ in 0..MAX_ANNOUNCEMENTS {
            if self.is_announced() {
                self.is_asked = true;
                return Ok(());
            }
            let begun = self.bus.node.lock().announce_again(self.number);
            self.bus.confirm(begun).await?;
        }
        Err(NotConfirmed)
    }

    /// Ends the write; `settled`: its outcome is known.
    ///
    /// # Errors
    /// The stream did not confirm it in time, and others may answer what was before the write for longer than a second:
    /// the caller must not be told of success. The others are told until the stream has confirmed it.
    pub async fn end(mut self, settled: bool) -> Result<(), NotConfirmed> {
        self.is_ended = true;
        let over = self.bus.node.lock().end(self.number, settled);
        self.bus.confirm(over).await
    }
}

impl Drop for BusWrite<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            self.bus.node.lock().end(self.number, !self.is_asked);
            self.bus.wake.notify_one();
        }
    }
}
