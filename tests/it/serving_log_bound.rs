//! Guarantee 8 for the process log: what a stranger, a caller or an origin can cause without end fills no disk,
//! and what is not in the log is counted there.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::frames::*;
use crate::support::*;

/// The lines of one place: 20 in 20 s, and a slow test may take longer.
const LINES: std::ops::Range<usize> = 20..61;

#[tokio::test]
async fn frames_that_nobody_asked_for_leave_no_line_each() {
    let gate = TestGateway::builder().tls().key("bot").points("7", 3).set("log.access", r#""""#).start().await;
    let header = header(&gate, "/getPoints");
    let open_and_reset = |n: u32| {
        let stream = 2 * n + 1;
        [frame(HEADERS, END_HEADERS, stream, &header), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
    };
    let floods: [&dyn Fn(u32) -> Vec<u8>; 2] = [&|_| frame(PING, ACK, 0, &[7; 8]), &open_and_reset];
    for flood in floods {
        for _ in 0..3 {
            let (mut frames, mut n) = (gate.frames().await, 0);
            while n < 60_000 && frames.try_send((n..n + 50).flat_map(flood).collect::<Vec<u8>>()).await {
                n += 50;
            }
            frames.ends().await;
        }
    }
    gate.get_points("bot", "7").await.is("3");
    let log = gate.stderr();
    assert!(log.lines().count() < 20, "{} lines, such as\n{:.3000}", log.lines().count(), log);
}

#[tokio::test]
async fn handshakes_that_fail_are_counted_where_the_log_is_to_tell_of_them() {
    const HANDSHAKES: usize = 300;
    let mut gate = TestGateway::builder()
        .tls()
        .key("bot")
        .points("7", 3)
        .set("log.access", r#""""#)
        .set("log.level", r#""debug""#)
        .start()
        .await;
    for _ in 0..HANDSHAKES {
        let mut stream = TcpStream::connect(gate.address()).await.unwrap();
        // A record of TLS that holds no hello.
        stream.write_all(&[22, 3, 1, 0, 5, 99, 0, 0, 1, 0]).await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await; // it may be reset
    }
    gate.get_points("bot", "7").await.is("3");
    assert_eq!(gate.stop().await, Some(0));
    let lines = gate.stderr().lines().filter(|line| line.contains("a TLS handshake failed")).count();
    assert!(LINES.contains(&lines), "{lines} lines\n{:.3000}", gate.stderr());
}

#[tokio::test]
async fn an_origin_that_fails_every_request_fills_no_log() {
    const REQUESTS: usize = 250;
    for format in ["text", "json"] {
        let mut gate = TestGateway::before_http()
            .key("bot")
            .set("log.access", r#""""#)
            .set("log.format", &format!("{format:?}"))
            .set("origin.retries", "0")
            .start()
            .await;
        gate.origin().always(Act::say(500, "<html>"));
        let mut first = None;
        for member in 0..REQUESTS {
            let answer = gate.get_points("bot", &member.to_string()).await;
            answer.is_refused(502, NO_ANSWER);
            first = first.or_else(|| answer.header("x-request-id").map(str::to_owned));
        }
        assert_eq!(gate.stop().await, Some(0));
        let log = gate.stderr();
        let lines = log.lines().filter(|line| line.contains("is not usable")).count();
        assert!(LINES.contains(&lines), "{lines} lines\n{log:.3000}");
        assert!(log.contains(&first.unwrap()), "the first is there with its request id\n{log:.3000}");
        if format == "json" {
            log.lines().for_each(|line| assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}"));
        }
    }
}
