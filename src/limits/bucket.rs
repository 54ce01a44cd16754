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

/// One GCRA bucket: the theoretical arrival time (TAT) in nanoseconds, 0 where nothing was asked
/// yet. The rate is an argument, so that a reload changes it without making a new bucket; the
/// decision is governor's, on this state, at a time that is also an argument.
#[derive(Debug, Default)]
pub struct Bucket(AtomicU64);

/// What a bucket says to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Admitted,
    /// Refused; would be let in after `wait`, if nobody else comes first.
    Refused {
        wait: Duration,
    },
}

/// How full a bucket is at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Requests that would be let in now.
    pub remaining: u64,
    /// Until `remaining` grows by one; zero when the bucket is full.
    pub next: Duration,
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
            Err(not_until) => Verdict::Refused { wait: not_until.wait_time_from(now.0.into()) },
        }
    }

    /// When all of it is back, if nobody asks again.
    pub fn full_at(&self) -> Tick {
        Tick(self.0.load(Ordering::Acquire))
    }

    /// Takes back so much of what was charged.
    pub fn refund(&self, amount: Duration) {
        let amount = nanos(amount);
        // The closure never says no, so neither does the update.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |tat| Some(tat.saturating_sub(amount)));
    }

    /// How full the bucket is at `now`.
    pub fn level(&self, rate: Rate, now: Tick) -> Level {
        let period = rate.period_ns;
        let burst = u64::from(rate.burst.get());
        let owed = self.0.load(Ordering::Acquire).saturating_sub(now.0);
        let remaining = (burst * period).saturating_sub(owed) / period;
        let next = owed.saturating_sub(burst.saturating_sub(remaining + 1) * period);
        Level { remaining: remaining.min(burst), next: Duration::from_nanos(next) }
    }

    /// Takes over what is used up of another bucket under another rate, in proportion to the
    /// burst: what was half empty is half empty still, so a reload refills no one (guarantee 6).
    pub fn inherit(&self, before: &Bucket, from: Rate, to: Rate, now: Tick) {
        let capacity = |r: Rate| u128::from(r.period_ns) * u128::from(r.burst.get());
        let owed = u128::from(before.0.load(Ordering::Acquire).saturating_sub(now.0));
        let owed = (owed * capacity(to)).div_ceil(capacity(from).max(1));
        let tat = now.0.saturating_add(u64::try_from(owed).unwrap_or(u64::MAX));
        self.0.fetch_max(tat, Ordering::AcqRel);
    }

    /// Whether nothing of it is used up at `now`.
    pub fn is_full(&self, now: Tick) -> bool {
        self.0.load(Ordering::Acquire) <= now.0
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

/// The clock that governor is given: it asks for its start first, which is always 0, so that the
/// state is in the process's own ticks, and then for the moment of the decision.
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

    #[test]
    fn a_half_empty_bucket_is_half_empty_after_a_reload() {
        let (old, new) = (rate(SECOND, 10), rate(SECOND / 4, 40));
        let (first, second, third) = (Bucket::default(), Bucket::default(), Bucket::default());
        for _ in 0..5 {
            first.decide(old, Tick(0));
        }
        second.inherit(&first, old, new, Tick(0));
        assert_eq!(second.level(new, Tick(0)).remaining, 20);
        third.inherit(&second, new, old, Tick(0));
        assert_eq!(third.level(old, Tick(0)).remaining, 5);
        assert!(!third.is_full(Tick(4 * SECOND)) && third.is_full(Tick(5 * SECOND)));
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
        fn a_refusal_names_the_first_moment_at_which_it_would_be_let_in(
            period in 1u64..2 * SECOND, burst in 1u32..50, asked in 1u32..200, at in 0u64..SECOND,
        ) {
            let (bucket, rate) = (Bucket::default(), rate(period, burst));
            let wait = (0..asked).find_map(|_| match bucket.decide(rate, Tick(at)) {
                Verdict::Refused { wait } => Some(wait),
                Verdict::Admitted => None,
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
        fn the_level_tells_how_many_would_be_let_in(
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
