//! What a node takes from the answer to a turn: the tokens that it holds from now on, for how long nothing is free where
//! nothing is, what it knows of the levels, and when the next turn is due.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::leaving::LEAVING_AFTER;
use super::turn::{Answer, Ask, Grant, Turn, capacity};
use super::{BUCKETS, Bucket, Escrow, IDLE_AFTER, Known, NextTurn, NodeSide, Owed, REPORT_AFTER};
use crate::clock::Tick;

/// For how long at least "nothing is free" is remembered.
const DENIED_AT_LEAST: Duration = Duration::from_millis(50);

/// For how long at most, if other nodes hold tokens, which they may give back.
const DENIED_WHILE_HELD: Duration = Duration::from_millis(100);

/// For how long at most in any case: a limit may be raised, or a day given back.
const DENIED_AT_MOST: Duration = Duration::from_secs(1);

/// Microseconds of a UTC day.
const DAY_US: i64 = 86_400_000_000;

/// What holds for all buckets of an answer.
struct Finish {
    sent: Tick,
    now: Tick,
    /// Redis's time, in microseconds.
    now_us: i64,
    /// The turn was begun after the key was charged with what another one has used up, if ever it was.
    has_said_all: bool,
    /// A limit was lowered during this turn: nothing that it grants is spent.
    is_lowered: bool,
}

impl Finish {
    fn deadline(&self, grant: &Grant) -> Tick {
        // 5 % off, since the two clocks need not run at the same speed.
        let left = Duration::from_micros(grant.left_us) * 19 / 20;
        if self.is_lowered { Tick(0) } else { self.sent.plus(left) }
    }
}

impl Escrow {
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
        if self.is_leaving() {
            node.fresh_until = now.plus(LEAVING_AFTER);
        }
        let is_lower = |bucket: &Bucket| capacity(&node.tier, *bucket).0 < turn.asks[*bucket as usize].capacity;
        let is_lowered = Bucket::ALL.iter().any(is_lower);
        let has_said_all = turn.sequence == node.sequence;
        let finish = Finish { sent: turn.sent, now, now_us: answer.now_us, has_said_all, is_lowered };
        let mut due = None;
        for (bucket, grant) in Bucket::ALL.into_iter().zip(&answer.buckets) {
            let ask = &turn.asks[bucket as usize];
            let next = match bucket {
                Bucket::InFlight => self.take_places(&node, ask, grant, &finish),
                _ => self.take_tokens(&mut node, bucket, (ask, grant), &finish),
            };
            due = due.into_iter().chain(next).min();
        }
        // From now on a spend plans the turn that reports it; those during this turn are to be reported as well.
        self.low.store(u32::MAX, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let report = self.has_spent().then(|| now.plus(REPORT_AFTER));
        node.due = due.into_iter().chain(report).min();
        // Requests may have ended during this turn.
        let gives_place_back = self.is_leaving() && self.has_free_place(&node, now);
        let is_told = has_said_all && (turn.is_proven || !node.is_proven());
        if is_lowered || gives_place_back || !is_told || node.resets_day.is_some() || self.owed.iter().any(Owed::is_any)
        {
            return node.queue(); // this turn was begun before that, or before Redis was away
        }
        node.due.map_or(NextTurn::AsBefore, NextTurn::At)
    }

    /// Takes places of requests in flight, and says when the next turn is due for them.
    fn take_places(&self, node: &NodeSide, ask: &Ask, grant: &Grant, finish: &Finish) -> Option<Tick> {
        let (lease, in_flight, deadline) = (self.lease(Bucket::InFlight), node.in_flight(), finish.deadline(grant));
        lease.set_slots(grant.held, Some(deadline));
        // What lacks a slot while some are free came during this turn, and asks again.
        let is_denied = in_flight > grant.held && (1..=grant.held_by_all).contains(&ask.capacity);
        lease.deny_until(if is_denied { finish.now.plus(DENIED_AT_LEAST) } else { Tick(0) });
        // Requests that began under another id, or under no limit, need places that others may still hold under this one, and are
        // to get them before new ones do. The limit may be newer than this turn.
        let most = capacity(&node.tier, Bucket::InFlight).0;
        if u64::from(in_flight).min(most) > u64::from(grant.held) {
            return Some(finish.now.plus(DENIED_AT_LEAST));
        }
        // The lease is to be renewed, and requests may have ended.
        let renews = ask.capacity > 0 && in_flight > 0 || grant.held > 0;
        renews.then(|| finish.sent.plus(IDLE_AFTER.min(deadline.since(finish.sent) / 3)))
    }

    /// Takes tokens of a rate or a day, and says when they are to be given back if no request comes.
    fn take_tokens(
        &self,
        node: &mut NodeSide,
        bucket: Bucket,
        (ask, grant): (&Ask, &Grant),
        finish: &Finish,
    ) -> Option<Tick> {
        let (at, lease, &Finish { now, now_us, has_said_all, .. }) = (bucket as usize, self.lease(bucket), finish);
        let held_by_others = grant.held_by_all.saturating_sub(u64::from(grant.held));
        let holds_any = lease.set(grant.held, finish.deadline(grant)) > 0;
        if bucket == Bucket::Daily {
            // Nothing of a day comes back before its end.
            let to_midnight = Duration::from_micros((DAY_US - now_us.rem_euclid(DAY_US)).unsigned_abs());
            if has_said_all {
                self.day_told.set(now_us.div_euclid(DAY_US), grant.level, held_by_others, now);
            }
            lease.set_full_at(now.plus(to_midnight));
        } else {
            let &Ask { capacity, period_ns, .. } = ask;
            let known = Known { level: grant.level, at_us: now_us, at: now, capacity, period_ns };
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
        holds_any.then(|| now.plus(self.idle_after()))
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
