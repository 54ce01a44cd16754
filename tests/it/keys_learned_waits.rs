//! Contract section 3, `keys.source = "origin"`, and guarantees 4 and 7: a key lapses while one of its requests waits
//! for a body, for a proof of the key, for an answer of the origin, or for its caller to read. The request then gets
//! nothing from memory that it could not get if it came only now.

use std::time::Duration;

use crate::support::*;

/// How long an answer of the origin proves the key. Nothing tells from outside that a key has lapsed, except a request
/// that would prove it again, so the tests wait this long after the answer.
const ACCEPTED_FOR: Duration = Duration::from_secs(1);

fn gate() -> Builder {
    TestGateway::before_http()
        .key("bot")
        .points("5", 1)
        .points("7", 3)
        .keys_at_the_origin()
        .set("keys.accepted_for", &in_seconds(ACCEPTED_FOR))
        .set("origin.queue_timeout", r#""20s""#)
        .set("cache.points.ttl", r#""1h""#)
}

fn in_seconds(duration: Duration) -> String {
    format!("\"{}s\"", duration.as_secs())
}

/// Sends a getPoints on a connection of its own, and does not wait for the answer.
async fn begin(gate: &TestGateway, member: &str) -> Connection {
    gate.connect_and_send(gate.request("getPoints", "bot", &format!("memberID={member}"))).await
}

#[tokio::test]
async fn a_question_asked_before_the_key_lapsed_proves_nothing_afterwards() {
    let gate = gate().key("slow").start().await;
    gate.get_points("bot", "7").await.is("3");
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut early = begin(&gate, "5").await;
    gate.origin().has_been_asked("getPoints", 2).await;
    // The question was asked later than the one that proved the key, and an answer to it proves the key no longer.
    tokio::time::sleep(ACCEPTED_FOR).await;
    gate.origin().lock_out(gate.secret("bot"));
    let mut late = begin(&gate, "5").await;
    gate.has_read_requests().await;
    let mut stored = begin(&gate, "7").await;
    gate.has_read_requests().await;
    hold.open();
    late.answer().await.is_refused(401, INCORRECT_KEY);
    stored.answer().await.is_refused(401, INCORRECT_KEY);
    assert_eq!(gate.origin().asked_about("getPoints", "5"), 2, "the late request asked for itself");
    early.answer().await; // The origin accepted the key when it was asked this.
    gate.get_points("bot", "7").await.is_refused(401, INCORRECT_KEY);
    // Nor does a proof that took longer than it is valid open a stored answer to those who waited for it.
    let asked = gate.origin().asked("getPoints");
    let slow = |member: &str| gate.connect_and_send(gate.request("getPoints", "slow", &format!("memberID={member}")));
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut first = slow("7").await;
    gate.origin().has_been_asked("getPoints", asked + 1).await;
    let mut waiting = slow("7").await;
    gate.has_read_requests().await;
    tokio::time::sleep(ACCEPTED_FOR).await;
    gate.origin().lock_out(gate.secret("slow"));
    hold.open();
    first.answer().await.is("3");
    waiting.answer().await.is_refused(401, INCORRECT_KEY);
}
