//! Contract section 1, "Framing": where one request ends on a connection and the next begins.

use crate::support::*;

fn gate() -> Builder {
    TestGateway::before_http().key("bot").read_key("reader").points("7", 3).points("8", 88)
}

/// Requests that are answered before their body was read, each with its code. (CVE-2025-4366: an early answer of the
/// framework below left the body in the connection.)
fn refused_early(gate: &TestGateway, body: &str) -> Vec<(u8, Request)> {
    let post = |path: &str| Request::post(path, body);
    vec![
        (1, post("/getPoints")),
        (2, post("/getPoints").key("nobody")),
        (10, post("/nothing").key(gate.secret("bot"))),
        (11, Request::bare("PUT", "/setPoints").key(gate.secret("bot")).body(body)),
        (11, Request::bare("GET", "/getPoints").body(body)),
        (13, post("/setPoints").key(gate.secret("bot")).header("Content-Encoding", "gzip")),
        (15, post("/setPoints").key(gate.secret("reader"))),
    ]
}

/// The next request is answered rightly, or the connection is closed: nothing else.
async fn goes_on_or_closes(gate: &TestGateway, connection: &mut Connection, what: &str) {
    if connection.try_send(gate.request("getPoints", "bot", "memberID=8").bytes()).await.is_ok()
        && let Some(answer) = connection.answer_or_close().await
    {
        assert_eq!((answer.status, &*answer.body), (200, "88"), "{what}: {answer:#?}");
    }
    // The body held a setPoints that must never have been taken for a request.
    assert_eq!(gate.get_points("bot", "7").await.body, "3", "{what}");
}

#[tokio::test]
async fn an_unread_body_never_becomes_the_next_request() {
    let gate = gate().set("server.max_body", r#""128KiB""#).start_here().await;
    let hidden = gate.request("setPoints", "bot", "memberID=7&amount=666").bytes();
    let hidden = String::from_utf8(hidden).unwrap();
    for length in [hidden.len(), 4000, 64 * 1024, 100 * 1024] {
        let body = hidden.repeat(length.div_ceil(hidden.len()));
        for (code, request) in refused_early(&gate, &body) {
            for request in [request.clone(), request.chunked(1000)] {
                let what = format!("{code} with {length} bytes");
                let mut connection = gate.connect().await;
                let sent = connection.try_send(request.bytes()).await;
                // Past the 64 KiB that are drained the answer may be lost with the connection.
                if let Some(answer) = connection.answer_if_any().await {
                    assert_eq!(answer.code(), Some(code), "{what}: {answer:#?}");
                } else {
                    assert!(body.len() > 60 * 1024, "{what}: closed without an answer ({sent:?})");
                    continue;
                }
                goes_on_or_closes(&gate, &mut connection, &what).await;
            }
        }
    }
}

#[tokio::test]
async fn the_answer_to_too_large_a_body_arrives_and_the_connection_is_clean_after_it() {
    let gate = gate().start_here().await;
    let hidden = String::from_utf8(gate.request("setPoints", "bot", "memberID=7&amount=666").bytes()).unwrap();
    for length in [5000, 60 * 1024] {
        for key in ["bot", "reader"] {
            let mut connection = gate.connect().await;
            let request = Request::post("/setPoints", hidden.repeat(length / hidden.len())).key(gate.secret(key));
            connection.ask(&request).await.is_refused(413, TOO_LARGE);
            goes_on_or_closes(&gate, &mut connection, "14").await;
        }
    }
}

#[tokio::test]
async fn an_early_answer_arrives_while_the_client_keeps_sending() {
    let gate = gate().set("server.max_body", r#""128KiB""#).start_here().await;
    let cases = refused_early(&gate, &"x".repeat(60 * 1024));
    for ((code, request), reused) in cases.iter().flat_map(|case| [(case, false), (case, true)]) {
        let mut connection = gate.connect().await;
        if reused {
            connection.ask(&gate.request("getPoints", "bot", "memberID=8")).await.is("88");
        }
        let bytes = request.bytes();
        let (first, rest) = bytes.split_at(request.head().len());
        connection.send(first).await;
        // It reads nothing until all is sent: a reset would lose the answer, or fail a write.
        for piece in rest.chunks(2048) {
            connection.try_send(piece).await.unwrap_or_else(|e| panic!("{code}: the rest was not taken: {e}"));
            tokio::task::yield_now().await;
        }
        let answer = connection.answer_or_close().await.unwrap_or_else(|| panic!("{code}: the answer was lost"));
        assert_eq!(answer.code(), Some(*code), "{answer:#?}");
        goes_on_or_closes(&gate, &mut connection, "after the rest").await;
    }
}

#[tokio::test]
async fn a_client_that_waits_with_its_body_is_answered_and_does_not_hold_the_connection() {
    let gate = gate().start_here().await;
    for (code, request) in refused_early(&gate, "memberID=7&amount=5") {
        let mut connection = gate.connect_and_send(request.head()).await;
        let answer = connection.answer().await;
        assert_eq!(answer.code(), Some(code), "{answer:#?}");
        if code == 10 {
            connection.is_closed().await; // after at most a second, or the time a body may take
        }
    }
}

#[tokio::test]
async fn fifty_pipelined_requests_get_fifty_answers_in_order() {
    let mut builder = TestGateway::before_http().key("bot");
    for member in 1..=50 {
        builder = builder.points(&member.to_string(), member * 100);
    }
    let gate = builder.start_here().await;
    for _ in ["misses", "hits"] {
        let mut requests = Vec::new();
        for member in 1..=50 {
            let request = gate.request("getPoints", "bot", &format!("memberID={member}"));
            requests.extend(if member % 3 == 0 { request.chunked(4) } else { request }.bytes());
        }
        let mut connection = gate.connect_and_send(requests).await;
        for member in 1..=50 {
            connection.answer().await.is(&(member * 100).to_string());
        }
        connection.ask(&gate.request("getPoints", "bot", "memberID=1")).await.is("100");
    }
}

#[tokio::test]
async fn pipelined_requests_split_anywhere_are_read_alike() {
    let gate = gate().start_here().await;
    let one = gate.request("getPoints", "bot", "memberID=8");
    let both = [one.bytes(), one.clone().chunked(3).bytes()].concat();
    for at in (1..both.len()).step_by(7) {
        let mut connection = gate.connect_and_send(&both[..at]).await;
        tokio::task::yield_now().await;
        connection.send(&both[at..]).await;
        connection.answer().await.is("88");
        connection.answer().await.is("88");
    }
}

#[tokio::test]
async fn a_hundred_continue_comes_only_after_the_key_is_accepted() {
    let gate = gate().start_here().await;
    let expecting = |key: &str| Request::post("/getPoints", "memberID=7").key(key).header("Expect", "100-continue");
    let mut connection = gate.connect().await;
    let request = expecting(gate.secret("bot"));
    for _ in ["first", "reused"] {
        connection.send(request.head()).await;
        assert_eq!(connection.answer().await.status, 100);
        connection.send("memberID=7").await;
        connection.answer().await.is("3");
    }

    let mut connection = gate.connect_and_send(expecting("nobody").head()).await;
    connection.answer().await.is_refused(401, INCORRECT_KEY);
    let mut connection = gate.connect_and_send(expecting("x").without("Authorization").head()).await;
    connection.answer().await.is_refused(401, NO_KEY);
    let mut connection = gate.connect_and_send(expecting("x").body("x".repeat(5000)).head()).await;
    connection.answer().await.is_refused(413, TOO_LARGE);
}

#[tokio::test]
async fn a_connection_is_kept_until_one_side_wants_it_closed() {
    let gate = gate().start_here().await;
    let mut connection = gate.connect().await;
    let request = gate.request("getPoints", "bot", "memberID=7");
    for _ in 0..20 {
        assert!(!connection.ask(&request).await.is("3").closes());
    }
    assert_eq!(connection.ask(&gate.request("getPoints", "bot", "memberID=x")).await.code(), Some(5));
    connection.ask(&request).await.is("3");
    assert!(connection.ask(&request.header("Connection", "close")).await.is("3").closes());
    connection.is_closed().await;
}

#[tokio::test]
async fn empty_lines_are_skipped_before_a_request_and_refused_without_end() {
    let gate = gate().start_here().await;
    let request = gate.request("getPoints", "bot", "memberID=7").bytes();
    let mut connection = gate.connect().await;
    for _ in 0..2 {
        connection.send([&b"\r\n".repeat(100), &request[..]].concat()).await;
        connection.answer().await.is("3");
    }
    for _ in 0..101 {
        connection.send(b"\r\n").await;
    }
    connection.answer().await.is_refused(400, MALFORMED);
    connection.is_closed().await;
}

#[tokio::test]
async fn nothing_after_a_malformed_request_is_read() {
    let gate = gate().start_here().await;
    let bad = gate.request("getPoints", "bot", "memberID=7").header("Content-Length", "10");
    let mut connection = gate.connect().await;
    let hidden = gate.request("setPoints", "bot", "memberID=7&amount=666");
    connection.send([bad.bytes(), hidden.bytes()].concat()).await;
    connection.answer().await.is_refused(400, MALFORMED);
    connection.is_closed().await;
    gate.get_points("bot", "7").await.is("3");
}
