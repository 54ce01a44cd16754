//! The entries that were asked for last, found by one look: a table of pointers by hash, before moka. A hit reads one
//! slot and the entry itself, where moka's own look-up also reads and writes what its policy needs. What stays in memory
//! is moka's decision alone: an entry that moka removes leaves the table, and moka is told one hit in some.
//!
//! A slot never has an older entry of a key than moka: where both are changed, its lock is held. So no caller gets an
//! older answer after another caller got a newer one of the same epoch.

use std::cell::Cell;
use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};

use super::entry::{Entries, Entry, EntryKey};
use super::gate::hash_of;
use crate::sync::Mutex;

/// Slots: 512 KiB. Entries that share a slot displace each other, which costs a look-up in moka.
const SLOTS: usize = 1 << 16;

/// Locks, each for the slots whose numbers have the same remainder.
const LOCKS: usize = 64;

/// One hit in so many is told to moka, which estimates how often an entry is asked for. A prime, so that where
/// callers ask in rotation no caller's hits are always left out.
const SAMPLE: u32 = 13;

/// The entries that were asked for last.
#[derive(Debug)]
pub(super) struct Index {
    slots: Box<[ArcSwapOption<Entry>]>,
    locks: Box<[Mutex<()>]>,
}

impl Default for Index {
    fn default() -> Self {
        Index::with_slots(SLOTS)
    }
}

impl Index {
    pub(super) fn with_slots(slots: usize) -> Self {
        Index {
            slots: (0..slots).map(|_| ArcSwapOption::empty()).collect(),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
        }
    }

    /// The entry of `key`, from the table or else from `entries`.
    pub(super) fn get(&self, key: &EntryKey, entries: &Entries) -> Option<Arc<Entry>> {
        let number = self.number(key);
        let found = self.slots[number].load();
        if found.as_ref().is_some_and(|entry| entry.key == *key) {
            if is_sampled() {
                entries.get(key);
            }
            return Guard::into_inner(found);
        }
        drop(found);
        let _lock = self.locks[number % LOCKS].lock();
        let entry = entries.get(key)?;
        self.slots[number].store(Some(entry.clone()));
        // If moka removed it meanwhile, `remove` may have come before it was in the slot.
        if !entries.contains_key(key) {
            self.remove(&entry);
        }
        Some(entry)
    }

    /// Inserts an entry into `entries` and into the table, unless the one that is there was asked for later: two keys of a
    /// guild may ask at once, and their answers may come in another order.
    pub(super) fn insert(&self, entry: &Arc<Entry>, entries: &Entries) {
        let number = self.number(&entry.key);
        let _lock = self.locks[number % LOCKS].lock();
        let found = self.slots[number].load_full().filter(|kept| kept.key == entry.key);
        // `get` would count as a hit of one that is not there, too.
        let kept = found.or_else(|| if entries.contains_key(&entry.key) { entries.get(&entry.key) } else { None });
        if kept.is_none_or(|kept| kept.epoch != entry.epoch || kept.asked <= entry.asked) {
            self.slots[number].store(Some(entry.clone()));
            entries.insert(entry.key, entry.clone());
        }
    }

    /// To be called when moka has removed an entry.
    pub(super) fn remove(&self, entry: &Arc<Entry>) {
        self.slots[self.number(&entry.key)].compare_and_swap(Arc::as_ptr(entry), None);
    }

    fn number(&self, key: &EntryKey) -> usize {
        hash_of(key) as usize % self.slots.len()
    }
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
