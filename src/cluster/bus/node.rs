//! One node's part in the bus: its sender, its reader, and how fresh what it knows of the others is. Time and what the
//! stream answers are arguments.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{Incarnation, Notice, StreamId};
use super::reader::{Reader, SILENT_AFTER};
use super::sender::Sender;
use super::{DropReason, Listener};
use crate::clock::Tick;
use crate::cluster::Freshness;
use crate::model::MemberId;

/// How long nothing is kept after entries may have been lost: so long it may take another node to find that out, too, and
/// to announce its writes in flight anew.
const KEEP_NOTHING_FOR: Duration = SILENT_AFTER;

/// What a read of the stream brought.
#[derive(Clone, Debug, Default)]
pub struct Fetched {
    /// The entries after the position, in order. `None`: an entry of another form than a node's.
    pub entries: Vec<(StreamId, Option<String>)>,
    /// Whether the entry at the position was still in the stream after these were read, so that none between is missing.
    pub is_continuous: bool,
}

/// One node. It has one connection to the stream at a time, and one batch of entries under way.
#[derive(Debug)]
pub struct Node {
    sender: Sender,
    reader: Reader,
    /// Of the writes of other nodes, as far as they were told.
    freshness: Arc<Freshness>,
    /// Which server, and which history of its data, was connected last.
    server: Option<String>,
}

impl Node {
    /// A node whose cache is empty now.
    pub fn new(incarnation: Incarnation, now: Tick) -> Self {
        Node {
            sender: Sender::new(incarnation, now),
            reader: Reader::new(incarnation),
            freshness: Arc::new(Freshness::followed_since(now)),
            server: None,
        }
    }

    /// How old what is known of the other nodes' writes is.
    pub fn freshness(&self) -> Arc<Freshness> {
        self.freshness.clone()
    }

    pub fn is_connected(&self) -> bool {
        self.sender.is_connected()
    }

    /// The other nodes, and how long ago each was heard.
    pub fn others(&self, now: Tick) -> Vec<(Incarnation, Duration)> {
        self.reader.others(now)
    }

    /// A connection to `server` is open, by which the stream is read and written.
    pub fn connected(&mut self, server: &str, now: Tick, listener: &mut impl Listener) {
        self.sender.connect();
        let before = self.server.replace(server.to_owned());
        if before.is_some_and(|before| before != server) {
            self.lost(DropReason::OtherServer { until: now.plus(KEEP_NOTHING_FOR) }, listener);
        }
    }

    /// The connection is closed. Batches under way may reach the stream or not.
    pub fn disconnected(&mut self) {
        self.sender.disconnect();
    }

    fn lost(&mut self, reason: DropReason, listener: &mut impl Listener) {
        self.reader.restart(listener);
        self.sender.begin_anew();
        listener.drop_everything(reason);
    }

    /// The entries to append to the stream now, all or none. No other batch may be under way.
    pub fn next_batch(&mut self, now: Tick) -> Option<Vec<String>> {
        self.sender.next_batch(now)
    }

    /// How long no beat is due.
    pub fn until_beat(&self, now: Tick) -> Duration {
        self.sender.until_beat(now)
    }

    /// The stream has the batch under way. Returns the number of the last entry that is confirmed.
    pub fn batch_confirmed(&mut self, listener: &mut impl Listener) -> u64 {
        self.sender.batch_confirmed();
        self.hear(listener);
        self.sender.confirmed()
    }

    /// The number of the last entry that is confirmed.
    pub fn confirmed(&self) -> u64 {
        self.sender.confirmed()
    }

    /// The entry after which the stream is to be read; `None`: from its beginning.
    pub fn position(&self) -> Option<StreamId> {
        self.reader.position()
    }

    /// What was read after the position.
    pub fn read(&mut self, fetched: &Fetched, now: Tick, listener: &mut impl Listener) {
        if self.reader.position().is_some() && !fetched.is_continuous {
            // What came with it is read again, from the beginning of what there is now.
            return self.lost(DropReason::Removed { until: now.plus(KEEP_NOTHING_FOR) }, listener);
        }
        for (id, text) in &fetched.entries {
            self.reader.entry(*id, text.as_deref().unwrap_or_default(), now, listener);
        }
        self.hear(listener);
    }

    /// Last, when everything that was read has taken effect.
    fn hear(&mut self, listener: &mut impl Listener) {
        if let Some(as_of) = self.sender.heard_back(self.reader.echoed()) {
            self.reader.caught_up();
            self.reader.expire(as_of, listener);
            self.freshness.confirm(as_of);
        }
    }

    /// Begins to announce a write: its number, and that of the entry which must be confirmed before the origin is asked.
    /// `None`: the stream is away, and the write must not begin.
    pub fn begin(&mut self, member: MemberId) -> Option<(u64, u64)> {
        self.sender.begin(member)
    }

    /// Announces a write in flight again; the number of the entry that must be confirmed.
    pub fn announce_again(&mut self, write: u64) -> u64 {
        self.sender.announce(write)
    }

    /// Whether the other nodes know of the write now. Otherwise it must be announced again before the origin is asked.
    pub fn is_announced(&self, write: u64, now: Tick) -> bool {
        self.sender.is_announced(write, now)
    }

    /// Ends a write; the number of the entry which must be confirmed before its caller is told of success.
    pub fn end(&mut self, write: u64, settled: bool) -> u64 {
        self.sender.end(write, settled)
    }

    /// Tells a notice of no write; the number of its entry.
    pub fn tell(&mut self, notice: Notice) -> u64 {
        self.sender.tell(notice)
    }
}
