//! The stream as a script has it: a server that delays, restarts, loses what it had last, is replaced by an empty one,
//! trims early, and stands still.

use std::collections::HashMap;

use guildgate::cluster::bus::{Fetched, StreamId};

use crate::world::{MS, Time};

/// The most entries in one answer: so few that what was appended together is often read apart.
const READ_COUNT: usize = 3;

#[derive(Default)]
pub struct Server {
    /// Another number after each restart.
    run: u64,
    is_down: bool,
    /// What it adds to the time for the ids of entries.
    clock_ahead: i64,
    last: Option<StreamId>,
    /// With the time at which each was appended.
    entries: Vec<(Time, StreamId, String)>,
    /// How long entries are kept.
    keep: Time,
    /// The run that each connection is to.
    connections: HashMap<u64, u64>,
    last_connection: u64,
}

impl Server {
    pub fn new(keep: Time) -> Self {
        Server { keep, ..Server::default() }
    }

    pub fn name(&self) -> String {
        self.run.to_string()
    }

    /// A new connection; `None`: nobody listens.
    pub fn connect(&mut self) -> Option<u64> {
        if self.is_down {
            return None;
        }
        self.last_connection += 1;
        self.connections.insert(self.last_connection, self.run);
        Some(self.last_connection)
    }

    pub fn is_connected(&self, connection: u64) -> bool {
        !self.is_down && self.connections.get(&connection) == Some(&self.run)
    }

    pub fn append(&mut self, entries: Vec<String>, now: Time) {
        for entry in entries {
            let millis = (now / MS).saturating_add_signed(self.clock_ahead);
            let next = StreamId { millis, sequence: 1 };
            let id = match self.last {
                Some(last) if next <= last => StreamId { sequence: last.sequence + 1, ..last },
                _ => next,
            };
            self.entries.push((now, id, entry));
            self.last = Some(id);
        }
        self.entries.retain(|(at, ..)| at + self.keep > now);
    }

    /// What is after this entry; `None`: nothing.
    pub fn read(&self, after: Option<StreamId>) -> Option<Fetched> {
        let fetched = self.read_now(after);
        (!fetched.entries.is_empty()).then_some(fetched)
    }

    pub fn read_now(&self, after: Option<StreamId>) -> Fetched {
        let entries = self.entries.iter().filter(|(_, id, _)| after.is_none_or(|after| *id > after));
        let entries = entries.take(READ_COUNT).map(|(_, id, text)| (*id, Some(text.clone()))).collect();
        Fetched { entries, is_continuous: self.entries.iter().any(|(_, id, _)| Some(*id) == after) }
    }

    /// Ends, and loses what was appended in the last `lost`.
    pub fn stop(&mut self, lost: Time, now: Time) {
        self.is_down = true;
        self.lose_tail(lost, now);
    }

    fn lose_tail(&mut self, lost: Time, now: Time) {
        self.entries.retain(|(at, ..)| at + lost <= now);
        self.last = self.entries.last().map(|(_, id, _)| *id);
    }

    /// Loses what was told of writes since a moment, and nothing else: nobody can see it by the connection.
    pub fn lose_writes(&mut self, since: Time) {
        self.entries.retain(|(at, _, text)| *at < since || !(text.contains("begun") || text.contains("over")));
    }

    pub fn start(&mut self) {
        self.run += 1;
        self.is_down = false;
    }

    /// Loses everything; ids go on from another time, perhaps from an earlier one.
    pub fn flush(&mut self, clock_ahead: i64) {
        self.entries.clear();
        self.last = None;
        self.clock_ahead = clock_ahead;
    }
}
