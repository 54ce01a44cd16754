//! What `limits.shadow` and a node's part of `in_flight` come to while Redis is away (contract section 3, `[cluster]`).

use crate::cluster_limits::limited;
use crate::support::*;

#[tokio::test]
async fn in_shadow_nobody_is_refused_while_redis_is_away_though_that_means_refuse() {
    let mut redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let gate = limited(&redis, &url).set("cluster.when_away", r#""refuse""#).set("limits.shadow", "true").start().await;
    gate.get_points("slow", "7").await.is("3");
    redis.kill_hard();
    gate.has_said("Redis at").await;
    // More than the node can have a lease for.
    for _ in 0..30 {
        gate.get_points("slow", "7").await.is("3");
    }
}

#[tokio::test]
async fn guarantee_6_a_node_takes_no_more_than_its_part_of_in_flight_while_redis_is_away_though_it_held_more() {
    let mut redis = Redis::start(&[]).await;
    let gate = TestGateway::before_http().keys_in_file().key("bot").points("7", 3).set("cluster.nodes", "2");
    let gate = gate.set("cluster.redis", &format!("{:?}", redis.url())).set("cluster.timeout", r#""500ms""#);
    let gate = gate.set("limits.tiers.standard.in_flight", "6").set("cluster.lease", r#""60s""#);
    let gate = gate.set("origin.timeout", r#""60s""#).start().await;
    let hold = Gate::shut();
    gate.origin().always(Act::HoldAll(hold.clone()));
    let mut waiting = Vec::new();
    for number in 0..4 {
        let request = gate.request("getPoints", "bot", &format!("memberID={number}"));
        waiting.push(gate.connect_and_send(request).await);
        gate.origin().has_been_asked("getPoints", number + 1).await;
    }
    redis.kill_hard();
    gate.has_said("Redis at").await;
    assert_eq!(gate.get_points("bot", "8").await.code(), Some(12), "three are its part");
    hold.open();
    for caller in &mut waiting {
        caller.answer().await;
    }
}
