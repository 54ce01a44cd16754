//! `src/cache`, file by file.
#![allow(dead_code, reason = "what the model leaves alone is used by the gateway")]

#[path = "../../src/cache/answers.rs"]
pub mod answers;
#[path = "../../src/cache/entry.rs"]
pub mod entry;
#[path = "../../src/cache/flights.rs"]
pub mod flights;
#[path = "../../src/cache/gate.rs"]
pub mod gate;

use std::sync::Arc;

use answers::Answers;
use entry::{Entry, EntryKey};
use gate::{Gate, Realms};

use crate::sync::Ordering;

/// A cache whose tables are so small that the checker can make one for each try.
pub fn small_cache() -> Answers<i64> {
    Answers::with_tables(1 << 20, Gate::with_slots(4, 2, 2), 1)
}

/// Keeps an entry whatever the gate says: a bug.
pub fn put_unchecked(cache: &Answers<i64>, entry: &Arc<Entry>) {
    cache.put(entry);
}

/// Counts a write as under way, or (`-1`) as over, and does not move the epoch: a bug.
pub fn count_write(gate: &Gate, at: &EntryKey, by: i64) {
    gate.read(at.member, at.read, Realms::One(at.realm)).fetch_add(by.cast_unsigned(), Ordering::SeqCst);
}
