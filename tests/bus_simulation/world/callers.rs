//! What callers ask, as `gateway/read.rs` and `gateway/write.rs` answer it, and the checks of each answer.

use super::*;

impl World {
    pub(super) fn read_begins(&mut self, node: usize) {
        let (now, wait) = (self.now, self.rng.u64(..40 * MS));
        self.after(wait, node, NodeEvent::ReadBegins);
        let member = self.members[self.rng.usize(..self.members.len())];
        let acknowledged = self.acknowledged.get(&member).into_iter().flatten();
        let acknowledged = acknowledged.filter(|(at, _)| at + SECOND <= now).map(|(_, version)| *version).max();
        let seen_here = self.processes[node].seen.get(&member).copied().unwrap_or(0);
        let read = ReadBegun { member, at: now, acknowledged: acknowledged.unwrap_or(0), seen_here };
        let wait = self.rng.u64(..MS);
        self.after(wait, node, NodeEvent::LookUp(read));
    }

    pub(super) fn look_up(&mut self, node: usize, read: ReadBegun) {
        let (now, number) = (self.now, self.number());
        let it = self.node(node);
        if let Some(version) = it.look_up(read.member, read.at) {
            self.totals.hits += 1;
            return self.read_ends(node, read, version);
        }
        if let Some(flight) = it.joinable(read.member) {
            return flight.readers.push(read);
        }
        let epoch = it.effects.cache.epoch(&entry_key(read.member));
        it.flights.insert(number, Flight { member: read.member, epoch, asked: now, readers: vec![read] });
        let (delay, run) = (self.origin_delay(), self.processes[node].run);
        self.at(now + delay, Event::OriginReads(node, run, number));
    }

    pub(super) fn read_ends(&mut self, node: usize, read: ReadBegun, version: u64) {
        let at = (read.at - self.begins) / MS;
        if version < read.acknowledged {
            let acknowledged = read.acknowledged;
            self.violation = Some(format!(
                "node {node} answered a read of {at} ms with version {version}; {acknowledged} was acknowledged a second before"
            ));
        }
        if version < read.seen_here {
            let seen = read.seen_here;
            self.violation = Some(format!(
                "node {node} answered a read of {at} ms with version {version}; a caller of it had seen {seen} before"
            ));
        }
        if self.has_one_writer && self.members.get(node) == Some(&read.member) {
            self.saw(node, read.member, version);
        }
    }

    fn saw(&mut self, node: usize, member: MemberId, version: u64) {
        let seen = self.processes[node].seen.entry(member).or_default();
        *seen = version.max(*seen);
    }

    // Writes.

    pub(super) fn write_begins(&mut self, node: usize) {
        let (now, wait) = (self.now, self.rng.u64(..4 * SECOND));
        self.after(wait, node, NodeEvent::WriteBegins);
        // The number says which member it is about, also to the origin.
        let mut id = self.number();
        while self.has_one_writer && id % MEMBERS != node as u64 {
            if node as u64 >= MEMBERS {
                return;
            }
            id = self.number();
        }
        let member = self.members[(id % MEMBERS) as usize];
        let it = self.node(node);
        let guard = it.begin_write(member, now);
        let Some((number, begun)) = it.bus.begin(member) else {
            self.totals.refused += 1;
            return guard.end_settled();
        };
        let write = Write {
            member,
            guard: Some(guard),
            number,
            waits_for: Some(begun),
            version: None,
            is_asked: false,
            announcements: 1,
        };
        it.writes.insert(id, write);
        self.lose_write(node);
        self.wait_for(node, id, begun);
    }

    fn wait_for(&mut self, node: usize, id: u64, entry: u64) {
        self.after(TIMEOUT, node, NodeEvent::WaitDeadline(id, entry));
        self.after(0, node, NodeEvent::Wake);
    }

    /// The entry that it waits for is confirmed.
    pub(super) fn write_goes_on(&mut self, node: usize, id: u64) {
        let now = self.now;
        let it = self.node(node);
        let Some(write) = it.writes.get_mut(&id) else { return };
        write.waits_for = None;
        if write.is_asked {
            return self.acknowledge(node, id);
        }
        if it.bus.is_announced(write.number, Tick(now)) {
            write.is_asked = true;
            // It may stand still after the check, before the origin is asked.
            self.step(node, 10);
            self.after(0, node, NodeEvent::SendWrite(id));
        } else if write.announcements < 3 {
            write.announcements += 1;
            let begun = it.bus.announce_again(write.number);
            write.waits_for = Some(begun);
            self.wait_for(node, id, begun);
        } else {
            self.write_ends_unasked(node, id);
        }
    }

    fn write_ends_unasked(&mut self, node: usize, id: u64) {
        self.totals.refused += 1;
        let it = self.node(node);
        let Some(write) = it.writes.remove(&id) else { return };
        it.bus.end(write.number, true);
        write.guard.into_iter().for_each(WriteGuard::end_settled);
        self.after(0, node, NodeEvent::Wake);
    }

    pub(super) fn write_gives_up(&mut self, node: usize, id: u64, entry: u64) {
        let Some(write) = self.node(node).writes.get(&id) else { return };
        if write.waits_for != Some(entry) {
            return;
        }
        match write.is_asked {
            false => self.write_ends_unasked(node, id),
            true => {
                // The caller is answered 22: it may have happened.
                self.totals.unconfirmed += 1;
                self.node(node).writes.remove(&id);
            }
        }
    }

    pub(super) fn write_answered(&mut self, node: usize, id: u64, version: Option<u64>) {
        let (now, bug) = (self.now, self.bug);
        let it = self.node(node);
        let Some(write) = it.writes.get_mut(&id) else { return };
        // `None`: it was answered before the time was up.
        let Some(guard) = write.guard.take() else { return };
        let Some(version) = version else {
            it.bus.end(write.number, false);
            guard.end_unsettled(Tick(now), TTL);
            it.writes.remove(&id);
            return self.after(0, node, NodeEvent::Wake);
        };
        // The epoch moves before others are told, and the caller is answered after that.
        guard.end_settled();
        let over = it.bus.end(write.number, true);
        write.version = Some(version);
        write.waits_for = Some(over);
        self.wait_for(node, id, over);
        if bug == Bug::AcknowledgeUnconfirmed {
            self.acknowledge(node, id);
        }
        self.step(node, 20);
    }

    fn acknowledge(&mut self, node: usize, id: u64) {
        let now = self.now;
        let Some(write) = self.node(node).writes.remove(&id) else { return };
        if let Some(version) = write.version {
            self.totals.acknowledged += 1;
            self.acknowledged.entry(write.member).or_default().push((now, version));
            self.saw(node, write.member, version);
        }
    }
}
