use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use super::fence::Epoch;
use crate::clock::Tick;
use crate::config::Freshness;
use crate::model::MemberId;
use crate::wire::{Fault, Read};

/// What an entry weighs beside its text: key, stamps, two counts and moka's own records, measured
/// roughly and rounded up, so that `cache.max_size` bounds memory and not only text.
const ENTRY_OVERHEAD: usize = 256;

/// Whose answers these are: a number that the book of keys gives each guild, never reused.
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

    /// What it is good for at `now`. The wall clock is read only where an expiry is held.
    pub fn good_for(&self, now: Tick, unix: impl FnOnce() -> i64) -> Use {
        let expires_in = match self.expires.map(|expires| expires.saturating_sub(unix())) {
            Some(..=0) => return Use::Nothing,
            Some(seconds) => Duration::from_secs(seconds.unsigned_abs()),
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
        let f = self.freshness;
        !(f.ttl.is_zero() && f.stale_while_revalidate.is_zero() && f.stale_if_error.is_zero())
    }

    fn weight(&self) -> u32 {
        u32::try_from(ENTRY_OVERHEAD + self.text.len()).unwrap_or(u32::MAX)
    }
}

/// The answers held in memory, bounded in bytes. Whether one is fresh stands in the entry, so
/// there are no timers; what is no longer good is pushed out by what is asked for.
#[derive(Debug)]
pub struct Answers(Cache<EntryKey, Arc<Entry>>);

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
}

#[cfg(test)]
mod tests {
    use super::super::Fence;
    use super::*;

    fn entry(expires: Option<i64>) -> Entry {
        let s = Duration::from_secs;
        let freshness = Freshness { ttl: s(10), stale_while_revalidate: s(5), stale_if_error: s(60) };
        let epoch = Fence::default().epoch("7".parse().unwrap(), Read::Points);
        Entry::new("3", epoch, Tick(0), freshness, expires)
    }

    fn at(seconds: u64) -> Tick {
        Tick(seconds * 1_000_000_000)
    }

    #[test]
    fn an_entry_is_fresh_then_stale_then_gone() {
        let e = entry(None);
        let use_at = |t| e.good_for(at(t), || unreachable!("no expiry is held"));
        assert_eq!(use_at(4), Use::Fresh { ttl: Duration::from_secs(6) });
        assert_eq!(use_at(10), Use::WhileRevalidating);
        assert_eq!(use_at(15), Use::IfError);
        assert_eq!(use_at(70), Use::Nothing);
    }

    #[test]
    fn nothing_is_given_past_the_first_expiry_it_holds() {
        let e = entry(Some(100));
        assert_eq!(e.good_for(at(1), || 99), Use::Fresh { ttl: Duration::from_secs(1) });
        assert_eq!(e.good_for(at(1), || 100), Use::Nothing);
        assert_eq!(e.good_for(at(20), || 100), Use::Nothing);
    }

    #[test]
    fn the_answers_stay_within_their_bytes() {
        let answers = Answers::new(100 * (ENTRY_OVERHEAD as u64 + 1));
        for n in 0..10_000 {
            let key = EntryKey { realm: Realm(1), member: MemberId::new(n).unwrap(), read: Read::Points };
            answers.put(key, Arc::new(entry(None)));
        }
        answers.0.run_pending_tasks();
        assert!(answers.0.entry_count() <= 100);
        assert!(answers.0.entry_count() > 0);
    }
}
