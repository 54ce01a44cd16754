//! The answers in memory, their gate, and the questions under way: the only way for the gateway to look up an answer or
//! to store one. `tests/model` checks the interleavings of these calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::{Entries, Entry, EntryKey, entries};
use super::flights::Flights;
use super::gate::{Epoch, Gate, GateState};
use super::index::Index;

/// The answers in memory with everything that keeps them coherent (guarantees 2 and 3). `T` is what those receive who
/// share a question.
#[derive(Debug)]
pub struct Answers<T: Clone> {
    pub(super) entries: Entries,
    pub(super) index: Arc<Index>,
    pub gate: Gate,
    pub flights: Arc<Flights<T>>,
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

impl<T: Clone> Answers<T> {
    /// A cache of at most `max_size` bytes.
    pub fn new(max_size: u64) -> Self {
        Answers::with_tables(max_size, Gate::default(), Index::default())
    }

    pub(super) fn with_tables(max_size: u64, gate: Gate, index: Index) -> Self {
        let evictions = Arc::<AtomicU64>::default();
        let index = Arc::new(index);
        let entries = entries(max_size, index.clone(), evictions.clone());
        Answers { entries, index, gate, flights: Arc::default(), evictions }
    }

    /// The answer that was asked for under this epoch.
    pub fn get(&self, key: &EntryKey, epoch: Epoch) -> Option<Arc<Entry>> {
        self.index.get(key, &self.entries).filter(|entry| entry.epoch == epoch)
    }

    /// Keeps an answer if its gate says so now, and returns whether it did. To be called before any caller receives the
    /// answer.
    pub fn insert(&self, entry: &Arc<Entry>, gate: GateState) -> bool {
        // With `cache.max_size = "0B"` moka takes no entry.
        let may_take = || self.entries.policy().max_capacity() != Some(0);
        let is_kept = gate == GateState::Keep(entry.epoch) && entry.is_storable() && may_take();
        if is_kept {
            self.index.insert(entry, &self.entries);
        }
        is_kept
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
}
