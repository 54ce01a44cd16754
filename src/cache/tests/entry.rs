//! Tests of the cache's entries: when an answer is fresh, stale or unusable, and that none is given past the first expiry
//! in it. The clock is an argument.

use std::time::Duration;

use crate::cache::Epoch;
use crate::cache::entry::*;
use crate::clock::Tick;
use crate::config::Freshness;
use crate::wire::Operation;

fn entry(expires: Option<i64>) -> Entry {
    let s = Duration::from_secs;
    let freshness = Freshness { ttl: s(10), stale_while_revalidate: s(5), stale_if_error: s(60) };
    let key = EntryKey { realm: Realm(1), member: "7".parse().unwrap(), read: Operation::GetPoints };
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
