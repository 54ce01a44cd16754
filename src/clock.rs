//! The only place that reads time. Everything else takes a [`Clock`], or a time as an argument, so that tests move time
//! and do not sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A point on the monotonic clock, in nanoseconds since the process's clock was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Tick(pub u64);

impl Tick {
    /// This point moved later by `by`, at most to the end of time (584 years).
    pub fn plus(self, by: Duration) -> Tick {
        Tick(self.0.saturating_add(nanos(by)))
    }

    /// The time since `earlier`; zero if this point is not after it.
    pub fn since(self, earlier: Tick) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// `Duration` as nanoseconds, cut at `u64::MAX`.
pub fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Whole seconds, rounded up: a caller that waits so long never comes too soon.
pub fn seconds_up(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// Waits until the next multiple of `period`: what is repeated in the background is so at the same moments, and wakes the
/// process once for all of it.
pub async fn next_multiple_of(period: Duration) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let period = nanos(period).max(1);
    tokio::time::sleep(Duration::from_nanos(period - nanos(now) % period)).await;
}

/// Interval at which [`becomes_true`] looks.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Waits until this is true, or until `deadline`; returns whether it is true. Blocks: for the end of a process, which
/// waits so for threads that may never end.
pub fn becomes_true(deadline: Instant, is_true: impl Fn() -> bool) -> bool {
    loop {
        if is_true() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

/// A monotonic clock for limits and freshness, and a wall clock for expiries.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System(Instant),
    Manual(Arc<ManualTime>),
}

#[derive(Debug)]
struct ManualTime {
    tick: AtomicU64,
    unix_ms: AtomicI64,
}

impl Clock {
    /// The machine's own clocks.
    pub fn system() -> Self {
        Clock(Source::System(Instant::now()))
    }

    /// A clock that does not move until [`Clock::advance`] or [`Clock::set_unix`] moves it.
    pub fn manual(unix_seconds: i64) -> Self {
        Clock(Source::Manual(Arc::new(ManualTime {
            tick: AtomicU64::new(0),
            unix_ms: AtomicI64::new(unix_seconds.saturating_mul(1000)),
        })))
    }

    /// Now, on the monotonic clock.
    pub fn now(&self) -> Tick {
        match &self.0 {
            Source::System(start) => Tick(nanos(start.elapsed())),
            Source::Manual(time) => Tick(time.tick.load(Ordering::SeqCst)),
        }
    }

    /// A moment that was read already; with a manual clock, now.
    pub fn at(&self, moment: Instant) -> Tick {
        match &self.0 {
            Source::System(start) => Tick(nanos(moment.saturating_duration_since(*start))),
            Source::Manual(_) => self.now(),
        }
    }

    /// Seconds since the Unix epoch; a clock set before 1970 reads as negative.
    pub fn unix(&self) -> i64 {
        self.unix_ms().div_euclid(1000)
    }

    /// Milliseconds since the Unix epoch.
    pub fn unix_ms(&self) -> i64 {
        match &self.0 {
            Source::System(_) => match SystemTime::now().duration_since(UNIX_EPOCH) {
                Ok(d) => i64::try_from(d.as_millis()).unwrap_or(i64::MAX),
                Err(e) => -i64::try_from(e.duration().as_millis()).unwrap_or(i64::MAX),
            },
            Source::Manual(time) => time.unix_ms.load(Ordering::SeqCst),
        }
    }

    /// The wall clock's time at a moment that has passed, to the nanosecond.
    pub fn system_time(&self, at: Tick) -> SystemTime {
        let now = match &self.0 {
            Source::System(_) => SystemTime::now(),
            Source::Manual(_) => UNIX_EPOCH + Duration::from_millis(self.unix_ms().unsigned_abs()),
        };
        now - self.now().since(at)
    }

    /// Moves both times of a manual clock; the system's clocks are not moved.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(time) = &self.0 {
            time.tick.fetch_add(nanos(by), Ordering::SeqCst);
            time.unix_ms.fetch_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX), Ordering::SeqCst);
        }
    }

    /// Sets the wall clock of a manual clock only, as NTP or an operator would.
    pub fn set_unix(&self, seconds: i64) {
        if let Source::Manual(time) = &self.0 {
            time.unix_ms.store(seconds.saturating_mul(1000), Ordering::SeqCst);
        }
    }
}
