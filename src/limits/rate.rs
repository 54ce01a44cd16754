//! One rate (GCRA). governor does the arithmetic: each rate has one limiter, which is made with the policy. What a key has
//! used up of it is an argument, and so is the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::{Quota, RateLimiter};

use crate::clock::{Tick, nanos};
use crate::config::Rate;

/// Decides by one rate. governor's key is its state, as a copy.
#[derive(Debug)]
pub struct Limiter {
    pub(super) rate: Rate,
    governor: RateLimiter<u64, Now, Now, NoOpMiddleware<Nanos>>,
}

/// governor's clock, whose times are all relative to the time of the decision, and its store of states: a key is in how many
/// nanoseconds from now everything has come back that was used up.
#[derive(Clone, Debug)]
struct Now;

/// What was used up of one rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateUse {
    /// When everything has come back (the theoretical arrival time), in ticks.
    full_at: u64,
    /// The rate by which that is so; `None`: nothing was ever asked for.
    rate: Option<Rate>,
    /// The largest burst that was ever in force.
    largest_burst: u32,
}

/// One rate alone, without a lock: when everything has come back, in ticks.
#[derive(Debug, Default)]
pub struct Bucket(AtomicU64);

/// How full a bucket is at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Requests that would be admitted now.
    pub remaining: u64,
    /// The time until `remaining` grows by one; zero if the bucket is full.
    pub next: Duration,
}

impl Level {
    /// The level of a bucket that is full again after `owed`.
    pub fn of(rate: Rate, owed: Duration) -> Self {
        let (period, burst, owed) = (rate.period_ns, u64::from(rate.burst.get()), nanos(owed));
        let remaining = (burst * period).saturating_sub(owed) / period;
        let next = owed.saturating_sub(burst.saturating_sub(remaining + 1) * period);
        Level { remaining: remaining.min(burst), next: Duration::from_nanos(next) }
    }
}

impl Limiter {
    pub fn new(rate: Rate) -> Self {
        // A period of 0 cannot be configured, and governor refuses to make one.
        let quota = Quota::with_period(Duration::from_nanos(rate.period_ns.max(1)));
        let quota = quota.unwrap_or(Quota::per_second(rate.burst)).allow_burst(rate.burst);
        Limiter { rate, governor: RateLimiter::new(quota, Now, Now) }
    }

    /// Charges one request to a bucket that is full again after `owed` nanoseconds, and returns what it owes then; the
    /// error is the time until the request would be admitted.
    pub(super) fn charge(&self, owed: u64) -> Result<u64, Duration> {
        self.governor.check_key(&owed).map_err(|not_until| not_until.wait_time_from(Now.now()))?;
        Ok(owed.saturating_add(self.rate.period_ns))
    }
}

impl Bucket {
    /// Charges one request; the error is the time until the charge would be possible.
    pub fn charge(&self, limiter: &Limiter, now: Tick) -> Result<(), Duration> {
        let mut charged = Ok(());
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
            let owed = limiter.charge(full_at.saturating_sub(now.0));
            charged = owed.map(drop);
            Some(now.0.saturating_add(owed.ok()?))
        });
        charged
    }

    /// Takes one charge back. What has come back meanwhile is not given twice: a bucket never holds more than its burst.
    pub(super) fn refund(&self, limiter: &Limiter) {
        let less = |full_at: u64| Some(full_at.saturating_sub(limiter.rate.period_ns));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less); // it is never refused
    }
}

impl RateUse {
    fn owed(&self, now: Tick) -> u64 {
        self.full_at.saturating_sub(now.0)
    }

    /// Charges one request under the rate that was adopted last, unless that is used up.
    pub(super) fn charge(&mut self, limiter: &Limiter, now: Tick) -> bool {
        let owed = limiter.charge(self.owed(now));
        self.full_at = owed.map_or(self.full_at, |owed| now.0.saturating_add(owed));
        owed.is_ok()
    }

    /// Charges one request that was admitted elsewhere, down to an empty bucket.
    pub(super) fn spend(&mut self, now: Tick) {
        let Some(rate) = self.rate else { return };
        let owed = self.owed(now).saturating_add(rate.period_ns).min(whole(rate));
        self.full_at = now.0.saturating_add(owed);
    }

    /// When everything has come back if this rate is in force from now on. What is available stays available, up to the new
    /// burst (guarantee 6); a rate of which nothing was ever asked for begins full.
    fn full_at(&self, rate: Rate, now: Tick) -> u64 {
        let Some(before) = self.rate.filter(|before| *before != rate) else { return self.full_at };
        let available = u128::from(whole(before).saturating_sub(self.owed(now)));
        let available = available * u128::from(rate.period_ns) / u128::from(before.period_ns.max(1));
        now.0.saturating_add(whole(rate).saturating_sub(u64::try_from(available).unwrap_or(u64::MAX)))
    }

    /// Puts this rate in force.
    pub(super) fn adopt(&mut self, rate: Rate, now: Tick) {
        self.full_at = self.full_at(rate, now);
        self.rate = Some(rate);
        self.largest_burst = self.largest_burst.max(rate.burst.get());
    }

    /// The level by this rate at `now`.
    pub(super) fn level(&self, rate: Rate, now: Tick) -> Level {
        Level::of(rate, Duration::from_nanos(self.full_at(rate, now).saturating_sub(now.0)))
    }

    /// Whether the largest burst that was ever in force has come back, so that it may begin full.
    pub(super) fn is_full(&self, now: Tick) -> bool {
        let Some(rate) = self.rate else { return true };
        let more = u64::from(self.largest_burst - rate.burst.get()).saturating_mul(rate.period_ns);
        self.full_at.saturating_add(more) <= now.0
    }

    /// Whether any request was ever charged or refused.
    pub(super) fn was_used(&self) -> bool {
        self.rate.is_some()
    }
}

/// Nanoseconds in which a whole burst comes back.
fn whole(rate: Rate) -> u64 {
    rate.period_ns.saturating_mul(rate.burst.get().into())
}

impl StateStore for Now {
    type Key = u64;

    fn measure_and_replace<T, F, E>(&self, owed: &u64, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        decide(Some(Nanos::new(*owed))).map(|(outcome, _)| outcome)
    }
}

impl Clock for Now {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::new(0)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn rate(period_ns: u64, burst: u32) -> Rate {
        Rate { period_ns, burst: NonZeroU32::new(burst).unwrap() }
    }

    fn any_rate() -> impl Strategy<Value = Rate> {
        (1u64..2 * SECOND, 1u32..50).prop_map(|(period, burst)| rate(period, burst))
    }

    /// Asks once, under this rate.
    fn ask(used: &mut RateUse, rate: Rate, at: u64) -> Result<(), Duration> {
        used.adopt(rate, Tick(at));
        let is_within = used.charge(&Limiter::new(rate), Tick(at));
        is_within.then_some(()).ok_or_else(|| used.level(rate, Tick(at)).next)
    }

    fn let_in(used: &mut RateUse, rate: Rate, at: u64) -> u64 {
        (0..100).filter(|_| ask(used, rate, at).is_ok()).count() as u64
    }

    #[test]
    fn one_that_was_never_asked_begins_with_the_whole_burst_and_may_be_forgotten_once_its_largest_has_come_back() {
        let (small, large) = (rate(SECOND, 1), rate(SECOND, 40));
        assert_eq!(let_in(&mut RateUse::default(), large, 0), 40);
        let mut used = RateUse::default();
        assert_eq!(let_in(&mut used, large, 0), 40);
        used.adopt(small, Tick(0));
        assert!(!used.is_full(Tick(39 * SECOND)) && used.is_full(Tick(40 * SECOND)));
    }

    #[test]
    fn what_was_admitted_elsewhere_leaves_at_most_an_empty_bucket() {
        let (mut used, rate) = (RateUse::default(), rate(SECOND, 3));
        used.adopt(rate, Tick(0));
        (0..10).for_each(|_| used.spend(Tick(0)));
        assert_eq!(ask(&mut used, rate, 0), Err(Duration::from_secs(1)));
    }

    proptest! {
        #[test]
        fn a_change_never_raises_what_is_available_and_keeps_what_fits_the_new_burst(
            from in any_rate(), to in any_rate(), asked in 1u32..60, idle in 0u64..20 * SECOND,
        ) {
            let mut used = RateUse::default();
            (0..asked).for_each(|_| _ = ask(&mut used, from, 1));
            let now = Tick(1 + idle);
            let (before, after) = (used.level(from, now), used.level(to, now));
            prop_assert_eq!(after.remaining, before.remaining.min(u64::from(to.burst.get())));
        }

        #[test]
        fn a_level_is_what_would_be_let_in_and_a_refusal_names_the_first_moment_of_the_next(
            rate in any_rate(), asked in 0u32..60, at in 0u64..SECOND, later in 0u64..20 * SECOND,
        ) {
            let mut used = RateUse::default();
            (0..asked).for_each(|_| _ = ask(&mut used, rate, at));
            let now = at + later;
            let level = used.level(rate, Tick(now));
            prop_assert_eq!(let_in(&mut used, rate, now), level.remaining);
            let wait = ask(&mut used, rate, now).unwrap_err();
            prop_assert_eq!(used.level(rate, Tick(now)), Level { remaining: 0, next: wait });
            let then = now + nanos(wait);
            prop_assert!(ask(&mut used, rate, then - 1).is_err() && ask(&mut used, rate, then).is_ok());
        }

        #[test]
        fn a_clock_that_stands_still_or_jumps_does_no_harm(
            rate in any_rate(), times in proptest::collection::vec(any::<u32>(), 1..100),
        ) {
            let mut used = RateUse::default();
            let latest = times.iter().copied().max().map_or(0, u64::from);
            let admitted = times.iter().filter(|at| ask(&mut used, rate, u64::from(**at)).is_ok()).count() as u64;
            prop_assert!(admitted <= u64::from(rate.burst.get()) + latest / rate.period_ns);
        }
    }
}
