//! The shared limits of one key as one node sees them: Redis sets tokens aside for a node before the node may spend them,
//! and charges the key when the node reports that they were spent. So all nodes together never admit more than the limit
//! allows, whatever they do; the price is that a token which one node holds is not there for another one. Everything here
//! is pure: turns are made and their answers taken, time is an argument, and `turn.lua` is Redis's side.

mod charge; // with what another key has used up
mod day;
mod known;
mod lease;
mod leaving; // what a node does that is about to end
mod owed;
mod turn;

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, fence};
use std::time::Duration;

use parking_lot::Mutex;

pub use self::charge::UsedUp;
use self::day::DayTold;
use self::known::Known;
pub use self::lease::{Lease, MAX_TOKENS};
use self::leaving::LEAVING_AFTER;
use self::owed::Owed;
pub use self::turn::{Answer, Grant, SCRIPT, Turn};
use self::turn::{Ask, capacity};
use crate::clock::{Tick, nanos};
use crate::config::{Rate, Tier};

/// How many buckets a key has.
pub const BUCKETS: usize = 5;

/// After how long a spent token is reported.
const REPORT_AFTER: Duration = Duration::from_millis(250);

/// After how long without a request a node gives back its tokens.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// For how long what a key needed counts, in seconds.
const DEMAND_SECONDS: f64 = 0.5;

/// For how long at least "nothing is free" is remembered.
const DENIED_AT_LEAST: Duration = Duration::from_millis(50);

/// For how long at most, if other nodes hold tokens, which they may give back.
const DENIED_WHILE_HELD: Duration = Duration::from_millis(100);

/// For how long at most in any case: a limit may be raised, or a day given back.
const DENIED_AT_MOST: Duration = Duration::from_secs(1);

/// Microseconds of a UTC day.
const DAY_US: i64 = 86_400_000_000;

/// What a node that gives a day back tells as the known level of that day.
const RESET: i64 = -1;

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

    /// The tier of the request that is decided next, which the key has since `since`. If it is another one and lowers a limit,
    /// no token that was granted before is spent any more. No lock is taken if it is the same.
    pub fn use_tier(&self, tier: &Arc<Tier>, since: Tick) {
        if ptr::eq(self.tier.load(Ordering::Acquire), Arc::as_ptr(tier)) {
            return;
        }
        let mut node = self.node.lock();
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

    /// The turn to take at `now`: the one that is unanswered, again, or a new one. `planned_for`: the time of
    /// [`NextTurn::At`]; `None`: it was to be taken at once.
    pub fn begin_turn(&self, planned_for: Option<Tick>, now: Tick) -> Option<Arc<Turn>> {
        let mut node = self.node.lock();
        if let Some(planned_for) = planned_for {
            // A turn was taken meanwhile, and planned another one.
            if node.due != Some(planned_for) || node.is_queued {
                return None;
            }
            node.is_queued = true;
        }
        node.due = None;
        node.begun = Some(now);
        if let Some(unanswered) = &node.unanswered {
            return Some(unanswered.clone());
        }
        let in_flight = node.in_flight();
        let (day, used) = node.day(now);
        node.sequence += 1;
        let faded = (-(now.since(node.demand_at).as_secs_f64()) / DEMAND_SECONDS).exp();
        node.demand_at = now;
        let is_idle = node.has_ended || self.lease(Bucket::Main).newest_age_ns(now) >= nanos(self.idle_after());
        // Others may need each place, which is worth a turn for each request of the last ones.
        let keeps_no_place = is_idle || self.is_leaving();
        let waiting = self.waiting(&node);
        let is_fresh = now < node.fresh_until;
        let mut asks = [Ask::default(); BUCKETS];
        for bucket in Bucket::ALL {
            let (at, lease) = (bucket as usize, self.lease(bucket));
            let (capacity, period_ns) = capacity(&node.tier, bucket);
            let need = std::mem::take(&mut node.need[at]);
            let held_before = lease.tokens(now);
            let most = u32::try_from(capacity).unwrap_or(MAX_TOKENS).min(MAX_TOKENS);
            let ask = if bucket == Bucket::InFlight {
                let most = if capacity > 0 { most } else { 0 };
                let wanted = in_flight.saturating_add(if keeps_no_place { 0 } else { in_flight.max(1) }).min(most);
                lease.set_slots(lease.tokens(now).min(wanted), None);
                // A request that begins during this call either sees the lower number, or it is seen here.
                fence(Ordering::SeqCst);
                let keep = lease.held().max(node.in_flight().min(held_before));
                lease.set_slots(keep, None);
                let need = in_flight.min(most).saturating_sub(keep);
                Ask { keep, need, want: wanted.saturating_sub(keep + need), ..Ask::default() }
            } else {
                let arrived = lease.spent().saturating_sub(node.counted[at]) + need;
                node.counted[at] = need;
                node.demand[at] = node.demand[at] * faded + f64::from(arrived);
                let wanted = if is_idle { 0 } else { node.wanted(bucket) }.min(most);
                let most_kept = if is_fresh { MAX_TOKENS } else { wanted.max(waiting) };
                let (spent, keep) = lease.cut(most_kept.min(most), now);
                let need = need.saturating_sub(keep).min(most);
                Ask { spent: u64::from(spent), keep, need, want: wanted.saturating_sub(keep), ..Ask::default() }
            };
            let owed = self.owed[at].take(now);
            let known = match (bucket, node.resets_day) {
                (Bucket::Daily, Some(reset)) => (RESET, reset),
                (Bucket::Daily, None) => {
                    let own = used.saturating_sub(ask.spent).saturating_sub(owed);
                    (own.max(self.day_told.used_up(day, now)).cast_signed(), day)
                }
                _ => {
                    let known = node.known[at].under((capacity, period_ns), now);
                    (known.level, known.at_us)
                }
            };
            let age_ns = if owed > 0 { 0 } else { lease.newest_age_ns(now) };
            asks[at] = Ask { capacity, period_ns, owed, age_ns, known, ..ask };
        }
        node.resets_day = None;
        let turn = Arc::new(Turn { sequence: node.sequence, sent: now, asks, is_proven: node.is_proven() });
        node.unanswered = Some(turn.clone());
        Some(turn)
    }

    /// The requests for which a turn keeps what is held of other buckets than they wait for: they need a token of each.
    /// None if the last turn found nothing free of a bucket that they wait for, since two nodes might each keep for ever
    /// what the other one waits for.
    fn waiting(&self, node: &NodeSide) -> u32 {
        let needs = || Bucket::ALL.into_iter().zip(node.need).filter(|(_, need)| *need > 0);
        // The candidate refuses nothing.
        let was_denied = |bucket| bucket != Bucket::Candidate && self.lease(bucket).denied_until() > Tick(0);
        let was_denied = needs().any(|(bucket, _)| was_denied(bucket));
        if was_denied { 0 } else { needs().map(|(_, need)| need).max().unwrap_or(0) }
    }

    /// Takes the answer to a turn.
    pub fn finish_turn(&self, turn: &Turn, answer: &Answer, now: Tick) -> NextTurn {
        let mut node = self.node.lock();
        if node.unanswered.as_ref().is_none_or(|unanswered| unanswered.sequence != turn.sequence) {
            return NextTurn::AsBefore; // an answer that came twice
        }
        node.unanswered = None;
        node.begun = None;
        node.is_queued = false;
        node.need = [0; BUCKETS];
        let mut dues = [None, None];
        if self.is_leaving() {
            node.fresh_until = now.plus(LEAVING_AFTER);
        }
        let in_flight = node.in_flight();
        // It was begun after the key was charged with what another one has used up, if ever it was.
        let has_said_all = turn.sequence == node.sequence;
        // A limit was lowered during this turn: nothing that it grants is spent.
        let is_lower = |bucket: &Bucket| capacity(&node.tier, *bucket).0 < turn.asks[*bucket as usize].capacity;
        let is_lowered = Bucket::ALL.iter().any(is_lower);
        for (bucket, grant) in Bucket::ALL.into_iter().zip(&answer.buckets) {
            let (at, lease, ask) = (bucket as usize, self.lease(bucket), &turn.asks[bucket as usize]);
            // 5 % off, since the two clocks need not run at the same speed.
            let left = Duration::from_micros(grant.left_us) * 19 / 20;
            let deadline = if is_lowered { Tick(0) } else { turn.sent.plus(left) };
            let held_by_others = grant.held_by_all.saturating_sub(u64::from(grant.held));
            if bucket == Bucket::InFlight {
                lease.set_slots(grant.held, Some(deadline));
                // The lease is to be renewed, and requests may have ended.
                if ask.capacity > 0 && in_flight > 0 || grant.held > 0 {
                    dues[0] = Some(turn.sent.plus(IDLE_AFTER.min(deadline.since(turn.sent) / 3)));
                }
                // What lacks a slot while some are free came during this turn, and asks again.
                let is_denied = in_flight > grant.held && (1..=grant.held_by_all).contains(&ask.capacity);
                lease.deny_until(if is_denied { now.plus(DENIED_AT_LEAST) } else { Tick(0) });
                continue;
            }
            if lease.set(grant.held, deadline) > 0 {
                dues[1] = Some(now.plus(self.idle_after()));
            }
            if bucket == Bucket::Daily {
                // Nothing of a day comes back before its end.
                let to_midnight = Duration::from_micros((DAY_US - answer.now_us.rem_euclid(DAY_US)).unsigned_abs());
                if has_said_all {
                    self.day_told.set(answer.now_us.div_euclid(DAY_US), grant.level, held_by_others, now);
                }
                lease.set_full_at(now.plus(to_midnight));
            } else {
                let (capacity, period_ns) = (ask.capacity, ask.period_ns);
                let known = Known { level: grant.level, at_us: answer.now_us, at: now, capacity, period_ns };
                // Of a bucket that is not limited, what was known under its last limit counts if it is limited again.
                if capacity > 0 {
                    node.known[at] = if has_said_all { known } else { known.max(node.known[at], now) };
                }
                let level = u64::try_from(grant.level).unwrap_or(0);
                // Others may hold more tokens of a larger limit from before than there are now.
                let owed = level.saturating_add(held_by_others.saturating_mul(period_ns));
                let owed = owed.min(level.max(capacity.saturating_mul(period_ns)));
                lease.set_full_at(now.plus(Duration::from_nanos(owed)));
            }
            let wait = exhausted_for(bucket, ask, grant, held_by_others).filter(|_| ask.capacity > 0);
            lease.deny_until(wait.map_or(Tick(0), |wait| now.plus(wait)));
        }
        // From now on a spend plans the turn that reports it; those during this turn are to be reported as well.
        self.low.store(u32::MAX, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let report = self.has_spent().then(|| now.plus(REPORT_AFTER));
        node.due = dues.into_iter().chain([report]).flatten().min();
        // Requests may have ended during this turn.
        let gives_place_back = self.is_leaving() && self.has_free_place(&node, now);
        let is_told = has_said_all && (turn.is_proven || !node.is_proven());
        if is_lowered || gives_place_back || !is_told || node.resets_day.is_some() || self.owed.iter().any(Owed::is_any)
        {
            return node.queue(); // this turn was begun before that, or before Redis was away
        }
        node.due.map_or(NextTurn::AsBefore, NextTurn::At)
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

/// For how long nothing is free, if nothing is.
fn exhausted_for(bucket: Bucket, ask: &Ask, grant: &Grant, held_by_others: u64) -> Option<Duration> {
    let level = u64::try_from(grant.level).unwrap_or(0);
    let unheld = ask.capacity.saturating_sub(grant.held_by_all);
    let wait = match bucket {
        Bucket::Daily if level >= ask.capacity => DENIED_AT_MOST,
        Bucket::Daily => return (unheld <= level).then_some(DENIED_AT_LEAST),
        Bucket::Main | Bucket::Write | Bucket::Candidate | Bucket::InFlight => {
            // One request more is free once the level has fallen to this.
            let wanted = u64::saturating_mul(unheld.saturating_sub(1), ask.period_ns);
            let wait = level.saturating_sub(wanted);
            if unheld > 0 && wait == 0 {
                return None;
            }
            Duration::from_nanos(wait)
        }
    };
    let most = if held_by_others > 0 { DENIED_WHILE_HELD } else { DENIED_AT_MOST };
    Some(wait.clamp(DENIED_AT_LEAST, most))
}

#[cfg(test)]
pub(super) mod tests;
