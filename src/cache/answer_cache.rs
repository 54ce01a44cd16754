//! The only way for the gateway to look up an answer, join or lead a single-flight, store an answer, or begin a
//! write. It combines the parts in the order that coherence needs: an answer is stored only if its epoch is current,
//! and before any caller receives it; an answer that a write overtook advances the epoch while that write is unsettled.
//! `tests/model` checks the interleavings of these calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::entry::{Entries, Entry, EntryKey, FetchResult, FlightKey, entries};
use super::epochs::{Epoch, Epochs, FlightEpoch, Realms, WriteGuard};
use super::index::Index;
use super::single_flight::{Joined, Role, SingleFlight};
use crate::clock::Tick;
use crate::model::MemberId;
use crate::wire::Operation;

/// The answers in memory with everything that keeps them coherent (guarantees 2 and 3).
#[derive(Debug)]
pub struct AnswerCache {
    pub(super) entries: Entries,
    pub(super) index: Arc<Index>,
    pub(super) epochs: Epochs,
    pub(super) flights: SingleFlight<FlightKey, FlightEpoch, FetchResult>,
    evictions: Arc<AtomicU64>,
}

/// How full the cache is.
#[derive(Clone, Copy, Debug)]
pub struct CacheSize {
    pub entries: u64,
    pub bytes: u64,
    /// Entries that were evicted to make room, since the start.
    pub evictions: u64,
}

impl AnswerCache {
    /// A cache of at most `max_size` bytes.
    pub fn new(max_size: u64) -> Self {
        AnswerCache::with_tables(max_size, Epochs::default(), Index::default())
    }

    pub(super) fn with_tables(max_size: u64, epochs: Epochs, index: Index) -> Self {
        let evictions = Arc::<AtomicU64>::default();
        let index = Arc::new(index);
        let entries = entries(max_size, index.clone(), evictions.clone());
        AnswerCache { entries, index, epochs, flights: SingleFlight::default(), evictions }
    }

    /// For changes that others make.
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// The entry of `key`, if nothing was written since the origin was asked for it.
    pub fn get(&self, key: &EntryKey) -> Option<Arc<Entry>> {
        let epoch = self.epoch(key);
        self.index.get(key, &self.entries).filter(|entry| entry.epoch == epoch)
    }

    /// The epoch of an answer for which the origin is asked from now on.
    pub fn epoch(&self, key: &EntryKey) -> Epoch {
        self.epochs.epoch(key)
    }

    /// Whether nothing was written since the origin was asked for this entry.
    pub fn is_current(&self, key: &EntryKey, entry: &Entry) -> bool {
        self.epochs.is_current(entry.epoch, key)
    }

    /// Joins the flight for `key`, or begins one.
    pub fn join(&self, key: FlightKey, now: impl Fn() -> Tick) -> Role<'_, FlightKey, FlightEpoch, FetchResult> {
        self.flights.join(key, || self.epochs.flight_epoch(&key.entry, now()))
    }

    /// As [`AnswerCache::join`], once `ready` has brought what a leader needs.
    pub async fn join_when_ready<R, F>(
        &self,
        key: FlightKey,
        now: impl Fn() -> Tick,
        ready: impl Future<Output = Result<R, F>>,
        is_stored: impl Fn() -> bool,
    ) -> Result<Joined<'_, FlightKey, FlightEpoch, FetchResult, R>, F> {
        self.flights.join_when_ready(key, || self.epochs.flight_epoch(&key.entry, now()), ready, is_stored).await
    }

    /// Whether the origin is being asked for `key`.
    pub fn is_in_flight(&self, key: &FlightKey) -> bool {
        self.flights.is_in_flight(key)
    }

    /// Stores an answer if it is current and may be stored; whether it was stored. To be called before any caller
    /// receives the answer.
    pub fn insert(&self, key: EntryKey, entry: &Arc<Entry>, realms: Realms, now: Tick) -> bool {
        if realms == Realms::All {
            // An answer that one key received during a write must not be older than what the other key receives later,
            // so every answer that arrives during a write invalidates the flights that have begun before.
            self.invalidate_if_unsettled(&key, realms, now);
        }
        if !self.is_current(&key, entry) {
            self.invalidate_if_unsettled(&key, realms, now);
            return false;
        }
        // With `cache.max_size = "0B"` moka takes no entry.
        let may_take = || self.entries.policy().max_capacity() != Some(0);
        let may_store = || self.epochs.may_store(&key, entry.asked);
        if !entry.is_storable() || !may_take() || !may_store() {
            return false;
        }
        let is_inserted = self.index.insert(entry, &self.entries);
        if !is_inserted {
            // Nobody knows which of the two answers is the older one.
            self.epochs.invalidate_entry(&key, realms);
        }
        is_inserted
    }

    /// To be called before a caller receives an answer that a write overtook. The origin may have read it after that
    /// write took effect, so what was stored or asked for during the write may be older, and is invalidated.
    pub fn invalidate_if_unsettled(&self, key: &EntryKey, realms: Realms, now: Tick) {
        if self.epochs.is_unsettled(key, now) {
            self.epochs.invalidate_entry(key, realms);
        }
    }

    /// Counts what was inserted and evicted up to now, which requests leave for later.
    pub fn size(&self) -> CacheSize {
        self.entries.run_pending_tasks();
        CacheSize {
            entries: self.entries.entry_count(),
            bytes: self.entries.weighted_size(),
            evictions: self.evictions.load(Ordering::Relaxed),
        }
    }

    /// Begins a write to a member that invalidates these reads in `realms`.
    pub fn begin_write(
        &self,
        member: MemberId,
        reads: &'static [Operation],
        realms: Realms,
        no_store_for: Duration,
        now: Tick,
    ) -> WriteGuard<'_> {
        self.epochs.begin_write(member, reads, realms, no_store_for, now)
    }

    /// Begins to track a write that another process sends. Realms are numbers of one process, so it reaches all.
    pub fn begin_remote_write(&self, member: MemberId, no_store_for: Duration, now: Tick) -> WriteGuard<'_> {
        self.epochs.begin_remote_write(member, no_store_for, now)
    }
}
