//! Tests of what is kept: only what the gate lets, and never an older answer in place of a newer one.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::answers::Answers;
use crate::cache::entry::ENTRY_OVERHEAD;
use crate::cache::gate::Gate;
use crate::cache::{Entry, EntryKey, GateState, Realm, Realms};
use crate::clock::Tick;
use crate::config::Freshness;
use crate::model::MemberId;
use crate::wire::Operation;

fn key(member: u64) -> EntryKey {
    EntryKey { realm: Realm(1), member: MemberId::new(member).unwrap(), read: Operation::GetPoints }
}

/// A cache whose entries share one slot of the table, and displace each other there.
fn cache() -> Answers<()> {
    Answers::with_tables(1 << 20, Gate::default(), 1)
}

/// Inserts an answer that was asked for then; whether it was kept.
fn insert(cache: &Answers<()>, key: EntryKey, text: &str, asked: u64, gate: GateState) -> bool {
    let hour = Duration::from_secs(3600);
    let freshness = Freshness { ttl: hour, stale_while_revalidate: hour, stale_if_error: hour };
    let epoch = gate.epoch().unwrap_or_default();
    cache.insert(
        &Arc::new(Entry::new((key, epoch), text.into(), Tick(asked), freshness, None)),
        cache.gate.state(&key, Tick(0)),
    )
}

fn kept(cache: &Answers<()>, key: EntryKey) -> Option<String> {
    let epoch = cache.gate.state(&key, Tick(0)).epoch()?;
    cache.get(&key, epoch).map(|entry| entry.text.to_string())
}

#[test]
fn an_answer_is_kept_until_the_epoch_moves() {
    let cache = cache();
    let before = cache.gate.state(&key(7), Tick(0));
    assert!(insert(&cache, key(7), "3", 0, before));
    assert_eq!(kept(&cache, key(7)).as_deref(), Some("3"));
    cache.gate.invalidate_member(key(7).member, Realms::All);
    assert_eq!(kept(&cache, key(7)), None);
    assert!(!insert(&cache, key(7), "3", 1, before), "it was asked for before");
    assert_eq!(kept(&cache, key(7)), None);
}

#[test]
fn the_answer_to_an_older_question_does_not_take_the_place_of_a_newer_one() {
    for (first, second, stays) in [(0, 1, "4"), (1, 0, "3")] {
        let cache = cache();
        let gate = cache.gate.state(&key(7), Tick(0));
        insert(&cache, key(7), "3", first, gate);
        insert(&cache, key(8), "0", 0, cache.gate.state(&key(8), Tick(0)));
        insert(&cache, key(7), "4", second, gate);
        assert_eq!(kept(&cache, key(7)).as_deref(), Some(stays));
    }
}

#[test]
fn the_answers_stay_within_their_bytes() {
    let cache = Answers::<()>::new(100 * (ENTRY_OVERHEAD as u64 + 1));
    for member in 0..10_000 {
        let gate = cache.gate.state(&key(member), Tick(0));
        assert!(insert(&cache, key(member), "3", 0, gate));
        kept(&cache, key(member));
    }
    let held = cache.size();
    assert!((1..=100).contains(&held.entries), "{held:?}");
    // What was not let in counts as evicted.
    assert_eq!(held.evictions, 10_000 - held.entries);
    let in_the_table = cache.slots.iter().filter(|slot| slot.load().is_some()).count();
    assert!(in_the_table as u64 <= held.entries, "the table has {in_the_table} of {held:?}");
}
