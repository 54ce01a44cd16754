//! Tests of the change feed in an SQLite file where it is interrupted: a follower that fell behind, a store put back to
//! an earlier state, and a file that was replaced, to which nothing may be written.

use super::*;

#[tokio::test]
async fn a_follower_that_is_too_far_behind_reads_everything_once() {
    let test = TestStore::with(Settings { feed_kept: 4, ..Settings::default() });
    test.add_guild(&guild("g")).await;
    let second = test.open_second();
    for id in 0..20 {
        test.store.set_points(&guild("g"), member(id), 1).await.unwrap();
    }
    let rows: i64 = test.raw().query_row("SELECT count(*) FROM change", [], |row| row.get(0)).unwrap();
    assert!(rows <= 8, "{rows}");
    assert_eq!(second.changes().await.unwrap(), [Change::Everything]);
    test.store.set_points(&guild("g"), member(3), 2).await.unwrap();
    assert_eq!(second.changes().await.unwrap(), [Change::Member(member(3))]);
}

#[tokio::test]
async fn a_store_restored_to_an_earlier_state_reads_as_everything() {
    let test = TestStore::new();
    test.add_guild(&guild("g")).await;
    test.add_guild(&guild("h")).await;
    let second = test.open_second();
    test.raw().execute_batch("DELETE FROM change WHERE seq > 1").unwrap();
    assert_eq!(second.changes().await.unwrap(), [Change::Everything]);
    test.store.set_points(&guild("g"), member(3), 2).await.unwrap();
    assert_eq!(second.changes().await.unwrap(), [Change::Member(member(3))]);
}

#[tokio::test]
async fn another_file_in_the_stores_place_is_an_error_and_nothing_is_written() {
    let (test, other) = (TestStore::new(), TestStore::new());
    test.add_guild(&guild("g")).await;
    let copy = test.folder.path().join("copy.db");
    std::fs::copy(other.path(), &copy).unwrap();
    assert_eq!(test.store.changes().await.unwrap(), []);
    std::fs::rename(copy, test.path()).unwrap();
    let lost = |answer: Option<StoreError>| assert!(matches!(&answer, Some(StoreError::Failed(_))), "{answer:?}");
    lost(test.store.changes().await.err());
    lost(test.store.set_points(&guild("g"), member(7), 5).await.err());
    std::fs::remove_file(test.path()).unwrap();
    lost(test.store.changes().await.err());
    lost(test.store.set_points(&guild("g"), member(7), 5).await.err());
}
