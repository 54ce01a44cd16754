//! What a node tells Redis in a turn, and what it asks for: tokens for the requests that wait, and for those of the near
//! future as far as the last ones show.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::turn::{Ask, Turn, capacity};
use super::{Bucket, Escrow, MAX_TOKENS, NodeSide};
use crate::clock::{Tick, nanos};

/// For how long what a key needed counts, in seconds.
const DEMAND_SECONDS: f64 = 0.5;

/// What a node that gives a day back tells as the known level of that day.
pub(super) const RESET: i64 = -1;

/// What holds for all buckets of a turn.
struct Begin {
    now: Tick,
    in_flight: u32,
    /// The day, and the requests of it that are known to have been counted.
    day: (i64, u64),
    /// What is left of the demand of before.
    faded: f64,
    /// The last request came long ago.
    is_idle: bool,
    /// The requests for which tokens of all buckets are kept.
    waiting: u32,
}

/// The tokens of a bucket that a turn reports, keeps and asks for.
struct Tokens {
    spent: u32,
    keep: u32,
    need: u32,
    want: u32,
}

impl Escrow {
    /// The turn to take at `now`: the one that is unanswered, again, or a new one. `planned_for`: the time of
    /// [`NextTurn::At`](super::NextTurn::At); `None`: it was to be taken at once.
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
        node.sequence += 1;
        let begin = Begin {
            now,
            in_flight: node.in_flight(),
            day: node.day(now),
            faded: (-(now.since(node.demand_at).as_secs_f64()) / DEMAND_SECONDS).exp(),
            is_idle: node.has_ended || self.lease(Bucket::Main).newest_age_ns(now) >= nanos(self.idle_after()),
            waiting: self.waiting(&node),
        };
        node.demand_at = now;
        let asks = Bucket::ALL.map(|bucket| self.ask(&mut node, bucket, &begin));
        node.resets_day = None;
        let turn = Arc::new(Turn { sequence: node.sequence, sent: now, asks, is_proven: node.is_proven() });
        node.unanswered = Some(turn.clone());
        Some(turn)
    }

    fn ask(&self, node: &mut NodeSide, bucket: Bucket, begin: &Begin) -> Ask {
        let (at, now) = (bucket as usize, begin.now);
        let (capacity, period_ns) = capacity(&node.tier, bucket);
        let most = u32::try_from(capacity).unwrap_or(MAX_TOKENS).min(MAX_TOKENS);
        let Tokens { spent, keep, need, want } = match bucket {
            Bucket::InFlight => self.places(node, if capacity > 0 { most } else { 0 }, begin),
            _ => self.tokens(node, bucket, most, begin),
        };
        let (spent, owed) = (u64::from(spent), self.owed[at].take(now));
        let known = match (bucket, node.resets_day) {
            (Bucket::Daily, Some(reset)) => (RESET, reset),
            (Bucket::Daily, None) => {
                let (day, used) = begin.day;
                let own = used.saturating_sub(spent).saturating_sub(owed);
                (own.max(self.day_told.used_up(day, now)).cast_signed(), day)
            }
            _ => {
                let known = node.known[at].under((capacity, period_ns), now);
                (known.level, known.at_us)
            }
        };
        let age_ns = if owed > 0 { 0 } else { self.lease(bucket).newest_age_ns(now) };
        Ask { capacity, period_ns, spent, owed, age_ns, keep, need, want, known }
    }

    /// The places of requests in flight, of which none is ever spent.
    fn places(&self, node: &mut NodeSide, most: u32, begin: &Begin) -> Tokens {
        let &Begin { now, in_flight, is_idle, .. } = begin;
        let lease = self.lease(Bucket::InFlight);
        node.need[Bucket::InFlight as usize] = 0;
        let held_before = lease.tokens(now);
        // Others may need each place, which is worth a turn for each request of the last ones.
        let in_store = if is_idle || self.is_leaving() { 0 } else { in_flight.max(1) };
        let wanted = in_flight.saturating_add(in_store).min(most);
        lease.set_slots(held_before.min(wanted), None);
        // A request that begins during this call either sees the lower number, or it is seen here.
        fence(Ordering::SeqCst);
        let keep = lease.held().max(node.in_flight().min(held_before));
        lease.set_slots(keep, None);
        let need = in_flight.min(most).saturating_sub(keep);
        Tokens { spent: 0, keep, need, want: wanted.saturating_sub(keep + need) }
    }

    /// The tokens of a rate or a day.
    fn tokens(&self, node: &mut NodeSide, bucket: Bucket, most: u32, begin: &Begin) -> Tokens {
        let (at, lease, now) = (bucket as usize, self.lease(bucket), begin.now);
        let need = std::mem::take(&mut node.need[at]);
        let arrived = lease.spent().saturating_sub(node.counted[at]) + need;
        node.counted[at] = need;
        node.demand[at] = node.demand[at] * begin.faded + f64::from(arrived);
        let wanted = if begin.is_idle { 0 } else { node.wanted(bucket) }.min(most);
        let most_kept = if now < node.fresh_until { MAX_TOKENS } else { wanted.max(begin.waiting) };
        let (spent, keep) = lease.cut(most_kept.min(most), now);
        Tokens { spent, keep, need: need.saturating_sub(keep).min(most), want: wanted.saturating_sub(keep) }
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
}
