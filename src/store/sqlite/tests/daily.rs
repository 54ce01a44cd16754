//! Tests of how an SQLite store removes the counts of past days, some at a time. What the day counts of every store
//! must do is tested in `store/suite/daily.rs`.

use super::*;
use crate::store::suite::daily::{add, counts};

#[tokio::test]
async fn days_long_past_are_removed_a_thousand_at_a_time_and_yesterday_is_not() {
    let test = TestStore::new();
    let rows = || test.raw().query_row("SELECT count(*) FROM daily", [], |row| row.get::<_, i64>(0)).unwrap();
    let many = (0..1500).map(|n| (format!("k{n}").into(), 1)).collect();
    test.store.add_daily(10, many).await.unwrap();
    add(&test, 11, [("today", 1)]).await;
    assert_eq!(rows(), 1501);
    add(&test, 12, [("k3", 1)]).await;
    assert_eq!(rows(), 501, "1,499 of day 10 were there");
    add(&test, 12, []).await;
    assert_eq!(rows(), 2);
    assert_eq!(test.store.daily(11).await.unwrap(), counts([("k3", 1), ("today", 1)]));
}
