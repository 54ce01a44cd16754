//! The answers held in memory: what one answer is an answer to, how long it may be given (fresh, then stale as in RFC
//! 5861, and never past the first expiry in it), and the store of them, which is bounded in bytes. Time is an argument,
//! and an entry is never changed after it was made. Whether a write has overtaken an entry is not decided here: callers
//! compare epochs. `tests/model` compiles this file too.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use super::fence::Epoch;
use crate::clock::Tick;
use crate::config::Freshness;
use crate::model::MemberId;
use crate::wire::{Fault, Read};

/// What an entry takes beside its text: key, stamps, two counts and moka's own records. About 390
/// bytes where the system allocates them, rounded up, so that `cache.max_size` bounds memory and not
/// only text (`tests/it/guarantee_8_bounded.rs` counts them).
pub(super) const ENTRY_OVERHEAD: usize = 448;

/// Whose answers these are: a number, never reused, for each guild of the keys that are listed, and for each key that was
/// learned from the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Realm(pub u64);

/// What one answer is an answer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryKey {
    pub realm: Realm,
    pub member: MemberId,
    pub read: Read,
}

/// One answer of the origin, and how long it may be given.
#[derive(Debug)]
pub struct Entry {
    pub text: Arc<str>,
    /// The epoch under which it was asked for: a hit only while that stands.
    pub epoch: Epoch,
    asked: Tick,
    freshness: Freshness,
    /// Never given from this Unix second on: the first expiry it holds (guarantee 4).
    expires: Option<i64>,
}

/// What comes of asking for an entry: it, or what the origin said instead.
pub type Landed = Result<Arc<Entry>, Fault>;

/// What an entry is good for at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Fresh {
        ttl: Duration,
    },
    /// May be given while it is asked for anew (RFC 5861, stale-while-revalidate).
    WhileRevalidating,
    /// May be given where the origin fails (RFC 5861, stale-if-error).
    IfError,
    Nothing,
}

impl Entry {
    /// An answer asked for at `asked` (the time is taken before the origin is asked, so that an
    /// answer is never older than its age says).
    pub fn new(text: &str, epoch: Epoch, asked: Tick, freshness: Freshness, expires: Option<i64>) -> Self {
        Entry { text: text.into(), epoch, asked, freshness, expires }
    }

    /// What it is good for at `now`. The wall clock, in milliseconds, is read only where an expiry is
    /// held.
    pub fn good_for(&self, now: Tick, unix_ms: impl FnOnce() -> i64) -> Use {
        let expires_in = match self.expires.map(|expires| expires.saturating_mul(1000).saturating_sub(unix_ms())) {
            Some(..=0) => return Use::Nothing,
            Some(left) => Duration::from_millis(left.unsigned_abs()),
            None => Duration::MAX,
        };
        let Freshness { ttl, stale_while_revalidate, stale_if_error } = self.freshness;
        let age = self.age(now);
        if age < ttl {
            Use::Fresh { ttl: (ttl - age).min(expires_in) }
        } else if age - ttl < stale_while_revalidate {
            Use::WhileRevalidating
        } else if age - ttl < stale_if_error {
            Use::IfError
        } else {
            Use::Nothing
        }
    }

    /// How long ago it was asked for.
    pub fn age(&self, now: Tick) -> Duration {
        now.since(self.asked)
    }

    /// Whether it is worth keeping at all.
    pub fn keeps(&self) -> bool {
        self.freshness != Freshness::NONE
    }

    /// What it takes of `cache.max_size`, in bytes.
    pub fn weight(&self) -> u32 {
        u32::try_from(ENTRY_OVERHEAD + self.text.len()).unwrap_or(u32::MAX)
    }
}

/// The answers held in memory, bounded in bytes. Whether one is fresh stands in the entry, so
/// there are no timers; what is no longer good is pushed out by what is asked for.
#[derive(Debug)]
pub struct Answers(pub(super) Cache<EntryKey, Arc<Entry>>);

impl Answers {
    pub fn new(max_size: u64) -> Self {
        Answers(Cache::builder().max_capacity(max_size).weigher(|_, e: &Arc<Entry>| e.weight()).build())
    }

    pub fn get(&self, key: &EntryKey) -> Option<Arc<Entry>> {
        self.0.get(key)
    }

    pub fn put(&self, key: EntryKey, entry: Arc<Entry>) {
        self.0.insert(key, entry);
    }

    /// How many there are, about.
    pub fn count(&self) -> u64 {
        self.0.entry_count()
    }
}
