//! `[pass]`: bodies, stalls and failing upstreams are bounded, framing is as strict as for operations, and no spelling of a
//! path leads round an operation's rules.

use std::time::Duration;

use crate::support::*;

fn open(origin: &HandOrigin) -> Builder {
    let gate = TestGateway::before_http().upstreams([origin.url()]).key("bot");
    gate.set("pass.paths", r#"["/"]"#).set("pass.key", "false")
}

const TOO_LATE: &str = "22 | The service took too long to answer. Try again later.";

/// KiB that the process may grow by while it passes on what is far larger.
const GROWTH: u64 = 24 * 1024;

#[tokio::test]
async fn an_upload_arrives_whole_and_a_slow_reader_gets_all_of_a_download_in_little_memory() {
    const BYTES: usize = 32 << 20;
    let origin = HandOrigin::start().await;
    let gate = open(&origin).set("pass.max_body", r#""64MiB""#).start().await;
    let before = gate.resident_kib();
    for framing in ["Content-Length: 33554432", "Transfer-Encoding: chunked"] {
        let mut caller = Talk::to(gate.address()).await;
        caller.say(format!("PUT /up HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n")).await;
        let mut upstream = origin.accept().await;
        let request = upstream.header().await;
        let is_chunked = framing.starts_with('T');
        assert!(request.to_ascii_lowercase().contains(&framing.to_ascii_lowercase()), "{request}");
        let part = vec![b'x'; 1 << 20];
        let sending = async {
            for _ in 0..32 {
                let (begin, end) = if is_chunked { ("100000\r\n", "\r\n") } else { ("", "") };
                caller.say([begin.as_bytes(), &part, end.as_bytes()].concat()).await;
            }
            caller.say(if is_chunked { "0\r\n\r\n" } else { "" }).await;
            caller
        };
        let receiving = async {
            match is_chunked {
                true => assert!(upstream.until("\r\n0\r\n\r\n").await.matches('x').count() == BYTES),
                false => upstream.skip(BYTES).await,
            }
            upstream.say("HTTP/1.1 200 OK\r\nContent-Length: 33554432\r\nConnection: close\r\n\r\n").await;
            upstream
        };
        let (mut caller, mut upstream) = tokio::join!(sending, receiving);
        let sending = async {
            for _ in 0..32 {
                upstream.say(&part).await;
            }
        };
        let receiving = async {
            caller.header().await;
            tokio::time::sleep(Duration::from_millis(500)).await; // a slow reader: what it has not taken is not held here
            let grown = gate.resident_kib().saturating_sub(before);
            assert!(grown < GROWTH, "{grown} KiB");
            caller.skip(BYTES).await;
        };
        tokio::join!(sending, receiving);
    }
}

#[tokio::test]
async fn a_body_over_its_bound_is_14_and_never_arrives_whole() {
    let origin = HandOrigin::start().await;
    let gate = open(&origin).set("pass.max_body", r#""1KiB""#).start().await;
    let answer = gate.send(&Request::post("/up", "x".repeat(1025))).await;
    answer.is_refused(413, TOO_LARGE);
    assert!(origin.is_alone().await);
    let mut caller = Talk::to(gate.address()).await;
    caller.say("POST /up HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n").await;
    caller.say("x".repeat(1024)).await;
    let mut upstream = origin.accept().await;
    upstream.until("x").await;
    caller.say("\r\n1\r\nx\r\n").await;
    let (answer, end) = caller.rest().await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.ends_with(TOO_LARGE), "{answer}");
    assert_eq!(end, End::Closed);
    assert!(!upstream.rest().await.0.contains("0\r\n\r\n"));
}

#[tokio::test]
async fn a_side_that_stalls_is_given_up_and_the_other_is_told() {
    let origin = HandOrigin::start().await;
    let gate = open(&origin).set("pass.idle_timeout", r#""1s""#).start().await;
    let mut caller = Talk::to(gate.address()).await;
    caller.say("POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf").await;
    let mut upstream = origin.accept().await;
    upstream.until("half").await;
    let (answer, _) = caller.rest().await;
    assert!(answer.ends_with(TOO_SLOW), "{answer}"); // both sides are silent, and the upstream waits for the caller
    assert_eq!(upstream.rest().await.0, "");

    let mut caller = Talk::to(gate.address()).await;
    caller.say("GET /x HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut upstream = origin.accept().await;
    upstream.header().await;
    let (answer, _) = caller.rest().await;
    assert!(answer.starts_with("HTTP/1.1 504 ") && answer.ends_with(TOO_LATE), "{answer}");
    assert_eq!(upstream.rest().await.0, "");

    let mut caller = Talk::to(gate.address()).await;
    caller.say("GET /x HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut upstream = origin.accept().await;
    upstream.header().await;
    upstream.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n").await;
    let (answer, end) = caller.rest().await;
    assert!(answer.ends_with("4\r\nhalf\r\n") && end == End::Reset, "{answer} {end:?}");
}

#[tokio::test]
async fn a_failing_upstream_is_20_21_or_22_and_only_get_and_head_are_asked_again() {
    for (method, asked) in [("GET", 2), ("HEAD", 2), ("POST", 1), ("PUT", 1), ("OPTIONS", 1)] {
        let origin = HandOrigin::start().await;
        let gate = open(&origin).tls().start().await;
        for http2 in [false, true] {
            let request = Request::bare(method, "/x");
            let answered = async {
                match http2 {
                    true => gate.http2().await.ask(&request).await,
                    false if method == "HEAD" => {
                        let mut caller = gate.connect_and_send(request.bytes()).await;
                        caller.answer_to_head().await
                    }
                    false => gate.send(&request).await,
                }
            };
            let failing = async {
                for _ in 0..asked {
                    let mut upstream = origin.accept().await;
                    upstream.header().await;
                }
            };
            let (answer, ()) = tokio::join!(answered, failing);
            assert_eq!(answer.status, 502, "{answer:?}");
            if method != "HEAD" {
                answer.is_refused(502, NO_ANSWER);
                assert_eq!(answer.cache_status(), "guildgate; fwd=bypass");
            }
            assert!(origin.is_alone().await, "{method}");
        }
    }
    for garbage in [
        "SSH-2.0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: 2,2\r\n\r\nab",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        "HTTP/1.1 101 No\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nab",
    ] {
        let origin = HandOrigin::start().await;
        let gate = open(&origin).set("origin.retries", "0").start().await;
        let lie = async {
            let mut upstream = origin.accept().await;
            upstream.header().await;
            upstream.say(garbage).await;
            upstream
        };
        let (answer, _) = tokio::join!(async { gate.send(&Request::bare("GET", "/x")).await }, lie);
        answer.is_refused(502, NO_ANSWER);
        gate.has_said("its answer did not come whole").await;
    }
    let gone = HandOrigin::start().await;
    let gate = open(&gone).start().await;
    drop(gone);
    gate.send(&Request::post("/x", "body")).await.is_unavailable();
}

#[tokio::test]
async fn what_our_reader_would_refuse_reaches_no_upstream() {
    let origin = HandOrigin::start().await;
    let gate = open(&origin).start().await;
    let chunked = "Transfer-Encoding: chunked\r\n";
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding:\tchunked\r\nContent-Length: 5\r\n",
        "X: a\nContent-Length: 5\r\n",
        "X: a\r\n Transfer-Encoding: chunked\r\n",
        "Host: b\r\n",
    ] {
        let mut caller = Talk::to(gate.address()).await;
        caller.say(format!("POST /x HTTP/1.1\r\nHost: a\r\n{fields}\r\n0\r\n\r\nGET /y HTTP/1.1\r\n\r\n")).await;
        let (answer, _) = caller.rest().await;
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with(MALFORMED), "{fields:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{fields:?}: {answer}");
    }
    // Pingora refuses this one, once it has a connection.
    let nominated = Request::post("/x", "body").header("Connection", "X-Forwarded-For");
    let (answer, upstream) = tokio::join!(async { gate.send(&nominated).await }, origin.accept());
    answer.is_refused(400, MALFORMED);
    assert_eq!(upstream.rest().await.0, "");
    let mut old = Talk::to(gate.address()).await;
    old.say(format!("POST /x HTTP/1.0\r\n{chunked}\r\n0\r\n\r\n")).await;
    assert!(old.rest().await.0.ends_with(MALFORMED));
    assert_eq!(gate.send(&Request::bare("CONNECT", "/x")).await.code(), Some(11));
    // Chunks that are malformed end the request, and nothing behind them is one.
    for chunks in
        ["5;\nx\r\nhello\r\n0\r\n\r\n", "+5\r\nhello\r\n0\r\n\r\n", "5\nhello\r\n0\r\n\r\n", "0x5\r\nhello\r\n"]
    {
        let mut caller = Talk::to(gate.address()).await;
        let behind = "GET /behind HTTP/1.1\r\nHost: a\r\n\r\n";
        caller.say(format!("POST /x HTTP/1.1\r\nHost: a\r\n{chunked}\r\n{chunks}{behind}")).await;
        caller.finish_sending().await;
        let seeing = async {
            let mut upstream = origin.accept().await;
            let _ = upstream.try_say(OK).await;
            upstream.rest().await.0
        };
        // Nothing may come at all, or the connection may be kept.
        let seen = tokio::time::timeout(Duration::from_secs(2), seeing).await.unwrap_or_default();
        assert!(!seen.contains("/behind"), "{chunks:?}: {seen}");
        let (answer, _) = caller.rest().await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{chunks:?}: {answer}");
    }
}

#[tokio::test]
async fn fields_that_a_program_could_take_for_others_are_not_passed_on() {
    let origin = HandOrigin::start().await;
    let gate = open(&origin).start().await;
    let fields = ["X_Forwarded_For", "Transfer_Encoding", "X-Original-URL", "X-Rewrite-URL", "Proxy"];
    let request = fields.iter().fold(Request::bare("GET", "/x"), |request, name| request.header(name, "/setPoints"));
    let request = request.header("X-Own", "kept");
    let answering = async {
        let mut upstream = origin.accept().await;
        let request = upstream.header().await;
        upstream.say(OK).await;
        request
    };
    let (answer, request) = tokio::join!(async { gate.send(&request).await }, answering);
    assert_eq!(answer.status, 200);
    assert!(request.to_ascii_lowercase().contains("x-own: kept") && !request.contains("setPoints"), "{request}");
}

#[tokio::test]
async fn guarantee_6_a_body_that_comes_slowly_keeps_nobody_from_the_origin() {
    let origin = HandOrigin::start().await;
    let gate = open(&origin).set("origin.max_in_flight", "4").set("origin.queue_timeout", r#""10s""#);
    let gate = gate.set("server.body_timeout", r#""1s""#).start().await;
    let mut slow = Vec::new();
    for _ in 0..4 {
        let mut caller = Talk::to(gate.address()).await;
        caller.say("PUT /up HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nhalf").await;
        slow.push(caller);
    }
    let answering = async {
        let mut stalled = Vec::new();
        loop {
            let mut upstream = origin.accept().await;
            match upstream.header().await.starts_with("GET") {
                true => return upstream.say(OK).await,
                false => stalled.push(upstream),
            }
        }
    };
    let (answer, ()) = tokio::join!(async { gate.send(&Request::bare("GET", "/x")).await }, answering);
    assert_eq!(answer.status, 200);
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[tokio::test]
async fn a_path_that_may_be_an_operations_anywhere_or_lies_outside_is_10() {
    let origin = HandOrigin::start().await;
    let gate = open(&origin).set("server.base_path", r#""/api""#).set("pass.paths", r#"["/docs", "/api"]"#);
    let gate = gate.tls().start().await;
    let mut http2 = gate.http2().await;
    for path in [
        "/setPoints",
        "/api/x/../setPoints",
        "/api//setPoints",
        "/api/set%50oints",
        "/api/set%2550oints",
        "/api/setPoints;x",
        "/api\\setPoints",
        "/api/SETPOINTS",
        "/docs/../setPoints",
        "/docs/%2e%2e/setPoints",
        "/other",
        "/docsx",
        "/",
        "*",
    ] {
        let method = if path == "*" { "OPTIONS" } else { "POST" };
        gate.send(&Request::bare(method, path)).await.is_refused(404, "10 | Unknown operation!");
        if !path.contains('\\') && path != "*" {
            http2.ask(&Request::bare(method, path)).await.is_refused(404, "10 | Unknown operation!");
        }
    }
    assert!(origin.is_alone().await);
    for target in ["/docs/a<", "/docs/a`", "/docs?\""] {
        gate.send(&Request::bare("GET", target)).await.is_refused(400, MALFORMED); // no URI
    }
    for path in
        ["/docs", "/docs/a", "/docs?x=/setPoints", "http://guildgate.test/docs/a", "HTTP://GuildGate.test/docs?b"]
    {
        let answering = async {
            let mut upstream = origin.accept().await;
            let request = upstream.header().await;
            upstream.say("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").await;
            request
        };
        let (answer, request) = tokio::join!(async { gate.send(&Request::bare("GET", path)).await }, answering);
        assert_eq!(answer.status, 200);
        let path = &path[path.find("/docs").unwrap()..];
        assert!(request.starts_with(&format!("GET {path} HTTP/1.1\r\n")), "{request}");
    }
}
