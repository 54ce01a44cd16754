//! Contract section 1, 16 and 17, and `[server]`'s time-outs over HTTP/1.1, in the clear and through
//! TLS, on first and on reused connections: slow clients are shown the door. Each deadline under test
//! is short and every other one long; that it ends, how, and that it does not end before its time is
//! what is asserted, not how soon.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::timeout;

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

/// Asserts that these are answers with these texts, of which the last may be cut and others missing behind it.
fn is_a_prefix_of_answers<'t>(received: &str, texts: impl Iterator<Item = &'t str>) {
    let mut rest = received;
    for (i, text) in texts.enumerate() {
        let Some((head, behind)) = rest.split_once("\r\n\r\n") else { break };
        let answer = Answer::head(head);
        assert_eq!(answer.status, 200, "answer {i}: {head}");
        assert_eq!(answer.header("content-length"), Some(&*text.len().to_string()), "answer {i}: {head}");
        let (body, behind) = behind.split_at(text.len().min(behind.len()));
        let another = body.find("HTTP/1.1").map(|at| (at, &body[at..]));
        assert!(text.starts_with(body), "another answer stands in the body of answer {i}, at byte {another:?}");
        rest = behind;
    }
    let status_line = "HTTP/1.1 200 OK";
    assert!(rest.starts_with(status_line) || status_line.starts_with(rest), "no answer begins so: {rest:?}");
}

#[tokio::test]
async fn a_connection_ends_when_its_caller_does_not_take_the_answers_before_a_miss() {
    // With a hit before each, these are more than the kernel holds for a caller that reads nothing.
    const MISSES: usize = 8;
    let gate = TestGateway::before_http().key("bot").set("server.write_timeout", r#""700ms""#).start_here().await;
    let (origin, reviews) = (gate.origin(), format!("{{{}}}", "x".repeat(59_000)));
    origin.put_map("getReviews", "7", &reviews);
    gate.get_reviews("bot", "7").await.is(&reviews);
    gate.get_reviews("bot", "7").await.is(&reviews).is_hit();
    let last = Gate::shut();
    (1..MISSES).for_each(|_| origin.next("getPoints", Act::Normal));
    origin.next("getPoints", Act::HoldAll(last.clone()));
    let hit = gate.request("getReviews", "bot", "memberID=7").bytes();
    let pipelined = (1..=MISSES).flat_map(|member| {
        let miss = gate.request("getPoints", "bot", &format!("memberID=10{member}"));
        // A connection that goes on ends after the last answer, so that what it carried can be looked at.
        let miss = if member == MISSES { miss.header("Connection", "close") } else { miss };
        [hit.clone(), miss.bytes()].concat()
    });

    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap(); // or the kernel would take the answers in the caller's stead
    let mut caller = socket.connect(gate.address()).await.unwrap();
    let (here, began) = (caller.local_addr().unwrap(), Instant::now());
    caller.write_all(&pipelined.collect::<Vec<_>>()).await.unwrap();
    origin.has_been_asked("getPoints", 1).await;
    let mut received = vec![0; reviews.len()];
    timeout(PATIENCE, caller.read_exact(&mut received)).await.expect("nothing came").unwrap();
    // The caller reads no more until the gateway has closed the connection, or has come to the last request on it.
    eventually(PATIENCE, "the answers are given up", || async {
        let is_open = gate.tcp_entry(here).is_some_and(|entry| entry.is_established());
        !is_open || origin.asked("getPoints") == MISSES
    })
    .await;
    assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
    last.open();
    let _ = timeout(PATIENCE, caller.read_to_end(&mut received)).await.expect("no end came"); // a reset
    let received = String::from_utf8(received).unwrap();
    is_a_prefix_of_answers(&received, (0..MISSES).flat_map(|_| [&*reviews, "0"]));
    let asked = origin.asked("getPoints");
    assert!(asked < MISSES, "the connection went on: {asked} misses");
    assert!(gate.tcp_entry(here).is_none_or(|entry| !entry.is_established()), "the connection is open");
}
