//! Requests in flight that several nodes count together (contract section 3, `[cluster]`; guarantee 6).

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::*;

/// The places of a key that the nodes hold.
fn places(redis: &Redis, key: &str) -> u64 {
    const FIELD: usize = 13;
    let fields = redis.ask(&format!("HGETALL guildgate:l:{key}"));
    let lines: Vec<_> = fields.lines().collect();
    let holders = lines.iter().enumerate().filter(|(_, line)| line.starts_with("h:"));
    holders.map(|(at, _)| lines[at + 2].split(' ').nth(FIELD).unwrap().parse::<u64>().unwrap()).sum()
}

async fn hang(gate: &TestGateway, key: &str, requests: usize) -> Vec<Connection> {
    let mut waiting = Vec::new();
    for number in 0..requests {
        let request = gate.request("getPoints", key, &format!("memberID={}", 100 + number));
        waiting.push(gate.connect_and_send(request).await);
        gate.origin().has_been_asked("getPoints", number + 1).await;
    }
    waiting
}

fn before_http(redis: &Redis) -> Builder {
    TestGateway::before_http()
        .keys_in_file()
        .points("7", 3)
        .set("cluster.redis", &format!("{:?}", redis.url()))
        .set("cluster.timeout", r#""500ms""#)
        .set("limits.tiers.standard.burst", "500")
        .set("origin.timeout", r#""60s""#)
        .key("bot")
}

#[tokio::test]
async fn guarantee_6_requests_in_flight_at_one_node_count_at_the_others_once_a_reload_limits_them() {
    let redis = Redis::start(&[]).await;
    let here = before_http(&redis).start().await;
    let there = here.node("").await;
    here.origin().always(Act::HoldAll(Gate::shut()));
    let _waiting = hang(&here, "bot", 3).await;
    for gate in [&here, &there] {
        gate.reload_with("burst = 500", "burst = 500\nin_flight = 3");
        gate.has_said("configuration reloaded").await;
    }
    eventually(PATIENCE, "their places are set aside", async || places(&redis, "bot") == 3).await;
    assert_eq!(there.get_points("bot", "7").await.code(), Some(12));
}

#[tokio::test]
async fn guarantee_6_requests_in_flight_at_one_node_count_at_the_others_once_its_key_gets_a_tier_that_limits_them() {
    let redis = Redis::start(&[]).await;
    let here = before_http(&redis).key_of_tier("key", "free").set("limits.tiers.free.burst", "100");
    let here = here.set("limits.tiers.standard.in_flight", "3").start().await;
    let there = here.node("").await;
    here.origin().always(Act::HoldAll(Gate::shut()));
    let _waiting = hang(&here, "key", 3).await;
    for gate in [&here, &there] {
        gate.edit_key_file("tier = \"free\"", "tier = \"standard\"").await;
    }
    eventually(PATIENCE, "their places are set aside", async || places(&redis, "key") == 3).await;
    assert_eq!(there.get_points("key", "7").await.code(), Some(12));
}

#[tokio::test]
async fn guarantee_6_a_request_that_waits_for_redis_while_a_reload_limits_requests_in_flight_leaves_their_places_set_aside()
 {
    /// How long such a request waits: the longest that `cluster.timeout` may be.
    const WAITS: Duration = Duration::from_secs(1);
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        let redis = Redis::start(&[]).await;
        let here =
            before_http(&redis).set("cluster.timeout", r#""1s""#).set("limits.tiers.standard.write_rate", r#""5/s""#);
        let here = here.start().await;
        let there = here.node("").await;
        here.origin().always(Act::HoldAll(Gate::shut()));
        let _waiting = hang(&here, "bot", 3).await;
        redis.signal(Signal::SIGSTOP);
        let sent = Instant::now();
        // The node holds no token of the limit on writes.
        let mut write = here.connect_and_send(here.request("setPoints", "bot", "memberID=7&amount=1")).await;
        here.has_read_requests().await;
        here.reload_with("burst = 500", "burst = 500\nin_flight = 3");
        here.has_said("configuration reloaded").await;
        let still_waited = sent.elapsed() < WAITS;
        redis.signal(Signal::SIGCONT);
        // Otherwise the machine was too busy, and the write was decided before.
        if still_waited {
            there.reload_with("burst = 500", "burst = 500\nin_flight = 3");
            there.has_said("configuration reloaded").await;
            assert_eq!(write.answer().await.code(), Some(12));
            eventually(PATIENCE, "their places are set aside", async || places(&redis, "bot") == 3).await;
            assert_eq!(there.get_points("bot", "7").await.code(), Some(12));
            return;
        }
    }
    panic!("gateway.toml was not reloaded within {WAITS:?} in {TRIES} tries");
}
