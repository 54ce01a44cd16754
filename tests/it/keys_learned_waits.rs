//! Contract section 3, `keys.source = "origin"`, and guarantees 4 and 7: a key lapses while one of its requests waits
//! for a body, for a proof of the key, for an answer of the origin, or for its caller to read. The request then gets
//! nothing from memory that it could not get if it came only now.

use std::time::Duration;

use tokio::net::TcpSocket;

use crate::support::*;

/// How long an answer of the origin proves the key. Nothing tells from outside that a key has lapsed, except a request
/// that would prove it again, so the tests wait this long after the answer.
const ACCEPTED_FOR: Duration = Duration::from_secs(1);

/// How long an answer is fresh where it has to become too old. It is longer than `ACCEPTED_FOR`.
const TTL: Duration = Duration::from_secs(2);

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
async fn an_answer_that_became_too_old_while_a_body_was_held_back_is_not_given_after_the_proof_of_another_request() {
    let gate = gate()
        .set("cache.points.ttl", &in_seconds(TTL))
        .set("cache.points.stale_while_revalidate", r#""0s""#)
        .set("cache.points.stale_if_error", r#""0s""#)
        .start()
        .await;
    gate.get_points("bot", "5").await.is("1");
    let request = gate.request("getPoints", "bot", "memberID=5");
    let held = HeldBody::begin(&gate, Version::Http1, request).await;
    gate.origin().put_points("5", 2);
    // A request for member 5 would replace the answer that has to become too old.
    tokio::time::sleep(TTL).await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut proving = begin(&gate, "7").await;
    gate.origin().has_been_asked("getPoints", 2).await;
    let open = async {
        gate.has_read_requests().await;
        hold.open();
    };
    let (answer, ()) = tokio::join!(held.release(), open);
    answer.is("2").is_miss();
    proving.answer().await.is("3");
    assert_eq!(gate.origin().asked_about("getPoints", "5"), 2);
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

#[tokio::test]
async fn a_key_that_lapses_while_its_caller_reads_no_answers_gets_nothing_stored_meanwhile() {
    const PAIRS: usize = 250;
    let gate = gate().set("cache.reviews.ttl", r#""1h""#).start().await;
    // It is kept back for the next answer, which is sent only when the caller has read enough of those before.
    let reviews = format!("{{{}}}", "x".repeat(58_000));
    gate.origin().put_map("getReviews", "7", &reviews);
    gate.get_reviews("bot", "7").await.is(&reviews);
    let member = |pair: usize| (1000 + pair).to_string();
    let pair = |pair: usize| {
        let points = format!("memberID={}", member(pair));
        [gate.request("getReviews", "bot", "memberID=7").bytes(), gate.request("getPoints", "bot", &points).bytes()]
    };
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap(); // or the kernel would read in the caller's stead
    let mut connection = Connection::over(socket.connect(gate.address()).await.unwrap());
    connection.send((0..PAIRS).flat_map(pair).flatten().collect::<Vec<u8>>()).await;
    let mut asked = 0;
    eventually(PATIENCE, "the gateway waits for the caller to read", async || {
        let before = std::mem::replace(&mut asked, gate.origin().asked("getPoints"));
        before > 0 && before == asked && gate.all_threads_wait()
    })
    .await;
    assert!(asked < PAIRS, "the gateway asked for all members though nobody reads");
    gate.get_points("bot", &member(asked)).await.is("0");
    gate.origin().lock_out(gate.secret("bot"));
    tokio::time::sleep(ACCEPTED_FOR).await;
    for _ in 0..asked {
        connection.answer().await.is(&reviews);
        connection.answer().await.is("0");
    }
    connection.answer().await.is(&reviews);
    connection.answer().await.is_refused(401, INCORRECT_KEY);
}
