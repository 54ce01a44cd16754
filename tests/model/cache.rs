//! `src/cache`, file by file.
#![allow(dead_code, reason = "what the model leaves alone is used by the gateway")]

#[path = "../../src/cache/answer_cache.rs"]
pub mod answer_cache;
#[path = "../../src/cache/entry.rs"]
pub mod entry;
#[path = "../../src/cache/epochs.rs"]
pub mod epochs;
#[path = "../../src/cache/index.rs"]
pub mod index;
#[path = "../../src/cache/single_flight.rs"]
pub mod single_flight;

use std::collections::HashSet;

use epochs::{Epochs, Realms};

/// A cache whose tables are so small that the checker can make one for each try. These entries share no slot: a
/// collision would hide a bug.
pub fn small_cache(entries: &[entry::EntryKey]) -> answer_cache::AnswerCache {
    let epochs = Epochs::with_slots(16, 4, 16);
    let all_realms = || entries.iter().map(|at| Realms::One(at.realm)).chain([Realms::All]);
    let (member, read) = (entries[0].member, entries[0].read);
    let slots: HashSet<_> = all_realms().map(|realms| std::ptr::from_ref(epochs.slot(member, read, realms))).collect();
    let unsettled: HashSet<_> =
        all_realms().map(|realms| std::ptr::from_ref(epochs.unsettled(member, realms))).collect();
    assert_eq!([slots.len(), unsettled.len()], [entries.len() + 1; 2], "other entries are needed");
    // All entries share the one slot of the index, and displace each other.
    answer_cache::AnswerCache::with_tables(1 << 20, epochs, index::Index::with_slots(1))
}

/// Stores an entry whatever its epoch is: a bug.
pub fn put_unchecked(cache: &answer_cache::AnswerCache, entry: std::sync::Arc<entry::Entry>) {
    cache.index.insert(&entry, &cache.entries);
}

/// Joins any flight, whenever it began: a bug.
pub fn join_any<'m>(
    cache: &'m answer_cache::AnswerCache,
    at: entry::EntryKey,
    first: epochs::FlightEpoch,
) -> single_flight::Role<'m, entry::FlightKey, epochs::FlightEpoch, entry::FetchResult> {
    cache.flights.join(entry::FlightKey::shared(at), || first)
}

/// Advances the epoch before the write only: a bug.
pub fn advance_once(cache: &answer_cache::AnswerCache, at: &entry::EntryKey) {
    cache.epochs.advance(at.member, at.read, epochs::Realms::One(at.realm));
}
