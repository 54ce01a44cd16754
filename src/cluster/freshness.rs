//! Tells how old what is known of the changes of others is, and when it is too old to use any answer from memory
//! (guarantee 2). The store's change feed and the bus both have one: whoever reads the source confirms it, and requests
//! only compare. Time is an argument.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Tick;

/// How long answers in memory may be used after the last moment up to which all changes of others are known. Changes
/// show within one second (guarantee 2).
pub const MAX_AGE: Duration = Duration::from_millis(950);

/// The tick up to which everything that others changed is known here, and has been applied to the cache.
#[derive(Debug)]
pub struct Freshness(AtomicU64);

impl Freshness {
    /// For a source that nobody follows: what it says never becomes too old.
    pub fn not_followed() -> Self {
        Freshness(AtomicU64::new(u64::MAX))
    }

    /// For a source that is followed, while nothing in memory is older than `as_of`.
    pub fn followed_since(as_of: Tick) -> Self {
        Freshness(AtomicU64::new(as_of.0))
    }

    /// All changes up to `as_of` are known. To be called after they were applied.
    pub fn confirm(&self, as_of: Tick) {
        self.0.store(as_of.0, Ordering::Release);
    }

    /// Whether too much may have changed by `now` to use any answer in memory, whether or not the follower runs: a
    /// process that stood still goes on with requests before it reads its sources.
    pub fn is_stale(&self, now: Tick) -> bool {
        self.age(now) >= Some(MAX_AGE)
    }

    /// How long ago everything was last known; `None` while nobody follows the source.
    pub fn age(&self, now: Tick) -> Option<Duration> {
        self.as_of().map(|as_of| now.since(as_of))
    }

    /// The tick up to which everything is known; `None` while nobody follows the source.
    pub fn as_of(&self) -> Option<Tick> {
        Some(self.0.load(Ordering::Acquire)).filter(|as_of| *as_of != u64::MAX).map(Tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(millis: u64) -> Tick {
        Tick::default().plus(Duration::from_millis(millis))
    }

    #[test]
    fn what_is_known_becomes_stale_950_ms_after_it_was_last_confirmed() {
        let freshness = Freshness::followed_since(after(0));
        assert!(!freshness.is_stale(after(949)) && freshness.is_stale(after(950)));
        freshness.confirm(after(1000));
        assert!(!freshness.is_stale(after(1949)) && freshness.is_stale(after(1950)));
        assert_eq!(freshness.age(after(1200)), Some(Duration::from_millis(200)));
    }

    #[test]
    fn a_source_that_nobody_follows_is_never_stale_until_it_is_followed() {
        let freshness = Freshness::not_followed();
        assert!(!freshness.is_stale(after(100_000)) && freshness.age(after(100_000)).is_none());
        freshness.confirm(after(0));
        assert!(freshness.as_of().is_some() && freshness.is_stale(after(950)));
    }
}
