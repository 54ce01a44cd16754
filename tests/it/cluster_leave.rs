//! A node that stops in order gives back what it holds of the shared limits (contract section 3, `[cluster]`): no caller
//! is refused because of it, and nothing of a day is lost. With leases that outlive each test.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::cluster_limits::limited;
use crate::support::*;

/// Requests before and after each change of the process.
const REQUESTS: usize = 25;

async fn gate(redis: &Redis, limit: &str, most: &str) -> (String, Builder) {
    let url = Postgres::shared().database().await;
    let gate = limited(redis, &url)
        .set("cluster.lease", r#""60s""#)
        .set("limits.tiers.standard.rate", r#""100000/s""#)
        .set("limits.tiers.standard.burst", "100000")
        .set(&format!("limits.tiers.standard.{limit}"), most)
        .set("server.handover", r#""handover.sock""#);
    (url, gate)
}

/// Sends requests one after the other, each on a connection of its own, of which every one is answered.
async fn all_are_answered(gate: &TestGateway, count: usize) {
    for n in 0..count {
        let answer = gate.get_points("bot", "7").await;
        assert_eq!(answer.status, 200, "request {n}: {answer:?}");
    }
}

#[tokio::test]
async fn a_caller_that_fills_its_places_in_flight_is_not_refused_over_stops_and_starts() {
    let redis = Redis::start(&[]).await;
    let (_, gate) = gate(&redis, "in_flight", "1").await;
    let mut gate = gate.start().await;
    for _ in 0..3 {
        all_are_answered(&gate, REQUESTS).await;
        gate.restart().await;
    }
    all_are_answered(&gate, REQUESTS).await;
}

#[tokio::test]
async fn a_caller_that_fills_its_places_in_flight_is_not_refused_by_the_node_that_stays() {
    let redis = Redis::start(&[]).await;
    let (url, gate) = gate(&redis, "in_flight", "1").await;
    let mut here = gate.start().await;
    let there = here.node(&url).await;
    all_are_answered(&here, REQUESTS).await;
    here.stop().await;
    all_are_answered(&there, REQUESTS).await;
}

#[tokio::test]
async fn a_caller_that_fills_its_places_in_flight_is_not_refused_over_hand_overs() {
    let redis = Redis::start(&[]).await;
    let (_, gate) = gate(&redis, "in_flight", "1").await;
    let mut gate = gate.start().await;
    let ask = gate.request("getPoints", "bot", "memberID=7");
    for _ in 0..3 {
        all_are_answered(&gate, REQUESTS).await;
        let (mut used, mut kept) = (gate.connect().await, gate.connect().await);
        for connection in [&mut used, &mut kept] {
            connection.ask(&ask).await.is("3");
        }
        let mut before = gate.replace().await;
        used.ask(&ask).await.is("3").is_miss(); // by the one before, which goes on for the other connection
        all_are_answered(&gate, REQUESTS).await;
        assert!(!before.has_ended());
        drop(kept);
        assert_eq!(before.exit().await, Some(0), "{}", before.stderr());
        all_are_answered(&gate, REQUESTS).await;
    }
}

/// How many of so many requests are answered, and that the others are over a limit.
async fn answered(gate: &TestGateway, count: usize) -> usize {
    let mut answered = 0;
    for _ in 0..count {
        let answer = gate.get_points("bot", "7").await;
        match answer.status {
            200 => answered += 1,
            _ => drop(answer.is_too_many()),
        }
    }
    answered
}

#[tokio::test]
async fn guarantee_6_nothing_of_a_day_is_lost_or_given_twice_over_stops_and_hand_overs() {
    let redis = Redis::start(&[]).await;
    let (_, gate) = gate(&redis, "daily", "100").await;
    let mut gate = gate.start().await;
    assert_eq!(answered(&gate, REQUESTS).await, REQUESTS);
    gate.restart().await;
    assert_eq!(answered(&gate, REQUESTS).await, REQUESTS);
    let mut before = gate.replace().await;
    assert_eq!(before.exit().await, Some(0), "{}", before.stderr());
    assert_eq!(answered(&gate, 3 * REQUESTS).await, 100 - 2 * REQUESTS);
}

/// Two nodes before an origin, the first of which reaches Redis through the proxy.
async fn before_http(redis: &Redis, limit: &str, most: &str) -> (Proxy, TestGateway, TestGateway) {
    before_http_with(&["bot".to_owned()], redis, limit, most).await
}

async fn before_http_with(
    keys: &[String],
    redis: &Redis,
    limit: &str,
    most: &str,
) -> (Proxy, TestGateway, TestGateway) {
    let proxy = Proxy::to(redis.port()).await;
    let (direct, through) = (redis.url(), format!("redis://127.0.0.1:{}", proxy.port()));
    let here = keys.iter().fold(TestGateway::before_http(), |gate, key| gate.key(key));
    let here = here
        .points("7", 3)
        .points("8", 4)
        .set("cluster.redis", &format!("{through:?}"))
        .set("cluster.timeout", r#""500ms""#) // a busy machine answers late
        .set("cluster.lease", r#""60s""#)
        .set("server.drain_timeout", r#""1s""#)
        .set(&format!("limits.tiers.standard.{limit}"), most)
        .start()
        .await;
    let there = here.node_with(&through, &direct).await;
    (proxy, here, there)
}

/// A request that the origin holds back until the gate opens.
async fn held(here: &TestGateway) -> (Connection, Gate) {
    let hold = Gate::shut();
    here.origin().next("getPoints", Act::HoldAll(hold.clone()));
    let caller = here.connect_and_send(here.request("getPoints", "bot", "memberID=7").bytes()).await;
    here.origin().has_been_asked("getPoints", 1).await;
    (caller, hold)
}

#[tokio::test]
async fn a_place_in_flight_is_given_back_before_its_caller_has_the_answer_however_far_away_redis_is() {
    let redis = Redis::start(&[]).await;
    let (proxy, mut here, there) = before_http(&redis, "in_flight", "1").await;
    let (mut caller, hold) = held(&here).await;
    proxy.hold(Holds::For(Duration::from_millis(30)));
    here.process().signal(Signal::SIGTERM);
    here.has_said("stopping").await;
    hold.open();
    caller.answer().await.is("3");
    there.get_points("bot", "8").await.is("4");
    assert_eq!(here.process().exit().await, Some(0));
}

#[tokio::test]
async fn places_of_requests_that_a_stop_cuts_are_given_back() {
    let redis = Redis::start(&[]).await;
    let (_proxy, mut here, there) = before_http(&redis, "in_flight", "1").await;
    let _held = held(&here).await;
    assert_eq!(here.stop().await, Some(0));
    there.get_points("bot", "8").await.is("4");
}

#[tokio::test]
async fn a_connection_to_redis_that_is_cut_at_the_stop_is_made_again() {
    let redis = Redis::start(&[]).await;
    let (proxy, mut here, there) = before_http(&redis, "daily", "100").await;
    assert_eq!(answered(&here, REQUESTS).await, REQUESTS);
    proxy.cut_at("EVALSHA");
    assert_eq!(here.stop().await, Some(0));
    assert!(proxy.has_cut());
    assert_eq!(answered(&there, 100).await, 100 - REQUESTS);
}

#[tokio::test]
async fn a_node_stops_while_redis_answers_later_than_requests_wait_for_it() {
    let redis = Redis::start(&[]).await;
    let proxy = Proxy::to(redis.port()).await;
    let gate = TestGateway::before_http().key("bot").points("7", 3).set("cluster.timeout", r#""20ms""#);
    let gate = gate.set("cluster.redis", &format!("\"redis://127.0.0.1:{}\"", proxy.port()));
    let mut gate = gate.start().await;
    proxy.hold(Holds::For(Duration::from_millis(60)));
    gate.has_said("Redis at").await;
    gate.get_points("bot", "7").await;
    assert_eq!(gate.stop().await, Some(0));
}

#[tokio::test]
async fn what_a_thousand_keys_have_left_of_a_day_is_given_back_however_far_away_redis_is() {
    let redis = Redis::start(&[]).await;
    let keys: Vec<String> = (0..1000).map(|n| format!("bot{n}")).collect();
    let (proxy, mut here, there) = before_http_with(&keys, &redis, "daily", "3").await;
    all_get(&here, &keys).await;
    proxy.hold(Holds::For(Duration::from_millis(50)));
    assert_eq!(here.stop().await, Some(0));
    for _ in 0..2 {
        all_get(&there, &keys).await;
    }
}

/// Asks once with each key, all of which are answered.
async fn all_get(gate: &TestGateway, keys: &[String]) {
    let mut connection = gate.connect().await;
    for key in keys {
        connection.ask(&gate.request("getPoints", key, "memberID=7")).await.is("3");
    }
}
