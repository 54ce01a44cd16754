//! Virtual time: events in their order, nodes that pause and crash, one origin, and the checks.

mod callers;
mod driver;
mod faults;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use fastrand::Rng;
use guildgate::cache::{AnswerCache, WriteGuard};
use guildgate::clock::Tick;
use guildgate::cluster::bus::{Fetched, StreamId};
use guildgate::model::MemberId;

use crate::node::{Flight, ReadBegun, SimulatedNode, TTL, Write, entry_key};
use crate::stream::Server;

/// Nanoseconds.
pub type Time = u64;
pub const MS: Time = 1_000_000;
const SECOND: Time = 1000 * MS;

const NODES: usize = 3;
const MEMBERS: u64 = 2;
const ENDS: Time = 14 * SECOND;
/// The deadlines of `bus/driver.rs`, and `cluster.timeout`.
const APPEND_WITHIN: Time = 500 * MS;
const READ_WITHIN: Time = SECOND;
const BLOCK: Time = 400 * MS;
const RETRY_AFTER: Time = 100 * MS;
const TIMEOUT: Time = 50 * MS;
/// How long a node waits for the origin.
const ORIGIN_WITHIN: Time = 400 * MS;

/// A bug that is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// A gap in a node's numbers drops nothing.
    IgnoreGaps,
    /// Another server, a removed stream, and what others say of them drop nothing.
    IgnoreLosses,
    /// A write is acknowledged when the origin has answered.
    AcknowledgeUnconfirmed,
    /// Answers are given from memory however long the own beat was not read back.
    AnswerWhileUnheard,
}

/// What may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Everything that shows: by a connection, by the server's name, by the position, or by silence.
    Everything,
    /// Entries vanish before a slow node has read them, and nothing else goes wrong: the connection stays, and so does
    /// the server's name.
    LostWithoutASign,
}

/// What happened in all runs.
#[derive(Debug, Default)]
pub struct Totals {
    pub hits: u64,
    pub acknowledged: u64,
    /// Writes that did not begin, since others could not be told (21).
    pub refused: u64,
    /// Writes whose end could not be confirmed in time (22).
    pub unconfirmed: u64,
    pub drops: HashMap<&'static str, u64>,
}

enum Event {
    /// For a process of a node; one that has crashed gets none any more, and one that pauses gets it later.
    Node(usize, u64, NodeEvent),
    Append(Link, Vec<String>),
    Read(Link, Option<StreamId>),
    BlockEnds(Link, Option<StreamId>),
    OriginReads(usize, u64, u64),
    OriginWrites(usize, u64, u64),
    Fault,
    /// What was told of writes since this moment vanishes.
    LoseWrites(Time),
    Resume(usize),
    ServerStarts,
    ServerResumes,
}

/// A connection, with the process and the batch or read that it carries.
#[derive(Clone, Copy, PartialEq)]
struct Link {
    node: usize,
    run: u64,
    connection: u64,
    number: u64,
}

enum NodeEvent {
    Open,
    Opened(Option<u64>),
    Broken(u64),
    Wake,
    Appended(Link),
    AppendDeadline(Link),
    Fetched(Link, Fetched),
    ReadDeadline(Link),
    ReadBegins,
    LookUp(ReadBegun),
    ReadAnswered(u64, u64),
    WriteBegins,
    Confirmed(u64),
    WaitDeadline(u64, u64),
    SendWrite(u64),
    WriteAnswered(u64, Option<u64>),
}

struct Process {
    /// Counts the starts of the process; events of one before are void.
    run: u64,
    node: Option<SimulatedNode>,
    paused_until: Time,
    /// Until when it cannot reach the server.
    cut_until: Time,
    /// The newest version of each member that this node has acknowledged or, where no other node writes about the
    /// member, that a caller of it has read.
    seen: HashMap<MemberId, u64>,
}

pub struct World {
    rng: Rng,
    now: Time,
    begins: Time,
    order: u64,
    queue: BinaryHeap<Reverse<(Time, u64, usize)>>,
    events: Vec<Option<Event>>,
    script: Script,
    bug: Bug,
    server: Server,
    server_paused_until: Time,
    blocked: Vec<(Link, Option<StreamId>)>,
    /// A node whose reads take until this time.
    slow_reader: (usize, Time),
    processes: Vec<Process>,
    caches: Vec<&'static AnswerCache>,
    points: HashMap<MemberId, u64>,
    last_version: u64,
    /// Of each member: when which version was acknowledged.
    acknowledged: HashMap<MemberId, Vec<(Time, u64)>>,
    last_number: u64,
    members: Vec<MemberId>,
    /// Whether each member is written by callers of one node only, whose callers then must see an order of all writes
    /// and reads. Others may see a write of another node, and for less than a second once more what was before it.
    has_one_writer: bool,
    /// How long a message takes at most, but for stragglers.
    delay: Time,
    violation: Option<String>,
    totals: Totals,
}

thread_local! {
    /// Caches are large, so that the runs of a thread share theirs. Their times and members never repeat.
    static CACHES: RefCell<(Vec<&'static AnswerCache>, u64)> = RefCell::default();
}

impl World {
    /// Runs one script to its end, or to the first violation.
    pub fn run(seed: u64, script: Script, bug: Bug) -> World {
        let (caches, run) = CACHES.with_borrow_mut(|(caches, runs)| {
            while caches.len() < NODES {
                caches.push(Box::leak(Box::new(AnswerCache::new(1 << 20))));
            }
            *runs += 1;
            (caches.clone(), *runs)
        });
        let mut world = World::new(seed, script, bug, caches, run);
        world.begin();
        while let Some(Reverse((at, _, event))) = world.queue.pop() {
            if at > world.begins + ENDS || world.violation.is_some() {
                break;
            }
            world.now = at;
            let event = world.events[event].take().unwrap();
            world.handle(event);
        }
        world
    }

    fn new(seed: u64, script: Script, bug: Bug, caches: Vec<&'static AnswerCache>, run: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let begins = run * 100 * SECOND;
        let process = || Process { run: 0, node: None, paused_until: 0, cut_until: 0, seen: HashMap::new() };
        let keep =
            if script == Script::Everything { [300 * MS, SECOND, 10 * SECOND][rng.usize(..3)] } else { 10 * SECOND };
        let delay = [200_000, MS, 10 * MS][rng.usize(..3)];
        World {
            now: begins,
            begins,
            order: 0,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            script,
            bug,
            server: Server::new(keep),
            server_paused_until: 0,
            blocked: Vec::new(),
            slow_reader: (0, 0),
            processes: (0..NODES).map(|_| process()).collect(),
            caches,
            points: HashMap::new(),
            last_version: 0,
            acknowledged: HashMap::new(),
            last_number: 0,
            members: (0..MEMBERS).map(|n| MemberId::new(run * MEMBERS + n).unwrap()).collect(),
            has_one_writer: seed.is_multiple_of(2),
            delay,
            violation: None,
            totals: Totals::default(),
            rng,
        }
    }

    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    pub fn count(mut self, totals: &mut Totals) {
        self.processes.iter_mut().for_each(|process| retire(&mut self.totals, process.node.take()));
        totals.hits += self.totals.hits;
        totals.acknowledged += self.totals.acknowledged;
        totals.refused += self.totals.refused;
        totals.unconfirmed += self.totals.unconfirmed;
        for (reason, n) in &self.totals.drops {
            *totals.drops.entry(reason).or_default() += n;
        }
    }

    fn begin(&mut self) {
        self.server.start();
        (0..NODES).for_each(|node| self.start(node));
        let faults = match self.script {
            Script::Everything => self.rng.u64(1..8),
            Script::LostWithoutASign => 0, // see `lose_write`
        };
        for _ in 0..faults {
            let at = self.rng.u64(SECOND..ENDS - 2 * SECOND);
            self.at(self.begins + at, Event::Fault);
        }
    }

    fn at(&mut self, at: Time, event: Event) {
        self.order += 1;
        self.events.push(Some(event));
        self.queue.push(Reverse((at, self.order, self.events.len() - 1)));
    }

    /// An event of the process that runs as `node` now.
    fn after(&mut self, wait: Time, node: usize, event: NodeEvent) {
        let run = self.processes[node].run;
        self.at(self.now + wait, Event::Node(node, run, event));
    }

    /// How long a message is under way. Few are for long.
    fn delay(&mut self) -> Time {
        let straggles = self.script == Script::Everything && self.rng.u32(..200) == 0;
        if straggles { self.rng.u64(..600 * MS) } else { self.rng.u64(..self.delay) }
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Node(node, run, event) => {
                let process = &self.processes[node];
                if process.run == run && process.node.is_some() {
                    match self.now < process.paused_until {
                        true => self.at(self.processes[node].paused_until, Event::Node(node, run, event)),
                        false => self.node_event(node, event),
                    }
                }
            }
            Event::Append(..) | Event::Read(..) if self.now < self.server_paused_until => {
                self.at(self.server_paused_until, event);
            }
            Event::Read(link, _) if link.node == self.slow_reader.0 && self.now < self.slow_reader.1 => {
                self.at(self.slow_reader.1, event);
            }
            Event::Append(link, entries) => self.append(link, entries),
            Event::Read(link, after) => self.read(link, after),
            Event::BlockEnds(link, after) => {
                let blocked = self.blocked.len();
                self.blocked.retain(|(waiting, _)| *waiting != link);
                if self.blocked.len() < blocked && self.server.is_connected(link.connection) {
                    let fetched = self.server.read_now(after);
                    self.fetched(link, fetched);
                }
            }
            Event::OriginReads(node, run, flight) => {
                let process = &self.processes[node];
                let Some(member) = process.node.as_ref().and_then(|node| node.flights.get(&flight)).map(|f| f.member)
                else {
                    return;
                };
                if process.run == run {
                    let version = self.points.get(&member).copied().unwrap_or(0);
                    let delay = self.origin_delay();
                    self.after(delay, node, NodeEvent::ReadAnswered(flight, version));
                }
            }
            Event::OriginWrites(node, run, write) => self.origin_writes(node, run, write),
            Event::Fault => self.fault(),
            Event::LoseWrites(since) => self.server.lose_writes(since),
            Event::Resume(node) => self.start(node),
            Event::ServerStarts => self.server.start(),
            Event::ServerResumes => self.serve_blocked(),
        }
    }

    // The server.

    fn append(&mut self, link: Link, entries: Vec<String>) {
        if !self.server.is_connected(link.connection) {
            return;
        }
        self.server.append(entries, self.now);
        let delay = self.delay();
        let process = &self.processes[link.node];
        if process.run == link.run {
            self.after(delay, link.node, NodeEvent::Appended(link));
        }
        self.serve_blocked();
    }

    fn read(&mut self, link: Link, after: Option<StreamId>) {
        if !self.server.is_connected(link.connection) {
            return;
        }
        match self.server.read(after) {
            Some(fetched) => self.fetched(link, fetched),
            None => {
                self.blocked.push((link, after));
                self.at(self.now + BLOCK, Event::BlockEnds(link, after));
            }
        }
    }

    fn serve_blocked(&mut self) {
        for (link, after) in std::mem::take(&mut self.blocked) {
            if link.node == self.slow_reader.0 && self.now < self.slow_reader.1 {
                self.at(self.slow_reader.1, Event::Read(link, after));
                continue;
            }
            match self.server.read(after) {
                _ if !self.server.is_connected(link.connection) => {}
                Some(fetched) => self.fetched(link, fetched),
                None => self.blocked.push((link, after)),
            }
        }
    }

    fn fetched(&mut self, link: Link, fetched: Fetched) {
        let delay = self.delay();
        if self.processes[link.node].run == link.run {
            self.after(delay, link.node, NodeEvent::Fetched(link, fetched));
        }
    }

    // The origin.

    fn origin_delay(&mut self) -> Time {
        match self.rng.u32(..20) {
            0 => self.rng.u64(..300 * MS),
            _ => self.rng.u64(..5 * MS),
        }
    }

    fn origin_writes(&mut self, node: usize, run: u64, write: u64) {
        // The message has the member with it; the process that sent it may have crashed.
        let Some(member) = self.members.get((write % MEMBERS) as usize).copied() else { return };
        self.last_version += 1;
        let version = self.last_version;
        self.points.insert(member, version);
        // Some answers are lost.
        if self.processes[node].run == run && self.rng.u32(..20) > 0 {
            let delay = self.origin_delay();
            self.after(delay, node, NodeEvent::WriteAnswered(write, Some(version)));
        }
    }

    // Processes.

    fn start(&mut self, node: usize) {
        if self.processes[node].node.is_some() {
            return;
        }
        let incarnation = self.rng.u64(..);
        let process = &mut self.processes[node];
        process.run += 1;
        process.node = Some(SimulatedNode::new(self.caches[node], self.bug, incarnation, self.now));
        self.after(0, node, NodeEvent::Open);
        let (read, write) = (self.rng.u64(..20 * MS), self.rng.u64(..2 * SECOND));
        self.after(read, node, NodeEvent::ReadBegins);
        self.after(write, node, NodeEvent::WriteBegins);
    }

    fn node(&mut self, node: usize) -> &mut SimulatedNode {
        let now = self.now;
        let node = self.processes[node].node.as_mut().unwrap();
        node.effects.now = Tick(now);
        node
    }
}

/// Ends a process; what its cache had is gone.
fn retire(totals: &mut Totals, node: Option<SimulatedNode>) {
    if let Some(node) = node {
        for (reason, n) in &node.effects.drops {
            *totals.drops.entry(reason).or_default() += n;
        }
    }
}
