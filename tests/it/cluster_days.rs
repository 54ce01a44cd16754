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
async fn guarantee_6_a_day_is_counted_over_all_nodes_and_given_back_at_each_though_one_was_started_since() {
    let redis = RedisDatabase::new().await;
    let url = Postgres::shared().database().await;
    let mut here = limited(&redis.url(), &url).set("limits.tiers.standard.daily", "30").start().await;
    let there = here.node(&url).await;
    let mut admitted = 0;
    for _ in 0..40 {
        for gate in [&here, &there] {
            admitted += u32::from(gate.get_points("bot", "7").await.status == 200);
        }
    }
    assert_eq!(admitted, 30);
    // What Redis holds of a key goes away once everything has come back and its day is over.
    let left = |key: &str| {
        let said = redis.ask(&format!("PTTL guildgate:l:{}", here.key_id(key)));
        said.trim_start_matches(':').lines().next().unwrap().parse::<i64>().unwrap()
    };
    let to_midnight = (86_400 - unix_now().rem_euclid(86_400)) * 1000;
    assert!((left("bot") - to_midnight).abs() < 5000, "{} of {to_midnight}", left("bot"));
    here.restart().await;
    here.run(&["limits", "reset", &here.key_id("bot")]).done();
    has_its_day_back(&here).await;
    has_its_day_back(&there).await;
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
