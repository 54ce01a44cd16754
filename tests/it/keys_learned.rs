//! Contract section 3, `keys.source = "origin"`: the origin alone knows the keys, and its answers
//! teach them.

use std::time::Duration;

use guildgate::clock::Clock;

use crate::support::*;

/// For how long a key is good in [`gate_that_asks_again`]: once that has passed since an answer, its time is over.
const ACCEPTED_FOR: Duration = Duration::from_secs(1);

fn gate() -> Builder {
    let gate = TestGateway::before_http().key("bot").points("7", 3).keys_at_the_origin();
    gate.set("origin.queue_timeout", r#""20s""#) // a busy machine is slow to take its turn
}

fn gate_that_asks_again() -> Builder {
    gate().set("keys.accepted_for", &format!("\"{}s\"", ACCEPTED_FOR.as_secs()))
}

fn get_points(secret: &str, member: &str) -> Request {
    Request::post("/getPoints", format!("memberID={member}")).key(secret)
}

#[tokio::test]
async fn a_key_that_the_origin_takes_is_answered_from_memory_afterwards_and_an_02_is_remembered() {
    let gate = gate().key_of_guild("elsewhere", "99").key("twin").set("keys.refused_for", r#""1s""#).start_here().await;
    gate.origin().put_points_in("99", "7", 99);
    let first = gate.get_points("bot", "7").await;
    assert!(
        first.is("3").is_miss().header("ratelimit").is_some(),
        "once proven, the key's limits are told: {first:#?}"
    );
    let seen = &gate.origin().seen()[0];
    assert_eq!(seen.header("authorization"), Some(gate.secret("bot")));
    // The answers of one key are nobody else's: who knows that they are of one guild?
    gate.get_points("elsewhere", "7").await.is("99").is_miss();
    gate.get_points("twin", "7").await.is("3").is_miss();
    gate.get_points("elsewhere", "7").await.is("99").is_hit();
    gate.get_points("bot", "7").await.is("3").is_hit();
    assert_eq!(gate.origin().asked("getPoints"), 3);
    // An 02 is remembered for `refused_for`, and then the key is asked about again.
    for member in ["7", "8", "9"] {
        let refused = gate.send(&get_points("stranger", member)).await;
        refused.is_refused(401, INCORRECT_KEY);
        assert!(refused.header("ratelimit").is_none(), "{refused:#?}");
    }
    assert_eq!(gate.origin().asked("getPoints"), 4);
    // Parameters are judged before the origin is asked about a key.
    for (body, code) in [("", 4), ("memberID=x", 5), ("memberID=1&memberID=2", 8)] {
        assert_eq!(gate.send(&Request::post("/getPoints", body).key("another")).await.code(), Some(code), "{body}");
    }
    gate.origin().let_in("stranger", GUILD);
    let stranger = get_points("stranger", "7");
    eventually(PATIENCE, "the key is asked about again", || async { gate.send(&stranger).await.status == 200 }).await;
    assert_eq!(gate.origin().asked("getPoints"), 5);
    // The write of a key never seen is itself the question.
    gate.origin().let_in("writer", GUILD);
    let answer = gate.send(&Request::post("/setPoints", "memberID=7&amount=5").key("writer")).await;
    assert!(answer.is("Successfully set 'Ada' points to '5'").header("ratelimit").is_some(), "{answer:#?}");
    gate.send(&Request::post("/setPoints", "memberID=7&amount=9").key("nobody")).await.is_refused(401, INCORRECT_KEY);
    assert_eq!((gate.origin().asked("getPoints"), gate.origin().asked("setPoints")), (5, 2));
    gate.get_points("bot", "7").await.is("5").is_miss();
}

#[tokio::test]
async fn an_unknown_key_is_asked_about_once_however_many_requests_bring_it_and_again_after_a_failure() {
    let gate = gate().key("other").key("third").set("origin.retries", "0").start().await;
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
    // A question that fails proves and refuses nothing, and the next one is asked.
    let asked = gate.origin().asked("getPoints");
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldThen(hold.clone(), 500, "oh".into()));
    let mut first = gate.connect_and_send(gate.request("getPoints", "third", "memberID=1")).await;
    gate.origin().has_been_asked("getPoints", asked + 1).await;
    let mut second = gate.connect_and_send(gate.request("getPoints", "third", "memberID=7")).await;
    gate.has_read_requests().await;
    hold.open();
    first.answer().await.is_refused(502, NO_ANSWER);
    second.answer().await.is("3");
    assert_eq!(gate.origin().asked("getPoints"), asked + 2);
    // An 02 to a known key stops it at once.
    gate.origin().lock_out(gate.secret("bot"));
    gate.get_points("bot", "7").await.is("3").is_hit();
    gate.get_points("bot", "99").await.is_refused(401, INCORRECT_KEY);
    gate.get_points("bot", "7").await.is_refused(401, INCORRECT_KEY);
}

#[tokio::test]
async fn a_key_whose_time_is_over_gets_nothing_from_memory_and_its_write_is_itself_the_question() {
    let gate = gate_that_asks_again().key("writer").key("unlucky").set("cache.points.ttl", r#""1h""#);
    let gate = gate.set("cache.points.stale_if_error", r#""1h""#).start_here_at(Clock::manual(unix_now())).await;
    for key in ["bot", "unlucky", "writer"] {
        gate.get_points(key, "7").await.is("3");
    }
    gate.origin().lock_out(gate.secret("bot"));
    gate.gateway().clock().advance(2 * ACCEPTED_FOR);
    assert_eq!(gate.origin().asked("getPoints"), 3);
    gate.set_points("writer", "8", 5).await.is("Successfully set 'Ada' points to '5'");
    assert_eq!((gate.origin().asked("getPoints"), gate.origin().asked("setPoints")), (3, 1));
    gate.get_points("bot", "7").await.is_refused(401, INCORRECT_KEY);
    gate.origin().always(Act::say(500, "oh"));
    gate.get_points("unlucky", "7").await.is_refused(502, NO_ANSWER);
}
