//! Contract section 5, guarantees 2 and 7: a key that is taken away, or moves to another guild, while a request with it
//! waits for the origin. It gets nothing from memory any more, and no answer passes from one guild to the other.

use crate::support::*;

fn gate() -> Builder {
    TestGateway::before_http().tls().key("bot").key("other").key("gone").points("7", 3)
}

/// A gateway that holds an answer of member 7 which may only stand in for a failure, and an origin whose next question
/// hangs and then fails.
async fn with_a_stale_answer() -> (TestGateway, Gate) {
    let gate =
        gate().set("cache.points.ttl", r#""0s""#).set("cache.points.stale_if_error", r#""10m""#).start_here().await;
    gate.get_points("bot", "7").await.is("3");
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldThen(hold.clone(), 500, String::new()));
    (gate, hold)
}

async fn asking(gate: &TestGateway, key: &str) -> Connection {
    gate.connect_and_send(gate.request("getPoints", key, "memberID=7")).await
}

#[tokio::test]
async fn guarantee_2_what_a_key_was_told_before_it_moved_to_another_guild_in_two_steps_is_nobodys_answer() {
    let gate = gate().start_here().await;
    let origin = gate.origin();
    origin.let_in(gate.secret("bot"), "999");
    origin.let_in(gate.secret("other"), GUILD);
    origin.put_points_in("999", "7", 70);
    gate.get_points("bot", "7").await.is("70");
    gate.get_points("other", "7").await.is("70").is_hit();
    let keys = gate.world().read("keys.toml");
    gate.world().remove_key("bot");
    gate.reload_here().await;
    gate.get_points("bot", "8").await.is_refused(401, INCORRECT_KEY);
    gate.world().write("keys.toml", keys);
    gate.world().move_key("bot", "999");
    gate.reload_here().await;
    gate.get_points("bot", "7").await.is("70");
    gate.get_points("other", "7").await.is("3");
}

#[tokio::test]
async fn guarantee_7_a_key_that_moves_or_goes_while_its_question_hangs_gets_no_stale_answer() {
    let (gate, hold) = with_a_stale_answer().await;
    let origin = gate.origin();
    origin.let_in(gate.secret("other"), GUILD);
    origin.let_in(gate.secret("bot"), "999");
    origin.let_in(gate.secret("gone"), GUILD);
    let mut moves = asking(&gate, "bot").await;
    origin.has_been_asked("getPoints", 2).await;
    origin.next("getPoints", Act::HoldThen(hold.clone(), 500, String::new()));
    let mut goes = asking(&gate, "gone").await;
    origin.has_been_asked("getPoints", 3).await;
    gate.world().move_key("bot", "999");
    gate.world().remove_key("gone");
    gate.reload_here().await;
    hold.open();
    for waits in [&mut moves, &mut goes] {
        waits.answer().await.is_refused(502, NO_ANSWER);
    }
}

#[tokio::test]
async fn guarantee_7_a_learned_key_that_is_not_proven_any_more_gets_no_stale_answer_for_its_failed_question() {
    let gate = gate().keys_at_the_origin().set("keys.refused_for", r#""0s""#).set("cache.points.ttl", r#""0s""#);
    let gate = gate.set("cache.points.stale_if_error", r#""10m""#).start_here().await;
    gate.get_points("bot", "7").await.is("3");
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldThen(hold.clone(), 500, String::new()));
    let mut waits = asking(&gate, "bot").await;
    gate.origin().has_been_asked("getPoints", 2).await;
    gate.origin().lock_out(gate.secret("bot"));
    gate.get_warns("bot", "7").await.is_refused(401, INCORRECT_KEY);
    hold.open();
    waits.answer().await.is_refused(502, NO_ANSWER);
}
