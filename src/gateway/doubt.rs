//! Tells whether the keys read from the store are still recent enough to use: guarantee 7 lets a revoked key work for
//! one second at most, whether or not the store can be reached. It records when the keys, and the change feed, were
//! last known to be up to date, and decides when to reload the keys, when to refuse them all (21), and when to use no
//! answer from memory. Time is an argument; it reads no store. `follow` and the reload write to it, and admission reads
//! it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Tick;

/// How long keys are believed after the last moment at which they were known to be the store's: whoever
/// revokes one elsewhere is promised a second (guarantee 7). A look at PostgreSQL's feed that fails ends 0.75 s
/// after the one before, and the book is to be doubted at that moment.
const BELIEVED: Duration = Duration::from_millis(700);

/// And how long what is in memory is, keys and answers, where nobody even looked whether it is known: a process
/// that stood still (frozen, or its machine was) goes on with requests before it hears what it has missed. A
/// look that is only late ends in time for this.
const UNHEARD: Duration = Duration::from_millis(950);

/// How old the book of keys may be, while nothing is heard, before it is read again: four times a
/// second instead of ten. With a step of the follower's and the time that it takes it stays within [`BELIEVED`].
const OLD: Duration = Duration::from_millis(200);

/// Whether the book of keys may be believed. It is memory, as answers are: a node that can neither hear
/// of changes nor read the keys anew does not know which of them were revoked.
#[derive(Debug)]
pub(super) struct Doubt {
    /// When the book was last known to be the store's, as a tick.
    known: AtomicU64,
    /// By when everything was heard that had changed, as a tick. At the end of time while nobody listens:
    /// nothing is to be heard then.
    heard_by: AtomicU64,
    /// Changes of guilds and keys that were heard of, and as many of them as the book has in it.
    heard: AtomicU64,
    taken: AtomicU64,
    /// How long the book took to be read, in milliseconds.
    took_ms: AtomicU64,
    /// Read by every request; written where keys are put in force, and by who follows the store.
    doubted: AtomicBool,
}

impl Doubt {
    /// Of a book that was read just now.
    pub(super) fn none(now: Tick) -> Self {
        Doubt {
            known: AtomicU64::new(now.0),
            heard_by: AtomicU64::new(u64::MAX),
            heard: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            took_ms: AtomicU64::new(0),
            doubted: AtomicBool::new(false),
        }
    }

    /// From here on there is something to be heard. Until when everything was.
    pub(super) fn listens(&self) -> Tick {
        let known = self.known.load(Ordering::SeqCst);
        self.heard_by.store(known, Ordering::Release);
        Tick(known)
    }

    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Relaxed)
    }

    /// Whether so much may have changed unheard by `now` that no answer in memory is to be gone by.
    pub(super) fn is_deaf(&self, now: Tick) -> bool {
        is_too_old(Tick(self.heard_by.load(Ordering::Acquire)), now)
    }

    /// Guilds or keys were changed.
    pub(super) fn book_changed(&self) {
        self.heard.fetch_add(1, Ordering::SeqCst);
    }

    /// Everything was heard by `now` that had changed by `at`, and heeded. Whether the book has all of it.
    pub(super) fn heard_all(&self, at: Tick, now: Tick) -> bool {
        self.heard_by.store(at.0, Ordering::Release);
        let is_whole = self.heard.load(Ordering::SeqCst) == self.taken.load(Ordering::SeqCst);
        if is_whole {
            self.is_known(at, now);
        }
        is_whole
    }

    /// The changes heard of so far, all of which a book has in it that is read from now on.
    pub(super) fn changes(&self) -> u64 {
        self.heard.load(Ordering::SeqCst)
    }

    /// The book is one that was read from `at` to `now`; when that began there had been so many changes. Whether
    /// it gets old: there is something to be heard.
    pub(super) fn book_taken(&self, changes: u64, at: Tick, now: Tick) -> bool {
        self.taken.store(changes, Ordering::SeqCst);
        self.took_ms.store(u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
        self.is_known(at, now);
        self.heard_by.load(Ordering::Acquire) != u64::MAX
    }

    /// Nothing is heard at `now`: whether the book is to be read again. One that takes too long to be believed by
    /// itself is read half of the time.
    pub(super) fn asks_for_a_book(&self, now: Tick) -> bool {
        let took = Duration::from_millis(self.took_ms.load(Ordering::SeqCst));
        let old = if took < BELIEVED { OLD } else { 2 * took };
        now.since(Tick(self.known.load(Ordering::SeqCst))) >= old
    }

    /// Nothing is heard, or nothing read, at `now`. Answers true when the book is not believed from now on.
    pub(super) fn grows(&self, now: Tick) -> bool {
        let known = Tick(self.known.load(Ordering::SeqCst));
        now.since(known) >= BELIEVED && !self.doubted.swap(true, Ordering::Relaxed)
    }

    fn is_known(&self, at: Tick, now: Tick) {
        self.known.fetch_max(at.0, Ordering::SeqCst);
        if now.since(at) < BELIEVED {
            self.doubted.store(false, Ordering::Relaxed);
        }
    }
}

/// Whether what is known until `known` is not to be gone by at `now`, whoever has noticed.
pub(super) fn is_too_old(known: Tick, now: Tick) -> bool {
    now.since(known) >= UNHEARD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(millis: u64) -> Tick {
        Tick::default().plus(Duration::from_millis(millis))
    }

    #[test]
    fn a_book_is_doubted_once_nothing_was_heard_for_a_while_and_believed_again_with_the_next_word() {
        let doubt = Doubt::none(after(0));
        doubt.heard_all(after(100), after(110));
        assert!(!doubt.grows(after(799)) && !doubt.is_doubted());
        assert!(doubt.grows(after(800)) && doubt.is_doubted());
        assert!(!doubt.grows(after(1000)), "it is said once");
        doubt.heard_all(after(1100), after(1110));
        assert!(!doubt.is_doubted() && !doubt.grows(after(1200)));
    }

    #[test]
    fn a_change_that_was_heard_of_and_not_read_keeps_the_book_from_being_known() {
        let doubt = Doubt::none(after(0));
        doubt.book_changed();
        doubt.heard_all(after(700), after(700));
        assert!(doubt.grows(after(800)));
        let changes = doubt.changes();
        doubt.book_changed();
        doubt.book_taken(changes, after(850), after(900));
        assert!(!doubt.is_doubted(), "it was the store's then");
        doubt.heard_all(after(1600), after(1600));
        assert!(doubt.grows(after(1650)), "and has not the second change in it");
    }

    #[test]
    fn who_stood_still_is_deaf_until_it_has_listened_and_who_never_listens_is_not() {
        let doubt = Doubt::none(after(0));
        assert!(!doubt.is_deaf(after(100_000)), "there is nothing to be heard");
        assert_eq!(doubt.listens(), after(0));
        assert!(!doubt.is_deaf(after(949)) && doubt.is_deaf(after(950)), "it stood still before its first look");
        doubt.heard_all(after(100), after(110));
        assert!(!doubt.is_deaf(after(1049)) && doubt.is_deaf(after(1050)));
        assert!(!doubt.is_doubted(), "nobody has looked");
        doubt.heard_all(after(2000), after(2010));
        assert!(!doubt.is_deaf(after(2100)));
    }

    #[test]
    fn while_nothing_is_heard_the_book_is_read_again_when_it_is_old_and_half_of_the_time_at_most() {
        let doubt = Doubt::none(after(0));
        assert!(!doubt.asks_for_a_book(after(199)) && doubt.asks_for_a_book(after(200)));
        doubt.book_taken(doubt.changes(), after(300), after(450));
        assert!(!doubt.asks_for_a_book(after(499)) && doubt.asks_for_a_book(after(500)));
        doubt.book_taken(doubt.changes(), after(600), after(1400));
        assert!(!doubt.asks_for_a_book(after(2199)) && doubt.asks_for_a_book(after(2200)));
    }

    #[test]
    fn a_book_that_took_long_to_read_is_not_believed_for_that_alone() {
        let doubt = Doubt::none(after(0));
        assert!(doubt.grows(after(900)));
        doubt.book_taken(doubt.changes(), after(900), after(1800));
        assert!(doubt.is_doubted());
        doubt.heard_all(after(1900), after(1900));
        assert!(!doubt.is_doubted());
    }
}
