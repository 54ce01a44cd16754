//! Tests of the change feed in an SQLite file where it is interrupted: a follower that fell behind, a store put back to
//! an earlier state, and a file that was replaced, to which nothing may be written.

use super::*;

#[tokio::test]
async fn who_is_too_far_behind_is_told_everything_once() {
    let world = World::with(Settings { feed_kept: 4, ..Settings::default() });
    world.add(&guild("g")).await;
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
async fn a_store_put_back_to_an_earlier_state_is_told_as_everything() {
    let world = World::new();
    world.add(&guild("g")).await;
    world.add(&guild("h")).await;
    let neighbour = world.neighbour();
    world.raw().execute_batch("DELETE FROM change WHERE seq > 1").unwrap();
    assert_eq!(neighbour.changes().await.unwrap(), [Change::Everything]);
    world.store.set_points(&guild("g"), member(3), 2).await.unwrap();
    assert_eq!(neighbour.changes().await.unwrap(), [Change::Member(member(3))]);
}

#[tokio::test]
async fn another_file_in_the_stores_place_is_an_error_and_nothing_is_written_to_the_lost_one() {
    let (world, other) = (World::new(), World::new());
    world.add(&guild("g")).await;
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
