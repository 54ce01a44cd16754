//! What a node hears of the others: it follows each node's numbered entries and the writes in flight that they announce,
//! and says what that means for its cache. Whatever it may have missed makes it drop everything that is cached.

use std::collections::HashMap;
use std::time::Duration;

use super::entry::{Entry, Incarnation, Notice, StreamId};
use super::{DropReason, Listener, RemoteWrite};
use crate::clock::Tick;
use crate::model::MemberId;

/// How long a node may be silent before its writes in flight count as writes of unknown outcome.
pub const SILENT_AFTER: Duration = Duration::from_secs(2);

/// A node that was silent for so long is forgotten. If it comes back, it counts as one of whose entries some were
/// missed.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The most nodes that are followed; the one that was silent for longest is forgotten for another one.
const MAX_NODES: usize = 256;

/// The most writes in flight of one node that are followed. With one more, entries of it count as missed.
const MAX_WRITES: usize = 10_000;

#[derive(Debug)]
pub(super) struct Reader {
    own: Incarnation,
    /// The last entry that was read; `None`: the stream is read from its beginning.
    position: Option<StreamId>,
    /// Until the first own entry is read back, entries are of a time before this node followed the stream.
    is_catching_up: bool,
    /// The number of the last own entry that was read back.
    echoed: u64,
    /// This node is one of them.
    nodes: HashMap<Incarnation, Node>,
}

#[derive(Debug)]
struct Node {
    /// The number of the last entry.
    last: u64,
    heard_at: Tick,
    /// The writes in flight.
    writes: HashMap<u64, MemberId>,
}

impl Reader {
    pub(super) fn new(own: Incarnation) -> Self {
        Reader { own, position: None, is_catching_up: true, echoed: 0, nodes: HashMap::new() }
    }

    pub(super) fn position(&self) -> Option<StreamId> {
        self.position
    }

    pub(super) fn echoed(&self) -> u64 {
        self.echoed
    }

    pub(super) fn caught_up(&mut self) {
        self.is_catching_up = false;
    }

    /// The other nodes, and how long ago each was heard.
    pub(super) fn others(&self, now: Tick) -> Vec<(Incarnation, Duration)> {
        let others = self.nodes.iter().filter(|(node, _)| **node != self.own);
        others.map(|(node, heard)| (*node, now.since(heard.heard_at))).collect()
    }

    /// The stream is another one, or was not read without a gap: it is read again from its beginning.
    pub(super) fn restart(&mut self, listener: &mut impl Listener) {
        let nodes = std::mem::take(&mut self.nodes);
        nodes.into_iter().for_each(|(incarnation, node)| end_writes(incarnation, node.writes, false, listener));
        *self = Reader::new(self.own);
    }

    /// One entry of the stream, in its order.
    pub(super) fn entry(&mut self, id: StreamId, text: &str, now: Tick, listener: &mut impl Listener) {
        let is_first = self.position.replace(id).is_none();
        if is_first {
            // Nobody knows what was in the stream before.
            listener.drop_everything(DropReason::NotContinuous);
        }
        match text.parse() {
            Ok(entry) => self.heard(entry, now, listener),
            Err(_) => listener.drop_everything(DropReason::BadEntry),
        }
    }

    fn heard(&mut self, entry: Entry, now: Tick, listener: &mut impl Listener) {
        let Entry { incarnation, sequence, notice } = entry;
        let next = match self.nodes.get(&incarnation) {
            Some(node) => node.last.saturating_add(1),
            None if self.is_catching_up => sequence,
            None => 1,
        };
        if sequence < next {
            return; // sent twice
        }
        self.make_room(incarnation, listener);
        let node =
            self.nodes.entry(incarnation).or_insert_with(|| Node { last: 0, heard_at: now, writes: HashMap::new() });
        (node.last, node.heard_at) = (sequence, now);
        if sequence > next || node.writes.len() > MAX_WRITES {
            // The ends of its writes may be among what was missed.
            end_writes(incarnation, std::mem::take(&mut node.writes), false, listener);
            listener.drop_everything(DropReason::Gap);
        }
        if incarnation == self.own {
            self.echoed = self.echoed.max(sequence);
            return;
        }
        match notice {
            Notice::Beat => {}
            Notice::Begun { write, member } => {
                if node.writes.insert(write, member).is_none() {
                    listener.write_begun(RemoteWrite { incarnation, write }, member);
                }
            }
            Notice::Over { write, member, settled } => {
                node.writes.remove(&write);
                listener.write_over(RemoteWrite { incarnation, write }, member, settled);
            }
            Notice::Purge { guild, member } => listener.purge(guild.as_ref(), member),
            Notice::Everything => {
                end_writes(incarnation, std::mem::take(&mut node.writes), true, listener);
                listener.drop_everything(DropReason::Everything);
            }
            Notice::Bye => {
                end_writes(incarnation, std::mem::take(&mut node.writes), false, listener);
                self.nodes.remove(&incarnation);
            }
        }
    }

    fn make_room(&mut self, incarnation: Incarnation, listener: &mut impl Listener) {
        let is_full = self.nodes.len() >= MAX_NODES && !self.nodes.contains_key(&incarnation);
        let others = self.nodes.iter().filter(|(node, _)| **node != self.own);
        if is_full
            && let Some(longest) = others.min_by_key(|(_, heard)| heard.heard_at).map(|(node, _)| *node)
            && let Some(node) = self.nodes.remove(&longest)
        {
            end_writes(longest, node.writes, false, listener);
        }
    }

    /// Everything up to `as_of` was read: nodes of which nothing was among it for too long are silent.
    pub(super) fn expire(&mut self, as_of: Tick, listener: &mut impl Listener) {
        self.nodes.retain(|incarnation, node| {
            let silent_for = as_of.since(node.heard_at);
            if silent_for >= SILENT_AFTER {
                end_writes(*incarnation, std::mem::take(&mut node.writes), false, listener);
            }
            silent_for < FORGOTTEN_AFTER
        });
    }
}

fn end_writes(incarnation: Incarnation, writes: HashMap<u64, MemberId>, settled: bool, listener: &mut impl Listener) {
    for (write, member) in writes {
        listener.write_over(RemoteWrite { incarnation, write }, member, settled);
    }
}
