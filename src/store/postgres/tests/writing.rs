//! Tests of group commit in PostgreSQL: writes that wait together are committed together, nodes take turns and number
//! their changes without a gap, and the server's disk has a write before it is acknowledged.

use super::*;
use crate::store::StoreError;

/// Holds the lock that every writer waits for, until it is dropped.
async fn hold(test: &TestStore) -> tokio_postgres::Client {
    let other = connect(&test.url).await;
    other.batch_execute("BEGIN; SELECT FROM feed FOR UPDATE").await.unwrap();
    other
}

async fn until_one_waits(client: &tokio_postgres::Client) {
    let waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while client.query(waiting, &[]).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn writes_that_wait_together_are_committed_together_and_the_later_one_to_a_member_counts() {
    let test = TestStore::new().await;
    test.add_guild(&guild("g")).await;
    let (store, here, nowhere) = (&test.store, guild("g"), guild("nowhere"));
    store.set_member(&here, member(1), Some("Ada"), None).await.unwrap();
    let newest = async |other: &tokio_postgres::Client| -> i64 {
        other.query_one("SELECT seq FROM feed", &[]).await.unwrap().get(0)
    };
    let other = hold(&test).await;
    let before = newest(&other).await;
    let (one, two, departed, again, ()) = tokio::join!(
        store.set_points(&here, member(1), 1),
        store.set_points(&here, member(2), 2),
        store.set_points(&nowhere, member(1), 3),
        store.set_points(&here, member(1), 4),
        async { other.batch_execute("COMMIT").await.unwrap() },
    );
    assert_eq!((one.unwrap(), two.unwrap(), again.unwrap()), ("Ada".into(), "2".into(), "Ada".into()));
    suite::is_departed(departed);
    assert_eq!(store.points(&here, member(1)).await.unwrap(), 4);
    assert_eq!(store.points(&here, member(2)).await.unwrap(), 2);
    // The first may have been committed alone, before the others were queued.
    assert!(newest(&other).await <= before + 2, "four writes were more than two commits");
}

#[tokio::test]
async fn a_store_held_by_another_is_busy_after_the_wait_and_nothing_is_written() {
    let test = TestStore::new().await;
    test.add_guild(&guild("g")).await;
    let other = hold(&test).await;
    let here = guild("g");
    let (set, added) = tokio::join!(
        test.store.set_points(&here, member(7), 5),
        test.store.add_note(&here, member(7), suite::warn_for("r", 9))
    );
    assert!(matches!(set, Err(StoreError::Busy(_))), "{set:?}");
    assert!(matches!(added, Err(StoreError::Busy(_))), "{added:?}");
    // Readers do not wait for the lock.
    assert_eq!(test.store.points(&here, member(7)).await.unwrap(), 0);
    other.batch_execute("COMMIT").await.unwrap();
    test.store.set_points(&here, member(8), 6).await.unwrap();
    assert_eq!(test.store.members(&here, None, usize::MAX).await.unwrap().len(), 1, "a busy write came later");
}

#[tokio::test]
async fn of_writes_that_wait_together_those_that_are_cancelled_are_left_out_and_the_others_done() {
    let test = TestStore::new().await;
    test.add_guild(&guild("g")).await;
    let (store, here) = (&test.store, guild("g"));
    let other = hold(&test).await;
    let watcher = connect(&test.url).await; // within a transaction, the list of connections stays the same
    let (before, behind) = (Cancellation::default(), Cancellation::default());
    let (one, two, three, ()) = tokio::join!(
        store.set_points_unless_cancelled(&here, member(1), 1, &before),
        store.set_points(&here, member(2), 2),
        store.set_points_unless_cancelled(&here, member(3), 3, &behind),
        async {
            tokio::time::timeout(LOCK, until_one_waits(&watcher)).await.expect("the writer waits for the lock");
            assert_eq!(before.cancel_unless(|| Err("02")), Err("02"));
            assert_eq!(behind.cancel_unless(|| Err("15")), Err("15"));
            other.batch_execute("COMMIT").await.unwrap();
        },
    );
    assert!(
        matches!(&one, Err(StoreError::Busy(_))) && matches!(&three, Err(StoreError::Busy(_))),
        "{one:?} {three:?}"
    );
    assert_eq!(two.unwrap(), "2");
    assert_eq!(store.members(&here, None, usize::MAX).await.unwrap().len(), 1, "a cancelled write was done");
    // What was done cannot be cancelled any more.
    let done = Cancellation::default();
    store.set_points_unless_cancelled(&here, member(4), 4, &done).await.unwrap();
    assert_eq!(done.cancel_unless(|| Err("02")), Ok(()));
}

#[tokio::test]
async fn a_write_whose_caller_stops_waiting_is_finished_also_while_the_store_is_dropped() {
    let test = TestStore::new().await;
    test.add_guild(&guild("g")).await;
    let other = hold(&test).await;
    let here = guild("g");
    tokio::select! {
        biased;
        _ = test.store.set_points(&here, member(7), 5) => panic!("the lock is held"),
        () = std::future::ready(()) => {} // it is queued when it is polled first
    }
    let reopened = tokio::task::spawn_blocking(move || {
        let TestStore { store, url } = test;
        drop(store);
        url
    });
    other.batch_execute("COMMIT").await.unwrap();
    let url = reopened.await.unwrap();
    let store = PostgresStore::open(&at(&url), IfMissing::Make).await.unwrap();
    assert_eq!(store.points(&here, member(7)).await.unwrap(), 5);
}

#[tokio::test]
async fn two_nodes_that_write_at_once_number_their_changes_without_a_gap() {
    let test = TestStore::new().await;
    test.add_guild(&guild("g")).await;
    let (second, here) = (test.open_second().await, guild("g"));
    let write = async |store: &PostgresStore, from: u64| {
        for id in from..from + 30 {
            store.set_points(&here, member(id), 1).await.unwrap();
        }
    };
    let (_, _, read) = tokio::join!(write(&test.store, 0), write(&second, 100), async {
        let mut read = Vec::new();
        while read.len() < 30 {
            read.extend(others_changes(&test.store).await);
        }
        read
    });
    let expected: Vec<_> = (100..130).map(|id| Change::Member(member(id))).collect();
    assert_eq!(read, expected, "each change of the other node, in order, once");
    let other = connect(&test.url).await;
    let row = other.query_one("SELECT count(*), max(seq), (SELECT seq FROM feed) FROM change", &[]).await.unwrap();
    let (count, max, next): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert_eq!((count, next), (max, max));
}

#[tokio::test]
async fn a_commit_is_on_the_servers_disk_before_it_is_acknowledged_whatever_the_role_says() {
    let test = TestStore::new().await;
    let other = connect(&test.url).await;
    let lax =
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$";
    other.batch_execute(lax).await.unwrap();
    let store = test.open_second().await;
    let rows = store.pool.read("SELECT current_setting('synchronous_commit')", &[]).await.unwrap();
    assert_eq!(column::<&str>(&rows[0], 0).unwrap(), "on");
}

#[tokio::test]
async fn a_write_waits_for_its_turn_whatever_isolation_the_database_has_by_default() {
    let test = TestStore::new().await;
    test.add_guild(&guild("g")).await;
    let strict = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', \
        current_database()); END $$";
    connect(&test.url).await.batch_execute(strict).await.unwrap();
    let (store, here) = (test.open_second().await, guild("g"));
    let (other, watch) = (hold(&test).await, connect(&test.url).await);
    other.batch_execute("UPDATE feed SET seq = seq").await.unwrap();
    let (written, ()) = tokio::join!(store.set_points(&here, member(1), 1), async {
        until_one_waits(&watch).await;
        other.batch_execute("COMMIT").await.unwrap();
    });
    written.unwrap();
}
