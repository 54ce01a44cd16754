//! Contract section 5, guarantee 8: a caller who resets its HTTP/2 stream gives its place in flight back within 100 ms,
//! and what it asked goes on. One who has only finished sending over HTTP/1.1 keeps it, and gets its answer.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::net::TcpStream;

use crate::support::frames::*;
use crate::support::*;

/// The contract's "within 100 ms", and a second in which other tests may have the cores. What the caller
/// asked hangs for much longer.
const HUNDRED_MS_AND_SLACK: Duration = Duration::from_millis(1100);

/// Whether the stream is reset, or the whole connection.
const WAYS: [&str; 2] = ["stream", "connection"];

/// A caller with the key `bot` that asks over HTTP/2, with what of its body is not kept back.
async fn ask(gate: &TestGateway, operation: &str, body: &str, sent: usize) -> Frames {
    let stream = TcpStream::connect(gate.address()).await.unwrap();
    stream.set_zero_linger().unwrap();
    let mut frames = Frames::over(gate.tls_client(&["h2"]).shake_hands(stream).await.unwrap());
    frames.greet(&[]).await;
    let end = if sent == body.len() { END_STREAM } else { 0 };
    let header = frame(HEADERS, END_HEADERS, 1, &header(gate, &format!("/{operation}")));
    frames.send([header, frame(DATA, end, 1, &body.as_bytes()[..sent])].concat()).await;
    frames
}

/// Hangs up; what is left of the connection.
async fn hang_up(mut caller: Frames, way: &str) -> Option<Frames> {
    if way == "connection" {
        return None;
    }
    caller.send(frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes())).await;
    Some(caller)
}

/// A gateway whose keys have this many places in flight.
fn gate(in_flight: u32) -> Builder {
    let gate = TestGateway::before_http().tls().key("bot").key("other").points("7", 3).points("8", 4);
    let gate = gate.set("limits.tiers.standard.in_flight", &in_flight.to_string());
    gate.set("cache.points", r#"{ ttl = "1ms" }"#).set("origin.timeout", r#""60s""#)
}

/// Whether the key `bot` is let in now, and not refused for what is in flight.
async fn is_let_in(gate: &TestGateway, connection: &mut Connection) -> bool {
    let answer = connection.ask(&gate.request("getPoints", "bot", "memberID=8")).await;
    let is_let_in = answer.code().is_none();
    if is_let_in {
        answer.is("4");
    } else {
        answer.is_too_many();
    }
    is_let_in
}

/// Waits until it is.
async fn until_let_in(gate: &TestGateway, connection: &mut Connection, deadline: Duration, what: &str) {
    eventually(deadline, &format!("{what}: its place in flight"), async || is_let_in(gate, connection).await).await;
}

#[tokio::test]
async fn a_caller_that_hangs_up_gives_its_place_back_while_its_question_goes_on() {
    for way in WAYS {
        let gate = gate(2).start().await;
        let (mut stays, mut shares) = (gate.connect().await, gate.connect().await);
        let hold = Gate::shut();
        gate.origin().next("getPoints", Act::HoldAll(hold.clone()));
        let caller = ask(&gate, "getPoints", "memberID=7", 10).await;
        eventually(PATIENCE, way, || async { gate.origin().asked_about("getPoints", "7") == 1 }).await;
        shares.send(gate.request("getPoints", "bot", "memberID=7").bytes()).await;
        gate.has_read_requests().await;
        assert!(!is_let_in(&gate, &mut stays).await, "{way}");

        let _connection = hang_up(caller, way).await;
        until_let_in(&gate, &mut stays, HUNDRED_MS_AND_SLACK, way).await;
        hold.open();
        shares.answer().await.is("3");
        assert_eq!(gate.origin().asked_about("getPoints", "7"), 1, "{way}");
    }
}

#[tokio::test]
async fn a_stop_waits_for_the_writes_of_callers_that_hung_up() {
    for way in WAYS {
        let mut gate = gate(1).set("server.drain_timeout", r#""60s""#).start().await;
        let mut stays = gate.connect().await;
        let hold = Gate::shut();
        gate.origin().next("setPoints", Act::HoldAll(hold.clone()));
        let caller = ask(&gate, "setPoints", "memberID=7&amount=9", 19).await;
        gate.origin().has_been_asked("setPoints", 1).await;
        drop(hang_up(caller, way).await);
        until_let_in(&gate, &mut stays, PATIENCE, way).await;
        drop(stays);
        gate.process().signal(Signal::SIGTERM);
        gate.has_said("stopping").await;
        hold.open();
        assert_eq!(gate.process().exit().await, Some(0), "{way}");
        eventually(PATIENCE, "the write", || async { gate.origin().points("7") == 9 }).await;
    }
}

#[tokio::test]
async fn a_caller_that_hangs_up_within_its_body_gives_its_place_back() {
    for way in WAYS {
        let gate = gate(1).start().await;
        let mut stays = gate.connect().await;
        let caller = ask(&gate, "setPoints", "memberID=7&amount=9", 12).await;
        gate.has_read_requests().await; // a look before that would take the place
        assert!(!is_let_in(&gate, &mut stays).await, "{way}");
        let _connection = hang_up(caller, way).await;
        until_let_in(&gate, &mut stays, HUNDRED_MS_AND_SLACK, way).await;
        stays.ask(&gate.request("getPoints", "other", "memberID=7")).await.is("3");
    }
}

#[tokio::test]
async fn a_caller_that_has_only_finished_sending_keeps_its_place_and_gets_its_answer() {
    let gate = gate(1).start().await;
    let mut stays = gate.connect().await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAll(hold.clone()));
    let mut caller = gate.connect_and_send(gate.request("getPoints", "bot", "memberID=7")).await;
    caller.finish_sending().await;
    gate.origin().has_been_asked("getPoints", 1).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        assert!(!is_let_in(&gate, &mut stays).await, "half-closed");
    }
    hold.open();
    caller.answer().await.is("3");
    until_let_in(&gate, &mut stays, PATIENCE, "answered").await;
}

#[tokio::test]
async fn a_caller_that_has_only_finished_sending_over_http_2_gets_its_answers() {
    let text = "x".repeat(8000);
    let gate = (1..=6).fold(gate(2), |gate, id| gate.review("7", id, "Bo", 5, &text)).start().await;
    let hold = Gate::shut();
    gate.origin().next("getReviews", Act::HoldAll(hold.clone()));
    let mut caller = ask(&gate, "getReviews", "memberID=7", 10).await;
    gate.origin().has_been_asked("getReviews", 1).await;
    caller.finish_sending().await;
    hold.open();
    assert!(caller.outcome(1).await.unwrap().len() > 48_000);
    assert_eq!(caller.ends().await, None, "there is nothing to say after it");
}
