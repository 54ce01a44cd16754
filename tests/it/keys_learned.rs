//! Contract section 3, `keys.source = "origin"`: the origin alone knows the keys, and its answers
//! teach them.

use std::time::Duration;

use crate::support::*;

/// For how long a key is good in [`gate_that_asks_again`]: once that has passed since an answer, its time is over.
const ACCEPTED_FOR: Duration = Duration::from_secs(1);

fn gate() -> Builder {
    TestGateway::before_http().key("bot").points("7", 3).keys_at_the_origin()
}

fn gate_that_asks_again() -> Builder {
    gate().set("keys.accepted_for", &format!("\"{}s\"", ACCEPTED_FOR.as_secs()))
}

fn get_points(secret: &str, member: &str) -> Request {
    Request::post("/getPoints", format!("memberID={member}")).key(secret)
}

#[tokio::test]
async fn a_key_that_the_origin_takes_is_answered_from_memory_afterwards() {
    let gate = gate().start().await;
    let first = gate.get_points("bot", "7").await;
    assert!(
        first.is("3").is_miss().header("ratelimit").is_some(),
        "once proven, the key's limits are told: {first:#?}"
    );
    gate.get_points("bot", "7").await.is("3").is_hit();
    assert_eq!(gate.origin().asked("getPoints"), 1);
    let seen = &gate.origin().seen()[0];
    assert_eq!(seen.header("authorization"), Some(gate.secret("bot")));
}

#[tokio::test]
async fn an_02_is_remembered_for_refused_for_and_then_asked_about_again() {
    let gate = gate().set("keys.refused_for", r#""1s""#).start().await;
    let stranger = get_points("stranger", "7");
    for member in ["7", "8", "9"] {
        let refused = gate.send(&get_points("stranger", member)).await;
        refused.is_refused(401, INCORRECT_KEY);
        assert!(refused.header("ratelimit").is_none(), "{refused:#?}");
    }
    assert_eq!(gate.origin().asked("getPoints"), 1);
    gate.origin().let_in("stranger", GUILD);
    eventually(PATIENCE, "the key is asked about again", || async { gate.send(&stranger).await.status == 200 }).await;
    assert_eq!(gate.origin().asked("getPoints"), 2);
}

#[tokio::test]
async fn an_unknown_key_is_asked_about_once_however_many_requests_bring_it() {
    let gate = gate().key("other").start().await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut asking = Vec::new();
    for member in 0..30 {
        let connection = gate.connect_and_send(gate.request("getPoints", "bot", &format!("memberID={member}"))).await;
        if member == 0 {
            gate.origin().has_been_asked("getPoints", 1).await;
        }
        asking.push(connection);
    }
    gate.has_read_requests().await;
    assert_eq!(gate.origin().asked("getPoints"), 1, "one question about the key, whatever they ask");
    gate.get_points("other", "7").await.is("3"); // nobody else waits for it
    hold.open();
    for (member, connection) in asking.iter_mut().enumerate() {
        connection.answer().await.is(if member == 7 { "3" } else { "0" });
    }
}

#[tokio::test]
async fn a_write_of_a_key_whose_time_is_over_is_itself_the_question() {
    let gate = gate_that_asks_again().start().await;
    gate.get_points("bot", "1").await.is("0");
    tokio::time::sleep(ACCEPTED_FOR).await;
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    assert_eq!((gate.origin().asked("getPoints"), gate.origin().asked("setPoints")), (1, 1));
}

#[tokio::test]
async fn parameters_are_judged_before_the_origin_is_asked_about_a_key() {
    let gate = gate().start().await;
    for (body, line) in [
        ("", "04 | Param 'memberID' is not provided!"),
        ("memberID=x", "05 | Param 'memberID' should contain only integers!"),
        ("memberID=1&memberID=2", "08 | Param 'memberID' is provided more than once!"),
    ] {
        gate.send(&Request::post("/getPoints", body).key("stranger")).await.is_refused(400, line);
    }
    assert!(gate.origin().seen().is_empty());
}

#[tokio::test]
async fn an_03_of_the_origin_proves_a_key() {
    let gate = gate().set("limits.strangers.burst", "1").set("limits.strangers.rate", r#""1/h""#).start().await;
    let departed = "03 | Error while retrieving guild using this API key. Is Guildgate still on guild?";
    gate.origin().next("getPoints", Act::say(403, departed));
    let answer = gate.get_points("bot", "7").await;
    answer.is_refused(403, departed);
    assert!(answer.header("ratelimit").is_some(), "{answer:#?}");
    gate.get_points("bot", "7").await.is("3"); // its address was paid back, and a refusal is not kept
}

#[tokio::test]
async fn the_cached_answers_of_one_key_are_nobody_elses() {
    let gate = gate().key_of_guild("elsewhere", "99").key("twin").start().await;
    gate.origin().put_points_in("99", "7", 99);
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("elsewhere", "7").await.is("99").is_miss();
    gate.get_points("twin", "7").await.is("3").is_miss(); // who knows that they are of one guild?
    gate.get_points("elsewhere", "7").await.is("99").is_hit();
    gate.get_points("bot", "7").await.is("3").is_hit();
}

#[tokio::test]
async fn a_key_that_the_origin_takes_no_more_stops_within_accepted_for_its_cached_answers_included() {
    let gate = gate_that_asks_again().set("cache.points.ttl", r#""1h""#).start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.origin().lock_out(gate.secret("bot"));
    eventually(SECOND_AND_SLACK, "the key is refused", || async {
        gate.get_points("bot", "7").await.code() == Some(2)
    })
    .await;
    gate.get_points("bot", "7").await.is_refused(401, INCORRECT_KEY);
}

#[tokio::test]
async fn an_02_to_a_known_key_stops_it_at_once() {
    let gate = gate().set("cache.points.ttl", r#""1h""#).start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.origin().lock_out(gate.secret("bot"));
    gate.get_points("bot", "7").await.is("3").is_hit();
    gate.get_points("bot", "8").await.is_refused(401, INCORRECT_KEY);
    gate.get_points("bot", "7").await.is_refused(401, INCORRECT_KEY);
}

#[tokio::test]
async fn a_lapsed_key_gets_no_stale_answer_while_the_origin_fails() {
    let gate = gate_that_asks_again()
        .set("cache.points.ttl", r#""1h""#)
        .set("cache.points.stale_if_error", r#""1h""#)
        .start()
        .await;
    gate.get_points("bot", "7").await.is("3");
    gate.origin().always(Act::say(500, "oh"));
    eventually(SECOND_AND_SLACK, "nothing is given to it", || async {
        gate.get_points("bot", "7").await.code() == Some(20)
    })
    .await;
}

#[tokio::test]
async fn a_question_that_fails_proves_and_refuses_nothing_and_the_next_one_is_asked() {
    let gate = gate().set("origin.retries", "0").start().await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldThen(hold.clone(), 500, "oh".into()));
    let mut first = gate.connect_and_send(gate.request("getPoints", "bot", "memberID=1")).await;
    gate.origin().has_been_asked("getPoints", 1).await;
    let mut second = gate.connect_and_send(gate.request("getPoints", "bot", "memberID=7")).await;
    gate.has_read_requests().await;
    hold.open();
    first.answer().await.is_refused(502, NO_ANSWER);
    second.answer().await.is("3");
    assert_eq!(gate.origin().asked("getPoints"), 2);
}

#[tokio::test]
async fn the_write_of_a_key_never_seen_is_itself_the_question_and_is_sent_once() {
    let gate = gate().start().await;
    let answer = gate.set_points("bot", "7", 5).await;
    assert!(answer.is("Successfully set 'Ada' points to '5'").header("ratelimit").is_some(), "{answer:#?}");
    gate.send(&Request::post("/setPoints", "memberID=7&amount=9").key("stranger")).await.is_refused(401, INCORRECT_KEY);
    assert_eq!((gate.origin().asked("getPoints"), gate.origin().asked("setPoints")), (0, 2));
    gate.get_points("bot", "7").await.is("5").is_miss();
}
