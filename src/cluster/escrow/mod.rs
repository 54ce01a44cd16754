//! The shared limits of one key as one node sees them: Redis sets tokens aside for a node before the node may spend them,
//! and charges the key when the node reports that they were spent. So all nodes together never admit more than the limit
//! allows, whatever they do; the price is that a token which one node holds is not there for another one. Everything here
//! is pure: turns are made and their answers taken, time is an argument, and `turn.lua` is Redis's side.

mod begin_turn; // what a node tells and asks
mod charge; // with what another key has used up
mod day;
mod finish_turn; // what it takes from the answer
mod known;
mod lease;
mod leaving; // what a node does that is about to end
mod owed;
mod turn;

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

pub use self::charge::UsedUp;
use self::day::DayTold;
use self::known::Known;
pub use self::lease::{Lease, MAX_TOKENS};
use self::owed::Owed;
use self::turn::capacity;
pub use self::turn::{Answer, Grant, SCRIPT, Turn};
use crate::clock::Tick;
use crate::config::{Rate, Tier};

/// How many buckets a key has.
pub const BUCKETS: usize = 5;

/// After how long a spent token is reported.
const REPORT_AFTER: Duration = Duration::from_millis(250);

/// After how long without a request a node gives back its tokens.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// The buckets of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bucket {
    Main,
    Write,
    Candidate,
    Daily,
    InFlight,
}

impl Bucket {
    pub const ALL: [Bucket; BUCKETS] =
        [Bucket::Main, Bucket::Write, Bucket::Candidate, Bucket::Daily, Bucket::InFlight];
}

/// What a key's node counts by itself, while the key is known as the same one.
pub trait LocalCounts: fmt::Debug + Send + Sync {
    /// Requests in flight.
    fn in_flight(&self) -> u32;

    /// The UTC day by Redis's clock (the later one if that was set back over a midnight), and the requests that are known
    /// to have been counted on it, by whatever node.
    fn day(&self, now: Tick) -> (i64, u64);

    /// Whether it still counts.
    fn is_alive(&self) -> bool;

    /// Whether the key is known to be valid. Redis keeps nothing for long of one that is not.
    fn is_proven(&self) -> bool;
}

/// Of a key that is not listed any more.
#[derive(Debug)]
pub struct NoCounts;

impl LocalCounts for NoCounts {
    fn in_flight(&self) -> u32 {
        0
    }

    fn day(&self, _now: Tick) -> (i64, u64) {
        (0, 0)
    }

    fn is_alive(&self) -> bool {
        false
    }

    fn is_proven(&self) -> bool {
        false
    }
}

/// When the next turn is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTurn {
    /// Nothing has changed.
    AsBefore,
    At(Tick),
    Now,
}

/// How far the turn is that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnState {
    None,
    /// It waits for turns of other keys.
    Queued,
    Begun(Tick),
}

/// The shared limits of one key on this node.
#[derive(Debug)]
pub struct Escrow {
    leases: [Lease; BUCKETS],
    /// Where the node's tier is, to see without a lock whether a request has another one.
    tier: AtomicPtr<Tier>,
    /// Tokens left below which a request plans a turn (`u32::MAX`: every request does).
    low: AtomicU32,
    /// What this node admitted while Redis was away, for the next turn.
    owed: [Owed; BUCKETS],
    day_told: DayTold,
    /// The node is about to end.
    is_leaving: AtomicBool,
    node: Mutex<NodeSide>,
}

/// What the node remembers between turns.
#[derive(Debug)]
struct NodeSide {
    tier: Arc<Tier>,
    /// Of a key that is made again while requests of before are in flight, each counts its own.
    counts: Vec<Box<dyn LocalCounts>>,
    sequence: u64,
    /// The turn that is not answered yet.
    unanswered: Option<Arc<Turn>>,
    /// When the turn was begun that is under way.
    begun: Option<Tick>,
    /// A turn is to be taken now, or is being taken.
    is_queued: bool,
    /// Something is to be said once Redis answers.
    is_stalled: bool,
    /// The day to give back.
    resets_day: Option<i64>,
    /// When one is to be taken in any case.
    due: Option<Tick>,
    demand: [f64; BUCKETS],
    /// Until when a node that is about to end keeps granted tokens for the requests that waited for them.
    fresh_until: Tick,
    /// Requests that are still in flight have been given up: no place is kept for them.
    has_ended: bool,
    /// What the last turn counted as demand before it was spent.
    counted: [u32; BUCKETS],
    demand_at: Tick,
    need: [u32; BUCKETS],
    /// The levels of the rates.
    known: [Known; BUCKETS],
}

impl Escrow {
    pub fn new(tier: Arc<Tier>, counts: Box<dyn LocalCounts>, now: Tick) -> Self {
        Escrow {
            leases: Default::default(),
            tier: AtomicPtr::new(Arc::as_ptr(&tier).cast_mut()),
            low: AtomicU32::new(u32::MAX),
            owed: Default::default(),
            day_told: DayTold::default(),
            is_leaving: AtomicBool::new(false),
            node: Mutex::new(NodeSide {
                tier,
                counts: vec![counts],
                // In microseconds, which is higher than the last number of an escrow that this process had for the key
                // before: each turn takes longer than one.
                sequence: now.0 / 1000,
                unanswered: None,
                begun: None,
                is_queued: false,
                is_stalled: false,
                resets_day: None,
                due: None,
                fresh_until: Tick(0),
                has_ended: false,
                demand: [0.0; BUCKETS],
                counted: [0; BUCKETS],
                demand_at: now,
                need: [0; BUCKETS],
                known: [Known::default(); BUCKETS],
            }),
        }
    }

    pub fn lease(&self, bucket: Bucket) -> &Lease {
        &self.leases[bucket as usize]
    }

    /// The key has this tier since `since`. Whether it had another one; if not, no lock is taken.
    pub fn use_tier(&self, tier: &Arc<Tier>, since: Tick) -> bool {
        let had_another = !self.has_tier(tier);
        if had_another {
            self.set_tier(&mut self.node.lock(), tier, since);
        }
        had_another
    }

    /// As [`Escrow::use_tier`], for a request whose key may have got another tier meanwhile, which `is_replaced` says from
    /// before the first request that uses the other one. Whether the request may use this one.
    pub fn use_tier_unless(&self, is_replaced: impl FnOnce() -> bool, tier: &Arc<Tier>, since: Tick) -> bool {
        if self.has_tier(tier) {
            return !is_replaced();
        }
        let mut node = self.node.lock();
        let may_use = !is_replaced(); // whoever uses the other one has to wait for the lock
        if may_use {
            self.set_tier(&mut node, tier, since);
        }
        may_use
    }

    fn has_tier(&self, tier: &Arc<Tier>) -> bool {
        ptr::eq(self.tier.load(Ordering::Acquire), Arc::as_ptr(tier))
    }

    /// If it lowers a limit, no token that was granted before is spent any more.
    fn set_tier(&self, node: &mut NodeSide, tier: &Arc<Tier>, since: Tick) {
        if Bucket::ALL.iter().any(|bucket| capacity(tier, *bucket).0 < capacity(&node.tier, *bucket).0) {
            self.leases.iter().for_each(Lease::end);
        }
        for bucket in Bucket::ALL {
            let limit = capacity(tier, bucket);
            if limit != capacity(&node.tier, bucket) {
                let known = &mut node.known[bucket as usize];
                *known = known.under(limit, since);
                // What else was known of it is not so any more: the next turn tells.
                self.lease(bucket).deny_until(Tick(0));
                if bucket != Bucket::Daily {
                    self.lease(bucket).set_full_at(Tick(0));
                }
            }
        }
        node.tier = tier.clone();
        self.tier.store(Arc::as_ptr(tier).cast_mut(), Ordering::Release);
    }

    /// The key is made again: what is counted from now on, besides what still is.
    pub(super) fn add_counts(&self, counts: Box<dyn LocalCounts>) {
        let mut node = self.node.lock();
        node.counts.retain(|counts| counts.is_alive());
        node.counts.push(counts);
    }

    /// Spends a token of a bucket. No lock is taken unless a turn is to be planned.
    pub fn spend(&self, bucket: Bucket, now: Tick) -> Option<NextTurn> {
        let left = self.lease(bucket).spend(now)?;
        // Every request spends of the main bucket, so the others need not be watched: their tokens come with its turns.
        let left = if bucket == Bucket::Main { left } else { u32::MAX - 1 };
        Some(if left < self.low.load(Ordering::Acquire) { self.plan(left, now) } else { NextTurn::AsBefore })
    }

    /// Spends no token that it has now: the leases may have ended without this node's clock showing it.
    pub fn end_leases(&self) {
        let _node = self.node.lock();
        self.leases.iter().for_each(Lease::end);
    }

    /// Gives back a token that was spent for a request that another bucket does not admit yet.
    pub fn unspend(&self, bucket: Bucket) {
        let _node = self.node.lock();
        self.lease(bucket).unspend();
    }

    /// Notes a request that this node's own bucket admitted under `rate` while Redis was away, and when that bucket is full
    /// again. `whole`: the rate of all nodes together.
    pub fn owe(&self, bucket: Bucket, full_at: Tick, rate: Rate, whole: Rate) {
        self.owed[bucket as usize].add(full_at, rate, whole);
    }

    /// Counts a request of the day that was admitted while Redis was away.
    pub fn owe_day(&self) {
        self.owed[Bucket::Daily as usize].add_of_day();
    }

    /// A request waits for a token of these buckets: a turn is to be taken. Once a turn has ended, a request that still
    /// has none says so again.
    pub fn need(&self, buckets: impl Iterator<Item = Bucket>) -> NextTurn {
        let mut node = self.node.lock();
        buckets.for_each(|bucket| node.need[bucket as usize] = node.need[bucket as usize].saturating_add(1));
        node.queue()
    }

    fn has_spent(&self) -> bool {
        Bucket::ALL.into_iter().any(|bucket| bucket != Bucket::InFlight && self.lease(bucket).spent() > 0)
    }

    /// Plans the turn that reports what is spent, and the one that fetches more before all is spent.
    fn plan(&self, left: u32, now: Tick) -> NextTurn {
        let mut node = self.node.lock();
        let low = node.wanted(Bucket::Main).div_ceil(2);
        self.low.store(low, Ordering::Release);
        if left < low && !self.lease(Bucket::Main).is_denied(now) && node.queue() == NextTurn::Now {
            return NextTurn::Now;
        }
        let due = now.plus(REPORT_AFTER);
        if node.due.is_some_and(|at| at <= due) {
            return NextTurn::AsBefore;
        }
        node.due = Some(due);
        NextTurn::At(due)
    }

    /// The key is known to be valid from now on. Asks for a turn that tells it, if there was one before: Redis keeps its day.
    pub fn proven(&self) -> NextTurn {
        let mut node = self.node.lock();
        if node.sequence > 0 { node.queue() } else { NextTurn::AsBefore }
    }

    /// Whether a turn is queued, or since when it has been under way.
    pub fn turn_state(&self) -> TurnState {
        let node = self.node.lock();
        match node.begun {
            _ if !node.is_queued => TurnState::None,
            None => TurnState::Queued,
            Some(at) => TurnState::Begun(at),
        }
    }

    /// The turn got no answer. The same turn is to be taken again.
    pub fn fail_turn(&self) {
        let mut node = self.node.lock();
        node.begun = None;
        node.is_queued = false;
        node.need = [0; BUCKETS];
    }

    /// Notes that there is something to say once Redis answers again; `false` if that was noted already.
    pub fn stall(&self) -> bool {
        !std::mem::replace(&mut self.node.lock().is_stalled, true)
    }

    /// Redis answers again.
    pub fn unstall(&self) -> NextTurn {
        let mut node = self.node.lock();
        node.is_stalled = false;
        node.queue()
    }

    /// Gives the whole day of `now` back, for all nodes, with the next turn.
    pub fn reset_day(&self, now: Tick) -> NextTurn {
        let mut node = self.node.lock();
        let day = node.day(now).0;
        node.resets_day = Some(day);
        self.day_told.set(day, 0, 0, now);
        node.queue()
    }
}

impl NodeSide {
    fn in_flight(&self) -> u32 {
        if self.has_ended { 0 } else { self.counts.iter().map(|counts| counts.in_flight()).sum() }
    }

    fn day(&self, now: Tick) -> (i64, u64) {
        self.counts.iter().map(|counts| counts.day(now)).max().unwrap_or_default()
    }

    fn is_proven(&self) -> bool {
        self.counts.iter().any(|counts| counts.is_proven())
    }

    /// Asks for a turn, unless one is asked for already.
    fn queue(&mut self) -> NextTurn {
        match std::mem::replace(&mut self.is_queued, true) {
            true => NextTurn::AsBefore,
            false => NextTurn::Now,
        }
    }

    /// The tokens that the key needed in the last half second; none for a key with a request now and then, which would
    /// only keep them from other nodes.
    fn wanted(&self, bucket: Bucket) -> u32 {
        let demand = self.demand[bucket as usize];
        if demand < 1.5 { 0 } else { (demand.ceil() as u32).min(MAX_TOKENS) }
    }
}

#[cfg(test)]
pub(super) mod tests;
