//! The daily limit over several nodes (contract section 3, `[cluster]`), and a day that is given back.

use crate::cluster_limits::{has_its_day_back, judged_by_the_origin};
use crate::support::*;

async fn is_used_up(gate: &TestGateway) {
    eventually(PATIENCE, "the day is used up", async || gate.get_points("bot", "7").await.code() == Some(12)).await;
}

#[tokio::test]
async fn a_day_is_given_back_to_a_key_that_only_the_origin_knows() {
    let redis = RedisDatabase::new().await;
    let gate = judged_by_the_origin(&redis.url()).set("limits.tiers.standard.daily", "3").key("bot").start().await;
    is_used_up(&gate).await;
    let digest = digest(gate.secret("bot"));
    let id = format!("o_{}", &digest["sha256:".len()..][..16]);
    // There is such a key once its first count is stored.
    eventually(PATIENCE, "the reset", async || gate.run(&["limits", "reset", &id]).code == Some(0)).await;
    has_its_day_back(&gate).await;
}

#[tokio::test]
async fn guarantee_6_nodes_with_stores_of_their_own_share_a_day_and_tell_it_a_redis_that_has_lost_everything() {
    let redis = RedisDatabase::new().await;
    let here = TestGateway::before_http().keys_in_file().key("bot").points("7", 3);
    let here = here.set("cluster.redis", &format!("{:?}", redis.url())).set("cluster.timeout", r#""500ms""#);
    let here = here.set("limits.tiers.standard.daily", "40").start().await;
    let there = here.node("").await;
    for _ in 0..20 {
        here.get_points("bot", "7").await.is("3");
    }
    // A caller is told what all nodes have left.
    let answer = there.get_points("bot", "7").await;
    let left = answer.header("ratelimit").unwrap().split_once("-daily\";r=").unwrap().1.split(';').next().unwrap();
    assert_eq!(left, "19", "{answer:#?}");
    let mut let_in = 21;
    redis.ask("FLUSHDB");
    for node in [&there, &here] {
        while node.get_points("bot", "7").await.status == 200 {
            let_in += 1;
        }
    }
    assert!((35..=40).contains(&let_in), "{let_in} of 40 were let in");
}
