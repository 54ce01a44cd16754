//! A request's slot among those of its key that are in flight (`limits.tiers.NAME.in_flight`).

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use super::Key;

const FREE: u8 = 0;
const TAKEN: u8 = 1;
const RELEASED: u8 = 2;

/// The slot of one request: taken at most once, and released once, by [`InFlightGuard`] when the request ends or before
/// that by [`InFlightSlot::release`] when its caller has hung up. The connection owns it beside the request's future, so
/// that it can be released while the future is pending.
#[derive(Debug, Default)]
pub struct InFlightSlot {
    key: OnceLock<Arc<Key>>,
    state: AtomicU8,
}

impl InFlightSlot {
    /// Takes the slot for a request of this key. It counts until it is released; if it was released before, not at all.
    pub fn take(&self, key: &Arc<Key>) -> InFlightGuard<'_> {
        let key = self.key.get_or_init(|| key.clone());
        let others = key.budget.begin();
        if self.state.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Acquire).is_err() {
            key.budget.end();
        }
        InFlightGuard { slot: self, key, others }
    }

    /// Releases the slot; if it was not taken yet, it never will be.
    pub fn release(&self) {
        if self.state.swap(RELEASED, Ordering::AcqRel) == TAKEN
            && let Some(key) = self.key.get()
        {
            key.budget.end();
        }
    }
}

/// A request of a key that is in flight until this is dropped.
#[derive(Debug)]
pub struct InFlightGuard<'s> {
    slot: &'s InFlightSlot,
    key: &'s Arc<Key>,
    others: u32,
}

impl Drop for InFlightSlot {
    fn drop(&mut self) {
        if *self.state.get_mut() == TAKEN {
            self.release();
        }
    }
}

impl InFlightGuard<'_> {
    /// Leaves the request in flight until its slot is released or dropped.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    pub fn key(&self) -> &Arc<Key> {
        self.key
    }

    /// The number of other requests of its key that were in flight when it came.
    pub fn others(&self) -> u32 {
        self.others
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.slot.release();
    }
}
