//! Tests of interruptions of the change feed in PostgreSQL. A follower that fell behind, whose connection was cut, or
//! whose database was restored or failed over reads that everything changed. It may miss no change.

use super::*;

#[tokio::test]
async fn a_follower_that_is_too_far_behind_reads_everything_once() {
    let test = <TestStore as suite::TestStore>::with_feed_kept(4).await;
    test.add_guild(&guild("g")).await;
    let second = test.open_second().await;
    for id in 0..20 {
        test.store.set_points(&guild("g"), member(id), 1).await.unwrap();
    }
    let row = connect(&test.url).await.query_one("SELECT count(*) FROM change", &[]).await.unwrap();
    assert!(row.get::<_, i64>(0) <= 8, "{row:?}");
    assert_eq!(others_changes(&second).await, [Change::Everything]);
    test.store.set_points(&guild("g"), member(3), 2).await.unwrap();
    assert_eq!(others_changes(&second).await, [Change::Member(member(3))]);
}

#[tokio::test]
async fn a_store_restored_to_an_earlier_state_reads_as_everything() {
    for put_back in ["DELETE FROM change WHERE seq > 1; UPDATE feed SET seq = 1", "UPDATE change SET node = node + 1"] {
        let test = TestStore::new().await;
        test.add_guild(&guild("g")).await;
        test.add_guild(&guild("h")).await;
        let second = test.open_second().await;
        connect(&test.url).await.batch_execute(put_back).await.unwrap();
        assert_eq!(others_changes(&second).await, [Change::Everything], "{put_back}");
        test.store.set_points(&guild("g"), member(3), 2).await.unwrap();
        assert_eq!(others_changes(&second).await, [Change::Member(member(3))], "{put_back}");
    }
}

#[tokio::test]
async fn a_notice_wakes_the_follower_before_its_interval_has_passed() {
    let test = TestStore::new().await;
    test.add_guild(&guild("g")).await;
    let second = test.open_second().await;
    assert_eq!(others_changes(&second).await, []);
    let mut early = 0;
    for points in 0..20 {
        let start = std::time::Instant::now();
        test.store.set_points(&guild("g"), member(7), points).await.unwrap();
        second.wait_for_changes().await;
        early += usize::from(start.elapsed() < Duration::from_millis(150));
        assert_eq!(others_changes(&second).await, [Change::Member(member(7))], "after a notice, or in time");
    }
    assert!(early > 0, "no notice ever came before the interval had passed");
}

/// Closes the connection on which the other node reads the feed.
async fn cut_feed(url: &str) {
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE application_name = 'guildgate' AND datname = current_database() AND query LIKE '%FROM change%'";
    assert!(!connect(url).await.query(cut, &[]).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_follower_whose_connection_was_cut_reads_everything_and_follows_again() {
    let test = TestStore::new().await;
    test.add_guild(&guild("g")).await;
    let second = test.open_second().await;
    assert_eq!(others_changes(&second).await, []);
    cut_feed(&test.url).await;
    test.store.set_points(&guild("g"), member(7), 5).await.unwrap();
    assert_eq!(others_changes(&second).await, [Change::Everything]);
    test.store.set_points(&guild("g"), member(8), 5).await.unwrap();
    assert_eq!(others_changes(&second).await, [Change::Member(member(8))]);
}

#[tokio::test]
async fn a_number_that_a_standby_reuses_after_a_fail_over_is_another_change() {
    let test = TestStore::new().await;
    test.add_guild(&guild("g")).await;
    let second = test.open_second().await;
    test.store.set_points(&guild("g"), member(7), 5).await.unwrap();
    assert_eq!(others_changes(&second).await, [Change::Member(member(7))]);
    // As on a standby that took over before it received the last commit.
    let lost =
        "DELETE FROM member; DELETE FROM change WHERE seq = (SELECT seq FROM feed); UPDATE feed SET seq = seq - 1";
    connect(&test.url).await.batch_execute(lost).await.unwrap();
    test.store.set_points(&guild("g"), member(8), 6).await.unwrap();
    cut_feed(&test.url).await;
    assert_eq!(
        others_changes(&second).await,
        [Change::Everything],
        "what it holds of member 7 was never written there"
    );
}
