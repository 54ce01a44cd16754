//! Part of the suite for every store: the change feed between two openings of one store. Each sees the other's data and
//! reads which of it changed.

use super::*;

pub(crate) async fn two_openings_of_a_store_see_each_others_data_and_changes(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let second = test.open_second().await;
    test.store().set_points(&guild("g"), member(7), 5).await.unwrap();
    assert_eq!(second.points(&guild("g"), member(7)).await.unwrap(), 5);
    assert_eq!(others_changes(&second).await, [Change::Member(member(7))]);
    assert_eq!(others_changes(&second).await, []);

    second.set_points(&guild("g"), member(8), 6).await.unwrap();
    warn(&second, member(7), 100).await;
    second.set_points(&guild("g"), member(8), 7).await.unwrap();
    // Points that it set itself are no news to it, unless it does not know what became of them.
    assert_eq!(others_changes(&second).await, [Change::Member(member(7))]);
    second.writer.shared.renew_node();
    assert_eq!(others_changes(&second).await, [], "what was read before");
    let expected = [Change::Directory, Change::Member(member(7)), Change::Member(member(8))];
    assert_eq!(others_changes(test.store()).await, expected, "its own change of the directory too");
    assert_eq!(test.store().points(&guild("g"), member(8)).await.unwrap(), 7);
}

pub(crate) async fn a_follower_that_missed_pruned_changes_reads_everything_once(kind: Kind) {
    // Of a new store, and of one whose feed has a row.
    for before in [0, 1] {
        let test = TestStore::new(kind).await;
        for id in 0..before + 3 {
            if id == before {
                drop(others_changes(test.store()).await);
            }
            test.add_guild(&guild(&format!("g{id}"))).await;
        }
        test.raw("DELETE FROM change WHERE seq < (SELECT max(seq) FROM change)").await;
        assert_eq!(others_changes(test.store()).await, [Change::Everything]);
        test.add_guild(&guild("h")).await;
        assert_eq!(others_changes(test.store()).await, [Change::Directory]);
    }
}

pub(crate) async fn a_store_restored_to_an_earlier_state_reads_as_everything(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let second = test.open_second().await;
    warn(test.store(), member(7), 100).await;
    assert_eq!(others_changes(&second).await, [Change::Member(member(7))]);
    test.raw("DELETE FROM change").await;
    assert_eq!(others_changes(&second).await, [Change::Everything]);
    warn(test.store(), member(8), 100).await;
    assert_eq!(others_changes(&second).await, [Change::Member(member(8))]);
}

pub(crate) async fn two_nodes_that_write_at_once_number_their_changes_without_a_gap(kind: Kind) {
    let test = TestStore::with_guild(kind).await;
    let (first, second, follower) = (test.store().clone(), test.open_second().await, test.open_second().await);
    let write = |store: Arc<Store>, from: u64| async move {
        for id in from..from + 50 {
            let mut written = store.set_points(&guild("g"), member(id), 1).await;
            // The other node may hold the lock for a second on a slow disk; then nothing was written.
            for _ in 0..10 {
                if matches!(written, Err(StoreError::Busy(_))) {
                    written = store.set_points(&guild("g"), member(id), 1).await;
                }
            }
            written.unwrap();
        }
    };
    let (writes, mut found) =
        (tokio::spawn(async move { tokio::join!(write(first, 0), write(second, 1000)) }), Vec::new());
    while !writes.is_finished() {
        found.extend(others_changes(&follower).await);
    }
    found.extend(others_changes(&follower).await);
    let expected = (0..50).chain(1000..1050).map(|id| Change::Member(member(id)));
    for change in expected {
        assert!(found.contains(&change), "{change:?} is missing");
    }
    assert!(!found.contains(&Change::Everything), "a number was missing");
}
