//! Guarantee 8 beyond the end of a connection: what a caller does not take stays in the kernel no longer than in the
//! gateway. Callers have little room on their own side, ask for long answers and never read.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, WINDOW_UPDATE, frame, header};
use crate::support::*;

const CALLERS: usize = 20;

/// The deadline under test; every other one is long.
const SHORT: &str = r#""2s""#;

/// A gateway on which only this time-out is short: member 7 has an answer that no kernel holds, member 8 one that it does.
fn gate(short: &str) -> Builder {
    let all = ["header_timeout", "body_timeout", "write_timeout", "idle_timeout"];
    let gate = TestGateway::before_http().key("bot").long_reviews("7");
    let gate = (900..908).fold(gate, |gate, id| gate.review("8", id, "Bo", 5, &"x".repeat(8000)));
    all.iter()
        .fold(gate, |gate, name| gate.set(&format!("server.{name}"), if *name == short { SHORT } else { r#""60s""# }))
}

/// A caller's connection that takes little of an answer.
async fn narrow(gate: &TestGateway) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    socket.connect(gate.address()).await.unwrap()
}

/// Connections on which each caller has sent this.
async fn callers(gate: &TestGateway, request: &[u8]) -> Vec<TcpStream> {
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        callers.push(narrow(gate).await);
    }
    for caller in &mut callers {
        caller.write_all(request).await.unwrap();
    }
    callers
}

/// Connections of which the gateway's kernel holds bytes, in whatever state they are.
fn unsent(gate: &TestGateway) -> usize {
    TcpEntry::all().iter().filter(|entry| entry.local == gate.address() && entry.unsent > 1).count()
}

/// Waits until all of these have bytes in the kernel, and then until none has. The callers stay, and read nothing.
async fn leave_nothing<T>(gate: &TestGateway, callers: Vec<T>, what: &str) {
    let all = callers.len();
    eventually(PATIENCE, &format!("{what}: there is more than they take"), async || unsent(gate) == all).await;
    eventually(PATIENCE, &format!("{what}: nothing is left in the kernel"), async || unsent(gate) == 0).await;
    drop(callers);
}

#[tokio::test]
async fn guarantee_8_what_is_not_taken_within_the_write_timeout_leaves_the_kernel() {
    let gate = gate("write_timeout").start_here().await;
    let request = gate.request("getReviews", "bot", "memberID=7");
    leave_nothing(&gate, callers(&gate, &request.bytes()).await, "HTTP/1.1").await;
    let last = request.header("Connection", "close").bytes();
    leave_nothing(&gate, callers(&gate, &last).await, "HTTP/1.1, asked to close").await;
    // Here all of it is in the kernel at once, and the gateway itself has nothing left to write.
    let short = gate.request("getReviews", "bot", "memberID=8").header("Connection", "close");
    leave_nothing(&gate, callers(&gate, &short.bytes()).await, "a short answer, asked to close").await;
}

/// Its own system has room again only in steps, each shorter than the deadline.
#[tokio::test]
async fn a_caller_that_takes_its_last_answer_at_more_than_the_promised_rate_has_it_whole() {
    const RATE: f64 = 48_000.0; // of 32,768 bytes a second
    let gate = (900..924).fold(gate("write_timeout"), |gate, id| gate.review("9", id, "Bo", 5, &"x".repeat(8000)));
    let gate = gate.start_here().await;
    let mut caller = TcpStream::connect(gate.address()).await.unwrap();
    let request = gate.request("getReviews", "bot", "memberID=9").header("Connection", "close");
    caller.write_all(&request.bytes()).await.unwrap();
    let (began, mut taken, mut part) = (Instant::now(), 0, [0; 4096]);
    while let read @ 1.. = timeout(PATIENCE, caller.read(&mut part)).await.expect("no end came").expect("a reset") {
        taken += read;
        let due = Duration::from_secs_f64(taken as f64 / RATE);
        tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
    }
    assert!(taken > 24 * 8000, "{taken} bytes");
}

#[tokio::test]
async fn guarantee_8_what_is_not_taken_through_tls_within_the_write_timeout_leaves_the_kernel() {
    let gate = gate("write_timeout").tls().start_here().await;
    let request = gate.request("getReviews", "bot", "memberID=7");
    for request in [request.bytes(), request.header("Connection", "close").bytes()] {
        let mut callers = Vec::new();
        for _ in 0..CALLERS {
            callers.push(gate.tls_client(&["http/1.1"]).shake_hands(narrow(&gate).await).await.unwrap());
        }
        for caller in &mut callers {
            caller.write_all(&request).await.unwrap();
            caller.flush().await.unwrap();
        }
        leave_nothing(&gate, callers, "TLS").await;
    }
}

#[tokio::test]
async fn guarantee_8_what_is_not_taken_over_http_2_within_the_write_timeout_leaves_the_kernel() {
    let gate = gate("write_timeout").tls().start_here().await;
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        let stream = narrow(&gate).await;
        let mut caller = Frames::over(gate.tls_client(&["h2"]).shake_hands(stream).await.unwrap());
        // Windows as wide as they get: only the socket is full.
        caller.greet(&[0, 4, 0x7f, 0xff, 0xff, 0xff]).await;
        callers.push(caller);
    }
    let ask = [
        frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0]),
        frame(HEADERS, END_HEADERS, 1, &header(&gate, "/getReviews")),
        frame(DATA, END_STREAM, 1, b"memberID=7"),
    ];
    for caller in &mut callers {
        caller.send(ask.concat()).await;
    }
    leave_nothing(&gate, callers, "HTTP/2").await;
}

#[tokio::test]
async fn guarantee_8_what_an_idle_caller_does_not_take_leaves_the_kernel() {
    let gate = gate("idle_timeout").set("server.write_timeout", SHORT).start_here().await;
    let request = gate.request("getReviews", "bot", "memberID=8").bytes();
    leave_nothing(&gate, callers(&gate, &request).await, "idle").await;
}

#[tokio::test]
async fn guarantee_8_what_a_caller_does_not_take_before_a_17_leaves_the_kernel() {
    for (short, begun) in [("header_timeout", 20), ("body_timeout", usize::MAX)] {
        let gate = gate(short).set("server.write_timeout", SHORT).start_here().await;
        let request = gate.request("getReviews", "bot", "memberID=8").bytes();
        let next = gate.request("setPoints", "bot", &"x".repeat(4000)).bytes();
        let next = &next[..begun.min(next.len() - 10)];
        leave_nothing(&gate, callers(&gate, &[&request, next].concat()).await, short).await;
    }
}

#[tokio::test]
async fn guarantee_8_what_is_not_taken_at_the_end_of_a_drain_leaves_the_kernel() {
    // The kernel goes on counting once the process has ended.
    let mut gate = gate("write_timeout").set("server.drain_timeout", r#""2s""#).start().await;
    let mut all = Vec::new();
    for member in ["7", "8"] {
        all.extend(callers(&gate, &gate.request("getReviews", "bot", &format!("memberID={member}")).bytes()).await);
    }
    eventually(PATIENCE, "there is more than they take", async || unsent(&gate) == all.len()).await;
    assert_eq!(gate.stop().await, Some(0));
    eventually(PATIENCE, "nothing is left in the kernel", async || unsent(&gate) == 0).await;
}
