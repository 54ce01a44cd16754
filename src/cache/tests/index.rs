use std::sync::Arc;
use std::time::Duration;

use super::super::answer_cache::AnswerCache;
use super::super::entry::{Entry, EntryKey, Realm};
use super::super::epochs::{Epochs, Realms};
use super::super::index::Index;
use crate::clock::Tick;
use crate::config::Freshness;
use crate::model::MemberId;
use crate::wire::Operation;

const HOUR: Duration = Duration::from_secs(3600);

fn key(member: u64) -> EntryKey {
    EntryKey { realm: Realm(1), member: MemberId::new(member).unwrap(), read: Operation::GetPoints }
}

/// Inserts an answer that was asked for and came at these times; whether it was stored.
fn insert(cache: &AnswerCache, key: EntryKey, text: &str, (asked, answered): (u64, u64)) -> bool {
    let freshness = Freshness { ttl: HOUR, stale_while_revalidate: HOUR, stale_if_error: HOUR };
    let entry = Entry::new((key, cache.epoch(&key)), text.into(), (Tick(asked), Tick(answered)), freshness, None);
    cache.insert(key, &Arc::new(entry), Realms::One(key.realm), Tick(answered))
}

fn kept(cache: &AnswerCache, key: EntryKey) -> Option<String> {
    cache.get(&key).map(|entry| entry.text.to_string())
}

fn cache() -> AnswerCache {
    AnswerCache::with_tables(1 << 20, Epochs::default(), Index::with_slots(1))
}

#[test]
fn of_two_answers_that_differ_and_were_asked_for_at_once_neither_is_kept() {
    // The last one was answered before the other was asked for, and is inserted late.
    for (first, second) in [((0, 9), (1, 8)), ((1, 8), (0, 9)), ((0, 5), (1, 8)), ((1, 5), (0, 8)), ((6, 8), (0, 5))] {
        let cache = cache();
        assert!(insert(&cache, key(7), "3", first));
        // Answers about other members may displace it in the table.
        assert!(insert(&cache, key(8), "0", (2, 3)));
        assert!(!insert(&cache, key(7), "4", second));
        assert_eq!(kept(&cache, key(7)), None, "{first:?} {second:?}");
    }
}

#[test]
fn an_answer_that_was_asked_for_after_another_one_came_or_is_the_same_takes_its_place() {
    let cache = cache();
    assert!(insert(&cache, key(7), "3", (0, 9)));
    assert!(insert(&cache, key(7), "3", (1, 8)));
    assert!(insert(&cache, key(7), "4", (10, 11)));
    assert_eq!(kept(&cache, key(7)).as_deref(), Some("4"));
}
