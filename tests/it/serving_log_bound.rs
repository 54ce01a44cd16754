//! Guarantee 8 for the process log: what a stranger, a caller or an origin can cause without end fills no disk,
//! and what is not in the log is counted there.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

/// Requests, and then handshakes, that fail.
const FAILURES: usize = 300;

/// The lines of one place: 20 in 20 s, and a slow test may take longer.
const LINES: std::ops::Range<usize> = 20..61;

#[tokio::test]
async fn what_callers_and_an_origin_do_over_and_over_fills_no_log() {
    let gate = TestGateway::before_http().key("bot").tls().set("log.access", r#""""#).set("log.level", r#""debug""#);
    let mut gate = gate.set("log.format", r#""json""#).set("origin.retries", "0").start().await;
    gate.origin().always(Act::say(500, "<html>"));
    let (mut connection, mut first) = (gate.connect().await, None);
    for member in 0..FAILURES {
        let answer = connection.ask(&gate.request("getPoints", "bot", &format!("memberID={member}"))).await;
        answer.is_refused(502, NO_ANSWER);
        first = first.or_else(|| answer.header("x-request-id").map(str::to_owned));
    }
    for _ in 0..FAILURES {
        let mut stream = TcpStream::connect(gate.address()).await.unwrap();
        // A record of TLS that holds no hello.
        stream.write_all(&[22, 3, 1, 0, 5, 99, 0, 0, 1, 0]).await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await; // it may be reset
    }
    gate.origin().always(Act::Normal);
    gate.get_points("bot", "7").await.is("0");
    assert_eq!(gate.stop().await, Some(0));
    let log = gate.stderr();
    for place in ["is not usable", "a TLS handshake failed"] {
        let lines = log.lines().filter(|line| line.contains(place)).count();
        assert!(LINES.contains(&lines), "{place}: {lines} lines\n{log:.3000}");
    }
    assert!(log.contains(&first.unwrap()), "the first is there with its request id\n{log:.3000}");
    log.lines().for_each(|line| assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}"));
}
