//! A few nodes, one Redis, and what happens to them in one run, as events on virtual time.

mod node;
mod outcome;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use guildgate::clock::Tick;
use guildgate::cluster::escrow::{Answer, Bucket, NextTurn, Turn};
use guildgate::config::Tier;

use self::node::Node;
pub use self::outcome::{Outcome, excess};
use crate::redis::{Fields, Redis};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// How long requests come.
pub const SECONDS: u64 = 20;

/// How long a request waits for a turn, and a turn for its answer.
const TIMEOUT: u64 = 50 * MS;
const ANSWER_TIMEOUT: u64 = 200 * MS;

/// Redis's clock at the beginning, unless it is noon: ten seconds before a midnight.
const BEGIN_US: u64 = 1_795_392_000_000_000 - 10_000_000;
const NOON_US: u64 = 1_795_392_000_000_000 + 43_200_000_000;

/// What goes wrong in a run.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// No midnight comes.
    pub is_noon: bool,
    /// Some messages take up to 100 ms.
    pub is_slow: bool,
    /// How long a lease lasts, in seconds; 0: two.
    pub lease: u64,
    /// The part of messages that is lost.
    pub loss: f64,
    /// The part of turns that arrive again, later.
    pub repeated: f64,
    pub crashes: usize,
    pub pauses: usize,
    pub reloads: usize,
    /// How often a node is about to end, and goes on after all.
    pub leaves: usize,
    /// Redis is replaced by a replica that lacks the last so many nanoseconds.
    pub fail_over: Option<u64>,
    pub clock_ahead: Option<u64>,
    pub clock_back: bool,
    /// Requests come evenly, at this part of the rate.
    pub steady: Option<f64>,
}

pub struct Run {
    pub seed: u64,
    pub tier: Tier,
    pub faults: Faults,
    pub script: String,
}

#[derive(Clone, Debug)]
enum Event {
    Request { write: bool },
    EndOfRequest { incarnation: u64 },
    Waited { request: u64 },
    Due(Tick),
    TurnAtRedis { incarnation: u64, turn: Arc<Turn> },
    TurnAnswered { incarnation: u64, turn: Arc<Turn>, answer: Answer },
    TurnUnanswered { incarnation: u64, sequence: u64, try_again: bool },
    Crash,
    Pause(u64),
    Reload(usize),
    Leave(bool),
    FailOver(u64),
    Clock(i64),
}

struct World {
    random: fastrand::Rng,
    faults: Faults,
    redis: Redis,
    clock_offset_us: i64,
    nodes: Vec<Node>,
    tiers: Vec<Arc<Tier>>,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    event_data: HashMap<u64, Event>,
    next: Cell<u64>,
    /// The times of what was admitted: by main and by the write bucket.
    admitted: [Vec<u64>; 2],
    by_day: HashMap<u64, i64>,
    /// The latest day that has begun for the key: that of a turn. A clock that is set back does not end it.
    last_day: u64,
    in_flight: i64,
    history: Vec<(u64, Fields)>,
    granted: Vec<(u64, u64)>,
    outcome: Outcome,
}

pub fn run(run: Run) -> Outcome {
    let mut random = fastrand::Rng::with_seed(run.seed ^ 0x9e37_79b9);
    let tiers = tiers(&run, &mut random);
    let count = random.usize(2..5);
    let mut world = World {
        redis: Redis::new(&run.script),
        clock_offset_us: 0,
        nodes: Vec::new(),
        tiers,
        events: BinaryHeap::new(),
        event_data: HashMap::new(),
        next: Cell::new(1000),
        admitted: Default::default(),
        by_day: HashMap::new(),
        last_day: 0,
        in_flight: 0,
        history: Vec::new(),
        granted: Vec::new(),
        outcome: Outcome { over_in_flight: i64::MIN, ..Outcome::default() },
        faults: run.faults,
        random,
    };
    world.nodes = (0..count).map(|i| world.node(i as u64 + 1, &world.tiers[0], 0)).collect();
    world.plan();
    while let Some(Reverse((at, id, node))) = world.events.pop() {
        let event = world.event_data.remove(&id).unwrap();
        world.happen(at, node, event);
    }
    world.judge()
}

/// The tier at first and after each reload.
fn tiers(run: &Run, random: &mut fastrand::Rng) -> Vec<Arc<Tier>> {
    let other = |random: &mut fastrand::Rng| {
        let mut tier = run.tier.clone();
        tier.main.period_ns = tier.main.period_ns * random.u64(1..4) / 2 + 1;
        let burst = tier.main.burst.get();
        tier.main.burst = NonZeroU32::new(random.u32(1..2 * burst + 3)).unwrap();
        tier
    };
    let changed = (0..run.faults.reloads).map(|_| other(random)).collect::<Vec<_>>();
    std::iter::once(run.tier.clone()).chain(changed).map(Arc::new).collect()
}

impl World {
    /// A node whose own clock is ten minutes ahead of Redis's, or behind, or neither.
    fn node(&self, incarnation: u64, tier: &Arc<Tier>, at: u64) -> Node {
        let ahead = (incarnation.cast_signed() % 3 - 1) * 600_000_000;
        Node::new(incarnation, tier, at, self.now_us(at).cast_signed() + ahead)
    }

    fn at(&mut self, at: u64, node: usize, event: Event) {
        let id = self.next.replace(self.next.get() + 1);
        self.events.push(Reverse((at, id, node)));
        self.event_data.insert(id, event);
    }

    fn plan(&mut self) {
        let nodes = self.nodes.len();
        let begin = SECOND;
        let all = SECONDS * SECOND;
        if let Some(part) = self.faults.steady {
            let period = (self.tiers[0].main.period_ns as f64 / part) as u64;
            for i in 0..all / period {
                let node = self.random.usize(..nodes);
                let jitter = self.random.u64(..period);
                self.at(begin + i * period + jitter, node, Event::Request { write: false });
            }
        } else {
            for _ in 0..6 {
                let from = self.random.u64(..all);
                let within = [10 * MS, 500 * MS, 3 * SECOND][self.random.usize(..3)];
                for _ in 0..[5, 40, 120][self.random.usize(..3)] {
                    let (at, node) = (begin + from + self.random.u64(..within), self.random.usize(..nodes));
                    let write = self.random.u8(..4) == 0;
                    self.at(at, node, Event::Request { write });
                }
            }
        }
        let any = |world: &mut World| (begin + world.random.u64(..all), world.random.usize(..nodes));
        for _ in 0..self.faults.crashes {
            let (at, node) = any(self);
            self.at(at, node, Event::Crash);
        }
        for _ in 0..self.faults.pauses {
            let (at, node) = any(self);
            let length = self.random.u64(..5 * SECOND);
            self.at(at, node, Event::Pause(length));
        }
        for number in 1..self.tiers.len() {
            for node in 0..nodes {
                let (at, _) = any(self);
                self.at(at, node, Event::Reload(number));
            }
        }
        for _ in 0..self.faults.leaves {
            let (at, node) = any(self);
            let goes_on = at + self.random.u64(..3 * SECOND);
            self.at(at, node, Event::Leave(true));
            self.at(goes_on, node, Event::Leave(false));
        }
        if let Some(lost) = self.faults.fail_over {
            let (at, node) = any(self);
            self.at(at, node, Event::FailOver(lost));
        }
        if let Some(ahead) = self.faults.clock_ahead {
            let (at, node) = any(self);
            self.at(at, node, Event::Clock((ahead / 1000) as i64));
        }
        if self.faults.clock_back {
            let (at, node) = any(self);
            let back = self.random.u64(..3_000_000);
            self.at(at, node, Event::Clock(-(back as i64)));
        }
    }

    fn happen(&mut self, at: u64, node: usize, event: Event) {
        let is_at_redis = matches!(event, Event::TurnAtRedis { .. } | Event::FailOver(_) | Event::Clock(_));
        let paused = self.nodes[node].paused_until;
        if !is_at_redis && paused > at {
            return self.at(paused, node, event);
        }
        match event {
            Event::Request { write } => self.request(at, node, write, None),
            Event::EndOfRequest { incarnation } if self.nodes[node].incarnation == incarnation => self.end(at, node),
            Event::EndOfRequest { .. } => {}
            Event::Waited { request } => {
                let before = self.nodes[node].waiting.len();
                self.nodes[node].waiting.retain(|(id, _, _)| *id != request);
                if self.nodes[node].waiting.len() < before {
                    self.refuse(node);
                }
            }
            Event::Due(planned_for) => {
                if let Some(turn) = self.nodes[node].escrow.begin_turn(Some(planned_for), Tick(at)) {
                    self.send(at, node, turn);
                }
            }
            Event::TurnAtRedis { incarnation, turn } => self.turn_at_redis(at, node, incarnation, turn),
            Event::TurnAnswered { incarnation, turn, answer } => self.answered(at, node, incarnation, &turn, &answer),
            Event::TurnUnanswered { incarnation, sequence, try_again } => {
                self.unanswered(at, node, incarnation, sequence, try_again);
            }
            Event::Crash => {
                let incarnation = self.next.replace(self.next.get() + 1);
                let tier = self.nodes[node].tier.clone();
                self.in_flight -= i64::from(self.nodes[node].in_flight.load(Ordering::SeqCst));
                self.nodes[node] = self.node(incarnation, &tier, at);
            }
            Event::Pause(length) => self.nodes[node].paused_until = at + length,
            Event::Leave(is_leaving) => {
                let next = self.nodes[node].escrow.set_leaving(is_leaving, Tick(at));
                self.follow(at, node, next);
            }
            Event::Reload(number) => self.nodes[node].tier = self.tiers[number].clone(),
            Event::FailOver(lost) => {
                let kept = self.history.iter().rev().find(|(then, _)| then + lost <= at);
                let fields = kept.map(|(_, fields)| fields.clone()).unwrap_or_default();
                self.outcome.granted_in_lost_time +=
                    self.granted.iter().filter(|(then, _)| then + lost > at).map(|(_, n)| *n as f64).sum::<f64>();
                self.redis.set_fields(fields);
            }
            Event::Clock(by_us) => {
                self.clock_offset_us += by_us;
                // Leases that end at once are spent nevertheless: all that was granted within one lease.
                let lease = self.lease_us() * 1000;
                self.outcome.granted_in_lost_time += by_us.max(0) as f64 * 1000.0
                    / self.tiers[0].write.map_or(self.tiers[0].main, |w| w).period_ns.min(self.tiers[0].main.period_ns)
                        as f64
                    + self.granted.iter().filter(|(then, _)| then + lease > at).map(|(_, n)| *n as f64).sum::<f64>();
            }
        }
    }

    fn lease_us(&self) -> u64 {
        if self.faults.lease == 0 { 2_000_000 } else { self.faults.lease * 1_000_000 }
    }

    fn now_us(&self, at: u64) -> u64 {
        (if self.faults.is_noon { NOON_US } else { BEGIN_US } + at / 1000).saturating_add_signed(self.clock_offset_us)
    }

    /// The UTC day by Redis's clock.
    fn day(&self, at: u64) -> u64 {
        self.now_us(at) / 86_400_000_000
    }

    fn refuse(&mut self, node: usize) {
        self.outcome.refused += 1;
        self.nodes[node].in_flight.fetch_sub(1, Ordering::SeqCst);
    }

    fn end(&mut self, at: u64, node: usize) {
        self.in_flight -= 1;
        let here = &self.nodes[node];
        here.in_flight.fetch_sub(1, Ordering::SeqCst);
        let next = here.escrow.ask_to_give_place_back(Tick(at));
        self.follow(at, node, next);
    }

    /// One request, which came now or has waited for a turn until now.
    fn request(&mut self, at: u64, node: usize, write: bool, waited: Option<(u64, u64)>) {
        let now = Tick(at);
        let day = self.last_day.max(self.day(at));
        let here = &mut self.nodes[node];
        if waited.is_none() {
            here.in_flight.fetch_add(1, Ordering::SeqCst);
        }
        let others = here.in_flight.load(Ordering::SeqCst) - 1;
        let tier = here.tier.clone();
        here.escrow.use_tier(&tier, now);
        let buckets = [
            tier.in_flight.map(|_| Bucket::InFlight),
            tier.daily.map(|_| Bucket::Daily),
            tier.write.filter(|_| write).map(|_| Bucket::Write),
            Some(Bucket::Main),
        ];
        let buckets: Vec<Bucket> = buckets.into_iter().flatten().collect();
        let mut missing = Vec::new();
        for bucket in &buckets {
            let lease = here.escrow.lease(*bucket);
            let is_there = match bucket {
                Bucket::InFlight => lease.tokens(now) > others,
                _ => lease.tokens(now) > 0,
            };
            if !is_there && lease.is_denied(now) {
                return self.refuse(node);
            }
            if !is_there {
                missing.push(*bucket);
            }
        }
        if !missing.is_empty() {
            let next = here.escrow.need(missing.into_iter());
            let (request, until) = waited.unwrap_or_else(|| {
                let id = self.next.replace(self.next.get() + 1);
                (id, at + TIMEOUT)
            });
            here.waiting.push((request, write, until));
            if waited.is_none() {
                self.at(until, node, Event::Waited { request });
            }
            return self.follow(at, node, next);
        }
        let mut plans = Vec::new();
        for bucket in buckets.into_iter().filter(|bucket| *bucket != Bucket::InFlight) {
            plans.extend(self.nodes[node].escrow.spend(bucket, now));
        }
        self.admitted[0].push(at);
        if write && tier.write.is_some() {
            self.admitted[1].push(at);
        }
        *self.by_day.entry(day).or_default() += 1;
        let here = &self.nodes[node];
        here.day.admit(u64::MAX, here.redis_clock.unix(now));
        self.outcome.admitted += 1;
        self.in_flight += 1;
        let over = self.in_flight - tier.in_flight.map_or(i64::MAX / 2, i64::from);
        self.outcome.over_in_flight = self.outcome.over_in_flight.max(over);
        let incarnation = self.nodes[node].incarnation;
        let ends = at + self.random.u64(..300 * MS);
        self.at(ends, node, Event::EndOfRequest { incarnation });
        for next in plans {
            self.follow(at, node, next);
        }
    }

    fn follow(&mut self, at: u64, node: usize, next: NextTurn) {
        match next {
            NextTurn::AsBefore => {}
            NextTurn::At(due) => self.at(due.0.max(at), node, Event::Due(due)),
            NextTurn::Now => {
                if let Some(turn) = self.nodes[node].escrow.begin_turn(None, Tick(at)) {
                    self.send(at, node, turn);
                }
            }
        }
    }

    fn delay(&mut self) -> u64 {
        match self.random.u8(..20) {
            0 if self.faults.is_slow => self.random.u64(..100 * MS),
            _ => self.random.u64(100_000..300_000),
        }
    }

    fn send(&mut self, at: u64, node: usize, turn: Arc<Turn>) {
        self.outcome.turns += 1;
        let incarnation = self.nodes[node].incarnation;
        let sequence = turn.sequence;
        self.nodes[node].out = Some(sequence);
        self.at(at + ANSWER_TIMEOUT, node, Event::TurnUnanswered { incarnation, sequence, try_again: false });
        if self.random.f64() < self.faults.repeated {
            let late = at + self.random.u64(..SECOND);
            self.at(late, node, Event::TurnAtRedis { incarnation, turn: turn.clone() });
        }
        let arrives = at + self.delay();
        if self.random.f64() >= self.faults.loss {
            self.at(arrives, node, Event::TurnAtRedis { incarnation, turn });
        }
    }

    fn turn_at_redis(&mut self, at: u64, node: usize, incarnation: u64, turn: Arc<Turn>) {
        let name = format!("{incarnation:016x}");
        self.last_day = self.last_day.max(self.day(at));
        let numbers = self.redis.eval(self.now_us(at), &turn.arguments(&name, self.lease_us()));
        let answer = Answer::read(&numbers).unwrap();
        self.granted.push((at, answer.buckets.iter().take(2).map(|grant| u64::from(grant.held)).sum::<u64>() + 1));
        if self.faults.fail_over.is_some() {
            self.history.push((at, self.redis.fields()));
        }
        let arrives = at + self.delay();
        if self.random.f64() >= self.faults.loss {
            self.at(arrives, node, Event::TurnAnswered { incarnation, turn, answer });
        }
    }

    fn answered(&mut self, at: u64, node: usize, incarnation: u64, turn: &Turn, answer: &Answer) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        self.nodes[node].redis_clock.set(answer.now_us, Tick(at));
        let next = self.nodes[node].escrow.finish_turn(turn, answer, Tick(at));
        if self.nodes[node].out == Some(turn.sequence) {
            self.nodes[node].out = None;
        }
        self.follow(at, node, next);
        for (request, write, until) in std::mem::take(&mut self.nodes[node].waiting) {
            self.request(at, node, write, Some((request, until)));
        }
    }

    fn unanswered(&mut self, at: u64, node: usize, incarnation: u64, sequence: u64, try_again: bool) {
        if self.nodes[node].incarnation != incarnation || self.nodes[node].out != Some(sequence) {
            return;
        }
        if try_again {
            let next = self.nodes[node].escrow.unstall();
            return self.follow(at, node, next);
        }
        self.nodes[node].escrow.fail_turn();
        self.at(at + 100 * MS, node, Event::TurnUnanswered { incarnation, sequence, try_again: true });
    }
}
