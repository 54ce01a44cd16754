//! Tells whether the keys read from the store are still recent enough to use: guarantee 7 lets a revoked key work for
//! one second at most, whether or not the store can be reached. It records when the keys, and the change feed, were
//! last known to be up to date, and decides when to load the keys again, when to refuse them all (21), and when to use
//! no answer from memory. Time is an argument; it reads no store. The follower writes to it, and admission reads it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Tick;
use crate::cluster::Freshness;

/// How long keys may be used after the last moment at which they were known to be the store's. A revocation takes
/// effect within a second (guarantee 7); a failed read of PostgreSQL's feed ends 0.75 s after the last successful one,
/// and the keys expire at that moment.
const KEYS_USABLE_FOR: Duration = Duration::from_millis(700);

/// Age of the key table at which it is loaded again while the feed cannot be read: four times a second. With one step of
/// the follower and the time of loading it stays below [`KEYS_USABLE_FOR`].
const RELOAD_KEYS_AFTER: Duration = Duration::from_millis(200);

/// How old the keys and the cached answers are compared with the store.
#[derive(Debug)]
pub(super) struct StoreFreshness {
    /// The tick at which the keys were last known to be the store's.
    keys_as_of: AtomicU64,
    /// How old what is known of the feed is.
    feed: Freshness,
    /// Changes of guilds and keys that were seen on the feed, and how many of them the key table contains.
    changes_seen: AtomicU64,
    changes_loaded: AtomicU64,
    /// How long the last load of the keys took, in milliseconds.
    load_ms: AtomicU64,
    /// Read by every request; written when keys are put in force, and by the follower.
    keys_are_stale: AtomicBool,
}

impl StoreFreshness {
    /// For keys that were loaded just now.
    pub(super) fn new(now: Tick) -> Self {
        StoreFreshness {
            keys_as_of: AtomicU64::new(now.0),
            feed: Freshness::not_followed(),
            changes_seen: AtomicU64::new(0),
            changes_loaded: AtomicU64::new(0),
            load_ms: AtomicU64::new(0),
            keys_are_stale: AtomicBool::new(false),
        }
    }

    /// The feed is followed from now on. Returns the tick as of which the keys are current.
    pub(super) fn start_following(&self) -> Tick {
        let as_of = self.keys_as_of.load(Ordering::SeqCst);
        self.feed.confirm(Tick(as_of));
        Tick(as_of)
    }

    pub(super) fn keys_are_stale(&self) -> bool {
        self.keys_are_stale.load(Ordering::Relaxed)
    }

    /// Whether the feed was last read too long ago to use any answer in memory at `now`.
    pub(super) fn feed_is_stale(&self, now: Tick) -> bool {
        self.feed.is_stale(now)
    }

    /// How long ago the feed was last read; `None` while nobody follows it.
    pub(super) fn feed_age(&self, now: Tick) -> Option<Duration> {
        self.feed.age(now)
    }

    /// A change of guilds or keys was seen on the feed.
    pub(super) fn keys_changed(&self) {
        self.changes_seen.fetch_add(1, Ordering::SeqCst);
    }

    /// The feed was read at `now`, up to what had changed by `at`, and the changes were applied. Returns whether the
    /// key table contains all of them.
    pub(super) fn feed_was_read(&self, at: Tick, now: Tick) -> bool {
        self.feed.confirm(at);
        let is_complete = self.changes_seen() == self.changes_loaded.load(Ordering::SeqCst);
        if is_complete {
            self.confirm_keys(at, now);
        }
        is_complete
    }

    /// The changes seen so far; keys that are loaded from now on contain all of them.
    pub(super) fn changes_seen(&self) -> u64 {
        self.changes_seen.load(Ordering::SeqCst)
    }

    /// As of when keys are current that were read from `at` on and contain so many changes: of when the feed was last read,
    /// if it told of no other change. `None` while nobody follows the feed.
    pub(super) fn keys_as_of(&self, changes: u64, at: Tick) -> Option<Tick> {
        let as_of = self.feed.as_of()?; // first: what it told is counted before
        Some(if self.changes_seen() == changes { at.max(as_of) } else { at })
    }

    /// Keys that were loaded from `at` to `now` are in force; `changes` had been seen when loading began.
    pub(super) fn keys_loaded(&self, changes: u64, at: Tick, now: Tick) {
        self.changes_loaded.store(changes, Ordering::SeqCst);
        self.load_ms.store(u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
        self.confirm_keys(self.keys_as_of(changes, at).unwrap_or(at), now);
    }

    /// Whether to load the keys again at `now`, given that the feed is silent. If loading takes longer than keys may be
    /// used, half of the time is spent on it at most.
    pub(super) fn should_reload_keys(&self, now: Tick) -> bool {
        let load_time = Duration::from_millis(self.load_ms.load(Ordering::SeqCst));
        let reload_after = if load_time < KEYS_USABLE_FOR { RELOAD_KEYS_AFTER } else { 2 * load_time };
        now.since(Tick(self.keys_as_of.load(Ordering::SeqCst))) >= reload_after
    }

    /// Makes the keys stale if they are too old at `now`. Returns whether they became stale by this call.
    pub(super) fn expire_keys(&self, now: Tick) -> bool {
        let as_of = Tick(self.keys_as_of.load(Ordering::SeqCst));
        now.since(as_of) >= KEYS_USABLE_FOR && !self.keys_are_stale.swap(true, Ordering::Relaxed)
    }

    fn confirm_keys(&self, at: Tick, now: Tick) {
        self.keys_as_of.fetch_max(at.0, Ordering::SeqCst);
        if now.since(at) < KEYS_USABLE_FOR {
            self.keys_are_stale.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(millis: u64) -> Tick {
        Tick::default().plus(Duration::from_millis(millis))
    }

    #[test]
    fn keys_become_stale_while_the_feed_is_silent_and_usable_again_with_the_next_read() {
        let freshness = StoreFreshness::new(after(0));
        freshness.feed_was_read(after(100), after(110));
        assert!(!freshness.expire_keys(after(799)) && !freshness.keys_are_stale());
        assert!(freshness.expire_keys(after(800)) && freshness.keys_are_stale());
        assert!(!freshness.expire_keys(after(1000)), "it is reported once");
        freshness.feed_was_read(after(1100), after(1110));
        assert!(!freshness.keys_are_stale() && !freshness.expire_keys(after(1200)));
    }

    #[test]
    fn a_change_that_was_seen_and_not_loaded_keeps_the_keys_from_being_current() {
        let freshness = StoreFreshness::new(after(0));
        freshness.keys_changed();
        freshness.feed_was_read(after(700), after(700));
        assert!(freshness.expire_keys(after(800)));
        let changes = freshness.changes_seen();
        freshness.keys_changed();
        freshness.keys_loaded(changes, after(850), after(900));
        assert!(!freshness.keys_are_stale(), "they were the store's then");
        freshness.feed_was_read(after(1600), after(1600));
        assert!(freshness.expire_keys(after(1650)), "and do not contain the second change");
    }

    #[test]
    fn the_feed_is_stale_after_a_standstill_until_it_is_read_and_never_where_nobody_follows_it() {
        let freshness = StoreFreshness::new(after(0));
        assert!(!freshness.feed_is_stale(after(100_000)), "nobody follows it");
        assert_eq!(freshness.start_following(), after(0));
        assert!(!freshness.feed_is_stale(after(949)) && freshness.feed_is_stale(after(950)), "before the first read");
        freshness.feed_was_read(after(100), after(110));
        assert!(!freshness.feed_is_stale(after(1049)) && freshness.feed_is_stale(after(1050)));
        assert!(!freshness.keys_are_stale(), "the follower has not run");
        freshness.feed_was_read(after(2000), after(2010));
        assert!(!freshness.feed_is_stale(after(2100)));
    }

    #[test]
    fn while_the_feed_is_silent_the_keys_are_loaded_when_they_are_old_and_half_of_the_time_at_most() {
        let freshness = StoreFreshness::new(after(0));
        assert!(!freshness.should_reload_keys(after(199)) && freshness.should_reload_keys(after(200)));
        freshness.keys_loaded(freshness.changes_seen(), after(300), after(450));
        assert!(!freshness.should_reload_keys(after(499)) && freshness.should_reload_keys(after(500)));
        freshness.keys_loaded(freshness.changes_seen(), after(600), after(1400));
        assert!(!freshness.should_reload_keys(after(2199)) && freshness.should_reload_keys(after(2200)));
    }

    #[test]
    fn keys_that_took_long_to_load_are_not_current_for_that_alone() {
        let freshness = StoreFreshness::new(after(0));
        assert!(freshness.expire_keys(after(900)));
        freshness.keys_loaded(freshness.changes_seen(), after(900), after(1800));
        assert!(freshness.keys_are_stale());
        freshness.feed_was_read(after(1900), after(1900));
        assert!(!freshness.keys_are_stale());
    }

    #[test]
    fn keys_that_took_long_to_load_are_as_recent_as_the_feed_if_it_told_of_no_other_change_meanwhile() {
        let freshness = StoreFreshness::new(after(0));
        assert_eq!(freshness.keys_as_of(0, after(100)), None, "nobody follows the feed");
        freshness.start_following();
        let changes = freshness.changes_seen();
        freshness.feed_was_read(after(1800), after(1800));
        assert_eq!(freshness.keys_as_of(changes, after(100)), Some(after(1800)));
        assert!(freshness.expire_keys(after(3000)));
        freshness.feed_was_read(after(2900), after(2900));
        freshness.keys_loaded(changes, after(100), after(3000));
        assert!(!freshness.keys_are_stale());
        freshness.keys_changed();
        assert_eq!(freshness.keys_as_of(changes, after(100)), Some(after(100)));
    }
}
