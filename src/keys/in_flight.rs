//! A request's place among those of its key that are in flight (`limits.tiers.NAME.in_flight`).

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use super::Key;

const FREE: u8 = 0;
const TAKEN: u8 = 1;
const GIVEN_BACK: u8 = 2;

/// One request's place, taken at most once and given back once: by [`InFlight`] when the request ends,
/// or before that by [`InFlightPlace::give_back`] when its caller has hung up. Whoever reads the
/// request owns this beside the request's future, so that it can be reached while that is pending.
#[derive(Debug, Default)]
pub struct InFlightPlace {
    key: OnceLock<Arc<Key>>,
    state: AtomicU8,
}

impl InFlightPlace {
    /// Takes the place for a request of this key. It counts until the place is given back: not at all
    /// where it was already.
    pub fn take(&self, key: &Arc<Key>) -> InFlight<'_> {
        let others = key.usage.begin();
        let key = self.key.get_or_init(|| key.clone());
        if self.state.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Acquire).is_err() {
            key.usage.end();
        }
        InFlight { place: self, key, others }
    }

    /// Gives the place back, or sees to it that it is never taken.
    pub fn give_back(&self) {
        if self.state.swap(GIVEN_BACK, Ordering::AcqRel) == TAKEN
            && let Some(key) = self.key.get()
        {
            key.usage.end();
        }
    }
}

/// A request of a key that is in flight until this is dropped.
#[derive(Debug)]
pub struct InFlight<'p> {
    place: &'p InFlightPlace,
    key: &'p Arc<Key>,
    others: u32,
}

impl InFlight<'_> {
    pub fn key(&self) -> &Arc<Key> {
        self.key
    }

    /// How many others of its key were in flight when it came.
    pub fn others(&self) -> u32 {
        self.others
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.place.give_back();
    }
}
