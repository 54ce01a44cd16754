//! Contract section 3, `[limits]`: what a tier may set besides its rate.

use crate::support::*;

fn gate() -> Builder {
    TestGateway::before_http().key("bot").key_of_tier("slow", "slow").points("7", 3)
}

#[tokio::test]
async fn over_in_flight_a_request_is_12_to_come_again_in_a_second_and_costs_nothing() {
    let gate = gate()
        .set("limits.tiers.slow.in_flight", "2")
        .set("limits.tiers.slow.rate", r#""1/h""#)
        .set("limits.tiers.slow.burst", "3")
        .start()
        .await;
    let hold = Gate::shut();
    gate.origin().always(Act::HoldAnswer(hold.clone()));
    let mut under_way = Vec::new();
    for member in ["7", "8"] {
        under_way.push(gate.connect_and_send(gate.request("getPoints", "slow", &format!("memberID={member}"))).await);
    }
    gate.origin().has_been_asked("getPoints", 2).await;
    for _ in 0..5 {
        assert_eq!(gate.get_points("slow", "9").await.is_too_many(), 1);
    }
    hold.open();
    for (connection, points) in under_way.iter_mut().zip(["3", "0"]) {
        connection.answer().await.is(points);
    }
    gate.get_points("bot", "7").await.is("3"); // a neighbour has its own
    gate.get_points("slow", "7").await.is("3");
    gate.get_points("slow", "7").await.is_too_many();
}

#[tokio::test]
async fn a_caller_that_hangs_up_gives_its_place_in_flight_back() {
    let gate = gate().set("limits.tiers.slow.in_flight", "1").set("origin.timeout", r#""2s""#).start().await;
    for round in 0..3 {
        let hold = Gate::shut();
        gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
        let connection = gate.connect_and_send(gate.request("getPoints", "slow", &format!("memberID={round}"))).await;
        gate.origin().has_been_asked("getPoints", round + 1).await;
        drop(connection);
        hold.open();
        gate.has_read_requests().await;
    }
    eventually(PATIENCE, "its place is given back", || async { gate.get_points("slow", "0").await.status == 200 })
        .await;
}

#[tokio::test]
async fn a_slow_body_holds_a_place_in_flight() {
    let gate = gate().set("limits.tiers.slow.in_flight", "1").start().await;
    let request = gate.request("getPoints", "slow", "memberID=7");
    let mut slow = gate.connect_and_send(request.head()).await;
    gate.has_read_requests().await;
    gate.get_points("slow", "7").await.is_too_many();
    slow.send("memberID=7").await;
    slow.answer().await.is("3");
    gate.get_points("slow", "7").await.is("3");
}

#[tokio::test]
async fn a_candidate_is_counted_on_the_same_requests_and_refuses_nothing() {
    let mut gate = gate()
        .set("limits.tiers.slow.candidate", r#"{ rate = "1/h", burst = 2 }"#)
        .set("log.access", r#""access.log""#)
        .admin()
        .start()
        .await;
    for _ in 0..5 {
        let answer = gate.get_points("slow", "7").await;
        assert!(!answer.is("3").header("ratelimit-policy").unwrap().contains("candidate"), "{answer:#?}");
    }
    gate.get_points("bot", "7").await.is("3");
    let counted = gate.admin().await.with_token("").get("/metrics").await.text;
    for (limit, requests) in [("candidate", 3), ("rate", 0)] {
        let sample = format!("guildgate_over_limit_total{{tier=\"slow\",limit=\"{limit}\"}} {requests}\n");
        assert!(counted.contains(&sample), "{sample}{counted}");
    }
    assert_eq!(gate.stop().await, Some(0));
    let log = gate.world().text("access.log");
    assert_eq!(log.lines().filter(|line| line.contains(" over_candidate ")).count(), 3, "{log}");
}

#[tokio::test]
async fn in_shadow_every_limit_is_counted_and_reported_and_none_refuses() {
    let gate = gate()
        .admin()
        .set("limits.shadow", "true")
        .set("limits.tiers.slow.burst", "2")
        .set("limits.tiers.slow.rate", r#""1/h""#)
        .set("limits.tiers.slow.daily", "1")
        .set("limits.strangers.burst", "1")
        .set("limits.strangers.rate", r#""1/h""#)
        .start()
        .await;
    for _ in 0..5 {
        gate.get_points("slow", "7").await.is("3");
    }
    for _ in 0..5 {
        gate.send(&Request::post("/getPoints", "memberID=7").key("stranger")).await.is_refused(401, INCORRECT_KEY);
    }
    let counted = gate.admin().await.with_token("").get("/metrics").await.text;
    for sample in [
        "guildgate_over_address_limit_total 4\n",
        "guildgate_over_limit_total{tier=\"slow\",limit=\"daily\"} 4\n",
        "guildgate_limits_shadow 1",
    ] {
        assert!(counted.contains(sample), "{sample}{counted}");
    }
}
