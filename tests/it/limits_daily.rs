//! Contract section 3, `daily`: counted by the UTC day, kept across restarts, exact to within one
//! second's worth after kill -9.

use std::time::Duration;

use crate::support::*;

/// A count is written down at least as often as this (docs/limits.md: `kill -9` loses at most the last second).
const WRITTEN_DOWN: Duration = Duration::from_secs(1);

/// Five requests a day, wherever the keys are.
fn daily(builder: Builder) -> Builder {
    builder.key("bot").points("7", 3).set("limits.tiers.standard.daily", "5")
}

fn everywhere() -> [Builder; 3] {
    [
        daily(TestGateway::builder()),
        daily(TestGateway::before_http()),
        daily(TestGateway::before_http()).keys_at_the_origin(),
    ]
}

async fn let_in(gate: &TestGateway) -> usize {
    let mut let_in = 0;
    for _ in 0..7 {
        let_in += usize::from(gate.get_points("bot", "7").await.status == 200);
    }
    let_in
}

#[tokio::test]
async fn a_days_count_goes_on_after_a_restart_and_that_of_more_than_a_second_ago_survives_kill_9() {
    futures_util::future::join_all(everywhere().map(async |builder| {
        let mut gate = builder.start().await;
        for _ in 0..3 {
            gate.get_points("bot", "7").await.is("3");
        }
        assert_eq!(gate.restart().await, Some(0));
        gate.get_points("bot", "7").await.is("3");
        tokio::time::sleep(WRITTEN_DOWN).await;
        gate.restart_after_kill().await;
        assert_eq!(let_in(&gate).await, 1);
        assert_eq!(gate.restart().await, Some(0));
        assert_eq!(let_in(&gate).await, 0);
    }))
    .await;
}
