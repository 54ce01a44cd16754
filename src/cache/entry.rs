//! One cached answer: its key, and until when it is fresh, stale (RFC 5861) or unusable. An answer is never used from
//! the first expiry in it on (guarantee 4). Time is an argument, and an entry never changes. Whether a write has overtaken
//! an entry is not decided here: callers compare epochs.

use std::sync::Arc;
use std::time::Duration;

use super::gate::Epoch;
use crate::clock::Tick;
use crate::config::Freshness;
use crate::model::MemberId;
use crate::wire::Operation;

/// Memory of an entry besides its text: key, timestamps, two reference counts and moka's own bookkeeping. The system
/// allocates about 390 bytes for them, rounded up here, so that `cache.max_size` bounds memory and not only text
/// (`tests/it/guarantee_8_bounded.rs` counts them).
pub(super) const ENTRY_OVERHEAD: usize = 448;

/// The owner of a set of answers: each guild of the listed keys has one, and so has each key that was learned from the
/// origin. A number is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Realm(pub u64);

/// What an entry answers: which read, of which member, in which realm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryKey {
    pub realm: Realm,
    pub member: MemberId,
    pub read: Operation,
}

/// One answer of the origin.
#[derive(Debug)]
pub struct Entry {
    pub key: EntryKey,
    pub text: Arc<str>,
    /// The epoch under which the origin was asked. The entry is usable only while this epoch is current.
    pub epoch: Epoch,
    pub(super) asked: Tick,
    freshness: Freshness,
    /// The first expiry in the text, in Unix seconds: the entry is unusable from then on (guarantee 4).
    expires: Option<i64>,
}

/// How an entry may be used at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    Fresh {
        ttl: Duration,
    },
    /// Usable while the origin is asked for a new answer (RFC 5861, stale-while-revalidate).
    StaleWhileRevalidate,
    /// Usable if the origin fails (RFC 5861, stale-if-error).
    StaleIfError,
    Expired,
}

impl Entry {
    /// `asked` is read before the origin is asked, so that an answer is never older than its age says.
    pub fn new(
        (key, epoch): (EntryKey, Epoch),
        text: Arc<str>,
        asked: Tick,
        freshness: Freshness,
        expires: Option<i64>,
    ) -> Self {
        Entry { key, text, epoch, asked, freshness, expires }
    }

    /// The state at `now`. The wall clock, in milliseconds, is read only if the text contains an expiry.
    pub fn state_at(&self, now: Tick, unix_ms: impl FnOnce() -> i64) -> EntryState {
        let expires_in = match self.expires.map(|expires| expires.saturating_mul(1000).saturating_sub(unix_ms())) {
            Some(..=0) => return EntryState::Expired,
            Some(left) => Duration::from_millis(left.unsigned_abs()),
            None => Duration::MAX,
        };
        let Freshness { ttl, stale_while_revalidate, stale_if_error } = self.freshness;
        let age = self.age(now);
        if age < ttl {
            EntryState::Fresh { ttl: (ttl - age).min(expires_in) }
        } else if age - ttl < stale_while_revalidate {
            EntryState::StaleWhileRevalidate
        } else if age - ttl < stale_if_error {
            EntryState::StaleIfError
        } else {
            EntryState::Expired
        }
    }

    /// Time since the origin was asked.
    pub fn age(&self, now: Tick) -> Duration {
        now.since(self.asked)
    }

    /// Whether the configuration lets this answer be used more than once.
    pub fn is_storable(&self) -> bool {
        self.freshness != Freshness::NONE
    }

    /// What the entry takes of `cache.max_size`, in bytes.
    pub fn weight(&self) -> u32 {
        u32::try_from(ENTRY_OVERHEAD + self.text.len()).unwrap_or(u32::MAX)
    }
}
