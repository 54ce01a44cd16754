use super::*;
use crate::model::{Digest, Scope};

#[tokio::test]
async fn two_stores_on_one_file_see_each_others_data_and_are_told_of_each_others_changes() {
    let world = World::new();
    world.store.add(&guild("g")).await;
    let neighbour = world.neighbour();
    world.store.set_points(&guild("g"), member(7), 5).await.unwrap();
    assert_eq!(neighbour.points(&guild("g"), member(7)).await.unwrap(), 5);
    assert_eq!(neighbour.changes().await.unwrap(), [Change::Member(member(7))]);
    assert_eq!(neighbour.changes().await.unwrap(), []);

    neighbour.set_points(&guild("g"), member(8), 6).await.unwrap();
    neighbour.warn(&guild("g"), member(7), 100).await;
    neighbour.set_points(&guild("g"), member(8), 7).await.unwrap();
    assert_eq!(neighbour.changes().await.unwrap(), []);
    assert_eq!(world.store.changes().await.unwrap(), [Change::Member(member(7)), Change::Member(member(8))]);
    assert_eq!(world.store.points(&guild("g"), member(8)).await.unwrap(), 7);
}

#[tokio::test]
async fn guilds_and_keys_are_told_as_the_directory() {
    let world = World::new();
    let neighbour = world.neighbour();
    let key = KeyRecord {
        id: "k1".into(),
        name: "Bot".into(),
        guild: guild("g"),
        digest: Digest::of(b"secret"),
        tier: None,
        scope: Scope::Read,
        created: 1,
        expires: Some(2),
        last_used: None,
        previous: None,
    };
    world.store.add(&guild("g")).await;
    assert_eq!(neighbour.changes().await.unwrap(), [Change::Directory]);
    world.store.create_key(key.clone()).await.unwrap();
    assert_eq!(neighbour.changes().await.unwrap(), [Change::Directory]);
    assert_eq!(neighbour.keys().await.unwrap(), [key]);
    world.store.revoke_key("k1").await.unwrap();
    world.store.leave(&guild("g"), true).await;
    assert_eq!(neighbour.changes().await.unwrap(), [Change::Directory]);
    assert_eq!(neighbour.keys().await.unwrap(), []);
}

#[tokio::test]
async fn a_refused_write_is_not_told() {
    let world = World::new();
    let neighbour = world.neighbour();
    refused(world.store.revoke_key("none").await);
    crate::store::suite::gone(world.store.set_points(&guild("none"), member(7), 1).await);
    assert_eq!(neighbour.changes().await.unwrap(), []);
}

#[tokio::test]
async fn who_is_too_far_behind_is_told_everything_once() {
    let world = World::with(Settings { feed_kept: 4, ..Settings::default() });
    world.store.add(&guild("g")).await;
    let neighbour = world.neighbour();
    for id in 0..20 {
        world.store.set_points(&guild("g"), member(id), 1).await.unwrap();
    }
    let rows: i64 = world.raw().query_row("SELECT count(*) FROM change", [], |row| row.get(0)).unwrap();
    assert!(rows <= 8, "{rows}");
    assert_eq!(neighbour.changes().await.unwrap(), [Change::Everything]);
    world.store.set_points(&guild("g"), member(3), 2).await.unwrap();
    assert_eq!(neighbour.changes().await.unwrap(), [Change::Member(member(3))]);
}

#[tokio::test]
async fn a_follower_of_a_new_store_misses_nothing_that_was_pruned() {
    let world = World::with(Settings { feed_kept: 4, ..Settings::default() });
    let neighbour = world.neighbour();
    for id in 0..20 {
        world.store.add(&guild(&format!("g{id}"))).await;
    }
    assert_eq!(neighbour.changes().await.unwrap(), [Change::Everything]);
}

#[tokio::test]
async fn a_store_put_back_to_an_earlier_state_is_told_as_everything() {
    let world = World::new();
    world.store.add(&guild("g")).await;
    world.store.add(&guild("h")).await;
    let neighbour = world.neighbour();
    world.raw().execute_batch("DELETE FROM change WHERE seq > 1").unwrap();
    assert_eq!(neighbour.changes().await.unwrap(), [Change::Everything]);
    world.store.set_points(&guild("g"), member(3), 2).await.unwrap();
    assert_eq!(neighbour.changes().await.unwrap(), [Change::Member(member(3))]);
}

#[tokio::test]
async fn another_file_in_the_stores_place_is_an_error_and_nothing_is_written_to_the_lost_one() {
    let (world, other) = (World::new(), World::new());
    world.store.add(&guild("g")).await;
    let copy = world.folder.path().join("copy.db");
    std::fs::copy(other.path(), &copy).unwrap();
    assert_eq!(world.store.changes().await.unwrap(), []);
    std::fs::rename(copy, world.path()).unwrap();
    let lost = |answer: Option<StoreError>| assert!(matches!(&answer, Some(StoreError::Failed(_))), "{answer:?}");
    lost(world.store.changes().await.err());
    lost(world.store.set_points(&guild("g"), member(7), 5).await.err());
    std::fs::remove_file(world.path()).unwrap();
    lost(world.store.changes().await.err());
    lost(world.store.set_points(&guild("g"), member(7), 5).await.err());
}
