//! What one key has used up of its limits, and the decision on one request (contract section 3 `[limits]`). A budget
//! belongs to a key's id, whatever its secrets are, and outlives every reload. Time is an argument.

use std::array;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use super::day::{DayUse, until_midnight};
use super::rate::{Level, Limiter, RateUse};
use super::{Activity, DayCount, Policy, Question};
use crate::clock::Tick;
use crate::config::{Rate, Tier};
use crate::model::{Limit, PerRate};
use crate::wire::Operation;

/// The wait of a request over `in_flight`: the shortest that `Retry-After` can express.
const IN_FLIGHT_WAIT: Duration = Duration::from_secs(1);

/// The budget of one key.
#[derive(Debug, Default)]
pub struct Budget {
    /// Held for one decision: either all of a request's limits are charged, or none is.
    used: Mutex<Used>,
    in_flight: AtomicU32,
    last: AtomicU64,
    pub activity: Activity,
    /// What is asked of Redis about this key: about reads, and about writes.
    pub questions: [Question; 2],
    /// The day was given back, which Redis is to be told.
    pub resets_day: AtomicBool,
}

#[derive(Debug, Default)]
struct Used {
    rates: PerRate<RateUse>,
    candidate: RateUse,
    /// By how many nodes the rates are divided; 0 before the first request.
    nodes: u32,
    day: DayUse,
    /// What Redis said last, while it decides.
    told: Option<Told>,
}

/// What Redis said of the requests of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    pub admitted: bool,
    pub at: Tick,
    /// The time by Redis's clock, in Unix seconds.
    pub unix: i64,
    /// How long it takes until everything has come back of each rate.
    pub owed: PerRate<Duration>,
    pub day: DayCount,
}

impl Told {
    /// The limit that is used up where such a request is refused, and the time until none is.
    pub fn over(&self, tier: &Tier, is_write: bool) -> (Limit, Duration) {
        if tier.daily.is_some_and(|max| self.day.count >= max) {
            return (Limit::Daily, until_midnight(self.unix));
        }
        let counting =
            Limit::RATES.into_iter().zip(tier.rates()).zip(self.owed).filter(|((l, _), _)| l.counts(is_write));
        let levels = counting.filter_map(|((limit, rate), owed)| Some((limit, Level::of(rate?, owed))));
        let used_up = levels.filter(|(_, level)| level.remaining == 0);
        used_up.fold((Limit::Rate, Duration::ZERO), |(_, wait), (limit, level)| (limit, wait.max(level.next)))
    }
}

/// Who decides on the rates and the day of a request.
#[derive(Clone, Copy, Debug)]
pub struct DecidedBy {
    /// By how many nodes the limits are divided that this process keeps: it may have to decide without Redis.
    pub nodes: u32,
    /// What Redis said of the request; `None`: this process decides.
    pub told: Option<Told>,
}

/// What the limits need to know of one request.
#[derive(Clone, Copy, Debug)]
pub struct LimitQuery {
    pub operation: Operation,
    /// Requests of the key that are under way already.
    pub in_flight: u32,
    pub now: Tick,
}

impl LimitQuery {
    /// Whether the request is one too many at the same time, which each node decides by itself.
    pub fn is_over_in_flight(&self, tier: &Tier) -> bool {
        tier.in_flight.is_some_and(|max| self.in_flight >= max)
    }
}

/// The outcome for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOutcome {
    /// The limit that it is over, and the time until it would be admitted if no other request comes first.
    pub over: Option<(Limit, Duration)>,
    /// Whether it is over the tier's candidate limit, which refuses nothing.
    pub over_candidate: bool,
    /// Requests counted on the UTC day before it; 0 if the tier has no `daily`.
    pub used_today: u64,
    pub levels: BucketLevels,
}

/// What a key has left after one request, for the `RateLimit` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLevels {
    /// `None`: the tier has no such rate, or it does not count this request.
    pub(super) rates: PerRate<Option<Level>>,
    pub(super) daily: Option<Level>,
}

/// How much of its limits a key has left at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLevels {
    /// `None`: the tier has no such rate.
    pub rates: PerRate<Option<(Level, Rate)>>,
    /// Requests counted on this UTC day, and how many there may be; `None`: the tier has no `daily`.
    pub daily: Option<(u64, u64)>,
    /// Requests in flight, and how many there may be, if the tier has `in_flight`.
    pub in_flight: (u32, Option<u32>),
}

impl DecidedBy {
    /// This process alone, by the whole limits.
    pub const ALONE: DecidedBy = DecidedBy { nodes: 1, told: None };
}

impl Used {
    /// The part of a rate that is kept here, which lets at least one request in.
    fn part_of(&self, rate: Rate) -> Rate {
        let nodes = self.nodes.max(1);
        if nodes == 1 {
            return rate;
        }
        let burst = NonZeroU32::new(rate.burst.get() / nodes).unwrap_or(NonZeroU32::MIN);
        Rate { period_ns: rate.period_ns.saturating_mul(nodes.into()), burst }
    }

    /// Puts the limits of a tier in force.
    fn adopt(&mut self, tier: &Tier, now: Tick) {
        for (n, rate) in tier.rates().into_iter().enumerate() {
            let part = rate.map(|rate| self.part_of(rate));
            part.inspect(|part| self.rates[n].adopt(*part, now));
        }
        tier.candidate.inspect(|rate| self.candidate.adopt(*rate, now));
    }

    /// What is left of each rate of the tier that counts such requests.
    fn levels(&self, tier: &Tier, is_write: bool, now: Tick) -> PerRate<Option<Level>> {
        let (rates, mut levels) = (tier.rates(), PerRate::default());
        for (n, limit) in Limit::RATES.into_iter().enumerate() {
            let Some(rate) = rates[n].filter(|_| limit.counts(is_write)) else { continue };
            levels[n] = Some(match self.told {
                Some(told) => Level::of(rate, told.owed[n].saturating_sub(now.since(told.at))),
                None => self.rates[n].level(self.part_of(rate), now),
            });
        }
        levels
    }

    /// Charges the rates and the day here, all or none: the limit that is used up.
    fn charge(&mut self, policy: &Policy, is_write: bool, day: Option<(u64, i64)>, now: Tick) -> Option<Limit> {
        if day.is_some_and(|(max, unix)| self.day.used(unix) >= max) {
            return Some(Limit::Daily);
        }
        let before = self.rates;
        for (n, limit) in Limit::RATES.into_iter().enumerate().rev().filter(|(_, limit)| limit.counts(is_write)) {
            let Some(limiter) = &policy.rates[n] else { continue };
            let is_within = match self.part_of(limiter.rate) {
                part if part == limiter.rate => self.rates[n].charge(limiter, now),
                part => self.rates[n].charge(&Limiter::new(part), now),
            };
            if !is_within {
                self.rates = before;
                return Some(limit);
            }
        }
        day.inspect(|(_, unix)| self.day.count(*unix));
        None
    }

    /// Takes up what Redis said: the limit that is used up. What it admitted is charged here as well.
    fn follow(&mut self, told: Told, tier: &Tier, is_write: bool, now: Tick) -> Option<Limit> {
        if tier.daily.is_some() {
            self.day.learn(told.day, told.admitted);
        }
        if !told.admitted {
            return Some(told.over(tier, is_write).0);
        }
        for (n, rate) in tier.rates().iter().enumerate() {
            if rate.is_some() && Limit::RATES[n].counts(is_write) {
                self.rates[n].spend(now);
            }
        }
        None
    }
}

impl Budget {
    /// The budget of a key whose count of the day is in the store.
    pub fn with_day(count: DayCount) -> Self {
        Budget { used: Mutex::new(Used { day: DayUse::from_store(count), ..Used::default() }), ..Budget::default() }
    }

    /// Decides one request and, if it is within its limits, charges it. The order is that of the contract (section 3):
    /// `in_flight`, `daily`, the write rate, the candidate (which refuses nothing, and counts whatever the main rate then
    /// decides), the main rate. A request that is refused charges nothing. The wall clock is read only if the tier has
    /// `daily`.
    pub fn decide(
        &self,
        policy: &Policy,
        query: LimitQuery,
        by: DecidedBy,
        unix: impl FnOnce() -> i64,
    ) -> LimitOutcome {
        let LimitQuery { operation, now, .. } = query;
        let (tier, is_write) = (&**policy.tier(), operation.is_write());
        let day = tier.daily.map(|max| (max, by.told.map_or_else(unix, |told| told.unix)));
        let mut used = self.used.lock();
        used.nodes = by.nodes;
        used.adopt(tier, now);
        let over = match by.told {
            _ if query.is_over_in_flight(tier) => Some(Limit::InFlight),
            told => {
                used.told = told;
                match told {
                    Some(told) => used.follow(told, tier, is_write, now),
                    None => used.charge(policy, is_write, day, now),
                }
            }
        };
        let used_now = day.map_or(0, |(_, unix)| used.day.used(unix));
        let counts_candidate = matches!(over, None | Some(Limit::Rate));
        let candidate = policy.candidate.as_ref().filter(|_| counts_candidate);
        let over_candidate = candidate.is_some_and(|limiter| !used.candidate.charge(limiter, now));
        let daily =
            day.map(|(max, unix)| Level { remaining: max.saturating_sub(used_now), next: until_midnight(unix) });
        let levels = BucketLevels { rates: used.levels(tier, is_write, now), daily };
        let wait = if over == Some(Limit::InFlight) { IN_FLIGHT_WAIT } else { Duration::ZERO };
        let over = over.map(|limit| (limit, wait.max(levels.wait())));
        policy.over_limit().count(over.map(|(limit, _)| limit), over_candidate);
        LimitOutcome { over, over_candidate, used_today: used_now.saturating_sub(over.is_none().into()), levels }
    }

    /// Puts a tier in force at a reload, if any request came before.
    pub fn change_tier(&self, tier: &Tier, now: Tick) {
        let mut used = self.used.lock();
        if used.rates[0].was_used() {
            used.adopt(tier, now);
        }
    }

    /// What the key has left. Nothing is charged.
    pub fn levels(&self, policy: &Policy, now: Tick, unix: i64) -> KeyLevels {
        let (tier, used) = (&**policy.tier(), self.used.lock());
        let (levels, rates) = (used.levels(tier, true, now), tier.rates());
        let unix = used.told.map_or(unix, |told| told.unix);
        let daily = tier.daily.map(|max| (used.day.used(unix), max));
        let rates = array::from_fn(|n| levels[n].zip(rates[n]));
        KeyLevels { rates, daily, in_flight: (self.in_flight(), tier.in_flight) }
    }

    /// What was counted of the day. No request is decided meanwhile.
    pub fn day(&self) -> MappedMutexGuard<'_, DayUse> {
        MutexGuard::map(self.used.lock(), |used| &mut used.day)
    }

    /// Counts a request as in flight until [`Budget::end`]. Returns the number of others in flight.
    pub fn begin(&self) -> u32 {
        self.in_flight.fetch_add(1, Ordering::AcqRel)
    }

    /// The number of requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Ends a request in flight.
    pub fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether nothing need be remembered: no request is in flight or was counted on the day of `unix`, and everything has
    /// come back.
    pub fn is_idle(&self, now: Tick, unix: i64) -> bool {
        let used = self.used.lock();
        let is_full = used.rates.iter().chain([&used.candidate]).all(|rate| rate.is_full(now));
        is_full && self.in_flight() == 0 && used.day.used(unix) == 0
    }

    /// Records a use at `now`. 0 means no use, so a use at tick 0 is stored as tick 1.
    pub fn touch(&self, now: Tick) {
        self.last.store(now.0.max(1), Ordering::Relaxed);
    }

    /// When the key was last used; `None` if it was not used since the last call.
    pub fn take_last_use(&self) -> Option<Tick> {
        Some(self.last.swap(0, Ordering::Relaxed)).filter(|last| *last != 0).map(Tick)
    }
}
