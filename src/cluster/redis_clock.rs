//! Redis's clock, as this process knows it by the last answer and its own monotonic clock. The UTC day of a key's `daily`
//! is that of this clock at every node, so that it need not agree with the clock of any machine.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::clock::Tick;

/// What Redis's clock said at tick 0, in microseconds since the Unix epoch.
#[derive(Debug)]
pub struct RedisClock(AtomicI64);

impl RedisClock {
    /// A clock that says `unix_us` at `now`, until an answer comes.
    pub fn new(unix_us: i64, now: Tick) -> Self {
        RedisClock(AtomicI64::new(unix_us.saturating_sub(micros(now))))
    }

    /// Redis said at `now` that it is `unix_us`.
    pub fn set(&self, unix_us: i64, now: Tick) {
        self.0.store(unix_us.saturating_sub(micros(now)), Ordering::Relaxed);
    }

    /// Seconds since the Unix epoch.
    pub fn unix(&self, now: Tick) -> i64 {
        self.0.load(Ordering::Relaxed).saturating_add(micros(now)).div_euclid(1_000_000)
    }
}

fn micros(tick: Tick) -> i64 {
    (tick.0 / 1000).cast_signed()
}
