//! `[pass]`: what is no operation goes on to an upstream as it came, and its answer comes back as it is (contract section 1,
//! "Everything else").

use std::time::Duration;

use crate::support::*;

/// A gateway that passes everything on, for anybody.
async fn gate(origin: &HandOrigin) -> TestGateway {
    open(origin).start().await
}

fn open(origin: &HandOrigin) -> Builder {
    let gate = TestGateway::before_http().upstreams([origin.url()]).key("bot");
    gate.set("pass.paths", r#"["/"]"#).set("pass.key", "false")
}

/// The lines of a header that begin so, in lower case.
fn lines<'h>(header: &'h str, names: &[&str]) -> Vec<&'h str> {
    let is_one = |line: &&str| names.iter().any(|name| line.to_ascii_lowercase().starts_with(&format!("{name}:")));
    header.split("\r\n").filter(is_one).collect()
}

/// The header of the next request: on this connection or, where Pingora could not take it again at once, on a new one.
async fn next(origin: &HandOrigin, upstream: &mut Talk) -> String {
    let is_over = tokio::select! {
        biased;
        is_over = upstream.is_over() => is_over,
        other = origin.accept() => {
            *upstream = other;
            false
        }
    };
    if is_over {
        *upstream = origin.accept().await;
    }
    upstream.header().await
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn a_request_goes_on_as_it_came_and_its_answer_comes_back_as_it_is() {
    let origin = HandOrigin::start().await;
    let gate = gate(&origin).await;
    let mut caller = Talk::to(gate.address()).await;
    caller
        .say(
            "PATCH /a%2Fb/c?d=%20&e HTTP/1.1\r\nHost: shop.example:81\r\nAccept: x/y\r\nX-Forwarded-For: 6.6.6.6\r\n\
             X-Forwarded-Proto: gopher\r\nX-Request-Id: mine\r\nConnection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n\
             Content-Length: 3\r\n\r\nabc",
        )
        .await;
    let mut upstream = origin.accept().await;
    let request = upstream.header().await;
    assert!(request.starts_with("PATCH /a%2Fb/c?d=%20&e HTTP/1.1\r\n"), "{request}");
    assert_eq!(lines(&request, &["host", "accept"]), ["Host: shop.example:81", "Accept: x/y"]);
    let expected = ["X-Forwarded-For: 127.0.0.1", "X-Forwarded-Proto: http"];
    assert_eq!(lines(&request, &["x-forwarded-for", "x-forwarded-proto"]), expected, "{request}");
    assert!(lines(&request, &["connection", "keep-alive", "x-hop"]).is_empty(), "{request}");
    let id = lines(&request, &["x-request-id"]);
    assert!(id.len() == 1 && !id[0].ends_with("mine"), "{request}");
    upstream.until("abc").await;
    upstream
        .say(
            "HTTP/1.1 418 Teapot\r\nContent-Length: 5\r\nX-One: 1\r\nX-One: 2\r\nCache-Status: origin; hit\r\n\
             Keep-Alive: timeout=5\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\r\nhello",
        )
        .await;
    let answer = caller.until("hello").await;
    assert!(answer.starts_with("HTTP/1.1 418 "), "{answer}");
    assert_eq!(lines(&answer, &["x-one"]), ["X-One: 1", "X-One: 2"]);
    let cache = lines(&answer, &["cache-status"]);
    assert_eq!(cache, ["Cache-Status: origin; hit", "Cache-Status: guildgate; fwd=bypass"]);
    assert_eq!(lines(&answer, &["x-request-id"]), id, "{answer}");
    assert!(lines(&answer, &["keep-alive", "x-hop"]).is_empty(), "{answer}");

    // The caller's connection serves the next request.
    caller.say("HEAD /d HTTP/1.1\r\nHost: a\r\n\r\nGET /e HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(next(&origin, &mut upstream).await.starts_with("HEAD /d "));
    upstream.say("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n").await;
    let answer = caller.header().await;
    assert_eq!(lines(&answer, &["content-length"]), ["Content-Length: 99"], "{answer}");
    assert!(next(&origin, &mut upstream).await.starts_with("GET /e "));
    upstream.say(OK).await;
    caller.until("\r\n\r\nok").await;
    let operation = gate.request("getPoints", "bot", "memberID=7");
    caller.say(operation.bytes()).await;
    let mut asked = origin.accept().await; // operations have connections of their own
    assert!(asked.until("memberID=7").await.starts_with("POST /getPoints "));
    asked.say("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n3").await;
    caller.until("\r\n\r\n3").await;
}

#[tokio::test]
async fn requests_behind_a_passed_one_are_answered_in_their_order() {
    let origin = HandOrigin::start().await;
    let gate = gate(&origin).await;
    let mut caller = Talk::to(gate.address()).await;
    let health = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    caller.say(format!("{health}POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab{health}")).await;
    caller.until("\r\n\r\nok").await;
    let mut upstream = origin.accept().await;
    upstream.until("\r\n\r\nab").await;
    caller.say(health).await; // while it is passed on
    gate.has_read_requests().await;
    upstream.say("HTTP/1.1 201 Made\r\nConnection: close\r\nContent-Length: 4\r\n\r\nmade").await;
    assert!(caller.until("made").await.starts_with("HTTP/1.1 201 "));
    for _ in 0..2 {
        caller.until("\r\n\r\nok").await;
    }
    // Behind a body in chunks the connection ends, and so does what was sent behind it.
    caller.say(format!("POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{health}")).await;
    let mut upstream = origin.accept().await;
    upstream.until("0\r\n\r\n").await;
    upstream.say(OK).await;
    let (answer, end) = caller.rest().await;
    assert_eq!(end, End::Closed);
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    assert_eq!(lines(&answer, &["connection"]), ["Connection: close"]);
}

#[tokio::test]
async fn an_answer_that_breaks_off_reaches_nobody_as_a_whole_one() {
    for begun in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nZZ\r\n",
        "HTTP/1.1 200 OK\r\n\r\nhalf",
    ] {
        for version in ["1.1", "1.0", "2"] {
            let origin = HandOrigin::start().await;
            let gate = open(&origin);
            let gate = if version == "2" { gate.tls().start().await } else { gate.start().await };
            if version == "2" {
                let asked = gate.http2().await.send(&Request::bare("GET", "/x")).await;
                let mut upstream = origin.accept().await;
                upstream.header().await;
                upstream.say(begun).await;
                tokio::time::sleep(Duration::from_millis(50)).await; // the answer has begun
                upstream.reset();
                let error = asked.try_answer().await.expect_err(begun);
                assert!(error.is_reset() || error.is_io(), "{begun}: {error:?}");
                continue;
            }
            let mut caller = Talk::to(gate.address()).await;
            caller.say(format!("GET /x HTTP/{version}\r\nHost: a\r\n\r\n")).await;
            let mut upstream = origin.accept().await;
            upstream.header().await;
            upstream.say(begun).await;
            if begun.contains("9999") {
                upstream.say("x".repeat(4000)).await; // Pingora holds less than 1,460 bytes back
            }
            caller.until("half").await;
            upstream.reset();
            let (rest, end) = caller.rest().await;
            assert!(!rest.contains("0\r\n\r\n"), "{begun}: {rest}");
            assert_eq!(end, End::Reset, "{version}: {begun}");
        }
    }
}

#[tokio::test]
async fn an_old_caller_gets_no_chunks_and_no_interim_answers() {
    let origin = HandOrigin::start().await;
    let gate = gate(&origin).await;
    let mut caller = Talk::to(gate.address()).await;
    caller.say("GET /x HTTP/1.0\r\n\r\n").await;
    let mut upstream = origin.accept().await;
    let request = upstream.header().await;
    assert_eq!(lines(&request, &["host"]), [format!("Host: {}", origin.url().trim_start_matches("http://"))]);
    upstream.say("HTTP/1.1 103 Early Hints\r\n\r\n").await;
    upstream.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwhol\r\n1\r\ne\r\n0\r\n\r\n").await;
    let (answer, end) = caller.rest().await;
    assert!(answer.starts_with("HTTP/1.0 200 ") || answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\nwhole"), "{answer}");
    assert_eq!(end, End::Closed);
}

#[tokio::test]
async fn a_body_of_http2_without_a_length_arrives_whole_with_any_method() {
    let origin = HandOrigin::start().await;
    let gate = open(&origin).tls().start().await;
    for method in ["GET", "DELETE"] {
        let asked = gate.http2().await.send(&Request::bare(method, "/x").body("whole").without("Content-Length")).await;
        let mut upstream = origin.accept().await;
        let request = upstream.header().await;
        assert_eq!(lines(&request, &["transfer-encoding", "content-length"]), ["Transfer-Encoding: chunked"]);
        upstream.until("whole\r\n0\r\n\r\n").await;
        upstream.say(OK).await;
        assert_eq!(asked.answer().await.body, "ok");
    }
}

#[tokio::test]
async fn an_upgrade_passes_in_both_directions_and_a_refused_one_is_an_answer() {
    let origin = HandOrigin::start().await;
    let mut gate = open(&origin).set("origin.max_in_flight", "1").start().await;
    let upgrade = "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let mut refused = Talk::to(gate.address()).await;
    refused.say(upgrade).await;
    let mut upstream = origin.accept().await;
    let request = upstream.header().await;
    let upgraded = lines(&request, &["connection", "upgrade"]).join("; ").to_ascii_lowercase();
    assert_eq!(upgraded, "connection: upgrade; upgrade: websocket", "{request}");
    assert_eq!(lines(&request, &["sec-websocket-key"]).len(), 1);
    upstream.say("HTTP/1.1 426 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno").await;
    let (answer, _) = refused.rest().await;
    assert!(answer.starts_with("HTTP/1.1 426 ") && answer.ends_with("no"), "{answer}");

    let mut caller = Talk::to(gate.address()).await;
    caller.say(upgrade).await;
    let mut talking = origin.accept().await;
    talking.header().await;
    let switched = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    talking.say(format!("{switched}first")).await;
    let answer = caller.until("first").await;
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    assert_eq!(lines(&answer, &["upgrade"]).len(), 1, "{answer}");
    for n in 0..3 {
        caller.say(format!("question {n};")).await;
        talking.until(&format!("question {n};")).await;
        talking.say(format!("answer {n};")).await;
        caller.until(&format!("answer {n};")).await;
    }
    // It holds no place, and a process that ends does not wait for it longer than it may.
    let mut other = Talk::to(gate.address()).await;
    other.say("GET /x HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut upstream = origin.accept().await;
    upstream.header().await;
    upstream.say(OK).await;
    other.until("\r\n\r\nok").await;
    caller.finish_sending().await;
    assert_eq!(talking.rest().await.0, "");
    assert_eq!(gate.stop().await, Some(0));
}

#[tokio::test]
async fn events_arrive_one_by_one_and_interim_answers_and_trailers_break_nothing() {
    let origin = HandOrigin::start().await;
    let gate = gate(&origin).await;
    let mut caller = Talk::to(gate.address()).await;
    caller.say("POST /events HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n").await;
    let mut upstream = origin.accept().await;
    let request = upstream.header().await;
    assert_eq!(lines(&request, &["expect"]), ["Expect: 100-continue"], "{request}");
    upstream.say("HTTP/1.1 100 Continue\r\n\r\n").await;
    assert!(caller.header().await.starts_with("HTTP/1.1 100 "));
    caller.say("body").await;
    upstream.until("body").await;
    upstream.say("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n").await;
    assert!(caller.header().await.starts_with("HTTP/1.1 103 "));
    upstream.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n").await;
    caller.header().await;
    for n in 0..3 {
        upstream.say(format!("7\r\ndata: {n}\r\n")).await;
        caller.until(&format!("data: {n}")).await;
    }
    upstream.say("0\r\nX-T: 1\r\n\r\n").await;
    caller.until("0\r\n\r\n").await;
    caller.rest().await; // Pingora ends a connection on which a 100 was sent
    let mut caller = Talk::to(gate.address()).await;
    for (status, fields, body) in [
        ("206", "Content-Range: bytes 1-2/9\r\nContent-Length: 2\r\n", "bc"),
        ("204", "", ""),
        ("304", "ETag: x\r\n", ""),
    ] {
        caller.say("GET /r HTTP/1.1\r\nHost: a\r\nRange: bytes=1-2\r\n\r\n").await;
        assert_eq!(lines(&next(&origin, &mut upstream).await, &["range"]), ["Range: bytes=1-2"]);
        upstream.say(format!("HTTP/1.1 {status} x\r\n{fields}\r\n{body}")).await;
        let answer = caller.until(&format!("\r\n\r\n{body}")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(lines(&answer, &["transfer-encoding"]).is_empty(), "{answer}");
    }
    // An origin that says so and keeps the connection all the same is asked on another one.
    caller.say("GET /r HTTP/1.1\r\nHost: a\r\n\r\n").await;
    next(&origin, &mut upstream).await;
    upstream.say("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok").await;
    caller.until("\r\n\r\nok").await;
    caller.say("GET /r HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut other = origin.accept().await;
    other.header().await;
    other.say("HTTP/1.1 200 OK\r\n\r\nto the end").await;
    caller.until("to the end").await;
    drop(other);
    caller.until("0\r\n\r\n").await;
}
