//! The daily limit over several nodes (contract section 3, `[cluster]`), and a day that is given back.

use crate::cluster_limits::{judged_by_the_origin, limited};
use crate::support::*;

async fn is_used_up(gate: &TestGateway) {
    eventually(PATIENCE, "the day is used up", async || gate.get_points("bot", "7").await.code() == Some(12)).await;
}

async fn has_its_day_back(gate: &TestGateway) {
    let is_answered = async || gate.get_points("bot", "7").await.status == 200;
    eventually(PATIENCE, "the day is given back", is_answered).await;
}

#[tokio::test]
async fn guarantee_6_a_day_is_counted_over_all_nodes() {
    let redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let here = limited(&redis, &url).set("limits.tiers.standard.daily", "30").start().await;
    let there = here.node(&url).await;
    let mut admitted = 0;
    for _ in 0..40 {
        for gate in [&here, &there] {
            admitted += u32::from(gate.get_points("bot", "7").await.status == 200);
        }
    }
    assert_eq!(admitted, 30);
}

#[tokio::test]
async fn a_day_is_given_back_at_every_node_though_one_was_started_since_its_last_request() {
    let redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let mut here = limited(&redis, &url).set("limits.tiers.standard.daily", "3").start().await;
    let there = here.node(&url).await;
    is_used_up(&here).await;
    is_used_up(&there).await;
    here.restart().await;
    here.run(&["limits", "reset", &here.key_id("bot")]).done();
    has_its_day_back(&here).await;
    has_its_day_back(&there).await;
}

#[tokio::test]
async fn a_day_is_given_back_to_a_key_that_only_the_origin_knows() {
    let redis = Redis::start(&[]).await;
    let gate = judged_by_the_origin(&redis).set("limits.tiers.standard.daily", "3").key("bot").start().await;
    is_used_up(&gate).await;
    let digest = digest(gate.secret("bot"));
    let id = format!("o_{}", &digest["sha256:".len()..][..16]);
    // There is such a key once its first count is stored.
    eventually(PATIENCE, "the reset", async || gate.run(&["limits", "reset", &id]).code == Some(0)).await;
    has_its_day_back(&gate).await;
}

/// Nodes that have stores of their own, whose day has room for so many.
async fn with_own_stores(redis: &Redis, daily: u32) -> [TestGateway; 2] {
    let here = TestGateway::before_http().keys_in_file().key("bot").points("7", 3);
    let here = here.set("cluster.redis", &format!("{:?}", redis.url())).set("cluster.timeout", r#""500ms""#);
    let here = here.set("limits.tiers.standard.daily", &daily.to_string()).start().await;
    let there = here.node("").await;
    [here, there]
}

#[tokio::test]
async fn a_caller_is_told_what_all_nodes_have_left_of_a_day() {
    let redis = Redis::start(&[]).await;
    let [here, there] = with_own_stores(&redis, 40).await;
    for _ in 0..20 {
        here.get_points("bot", "7").await.is("3");
    }
    let answer = there.get_points("bot", "7").await;
    let left = answer.header("ratelimit").unwrap().split_once("-daily\";r=").unwrap().1.split(';').next().unwrap();
    assert_eq!(left, "19", "{answer:#?}");
}

#[tokio::test]
async fn guarantee_6_a_redis_that_has_lost_everything_is_told_what_other_nodes_counted_of_the_day() {
    let redis = Redis::start(&[]).await;
    let nodes = with_own_stores(&redis, 40).await;
    let mut let_in = 0;
    for (node, requests) in [(0, 20), (1, 5)] {
        for _ in 0..requests {
            let_in += u32::from(nodes[node].get_points("bot", "7").await.status == 200);
        }
    }
    redis.ask("FLUSHALL");
    for node in [&nodes[1], &nodes[0]] {
        while node.get_points("bot", "7").await.status == 200 {
            let_in += 1;
        }
    }
    assert!((35..=40).contains(&let_in), "{let_in} of 40 were let in");
}
