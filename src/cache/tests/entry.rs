//! Tests of the cache's entries: when an answer is fresh, stale or unusable, that none is given past the first expiry
//! in it, and that the cache stays within its size in bytes. The clock is an argument.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::cache::Epoch;
use crate::cache::entry::*;
use crate::cache::index::Index;
use crate::clock::Tick;
use crate::config::Freshness;
use crate::model::MemberId;
use crate::wire::Operation;

fn entry(expires: Option<i64>) -> Entry {
    entry_of("7".parse().unwrap(), expires)
}

fn entry_of(member: MemberId, expires: Option<i64>) -> Entry {
    let s = Duration::from_secs;
    let freshness = Freshness { ttl: s(10), stale_while_revalidate: s(5), stale_if_error: s(60) };
    let key = EntryKey { realm: Realm(1), member, read: Operation::GetPoints };
    Entry::new((key, Epoch::default()), "3".into(), Tick(0), freshness, expires)
}

fn at(seconds: u64) -> Tick {
    Tick(seconds * 1_000_000_000)
}

#[test]
fn an_entry_is_fresh_then_stale_then_gone() {
    let e = entry(None);
    let use_at = |t| e.state_at(at(t), || unreachable!("no expiry is held"));
    assert_eq!(use_at(4), EntryState::Fresh { ttl: Duration::from_secs(6) });
    assert_eq!(use_at(10), EntryState::StaleWhileRevalidate);
    assert_eq!(use_at(15), EntryState::StaleIfError);
    assert_eq!(use_at(70), EntryState::Expired);
}

#[test]
fn nothing_is_given_past_the_first_expiry_it_holds() {
    let e = entry(Some(100));
    assert_eq!(e.state_at(at(1), || 98_600), EntryState::Fresh { ttl: Duration::from_millis(1400) });
    assert_eq!(e.state_at(at(1), || 100_000), EntryState::Expired);
    assert_eq!(e.state_at(at(20), || 100_000), EntryState::Expired);
}

#[test]
fn the_answers_stay_within_their_bytes() {
    let (index, evictions) = (Arc::<Index>::default(), Arc::<AtomicU64>::default());
    let entries = entries(100 * (ENTRY_OVERHEAD as u64 + 1), index.clone(), evictions.clone());
    let added: Vec<_> = (0..10_000).map(|n| Arc::new(entry_of(MemberId::new(n).unwrap(), None))).collect();
    for entry in &added {
        index.insert(entry, &entries);
        index.get(&entry.key, &entries);
    }
    entries.run_pending_tasks();
    let held = entries.entry_count();
    assert!((1..=100).contains(&held), "{held}");
    // What was not let in counts as evicted.
    assert_eq!(evictions.load(Ordering::Relaxed), 10_000 - held);
    let no_entries = super::super::entry::entries(0, Arc::default(), Arc::default());
    let indexed = added.iter().filter(|entry| index.get(&entry.key, &no_entries).is_some()).count();
    assert!(indexed as u64 <= held, "the index has {indexed} entries, and moka has {held}");
}
