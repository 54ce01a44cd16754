//! Contract section 5, guarantee 6, at an HTTP origin: a key's or a stranger's requests that hang there take no
//! other key's place; `origin.max_in_flight`, `origin.queue_timeout`.

use std::time::{Duration, Instant};

use crate::support::*;

/// How many of the default 256 places one key can take, and how many a second key can take after it.
const FIRST_SHARE: usize = 52;
const SECOND_SHARE: usize = 41;

/// How many of the default 256 places addresses without a proven key can take together.
const UNPROVEN_SHARE: usize = 64;

/// A third key must be answered in this time, whatever the others have at the origin.
const AT_ONCE: Duration = Duration::from_millis(100);

fn gate() -> Builder {
    TestGateway::before_http()
        .key("a")
        .key("b")
        .key("c")
        .set("origin.timeout", r#""30s""#)
        .set("server.trusted_proxies", r#"["127.0.0.0/8"]"#)
}

/// Requests in flight, each on a connection of its own.
async fn send_all(gate: &TestGateway, requests: Vec<Request>) -> Vec<Connection> {
    let mut connections = Vec::new();
    for request in requests {
        connections.push(gate.connect_and_send(request.bytes()).await);
    }
    connections
}

/// Waits until each is answered, or refused because no place is free.
async fn are_answered(connections: Vec<Connection>) {
    for mut connection in connections {
        let status = connection.answer().await.status;
        assert!([200, 503].contains(&status), "{status}");
    }
}

/// This many reads of a key, each of another member.
fn reads(gate: &TestGateway, key: &str, count: usize) -> Vec<Request> {
    (0..count).map(|n| gate.request("getPoints", key, &format!("memberID={}", 1000 + n))).collect()
}

/// One read in flight, on a connection of its own.
async fn send(gate: &TestGateway, key: &str, operation: &str, body: &str) -> Connection {
    gate.connect_and_send(gate.request(operation, key, body)).await
}

/// A key reads and writes as if there were no others: the best of a few times, since other tests may use the cores.
async fn is_answered_at_once(gate: &TestGateway, key: &str) {
    let mut best = Duration::MAX;
    for n in 0..5 {
        gate.origin().next("getReviews", Act::Normal);
        gate.origin().next("setPoints", Act::Normal);
        let start = Instant::now();
        gate.get_reviews(key, &n.to_string()).await.is("{}");
        gate.set_points(key, &n.to_string(), 5).await.is("Successfully set 'Ada' points to '5'");
        best = best.min(start.elapsed());
    }
    assert!(best < 2 * AT_ONCE, "a read and a write took {best:?}");
}

#[tokio::test]
async fn two_keys_that_hang_everything_leave_places_to_a_third() {
    let gate = gate().start().await;
    for key in ["a", "b", "c"] {
        gate.get_warns(key, "7").await.is("{}");
    }
    let hold = Gate::shut();
    gate.origin().always(Act::HoldAll(hold.clone()));
    let first = send_all(&gate, reads(&gate, "a", 250)).await;
    gate.origin().has_been_asked("getPoints", FIRST_SHARE).await;
    let of_b = (0..250).map(|n| gate.request("getPoints", "b", &format!("memberID={}", 2000 + n))).collect();
    let second = send_all(&gate, of_b).await;
    gate.origin().has_been_asked("getPoints", FIRST_SHARE + SECOND_SHARE).await;
    is_answered_at_once(&gate, "c").await;
    assert_eq!(gate.origin().asked("getPoints"), FIRST_SHARE + SECOND_SHARE);
    hold.open();
    are_answered(first).await;
    are_answered(second).await;
}

/// 30 unknown keys from each of nine addresses.
fn unknown_keys() -> Vec<Request> {
    let request = |n| {
        let from = format!("203.0.113.{}", n / 30);
        Request::post("/getPoints", "memberID=7").key(&format!("nobody's {n}")).header("X-Forwarded-For", &from)
    };
    (0..270).map(request).collect()
}

#[tokio::test]
async fn unknown_keys_together_take_a_quarter() {
    let gate = gate().keys_at_the_origin().start_here().await;
    gate.get_warns("c", "7").await.is("{}");
    let hold = Gate::shut();
    gate.origin().always(Act::HoldAll(hold.clone()));
    let unknown = send_all(&gate, unknown_keys()).await;
    gate.origin().has_been_asked("getPoints", UNPROVEN_SHARE).await;
    is_answered_at_once(&gate, "c").await;
    assert_eq!(gate.origin().asked("getPoints"), UNPROVEN_SHARE);
    // An unknown key is one of them, until there is a place for it and the origin has proven it.
    let mut waits = send(&gate, "a", "getWarns", "memberID=7").await;
    waits.answer().await.is_unavailable();
    drop(unknown);
    hold.open();
    eventually(PATIENCE, "the new key", || async { gate.get_warns("a", "7").await.body == "{}" }).await;
}

#[tokio::test]
async fn who_waits_longer_than_queue_timeout_is_21_and_the_origin_is_not_asked() {
    let gate = gate().set("origin.max_in_flight", "1").set("origin.queue_timeout", r#""300ms""#);
    let gate = gate.start_here().await;
    let hold = Gate::shut();
    gate.origin().always(Act::HoldAll(hold.clone()));
    let mut held = send(&gate, "a", "getPoints", "memberID=1").await;
    gate.origin().has_been_asked("getPoints", 1).await;
    for (operation, body) in [("getPoints", "memberID=2"), ("setPoints", "memberID=2&amount=5")] {
        let start = Instant::now();
        send(&gate, "b", operation, body).await.answer().await.is_unavailable();
        assert!(start.elapsed() >= Duration::from_millis(300), "it did not wait");
    }
    hold.open();
    held.answer().await.is("0");
    assert_eq!(gate.origin().seen().len(), 1);
    gate.get_points("b", "2").await.is("0");
}

#[tokio::test]
async fn a_set_points_that_waits_has_not_begun() {
    let gate = gate().set("origin.max_in_flight", "1").set("origin.queue_timeout", r#""30s""#);
    let gate = gate.start_here().await;
    gate.get_points("b", "7").await.is("0");
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAll(hold.clone()));
    let mut held = send(&gate, "a", "getPoints", "memberID=1").await;
    gate.origin().has_been_asked("getPoints", 2).await;
    let mut write = send(&gate, "b", "setPoints", "memberID=7&amount=5").await;
    // It has come by now, or comes during these.
    for _ in 0..200 {
        gate.get_points("b", "7").await.is("0").is_hit();
    }
    assert_eq!(gate.origin().asked("setPoints"), 0);
    hold.open();
    write.answer().await.is("Successfully set 'Ada' points to '5'");
    gate.get_points("b", "7").await.is("5").is_miss();
    held.answer().await.is("0");
}

#[tokio::test]
async fn a_key_revoked_while_its_requests_wait_for_a_place_is_02_and_the_origin_is_not_asked() {
    let gate = gate().set("origin.max_in_flight", "2").set("origin.queue_timeout", r#""30s""#).start_here().await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAll(hold.clone()));
    gate.origin().next("getPoints", Act::HoldAll(hold.clone()));
    let mut first = send(&gate, "a", "getPoints", "memberID=1").await;
    let mut second = send(&gate, "c", "getPoints", "memberID=2").await;
    gate.origin().has_been_asked("getPoints", 2).await;
    let mut read = send(&gate, "b", "getReviews", "memberID=5").await;
    let mut other = send(&gate, "b", "getReviews", "memberID=6").await;
    let mut write = send(&gate, "b", "setPoints", "memberID=7&amount=5").await;
    // Two can wait, so once one of them is refused the others do.
    let waiting = tokio::select! {
        refused = read.answer() => { refused.is_unavailable(); [&mut other, &mut write] }
        refused = other.answer() => { refused.is_unavailable(); [&mut read, &mut write] }
        refused = write.answer() => { refused.is_unavailable(); [&mut read, &mut other] }
    };
    gate.world().remove_key("b");
    gate.reload_here().await;
    hold.open();
    first.answer().await.is("0");
    second.answer().await.is("0");
    for connection in waiting {
        connection.answer().await.is_refused(401, INCORRECT_KEY);
    }
    assert_eq!(gate.origin().seen().len(), 2);
}

#[tokio::test]
async fn a_key_that_has_to_wait_holds_up_no_other_that_asks_the_same() {
    let gate = gate().set("origin.max_in_flight", "8").set("origin.queue_timeout", r#""30s""#);
    let gate = gate.start_here().await;
    let hold = Gate::shut();
    gate.origin().always(Act::HoldAll(hold.clone()));
    let held = send_all(&gate, reads(&gate, "a", 2)).await;
    gate.origin().has_been_asked("getPoints", 2).await;
    let mut waits = send(&gate, "a", "getWarns", "memberID=5").await;
    gate.origin().next("getWarns", Act::Normal);
    gate.get_warns("b", "5").await.is("{}");
    hold.open();
    are_answered(held).await;
    // Its place has come, and the answer is in memory by then.
    waits.answer().await.is("{}");
    assert_eq!(gate.origin().asked("getWarns"), 1);
}
