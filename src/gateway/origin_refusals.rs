//! Listed keys that the HTTP origin refuses (02) or limits (429) although the gateway admits them. That concerns the
//! key alone: another key of its guild asks for itself. Until the origin answers a refused key again, its requests join
//! flights of its own, so that they neither multiply nor delay other keys (guarantees 3 and 6).

use std::sync::atomic::{AtomicBool, Ordering};

use moka::sync::Cache;

use crate::model::Digest;

/// How many refused keys are remembered. A key that is forgotten delays others of its guild once more.
const MAX_REFUSED: u64 = 10_000;

/// The keys that the origin refused when they last asked.
#[derive(Debug)]
pub(super) struct OriginRefusals {
    refused: Cache<Digest, ()>,
    /// Whether there ever was one: then several flights may ask for one entry at the same time.
    any: AtomicBool,
}

impl Default for OriginRefusals {
    fn default() -> Self {
        OriginRefusals { refused: Cache::new(MAX_REFUSED), any: AtomicBool::new(false) }
    }
}

impl OriginRefusals {
    /// Whether the origin refused this key when it last asked.
    pub(super) fn contains(&self, key: &Digest) -> bool {
        self.any() && self.refused.contains_key(key)
    }

    /// Whether the origin ever refused a key.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    pub(super) fn insert(&self, key: Digest) {
        self.any.store(true, Ordering::Release);
        self.refused.insert(key, ());
    }

    /// The origin has answered this key.
    pub(super) fn remove(&self, key: &Digest) {
        self.refused.invalidate(key);
    }
}
