//! Contract section 1, 16 and 17, and `[server]`'s time-outs over HTTP/1.1, in the clear and through
//! TLS, on first and on reused connections: slow clients are shown the door. Each deadline under test
//! is short and every other one long; that it ends, how, and that it does not end before its time is
//! what is asserted, not how soon.

use std::time::{Duration, Instant};

use crate::support::*;

/// The deadline under test.
const SHORT: Duration = Duration::from_millis(700);

const DRIP: Duration = Duration::from_millis(50);

/// Gateways in the clear and with TLS on which only this time-out is short.
async fn gates(short: &str) -> [TestGateway; 2] {
    let gate = || {
        let all = ["header_timeout", "body_timeout", "write_timeout", "idle_timeout"];
        let gate = TestGateway::before_http().key("bot").points("7", 3);
        all.iter().fold(gate, |gate, name| {
            gate.set(&format!("server.{name}"), if *name == short { r#""700ms""# } else { r#""60s""# })
        })
    };
    [gate().start_here().await, gate().tls().start_here().await]
}

/// A connection that has answered before, or one that has not.
async fn connection(gate: &TestGateway, reused: bool) -> Connection {
    let mut connection = gate.connect().await;
    if reused {
        connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    }
    connection
}

/// Asserts 17 and the connection's end, not before the deadline was over.
async fn is_shown_out(connection: &mut Connection, began: Instant, what: &str) {
    let answer = connection.answer_or_close().await.unwrap_or_else(|| panic!("{what}: closed without a word"));
    let took = began.elapsed();
    assert_eq!(answer.body, TOO_SLOW, "{what}: {answer:#?}");
    assert!(answer.is_refused(408, TOO_SLOW).closes(), "{what}: {answer:#?}");
    assert!(took >= SHORT, "{what}: ended after {took:?}");
    connection.is_closed().await;
}

const SLOW_HEADER: &str = "POST /getPoints HTTP/1.1\r\nHost: h\r\nX-Slow: ";

#[tokio::test]
async fn a_header_that_drips_or_stops_is_17_at_its_deadline() {
    for gate in gates("header_timeout").await {
        for reused in [false, true] {
            for drips in [false, true] {
                // A first header's time begins at accept, a later one's at its first byte.
                let before_accept = Instant::now();
                let mut connection = connection(&gate, reused).await;
                let began = if reused { Instant::now() } else { before_accept };
                connection.send(SLOW_HEADER).await;
                if drips {
                    connection.drip(std::iter::repeat_n(b'x', 10_000), DRIP).await;
                }
                is_shown_out(&mut connection, began, &format!("reused: {reused}, drips: {drips}")).await;
            }
        }
        gate.get_points("bot", "7").await.is("3");
    }
}

#[tokio::test]
async fn a_header_behind_another_request_has_its_own_deadline() {
    for gate in gates("header_timeout").await {
        let mut connection = gate.connect().await;
        let whole = gate.request("getPoints", "bot", "memberID=7").bytes();
        let began = Instant::now();
        connection.send([&whole[..], SLOW_HEADER.as_bytes()].concat()).await;
        connection.answer().await.is("3");
        connection.drip(std::iter::repeat_n(b'x', 10_000), DRIP).await;
        is_shown_out(&mut connection, began, "pipelined").await;
    }
}

#[tokio::test]
async fn a_connection_that_never_says_anything_is_closed_without_a_word() {
    for gate in gates("header_timeout").await {
        let began = Instant::now();
        let mut connection = gate.connect().await;
        connection.is_closed().await;
        assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_body_that_drips_or_stops_is_17_at_its_deadline() {
    let x = "x".repeat(4000);
    for gate in gates("body_timeout").await {
        for reused in [false, true] {
            for (what, fields, start, rest) in [
                ("sized, stops", "Content-Length: 22\r\n", "memberID=7&amount=10", ""),
                ("sized, drips", "Content-Length: 4000\r\n", "memberID=7&amount=10&", &x),
                ("chunked, stops", "Transfer-Encoding: chunked\r\n", "16\r\nmemberID=7", ""),
                ("chunked, drips", "Transfer-Encoding: chunked\r\n", "f00\r\nmemberID=7&amount=10&", &x),
                ("a chunk's size stops", "Transfer-Encoding: chunked\r\n", "1", ""),
            ] {
                let mut connection = connection(&gate, reused).await;
                let key = gate.secret("bot");
                let began = Instant::now();
                let head =
                    format!("POST /setPoints HTTP/1.1\r\nHost: h\r\nAuthorization: {key}\r\n{fields}\r\n{start}");
                connection.send(head).await;
                connection.drip(rest.bytes(), DRIP).await;
                is_shown_out(&mut connection, began, &format!("{what}, reused: {reused}")).await;
            }
        }
        gate.get_points("bot", "7").await.is("3");
    }
}

#[tokio::test]
async fn a_header_that_began_in_time_is_not_cut_by_the_idle_time() {
    for gate in gates("idle_timeout").await {
        let mut connection = gate.connect().await;
        let whole = gate.request("getPoints", "bot", "memberID=7").bytes();
        connection.send([&whole[..], &whole[..30]].concat()).await;
        connection.answer().await.is("3");
        tokio::time::sleep(2 * SHORT).await; // longer than it may idle
        connection.send(&whole[30..]).await;
        connection.answer().await.is("3");
    }
}

#[tokio::test]
async fn empty_lines_do_not_keep_an_idle_connection() {
    for gate in gates("idle_timeout").await {
        let began = Instant::now();
        let mut connection = connection(&gate, true).await;
        connection.drip(b"\r\n".iter().copied().cycle().take(10_000), DRIP).await;
        connection.is_closed().await;
        assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_is_let_go() {
    let text = "x".repeat(8000);
    for tls in [false, true] {
        let gate = TestGateway::before_http().key("bot").points("7", 3).review("7", 1, "Bo", 5, &text);
        let gate = gate.set("server.write_timeout", r#""700ms""#);
        let gate = if tls { gate.tls() } else { gate }.start_here().await;
        for reused in [false, true] {
            let began = Instant::now();
            let mut connection = connection(&gate, reused).await;
            let request = gate.request("getReviews", "bot", "memberID=7").bytes();
            // Pipelines without reading until the gateway, which cannot write, gives up.
            let ended = loop {
                if let Err(e) = connection.try_send(&request).await {
                    break e;
                }
            };
            assert_ne!(ended.kind(), std::io::ErrorKind::TimedOut, "a client that reads nothing was kept");
            assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
            gate.get_points("bot", "7").await.is("3");
        }
    }
}
