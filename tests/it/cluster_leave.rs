//! A node that stops in order gives back what it holds of the shared limits (contract section 3, `[cluster]`): no caller
//! is refused because of it, and nothing of a day is lost. With leases that outlive each test.

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
