//! What goes wrong: processes that end or stand still, connections that break, and a server that stops, loses or waits.

use super::*;

impl World {
    pub(super) fn crash(&mut self, node: usize) {
        retire(&mut self.totals, self.processes[node].node.take());
        let back = self.now + self.rng.u64(..3 * SECOND);
        self.at(back, Event::Resume(node));
    }

    /// One time in so many a process stands still here, and perhaps has lost its connection when it goes on.
    pub(super) fn step(&mut self, node: usize, one_in: u32) {
        if self.script == Script::Everything && self.rng.u32(..one_in) == 0 {
            let longest = [300 * MS, 1500 * MS, 7 * SECOND][self.rng.usize(..3)];
            let until = self.now + self.rng.u64(..longest);
            let process = &mut self.processes[node];
            process.paused_until = process.paused_until.max(until);
            if self.rng.bool() {
                process.cut_until = until + self.rng.u64(..4 * SECOND);
                if let Some(connection) = process.node.as_ref().and_then(|node| node.connection) {
                    self.after(0, node, NodeEvent::Broken(connection));
                }
            }
        }
    }

    pub(super) fn fault(&mut self) {
        let node = self.rng.usize(..NODES);
        match self.rng.u32(..8) {
            0 => self.crash(node),
            1 => {
                let pause = self.rng.u64(..4 * SECOND);
                self.processes[node].paused_until = self.now + pause;
            }
            2 | 3 => {
                let lost = self.rng.u64(..500 * MS);
                self.server.stop(lost, self.now);
                if self.rng.u32(..3) == 0 {
                    let ahead = self.rng.i64(-20_000..20_000);
                    self.server.flush(ahead);
                }
                self.break_all();
                let back = self.now + self.rng.u64(..2 * SECOND);
                self.at(back, Event::ServerStarts);
            }
            4 => {
                let ahead = self.rng.i64(-20_000..20_000);
                self.server.flush(ahead);
            }
            5 => {
                self.server_paused_until = self.now + self.rng.u64(..3 * SECOND);
                self.at(self.server_paused_until, Event::ServerResumes);
            }
            // Some do not learn that the connection is gone.
            6 => {
                self.processes[node].cut_until = self.now + self.rng.u64(..3 * SECOND);
                if self.rng.bool() {
                    self.break_one(node);
                }
            }
            _ => self.break_one(node),
        }
    }

    /// What is told of a write that begins now vanishes before another node reads it.
    pub(super) fn lose_write(&mut self, writer: usize) {
        if self.script == Script::LostWithoutASign && self.slow_reader.1 < self.now && self.rng.bool() {
            let slow = (writer + self.rng.usize(1..NODES)) % NODES;
            let until = self.now + self.rng.u64(250 * MS..400 * MS);
            self.slow_reader = (slow, until);
            self.at(until - 1, Event::LoseWrites(self.now));
        }
    }

    fn break_all(&mut self) {
        (0..NODES).for_each(|node| self.break_one(node));
    }

    fn break_one(&mut self, node: usize) {
        let connection = self.processes[node].node.as_ref().and_then(|node| node.connection);
        if let Some(connection) = connection {
            let delay = self.delay();
            self.after(delay, node, NodeEvent::Broken(connection));
        }
    }
}
