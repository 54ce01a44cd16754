use super::*;
use crate::model::KeyId;

fn counts<const N: usize>(counts: [(&str, u64); N]) -> Vec<(KeyId, u64)> {
    counts.into_iter().map(|(key, count)| (key.into(), count)).collect()
}

async fn note<const N: usize>(world: &World, day: i64, more: [(&str, u64); N]) -> Vec<(KeyId, u64)> {
    world.store.note_daily(day, counts(more)).await.unwrap()
}

#[tokio::test]
async fn counts_add_up_within_a_day_and_start_anew_with_the_next() {
    let world = World::new();
    // No such keys are in the store: they may be a file's, or known by the origin alone.
    assert_eq!(note(&world, 10, [("b", 1), ("a", 3)]).await, counts([("b", 1), ("a", 3)]));
    assert_eq!(note(&world, 10, [("a", 2), ("c", 0)]).await, counts([("a", 5), ("c", 0)]));
    assert_eq!(world.store.daily(10).await.unwrap(), counts([("a", 5), ("b", 1), ("c", 0)]));
    assert_eq!(world.store.daily(11).await.unwrap(), []);
    assert_eq!(note(&world, 11, [("a", 4)]).await, counts([("a", 4)]));
    assert_eq!(world.store.daily(11).await.unwrap(), counts([("a", 4)]));
}

#[tokio::test]
async fn who_has_not_yet_seen_midnight_adds_to_the_new_day_and_takes_nothing_back() {
    let world = World::new();
    note(&world, 10, [("a", 7), ("b", 9)]).await;
    note(&world, 11, [("a", 2)]).await;
    assert_eq!(note(&world, 10, [("a", 3), ("b", 1)]).await, counts([("a", 5), ("b", 10)]));
    assert_eq!(world.store.daily(10).await.unwrap(), counts([("a", 5), ("b", 10)]));
    assert_eq!(world.store.daily(11).await.unwrap(), counts([("a", 5)]));
}

#[tokio::test]
async fn a_day_further_ahead_was_a_wrong_clocks_and_counts_nothing() {
    let world = World::new();
    note(&world, 12, [("a", 7), ("b", 9)]).await;
    assert_eq!(world.store.daily(10).await.unwrap(), []);
    assert_eq!(note(&world, 10, [("a", 1)]).await, counts([("a", 1)]));
    assert_eq!(world.store.daily(10).await.unwrap(), counts([("a", 1)]));
    assert_eq!(world.store.daily(12).await.unwrap(), counts([("b", 9)]));
}

#[tokio::test]
async fn a_key_named_twice_is_counted_twice() {
    let world = World::new();
    assert_eq!(note(&world, 10, [("a", 1), ("a", 2)]).await, counts([("a", 1), ("a", 3)]));
}

#[tokio::test]
async fn a_count_stops_at_the_largest_number_that_is_kept() {
    const MOST: u64 = i64::MAX as u64;
    let world = World::new();
    assert_eq!(note(&world, 10, [("a", MOST - 1), ("b", u64::MAX)]).await, counts([("a", MOST - 1), ("b", MOST)]));
    assert_eq!(note(&world, 10, [("a", 1), ("b", 1)]).await, counts([("a", MOST), ("b", MOST)]));
    assert_eq!(note(&world, 10, [("a", u64::MAX), ("b", 0)]).await, counts([("a", MOST), ("b", MOST)]));
}

#[tokio::test]
async fn counts_are_kept_across_restarts_seen_by_others_and_told_to_nobody() {
    let world = World::new();
    let neighbour = world.neighbour();
    note(&world, 10, [("a", 7)]).await;
    assert_eq!(neighbour.changes().await.unwrap(), []);
    assert_eq!(neighbour.note_daily(10, counts([("a", 1)])).await.unwrap(), counts([("a", 8)]));
    drop(neighbour);
    let World { store, folder } = world;
    drop(store);
    let store = SqliteStore::open(folder.path().join("store.db")).unwrap();
    assert_eq!(store.daily(10).await.unwrap(), counts([("a", 8)]));
}

#[tokio::test]
async fn days_long_past_are_removed_a_thousand_at_a_time_and_yesterday_is_not() {
    let world = World::new();
    let rows = || world.raw().query_row("SELECT count(*) FROM daily", [], |row| row.get::<_, i64>(0)).unwrap();
    let many = (0..1500).map(|n| (format!("k{n}").into(), 1)).collect();
    world.store.note_daily(10, many).await.unwrap();
    note(&world, 11, [("today", 1)]).await;
    assert_eq!(rows(), 1501);
    note(&world, 12, [("k3", 1)]).await;
    assert_eq!(rows(), 501, "1,499 of day 10 were there");
    note(&world, 12, []).await;
    assert_eq!(rows(), 2);
    assert_eq!(world.store.daily(11).await.unwrap(), counts([("k3", 1), ("today", 1)]));
}
