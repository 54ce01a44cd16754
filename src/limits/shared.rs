//! The decision on one request where several nodes share the limits (`[cluster]`): the same order as `policy`, with the
//! tokens that this node holds in place of its own buckets. A request for which it holds none waits for a turn; while
//! Redis is away, this node's own buckets decide by `when_away`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::bucket::Level;
use super::buckets::Successor;
use super::day::until_midnight;
use super::policy::{BucketLevels, IN_FLIGHT_WAIT};
use super::{Bucket, Buckets, KeyLevels, LimitOutcome, LimitQuery, Policy, Usage, Verdict};
use crate::clock::Tick;
use crate::cluster::escrow;
use crate::cluster::{KeyEscrow, Needs, SharedLimits};
use crate::config::{Rate, WhenAway};
use crate::model::Limit;

/// The wait that a caller is told whose limit cannot be divided by the nodes while Redis is away.
const UNDIVIDED_WAIT: Duration = Duration::from_secs(1);

/// The wait that a caller is told where other nodes hold the rest of the day.
const HELD_WAIT: Duration = Duration::from_secs(1);

/// The decision on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedDecision {
    Decided(LimitOutcome),
    /// This node holds no token for it. Nothing was charged.
    Waits(Needs),
    /// Redis is away, and `when_away` is "refuse".
    Unavailable,
}

/// Why a bucket gave no decision.
enum NotDecided {
    Waits,
    Unavailable,
    /// Other buckets have replaced the local one.
    Replaced,
}

/// One request, while it is decided.
struct Asking<'a> {
    shared: &'a SharedLimits,
    key: &'a Arc<KeyEscrow>,
    policy: &'a Policy,
    /// Since when the key has these limits.
    since: Tick,
    now: Tick,
    may_wait: bool,
}

impl Policy {
    /// As [`Policy::decide`], with the tokens that this node holds of the shared limits. `may_wait`: the request has time
    /// left to wait for a turn.
    pub fn decide_shared(
        &self,
        (shared, key): (&SharedLimits, &Arc<KeyEscrow>),
        (buckets, usage): (&Buckets, &Usage),
        query: LimitQuery,
        may_wait: bool,
    ) -> SharedDecision {
        let may_wait = may_wait && !shared.is_away();
        let mut current: Option<Successor> = None;
        loop {
            let (policy, buckets) = match &current {
                Some((policy, buckets)) => (&**policy, &**buckets),
                None => (self, buckets),
            };
            let since = buckets.since.max(policy.since);
            let asking = Asking { shared, key, policy, since, now: query.now, may_wait };
            match asking.decide(buckets, usage, query) {
                Ok(decided) => return decided,
                Err(NotDecided::Unavailable) => return SharedDecision::Unavailable,
                // A token that was there has been spent by another request.
                Err(NotDecided::Waits) => return SharedDecision::Waits(asking.missing(query)),
                Err(NotDecided::Replaced) => current = buckets.successor(),
            }
        }
    }
}

impl Policy {
    /// As [`Policy::levels`], as far as this node knows the shared limits.
    pub fn levels_shared(
        &self,
        (shared, key): (&SharedLimits, &Arc<KeyEscrow>),
        (buckets, usage): (&Buckets, &Usage),
        now: Tick,
    ) -> KeyLevels {
        let asking = Asking { shared, key, policy: self, since: buckets.since.max(self.since), now, may_wait: false };
        let tier = self.tier();
        let levels = self.levels(buckets, usage, now, shared.redis_clock.unix(now));
        let counted = key.escrow.day_told(now).0;
        KeyLevels {
            daily: levels.daily.map(|(own, max)| (own.max(counted), max)),
            main: asking.level(escrow::Bucket::Main, &buckets.main, tier.main),
            write: tier.write.map(|rate| asking.level(escrow::Bucket::Write, &buckets.write, rate)),
            ..levels
        }
    }
}

impl Asking<'_> {
    fn lease(&self, bucket: escrow::Bucket) -> &escrow::Lease {
        self.key.escrow.lease(bucket)
    }

    /// The buckets of which this node holds nothing, in the order of the decision, up to the first one of which it knows
    /// that nothing is free: that one refuses the request.
    fn missing(&self, query: LimitQuery) -> Needs {
        use escrow::Bucket::{Candidate, Daily, InFlight, Main, Write};
        let tier = self.policy.tier();
        let mut needs = Needs::default();
        let limited = [
            (InFlight, tier.in_flight.is_some(), query.in_flight),
            (Daily, tier.daily.is_some(), 0),
            (Write, tier.write.is_some() && query.operation.is_write(), 0),
            (Main, true, 0),
            (Candidate, tier.candidate.is_some(), 0),
        ];
        let lacks = |&(bucket, is_limited, others): &(_, bool, u32)| {
            is_limited && self.lease(bucket).tokens(self.now) <= others
        };
        let is_free = |&(bucket, ..): &(_, _, _)| !self.lease(bucket).is_denied(self.now);
        for (bucket, ..) in limited.into_iter().filter(lacks).take_while(is_free) {
            // No request waits for the candidate, which refuses nothing.
            if bucket != Candidate || !needs.is_empty() {
                needs.add(bucket);
            }
        }
        needs
    }

    fn decide(&self, buckets: &Buckets, usage: &Usage, query: LimitQuery) -> Result<SharedDecision, NotDecided> {
        let LimitQuery { operation, in_flight, now } = query;
        // A request that has waited for Redis may have other limits by now, and places of the key are set aside by those.
        if !self.key.escrow.use_tier_unless(|| buckets.are_replaced(), self.policy.tier(), self.since) {
            return Err(NotDecided::Replaced);
        }
        let tier = &**self.policy.tier();
        let write = tier.write.filter(|_| operation.is_write());
        let day = tier.daily.map(|max| (max, self.shared.redis_clock.unix(now)));
        let used_today = day.map_or(0, |(_, unix)| usage.day.used(unix));
        if tier.in_flight.is_some() {
            fence(Ordering::SeqCst); // with `Escrow::begin_turn`: one of the two sees the other
        }
        if self.may_wait {
            let missing = self.missing(query);
            if !missing.is_empty() {
                return Ok(SharedDecision::Waits(missing));
            }
        }
        let mut over_candidate = false;
        let over = 'over: {
            if let Some(max) = tier.in_flight
                && !self.has_slot(max, in_flight)?
            {
                break 'over Some((Limit::InFlight, IN_FLIGHT_WAIT));
            }
            let daily = escrow::Bucket::Daily;
            if let Some((max, _)) = day
                && self.lease(daily).tokens(now) == 0
                && (self.lease(daily).is_denied(now) || used_today >= max)
            {
                break 'over Some((Limit::Daily, HELD_WAIT));
            }
            if let Some(rate) = write
                && let Some(wait) = self.spend(escrow::Bucket::Write, &buckets.write, rate)?
            {
                break 'over Some((Limit::WriteRate, wait));
            }
            if let Some(rate) = tier.candidate {
                over_candidate = self.is_over_candidate(&buckets.candidate, rate);
            }
            let main = self.spend(escrow::Bucket::Main, &buckets.main, tier.main);
            if matches!(main, Err(NotDecided::Waits | NotDecided::Unavailable)) {
                self.give_back(write.is_some(), tier.candidate.is_some() && !over_candidate);
            }
            if let Some(wait) = main? {
                break 'over Some((Limit::Rate, wait));
            }
            let counted = day.map_or(Ok(true), |(max, unix)| self.count_day(usage, max, unix));
            if counted.is_err() {
                self.give_back(write.is_some(), tier.candidate.is_some() && !over_candidate);
                self.key.escrow.unspend(escrow::Bucket::Main);
            }
            let is_full = !counted?;
            is_full.then_some((Limit::Daily, HELD_WAIT))
        };
        let levels = BucketLevels {
            main: self.level(escrow::Bucket::Main, &buckets.main, tier.main),
            write: write.map(|rate| self.level(escrow::Bucket::Write, &buckets.write, rate)),
            daily: day.map(|(max, unix)| self.day_level(max, usage.day.used(unix), unix)),
        };
        Ok(SharedDecision::Decided(self.policy.outcome(over, over_candidate, used_today, levels)))
    }

    /// Spends a token: the wait if there is none.
    fn spend(&self, bucket: escrow::Bucket, local: &Bucket, rate: Rate) -> Result<Option<Duration>, NotDecided> {
        let lease = self.lease(bucket);
        if let Some(next) = self.key.escrow.spend(bucket, self.now) {
            self.key.follow(next);
            return Ok(None);
        }
        if lease.is_denied(self.now) {
            return Ok(Some(lease.denied_until().since(self.now)));
        }
        if self.may_wait {
            return Err(NotDecided::Waits);
        }
        let Some(share) = self.local_while_away(local, rate)? else { return Ok(Some(UNDIVIDED_WAIT)) };
        match local.decide(share, self.now) {
            Verdict::Admitted => {
                self.shared.count_decided_away();
                self.key.escrow.owe(bucket, local.full_at(), share, rate);
                self.shared.stall(self.key);
                Ok(None)
            }
            Verdict::Refused { wait } => {
                self.shared.count_decided_away();
                Ok(Some(wait))
            }
            Verdict::Replaced => Err(NotDecided::Replaced),
        }
    }

    /// The rate of this node's own bucket while Redis is away, in which a share is empty at first, and when a reload changed
    /// the rate before any request; `None`: the burst cannot be divided.
    fn local_while_away(&self, local: &Bucket, rate: Rate) -> Result<Option<Rate>, NotDecided> {
        match self.shared.when_away() {
            WhenAway::Refuse => Err(NotDecided::Unavailable),
            WhenAway::Local => Ok(Some(rate)),
            WhenAway::Share => {
                let nodes = self.shared.nodes();
                let share = NonZeroU32::new(rate.burst.get() / nodes)
                    .map(|burst| Rate { period_ns: rate.period_ns.saturating_mul(u64::from(nodes)), burst });
                if let Some(share) = share {
                    local.empty_at(share, self.since.max(self.shared.failing_since(self.now)));
                }
                Ok(share)
            }
        }
    }

    /// Whether a request with so many others in flight is within what this node holds.
    fn has_slot(&self, max: u32, others: u32) -> Result<bool, NotDecided> {
        let lease = self.lease(escrow::Bucket::InFlight);
        let part = max / self.shared.nodes();
        // The others take their parts by now, also of what this node holds beyond its own.
        let gives_up_rest = self.shared.is_away() && self.shared.when_away() == WhenAway::Share;
        let held = lease.tokens(self.now);
        if others < if gives_up_rest { held.min(part) } else { held } {
            return Ok(true);
        }
        if lease.is_denied(self.now) {
            return Ok(false);
        }
        if self.may_wait {
            return Err(NotDecided::Waits);
        }
        match self.shared.when_away() {
            WhenAway::Refuse => Err(NotDecided::Unavailable),
            WhenAway::Local => Ok(others < max),
            WhenAway::Share => Ok(others < part),
        }
    }

    /// Counts a request of the day, whatever else becomes of it. While Redis is away, the day is counted through the
    /// store, as without a cluster.
    fn count_day(&self, usage: &Usage, max: u64, unix: i64) -> Result<bool, NotDecided> {
        let daily = escrow::Bucket::Daily;
        if let Some(next) = self.key.escrow.spend(daily, self.now) {
            self.key.follow(next);
            usage.day.admit(u64::MAX, unix);
            return Ok(true);
        }
        if self.lease(daily).is_denied(self.now) {
            return Ok(false);
        }
        if self.may_wait {
            return Err(NotDecided::Waits);
        }
        if self.shared.when_away() == WhenAway::Refuse {
            return Err(NotDecided::Unavailable);
        }
        let is_counted = usage.day.admit(max, unix);
        if is_counted {
            self.key.escrow.owe_day();
            self.shared.stall(self.key);
        }
        Ok(is_counted)
    }

    /// The candidate refuses nothing, so no request waits for it: without a lease, the next one is counted by it.
    fn is_over_candidate(&self, local: &Bucket, rate: Rate) -> bool {
        let bucket = escrow::Bucket::Candidate;
        if let Some(next) = self.key.escrow.spend(bucket, self.now) {
            self.key.follow(next);
            return false;
        }
        if self.lease(bucket).is_denied(self.now) {
            return true;
        }
        if self.may_wait {
            let mut needs = Needs::default();
            needs.add(bucket);
            self.shared.ask(self.key, needs);
            return false;
        }
        matches!(local.decide(rate, self.now), Verdict::Refused { .. })
    }

    fn give_back(&self, write: bool, candidate: bool) {
        if write {
            self.key.escrow.unspend(escrow::Bucket::Write);
        }
        if candidate {
            self.key.escrow.unspend(escrow::Bucket::Candidate);
        }
    }

    /// What is left of a day of which this node has counted so many itself.
    fn day_level(&self, max: u64, own: u64, unix: i64) -> Level {
        let (counted, held_by_others) = self.key.escrow.day_told(self.now);
        let left = max.saturating_sub(counted.max(own));
        let held = u64::from(self.lease(escrow::Bucket::Daily).tokens(self.now));
        let remaining = left.saturating_sub(held_by_others).max(held);
        // The others may give back what they hold.
        let next = if remaining == 0 && left > 0 { HELD_WAIT } else { until_midnight(unix) };
        Level { remaining, next }
    }

    /// What is left of a bucket, as far as this node knows.
    fn level(&self, bucket: escrow::Bucket, local: &Bucket, rate: Rate) -> Level {
        if self.shared.is_away() {
            return match self.local_while_away(local, rate) {
                Ok(Some(rate)) => local.level(rate, self.now),
                Ok(None) => Level { remaining: 0, next: UNDIVIDED_WAIT },
                Err(_) => local.level(rate, self.now),
            };
        }
        let lease = self.lease(bucket);
        let owed = lease.full_at(rate.period_ns).since(self.now);
        let level = Level::of(rate, owed);
        Level { remaining: level.remaining.max(u64::from(lease.tokens(self.now))), ..level }
    }
}
