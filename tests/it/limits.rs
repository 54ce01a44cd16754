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
        .set("limits.tiers.single.in_flight", "1")
        .key_of_tier("single", "single")
        .set("origin.timeout", r#""2s""#)
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
    // A slow body holds a place too. (Who hangs up: `hang_up`.)
    gate.origin().always(Act::Normal);
    let mut slow = gate.connect_and_send(gate.request("getPoints", "single", "memberID=7").head()).await;
    gate.has_read_requests().await;
    gate.get_points("single", "7").await.is_too_many();
    slow.send("memberID=7").await;
    slow.answer().await.is("3");
}
