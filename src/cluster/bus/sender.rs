//! What a node tells the others: numbered entries, kept until the stream has confirmed them, and the writes in flight
//! that they announce. One batch is under way at a time, so that entries reach the stream in their order; after a broken
//! connection the same entries are sent again under the same numbers, which readers ignore if they know them.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::entry::{Entry, Incarnation, Notice};
use crate::clock::Tick;
use crate::model::MemberId;

/// Interval at which a node says that it runs, and learns by reading it back that it hears the others. Six of them may
/// be lost before the node stops answering from memory (`MAX_AGE`).
pub const BEAT_INTERVAL: Duration = Duration::from_millis(150);

/// A node that did not tell anything for so long may count as silent soon ([`super::SILENT_AFTER`]), so that its writes
/// are announced anew before the origin is asked. Half of that time, so that the deadline of one batch fits in as well.
const HEARD_FOR: Duration = Duration::from_secs(1);

/// A write that is in flight for longer is announced again at this interval, so that its announcement does not leave the
/// stream before its end comes: a node that starts meanwhile has to know of it. Half of the time for which the stream
/// keeps entries.
const ANNOUNCED_EVERY: Duration = Duration::from_secs(5);

/// Entries in one batch. A node has few more writes in flight than `origin.max_in_flight`.
const MAX_BATCH: usize = 256;

/// Entries that wait for their confirmation, beyond which no write begins: while the stream is away none does, so that
/// only purges add to them.
const MAX_OUTBOX: usize = 4096;

#[derive(Debug)]
pub(super) struct Sender {
    incarnation: Incarnation,
    /// The number of the last entry that was made.
    last: u64,
    /// The number of the last entry that the stream confirmed.
    confirmed: u64,
    /// The entries after it.
    outbox: VecDeque<Entry>,
    /// The number of the last entry that was ever sent.
    sent: u64,
    /// The batches of entries that were sent and not yet both confirmed and read back: their last number, and when they
    /// were first sent.
    unheard: VecDeque<(u64, Tick)>,
    in_flight: Option<InFlight>,
    /// When the last batch was sent over this connection.
    sent_at: Option<Tick>,
    is_connected: bool,
    has_left: bool,
    /// When the last batch was sent that was confirmed.
    heard_at: Tick,
    /// The first entry since which the node was never silent, and had one connection to one server. Writes that were
    /// announced before it are to be announced anew.
    heard_since: u64,
    last_write: u64,
    /// When the writes in flight were last announced again.
    announced_at: Tick,
    /// The writes in flight: their member, and the number of the entry that announces them.
    writes: HashMap<u64, (MemberId, u64)>,
}

#[derive(Debug)]
struct InFlight {
    last: u64,
    sent_at: Tick,
}

impl Sender {
    pub(super) fn new(incarnation: Incarnation, now: Tick) -> Self {
        Sender {
            incarnation,
            last: 0,
            confirmed: 0,
            outbox: VecDeque::new(),
            sent: 0,
            unheard: VecDeque::new(),
            in_flight: None,
            sent_at: None,
            is_connected: false,
            has_left: false,
            heard_at: now,
            heard_since: 1,
            last_write: 0,
            announced_at: now,
            writes: HashMap::new(),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.is_connected
    }

    pub(super) fn confirmed(&self) -> u64 {
        self.confirmed
    }

    pub(super) fn connect(&mut self) {
        self.is_connected = true;
        self.sent_at = None;
    }

    pub(super) fn disconnect(&mut self) {
        self.is_connected = false;
        self.in_flight = None;
        self.heard_since = self.heard_since.max(self.confirmed + 1);
    }

    /// What was sent may be lost: the writes in flight are announced anew, after a notice that makes readers forget what
    /// they knew. What was sent before proves nothing any more when it is read back.
    pub(super) fn begin_anew(&mut self) {
        self.unheard.clear();
        self.heard_since = self.push(Notice::Everything);
        for (write, _) in self.writes_in_flight() {
            self.announce(write);
        }
    }

    /// In their order.
    fn writes_in_flight(&self) -> Vec<(u64, MemberId)> {
        let mut writes: Vec<_> = self.writes.iter().map(|(write, (member, _))| (*write, *member)).collect();
        writes.sort_unstable_by_key(|(write, _)| *write);
        writes
    }

    /// Begins to announce a write; the number of the write, and of the entry to wait for. `None`: the stream is away,
    /// so that the write must not begin.
    pub(super) fn begin(&mut self, member: MemberId) -> Option<(u64, u64)> {
        if !self.is_connected || self.has_left || self.outbox.len() >= MAX_OUTBOX {
            return None;
        }
        self.last_write += 1;
        self.writes.insert(self.last_write, (member, 0));
        let begun = self.announce(self.last_write);
        Some((self.last_write, begun))
    }

    /// Announces a write in flight again; the number of the entry to wait for.
    pub(super) fn announce(&mut self, write: u64) -> u64 {
        let Some((member, _)) = self.writes.get(&write).copied() else { return self.last };
        let begun = self.push(Notice::Begun { write, member });
        self.writes.insert(write, (member, begun));
        begun
    }

    /// Whether all nodes that hear know at `now` that the write is in flight, and go on to treat it so.
    pub(super) fn is_announced(&self, write: u64, now: Tick) -> bool {
        let is_heard = self.is_connected && now.since(self.heard_at) < HEARD_FOR;
        let begun = self.writes.get(&write).map(|(_, begun)| *begun);
        is_heard && begun.is_some_and(|begun| (self.heard_since..=self.confirmed).contains(&begun))
    }

    /// Ends a write; the number of the entry to wait for.
    pub(super) fn end(&mut self, write: u64, settled: bool) -> u64 {
        match self.writes.remove(&write) {
            Some((member, _)) => self.push(Notice::Over { write, member, settled }),
            None => self.last,
        }
    }

    /// Tells a notice that is no write's; the number of the entry to wait for.
    pub(super) fn tell(&mut self, notice: Notice) -> u64 {
        // As many purges at once are as good as one of everything.
        if self.outbox.len() >= 2 * MAX_OUTBOX {
            let all = Notice::Purge { guild: None, member: None };
            return if self.outbox.back().is_some_and(|entry| entry.notice == all) {
                self.last
            } else {
                self.push(all)
            };
        }
        self.has_left |= notice == Notice::Bye;
        self.push(notice)
    }

    fn push(&mut self, notice: Notice) -> u64 {
        self.last += 1;
        self.outbox.push_back(Entry { incarnation: self.incarnation, sequence: self.last, notice });
        self.last
    }

    /// The entries to send now, oldest first, if there are any and no batch is under way.
    pub(super) fn next_batch(&mut self, now: Tick) -> Option<Vec<String>> {
        if !self.is_connected || self.in_flight.is_some() {
            return None;
        }
        if now.since(self.announced_at) >= ANNOUNCED_EVERY {
            self.announced_at = now;
            for (write, member) in self.writes_in_flight() {
                self.push(Notice::Begun { write, member });
            }
        }
        if self.outbox.is_empty() && self.until_beat(now).is_zero() {
            self.push(Notice::Beat);
        }
        let entries: Vec<String> = self.outbox.iter().take(MAX_BATCH).map(Entry::to_string).collect();
        let last = self.confirmed + entries.len() as u64;
        if entries.is_empty() {
            return None;
        }
        if last > self.sent {
            self.sent = last;
            self.unheard.push_back((last, now));
        }
        self.in_flight = Some(InFlight { last, sent_at: now });
        self.sent_at = Some(now);
        Some(entries)
    }

    /// How long nothing has to be sent.
    pub(super) fn until_beat(&self, now: Tick) -> Duration {
        match self.sent_at {
            _ if self.has_left => Duration::MAX,
            Some(sent_at) => BEAT_INTERVAL.saturating_sub(now.since(sent_at)),
            None => Duration::ZERO,
        }
    }

    /// The stream has all entries of the batch under way.
    pub(super) fn batch_confirmed(&mut self) {
        let Some(InFlight { last, sent_at }) = self.in_flight.take() else { return };
        if sent_at.since(self.heard_at) >= HEARD_FOR {
            self.heard_since = self.heard_since.max(self.confirmed + 1);
        }
        self.heard_at = sent_at;
        self.confirmed = last;
        while self.outbox.front().is_some_and(|entry| entry.sequence <= last) {
            self.outbox.pop_front();
        }
    }

    /// When the newest entry was sent that was confirmed and, since `echoed` is the newest that was read back, heard.
    /// What the stream had confirmed before that moment was read before it.
    pub(super) fn heard_back(&mut self, echoed: u64) -> Option<Tick> {
        let mut sent = None;
        while let Some((_, at)) = self.unheard.pop_front_if(|(last, _)| *last <= echoed.min(self.confirmed)) {
            sent = Some(at);
        }
        sent
    }
}
