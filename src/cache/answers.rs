//! The answers in memory, their gate, and the questions under way: the only way for the gateway to look up an answer or
//! to store one. `tests/model` checks the interleavings of these calls.
//!
//! moka decides what stays in memory. Before it stands a table of the entries that were asked for last: a hit reads one of
//! its slots and the entry itself, where moka's own look-up also reads and writes what its policy needs. moka is told one
//! hit in some, and an entry that it removes leaves the table. A slot never has an older entry of a key than moka: where
//! both are changed, its lock is held. So no caller gets an older answer after another caller got a newer one of the same
//! epoch.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;
use arc_swap::{ArcSwapOption, Guard};
use moka::notification::RemovalCause;
use moka::sync::Cache;

use super::entry::{Entry, EntryKey};
use super::flights::Flights;
use super::gate::{Epoch, Gate, GateState, hash};
use crate::sync::Mutex;

/// Slots: 512 KiB. Entries that share a slot displace each other, which costs a look-up in moka.
const SLOTS: usize = 1 << 16;

/// Locks, each for the slots whose numbers have the same remainder.
const LOCKS: usize = 64;

/// One hit in so many is told to moka, which estimates how often an entry is asked for. A prime, so that where
/// callers ask in rotation no caller's hits are always left out.
const SAMPLE: u32 = 13;

/// The answers in memory with everything that keeps them coherent (guarantees 2 and 3). `T` is what those receive who
/// share a question.
#[derive(Debug)]
pub struct Answers<T: Clone> {
    pub gate: Gate,
    pub flights: Arc<Flights<T>>,
    /// The entries that were asked for last.
    pub(super) slots: Slots,
    locks: Box<[Mutex<()>]>,
    /// With a keyed hash that is quick for short keys and that callers cannot make collide. There are no timers: an entry
    /// that is no longer usable is evicted by newer ones.
    entries: Cache<EntryKey, Arc<Entry>, RandomState>,
    evictions: Arc<AtomicU64>,
}

type Slots = Arc<[ArcSwapOption<Entry>]>;

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
        Answers::with_tables(max_size, Gate::default(), SLOTS)
    }

    pub(super) fn with_tables(max_size: u64, gate: Gate, slots: usize) -> Self {
        let slots: Slots = (0..slots).map(|_| ArcSwapOption::empty()).collect();
        let evictions = Arc::<AtomicU64>::default();
        let (indexed, evicted) = (slots.clone(), evictions.clone());
        let removed = move |_, entry: Arc<Entry>, cause: RemovalCause| {
            leave(&indexed, &entry);
            if cause.was_evicted() {
                evicted.fetch_add(1, Ordering::Relaxed);
            }
        };
        let entries = Cache::builder()
            .max_capacity(max_size)
            .weigher(|_, entry: &Arc<Entry>| entry.weight())
            .eviction_listener(removed)
            .build_with_hasher(RandomState::new());
        let locks = (0..LOCKS).map(|_| Mutex::new(())).collect();
        Answers { gate, flights: Arc::default(), slots, locks, entries, evictions }
    }

    /// The answer that was asked for under this epoch.
    pub fn get(&self, key: &EntryKey, epoch: Epoch) -> Option<Arc<Entry>> {
        let number = slot(&self.slots, key);
        let found = self.slots[number].load();
        let entry = if found.as_ref().is_some_and(|entry| entry.key == *key) {
            if is_sampled() {
                self.entries.get(key);
            }
            Guard::into_inner(found)
        } else {
            drop(found);
            self.get_from_moka(key, number)
        };
        entry.filter(|entry| entry.epoch == epoch)
    }

    fn get_from_moka(&self, key: &EntryKey, number: usize) -> Option<Arc<Entry>> {
        let _lock = self.locks[number % LOCKS].lock();
        let entry = self.entries.get(key)?;
        self.slots[number].store(Some(entry.clone()));
        // If moka removed it meanwhile, it may have left the table before it was in the slot.
        if !self.entries.contains_key(key) {
            leave(&self.slots, &entry);
        }
        Some(entry)
    }

    /// Keeps an answer if its gate says so now, and returns whether it did. To be called before any caller receives the
    /// answer.
    pub fn insert(&self, entry: &Arc<Entry>, gate: GateState) -> bool {
        // With `cache.max_size = "0B"` moka takes no entry.
        let may_take = || self.entries.policy().max_capacity() != Some(0);
        let is_kept = gate == GateState::Keep(entry.epoch) && entry.is_storable() && may_take();
        if is_kept {
            self.put(entry);
        }
        is_kept
    }

    /// Puts an entry into moka and into the table, unless the one that is there was asked for later: two keys of a guild
    /// may ask at once, and their answers may come in another order.
    pub(super) fn put(&self, entry: &Arc<Entry>) {
        let number = slot(&self.slots, &entry.key);
        let _lock = self.locks[number % LOCKS].lock();
        let found = self.slots[number].load_full().filter(|kept| kept.key == entry.key);
        // `get` would count as a hit of one that is not there, too.
        let kept =
            found.or_else(|| if self.entries.contains_key(&entry.key) { self.entries.get(&entry.key) } else { None });
        if kept.is_none_or(|kept| kept.epoch != entry.epoch || kept.asked <= entry.asked) {
            self.slots[number].store(Some(entry.clone()));
            self.entries.insert(entry.key, entry.clone());
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
}

fn slot(slots: &Slots, key: &EntryKey) -> usize {
    hash([key.realm.0, key.member.get(), key.read.index() as u64]) as usize % slots.len()
}

/// moka has removed this entry.
fn leave(slots: &Slots, entry: &Arc<Entry>) {
    slots[slot(slots, &entry.key)].compare_and_swap(Arc::as_ptr(entry), None);
}

/// Whether this hit is one that moka is told.
fn is_sampled() -> bool {
    thread_local! {
        static HITS: Cell<u32> = const { Cell::new(0) };
    }
    let hits = HITS.get();
    HITS.set(if hits == 0 { SAMPLE - 1 } else { hits - 1 });
    hits == 0
}
