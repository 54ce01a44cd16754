//! One GCRA bucket: a single atomic word that holds the theoretical arrival time. The decision is governor's; rate and
//! time are arguments. When limits change, a new bucket replaces the old one, which from then on answers every request
//! with `Replaced`: so each request is charged to exactly one of the two, and a change makes no more available than
//! there was (guarantee 6). No locks.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::Clock as GovernorClock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{NotKeyed, StateStore};
use governor::{Quota, RateLimiter};

use crate::clock::{Tick, nanos};
use crate::config::Rate;

/// The state of a bucket that another one has replaced. No request leads to it: that would take 584 years.
const REPLACED: u64 = u64::MAX;

/// One GCRA bucket: the theoretical arrival time (TAT) in nanoseconds, 0 if it was never used.
#[derive(Debug, Default)]
pub struct Bucket(AtomicU64);

/// The decision on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Admitted,
    /// Refused; it would be admitted after `wait` if no other request comes first.
    Refused {
        wait: Duration,
    },
    /// Another bucket has replaced this one and is to decide.
    Replaced,
}

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

impl Bucket {
    /// Decides one request at `now` and, if it is admitted, counts it.
    pub fn decide(&self, rate: Rate, now: Tick) -> Verdict {
        let Some(quota) = Quota::with_period(Duration::from_nanos(rate.period_ns)) else {
            return Verdict::Admitted; // a period of 0 cannot be configured; governor refuses to build one
        };
        let clock = Moment { start_asked: Cell::new(false), now: now.0.into() };
        let limiter = RateLimiter::<_, _, _, NoOpMiddleware<Nanos>>::new(quota.allow_burst(rate.burst), self, clock);
        match limiter.check() {
            Ok(()) => Verdict::Admitted,
            Err(_) if self.is_replaced() => Verdict::Replaced,
            Err(not_until) => Verdict::Refused { wait: not_until.wait_time_from(now.0.into()) },
        }
    }

    /// One that is full at `at` if no other request comes; tick 0: it was never used.
    pub fn that_is_full_at(at: Tick) -> Self {
        Bucket(AtomicU64::new(at.0))
    }

    /// When the bucket is full if no other request comes.
    pub fn full_at(&self) -> Tick {
        Tick(self.0.load(Ordering::Acquire))
    }

    /// The level at `now`.
    pub fn level(&self, rate: Rate, now: Tick) -> Level {
        match self.0.load(Ordering::Acquire) {
            REPLACED => Level { remaining: 0, next: Duration::ZERO },
            tat => Level::of(rate, Tick(tat).since(now)),
        }
    }

    /// Takes away what is available at `at`, and what was before: the bucket fills from then on.
    pub fn empty_at(&self, rate: Rate, at: Tick) {
        let tat = at.0.saturating_add(u64::from(rate.burst.get()).saturating_mul(rate.period_ns));
        self.0.fetch_max(tat.min(REPLACED - 1), Ordering::AcqRel);
    }

    /// Replaces `before` under another rate. What is available stays available, up to the new burst, so that a change of
    /// limits gives nobody a request more (guarantee 6). A request that is charged meanwhile is charged to one of the
    /// two, and counts in this one.
    pub fn replace(&self, before: &Bucket, change: RateChange) {
        let mut tat = before.0.load(Ordering::Acquire);
        while tat != REPLACED {
            self.0.store(change.of(tat), Ordering::Release);
            match before.0.compare_exchange_weak(tat, REPLACED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => tat = now,
            }
        }
    }

    /// As [`Bucket::replace`], but `before` stays in use. The change was at an unknown moment between `change.at` and
    /// `latest`; this bucket gets the most that may be available.
    pub fn copy(&self, before: &Bucket, change: RateChange, latest: Tick) {
        let tat = before.0.load(Ordering::Acquire);
        // If the old rate was slower, that is the first moment; if it was faster, the moment at which the bucket is full.
        let full = RateChange { at: Tick(tat).min(latest).max(change.at), ..change };
        self.0.store(change.of(tat).min(full.of(tat)), Ordering::Release);
    }

    /// Leaves no more available than `other` has after `change`. Neither was replaced.
    pub fn charge_as(&self, other: &Bucket, change: RateChange) {
        self.0.fetch_max(change.of(other.0.load(Ordering::Acquire)), Ordering::AcqRel);
    }

    /// Whether it ever admitted a request.
    pub fn was_used(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    pub fn is_replaced(&self) -> bool {
        self.0.load(Ordering::Acquire) == REPLACED
    }

    /// When a bucket with this state and rate and a burst of `most` would be full; tick 0 if it was never used.
    pub fn full_at_with_burst(&self, rate: Rate, most: u32) -> Tick {
        let more = u64::from(most.saturating_sub(rate.burst.get())).saturating_mul(rate.period_ns);
        match self.0.load(Ordering::Acquire) {
            0 => Tick(0),
            tat => Tick(tat.saturating_add(more)),
        }
    }
}

/// A change of the rate of a key or an address.
#[derive(Clone, Copy, Debug)]
pub struct RateChange {
    pub from: Rate,
    pub to: Rate,
    pub at: Tick,
    /// A request was admitted before, by this or another bucket: only a key without any begins with a full one.
    pub was_used: bool,
}

impl RateChange {
    /// The TAT after the change.
    fn of(self, tat: u64) -> u64 {
        let RateChange { from, to, at, was_used } = self;
        if tat == 0 && !was_used {
            return 0;
        }
        let whole = |rate: Rate| rate.period_ns.saturating_mul(rate.burst.get().into());
        // A bucket that owes more than its burst was charged after `at`: the change counts as made once it owed just that.
        let at = at.0.max(tat.saturating_sub(whole(from)));
        let available = u128::from(whole(from) - tat.saturating_sub(at));
        let available = available * u128::from(to.period_ns) / u128::from(from.period_ns.max(1));
        let owed = whole(to).saturating_sub(u64::try_from(available).unwrap_or(u64::MAX));
        at.saturating_add(owed).clamp(1, REPLACED - 1)
    }
}

impl StateStore for &Bucket {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, _key: &NotKeyed, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut before = self.0.load(Ordering::Acquire);
        loop {
            let tat = (before != 0).then(|| Nanos::from(before));
            let (outcome, after) = decide(tat)?;
            match self.0.compare_exchange_weak(before, after.into(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(outcome),
                Err(now) => before = now,
            }
        }
    }
}

/// The clock for governor, which reads its start first and then the moment of the decision. The start is always 0, so
/// that the state is in the process's own ticks.
struct Moment {
    start_asked: Cell<bool>,
    now: Nanos,
}

impl GovernorClock for Moment {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        if self.start_asked.replace(true) { self.now } else { Nanos::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    fn rate(period_ns: u64, burst: u32) -> Rate {
        Rate { period_ns, burst: NonZeroU32::new(burst).unwrap() }
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_burst_is_admitted_at_once_and_then_one_a_period() {
        let (bucket, rate) = (Bucket::default(), rate(SECOND, 3));
        for _ in 0..3 {
            assert_eq!(bucket.decide(rate, Tick(0)), Verdict::Admitted);
        }
        assert_eq!(bucket.decide(rate, Tick(0)), Verdict::Refused { wait: Duration::from_secs(1) });
        assert_eq!(bucket.decide(rate, Tick(SECOND)), Verdict::Admitted);
        assert!(matches!(bucket.decide(rate, Tick(SECOND)), Verdict::Refused { .. }));
    }

    fn change(from: Rate, to: Rate, at: u64) -> RateChange {
        RateChange { from, to, at: Tick(at), was_used: false }
    }

    /// What takes the place of a bucket, and how much it lets in at that moment.
    fn changed(before: &Bucket, from: Rate, to: Rate, at: u64) -> (Bucket, u64) {
        let after = Bucket::default();
        after.replace(before, change(from, to, at));
        let remaining = after.level(to, Tick(at)).remaining;
        (after, remaining)
    }

    #[test]
    fn a_full_bucket_that_is_charged_between_the_moment_of_a_change_and_its_replacement_owes_no_more_than_its_burst() {
        let (fast, slow, asked) = (rate(SECOND / 10_000, 40), rate(SECOND / 10, 40), SECOND / 100);
        let bucket = Bucket::default();
        assert_eq!(bucket.decide(fast, Tick(asked)), Verdict::Admitted);
        let (bucket, _) = changed(&bucket, fast, slow, 0);
        let wait = Level::of(slow, bucket.full_at().since(Tick(asked))).next;
        assert!(wait <= Duration::from_millis(100), "{wait:?}");
        assert_eq!(bucket.decide(slow, Tick(asked + SECOND / 10)), Verdict::Admitted);
    }

    #[test]
    fn what_is_available_stays_available_up_to_the_new_burst_and_grows_at_the_new_rate() {
        let (forty, one, fast) = (rate(SECOND / 20, 40), rate(SECOND / 20, 1), rate(SECOND / 100, 80));
        let bucket = Bucket::default();
        (0..10).for_each(|_| assert_eq!(bucket.decide(forty, Tick(0)), Verdict::Admitted));
        let (bucket, remaining) = changed(&bucket, forty, fast, 0);
        assert_eq!(remaining, 30);
        assert_eq!(bucket.level(fast, Tick(SECOND / 10)).remaining, 40);
        let (bucket, remaining) = changed(&bucket, fast, one, SECOND / 10);
        assert_eq!(remaining, 1);
        // An hour later it holds no more than one, so that is what a larger burst begins with.
        let (bucket, remaining) = changed(&bucket, one, forty, 3600 * SECOND);
        assert_eq!(remaining, 1);
        assert_eq!(bucket.level(forty, Tick(3601 * SECOND)).remaining, 21);
        assert_eq!(bucket.level(forty, Tick(3602 * SECOND)).remaining, 40);
    }

    #[test]
    fn only_a_bucket_that_was_never_asked_begins_with_the_whole_new_burst() {
        let (small, large) = (rate(SECOND, 1), rate(SECOND, 40));
        assert_eq!(changed(&Bucket::default(), small, large, 0).1, 40);
        let asked = Bucket::default();
        assert_eq!(asked.decide(small, Tick(0)), Verdict::Admitted);
        assert_eq!(changed(&asked, small, large, 3600 * SECOND).1, 1);
        let elsewhere = Bucket::default();
        elsewhere.replace(&Bucket::default(), RateChange { was_used: true, ..change(small, large, 0) });
        assert_eq!(elsewhere.level(large, Tick(0)).remaining, 1);
    }

    #[test]
    fn a_replaced_bucket_decides_nothing() {
        let (bucket, rate) = (Bucket::default(), rate(SECOND, 2));
        let (_, remaining) = changed(&bucket, rate, rate, 0);
        assert_eq!(remaining, 2);
        assert_eq!(bucket.decide(rate, Tick(0)), Verdict::Replaced);
        assert_eq!(bucket.decide(rate, Tick(1 << 60)), Verdict::Replaced);
    }

    proptest! {
        #[test]
        fn no_window_admits_more_than_burst_and_rate_allow(
            period in 1u64..2 * SECOND, burst in 1u32..50,
            steps in proptest::collection::vec(0u64..3 * SECOND, 1..200),
        ) {
            let (bucket, rate) = (Bucket::default(), rate(period, burst));
            let mut now = 0;
            let mut admitted: Vec<u64> = Vec::new();
            for step in steps {
                now += step / 8;
                if bucket.decide(rate, Tick(now)) == Verdict::Admitted {
                    admitted.push(now);
                }
            }
            for (i, from) in admitted.iter().enumerate() {
                for (j, to) in admitted.iter().enumerate().skip(i) {
                    let allowed = u64::from(burst) + (to - from) / period;
                    prop_assert!((j - i + 1) as u64 <= allowed);
                }
            }
        }

        #[test]
        fn a_change_never_raises_what_is_available_and_keeps_what_fits_the_new_burst(
            from in (1u64..2 * SECOND, 1u32..50), to in (1u64..2 * SECOND, 1u32..50), used in 1u32..60,
            idle in 0u64..20 * SECOND,
        ) {
            let (from, to) = (rate(from.0, from.1), rate(to.0, to.1));
            let bucket = Bucket::default();
            for _ in 0..used {
                bucket.decide(from, Tick(1));
            }
            let now = Tick(1 + idle);
            let before = bucket.level(from, now);
            let (after, remaining) = changed(&bucket, from, to, now.0);
            prop_assert_eq!(remaining, before.remaining.min(u64::from(to.burst.get())));
            if remaining < u64::from(to.burst.get()) {
                // Of the request that was coming back, as much is there as was there before.
                let part = |level: Level, rate: Rate| match level.remaining == u64::from(rate.burst.get()) {
                    true => 0.0,
                    false => 1.0 - nanos(level.next) as f64 / rate.period_ns as f64,
                };
                let (old, new) = (part(before, from), part(after.level(to, now), to));
                prop_assert!(new <= old + 1e-9 && old <= new + 1.0 / to.period_ns as f64 + 1e-9, "{} {}", old, new);
            }
        }

        #[test]
        fn a_refusal_names_the_first_moment_at_which_it_would_be_let_in(
            period in 1u64..2 * SECOND, burst in 1u32..50, asked in 1u32..200, at in 0u64..SECOND,
        ) {
            let (bucket, rate) = (Bucket::default(), rate(period, burst));
            let wait = (0..asked).find_map(|_| match bucket.decide(rate, Tick(at)) {
                Verdict::Refused { wait } => Some(wait),
                Verdict::Admitted | Verdict::Replaced => None,
            });
            if let Some(wait) = wait {
                let level = bucket.level(rate, Tick(at));
                prop_assert_eq!((level.remaining, level.next), (0, wait));
                let then = Tick(at).plus(wait);
                let too_soon = bucket.decide(rate, Tick(then.0 - 1));
                prop_assert_ne!(too_soon, Verdict::Admitted);
                prop_assert_eq!(bucket.decide(rate, then), Verdict::Admitted);
            }
        }

        #[test]
        fn the_level_is_the_number_of_requests_that_would_be_let_in(
            period in 1u64..2 * SECOND, burst in 1u32..50, used in 0u32..60, at in 0u64..SECOND, later in 0u64..20 * SECOND,
        ) {
            let (bucket, rate) = (Bucket::default(), rate(period, burst));
            for _ in 0..used {
                bucket.decide(rate, Tick(at));
            }
            let now = Tick(at + later);
            let level = bucket.level(rate, now);
            if level.remaining < u64::from(burst) {
                prop_assert_eq!(bucket.level(rate, now.plus(level.next)).remaining, level.remaining + 1);
            }
            let mut let_in = 0u64;
            while bucket.decide(rate, now) == Verdict::Admitted {
                let_in += 1;
            }
            prop_assert_eq!(let_in, level.remaining);
        }

        #[test]
        fn a_clock_that_stands_still_or_jumps_does_no_harm(
            period in 1u64..2 * SECOND, burst in 1u32..50, times in proptest::collection::vec(any::<u32>(), 1..100),
        ) {
            let (bucket, rate) = (Bucket::default(), rate(period, burst));
            let mut latest = 0;
            let mut admitted = 0u64;
            for t in times {
                latest = latest.max(u64::from(t));
                admitted += u64::from(bucket.decide(rate, Tick(u64::from(t))) == Verdict::Admitted);
            }
            prop_assert!(admitted <= u64::from(burst) + latest / period);
        }
    }
}
