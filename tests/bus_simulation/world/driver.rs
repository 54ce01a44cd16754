//! What a process does with its events: the connections of `cluster/bus/driver.rs`, and its deadlines.

use super::*;

impl World {
    pub(super) fn node_event(&mut self, node: usize, event: NodeEvent) {
        let now = self.now;
        match event {
            NodeEvent::Open => {
                let opened = if now < self.processes[node].cut_until { None } else { self.server.connect() };
                let delay = self.delay();
                self.after(delay, node, NodeEvent::Opened(opened));
            }
            NodeEvent::Opened(None) => self.after(RETRY_AFTER, node, NodeEvent::Open),
            NodeEvent::Opened(Some(connection)) => {
                if !self.server.is_connected(connection) {
                    return self.after(RETRY_AFTER, node, NodeEvent::Open);
                }
                let server = self.server.name();
                let it = self.node(node);
                it.connection = Some(connection);
                it.is_sending = false;
                it.bus.connected(&server, Tick(now), &mut it.effects);
                self.read_on(node);
                self.after(0, node, NodeEvent::Wake);
            }
            NodeEvent::Broken(connection) => self.close(node, connection),
            NodeEvent::Wake => self.wake(node),
            NodeEvent::Appended(link) => {
                let it = self.node(node);
                if it.connection == Some(link.connection) && it.is_sending && it.batch == link.number {
                    it.is_sending = false;
                    let confirmed = it.bus.batch_confirmed(&mut it.effects);
                    self.after(0, node, NodeEvent::Confirmed(confirmed));
                    self.after(0, node, NodeEvent::Wake);
                }
            }
            NodeEvent::AppendDeadline(link) => {
                let it = self.node(node);
                if it.is_sending && it.batch == link.number {
                    self.close(node, link.connection);
                }
            }
            NodeEvent::Fetched(link, fetched) => {
                let it = self.node(node);
                if it.connection == Some(link.connection) && it.read == link.number {
                    it.bus.read(&fetched, Tick(now), &mut it.effects);
                    self.read_on(node);
                    self.after(0, node, NodeEvent::Wake);
                }
            }
            NodeEvent::ReadDeadline(link) => {
                if self.node(node).read == link.number {
                    self.close(node, link.connection);
                }
            }
            NodeEvent::ReadBegins => self.read_begins(node),
            NodeEvent::LookUp(read) => self.look_up(node, read),
            NodeEvent::ReadAnswered(flight, version) => {
                let it = self.node(node);
                let Some(flight) = it.flights.remove(&flight) else { return };
                it.keep(&flight, version, now);
                flight.readers.into_iter().for_each(|read| self.read_ends(node, read, version));
            }
            NodeEvent::WriteBegins => self.write_begins(node),
            NodeEvent::Confirmed(confirmed) => {
                let waits = |write: &Write| write.waits_for.is_some_and(|entry| entry <= confirmed);
                let it = self.node(node);
                let done: Vec<u64> = it.writes.iter().filter(|(_, w)| waits(w)).map(|(id, _)| *id).collect();
                done.into_iter().for_each(|write| self.write_goes_on(node, write));
            }
            NodeEvent::WaitDeadline(write, entry) => self.write_gives_up(node, write, entry),
            NodeEvent::SendWrite(write) => {
                let delay = self.origin_delay();
                let run = self.processes[node].run;
                self.at(now + delay, Event::OriginWrites(node, run, write));
                self.after(ORIGIN_WITHIN, node, NodeEvent::WriteAnswered(write, None));
            }
            NodeEvent::WriteAnswered(write, version) => self.write_answered(node, write, version),
        }
    }

    fn close(&mut self, node: usize, connection: u64) {
        let it = self.node(node);
        if it.connection == Some(connection) {
            it.connection = None;
            it.is_sending = false;
            it.bus.disconnected();
            self.after(RETRY_AFTER, node, NodeEvent::Open);
        }
    }

    fn link(&self, node: usize, connection: u64, number: u64) -> Link {
        Link { node, run: self.processes[node].run, connection, number }
    }

    fn wake(&mut self, node: usize) {
        let now = self.now;
        let number = self.number();
        let it = self.node(node);
        let (Some(connection), false) = (it.connection, it.is_sending) else { return };
        match it.bus.next_batch(Tick(now)) {
            Some(batch) => {
                it.is_sending = true;
                it.batch = number;
                let link = self.link(node, connection, number);
                self.after(APPEND_WITHIN, node, NodeEvent::AppendDeadline(link));
                self.step(node, 100);
                let delay = self.delay();
                if now >= self.processes[node].cut_until {
                    self.at(now + delay, Event::Append(link, batch));
                }
            }
            None => {
                let due = now + (it.bus.until_beat(Tick(now)).as_nanos() as u64).max(MS);
                if it.beat_at != due {
                    it.beat_at = due;
                    self.after(due - now, node, NodeEvent::Wake);
                }
            }
        }
    }

    fn read_on(&mut self, node: usize) {
        let (now, number) = (self.now, self.number());
        let it = self.node(node);
        let Some(connection) = it.connection else { return };
        it.read = number;
        let after = it.bus.position();
        let link = self.link(node, connection, number);
        self.after(READ_WITHIN, node, NodeEvent::ReadDeadline(link));
        let delay = self.delay();
        if now >= self.processes[node].cut_until {
            self.at(now + delay, Event::Read(link, after));
        }
    }
}
