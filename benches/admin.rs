//! What a flood of the admin listener costs callers: the latency of a caller's hits when the listener is quiet, and while
//! `/metrics`, pages and log-ins with a wrong token are asked for without a pause. The real server, started as a child.
//!
//! `cargo bench --bench admin` floods it for 20 seconds; `cargo bench --bench admin -- 60` for a minute. Compare lines of
//! one run only, and on a machine that does nothing else. Without `--bench` (as `cargo test` runs it) it is one second.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a bench that cannot set itself up has nothing to measure"
)]

#[expect(dead_code, reason = "other benches use more of it")]
mod shared;
#[expect(dead_code, unused_imports, reason = "the tests use more of it")]
#[path = "../tests/it/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::{Connection, Dashboard, TestGateway};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The caller's requests: so few that it waits for nobody but the gateway.
const PER_SECOND: u32 = 500;

/// Connections that flood: half of those that the admin listener allows.
const FLOODERS: usize = 32;

fn main() {
    let seconds = std::env::args().filter_map(|arg| arg.parse().ok()).next();
    let held = Duration::from_secs(seconds.unwrap_or(if shared::is_measured() { 20 } else { 1 }));
    shared::client_runtime().block_on(measure(held));
}

async fn measure(held: Duration) {
    let gate = TestGateway::builder()
        .key("bot")
        .points("7", 3)
        .admin()
        .set("cache.points.ttl", r#""1h""#)
        .set("log.access", r#""""#)
        .start()
        .await;
    let dashboard = gate.dashboard().await;
    latencies(&gate, held / 4).await; // warms up
    let mut quiet = latencies(&gate, held / 2).await;
    let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (requests, address) = (Arc::<[String]>::from(requests(&dashboard).await), dashboard.client.address);
    let flood = |n| tokio::spawn(flood(n, requests.clone(), address, stop.clone(), answers.clone()));
    let flooders: Vec<_> = (0..FLOODERS).map(flood).collect();
    let flooded = latencies(&gate, held).await;
    stop.store(true, Ordering::Relaxed);
    for flooder in flooders {
        flooder.await.unwrap();
    }
    quiet.extend(latencies(&gate, held / 2).await);
    let a_second = answers.load(Ordering::Relaxed) as f64 / held.as_secs_f64();
    eprintln!("a caller at {PER_SECOND} hits a second, latency in microseconds:");
    let [quiet, flooded] = [("quiet", quiet), ("flooded", flooded)].map(|(what, mut took)| {
        took.sort_unstable();
        let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_micros();
        let (p50, p99) = (at(0.5), at(0.99));
        eprintln!("  {what:<8} p50 {p50:>6}  p99 {p99:>6}  max {:>7}  requests {}", at(1.0), took.len());
        (p50, p99)
    });
    let ratio = |a: u128, b: u128| a as f64 / b as f64;
    eprintln!("  ratio of p50 {:.2}, of p99 {:.2}", ratio(flooded.0, quiet.0), ratio(flooded.1, quiet.1));
    eprintln!("  the admin listener answered {a_second:.0} requests a second meanwhile");
}

/// How long each of a caller's requests took, on a thread and a kept connection of its own.
async fn latencies(gate: &TestGateway, held: Duration) -> Vec<Duration> {
    let (address, request) = (gate.address(), gate.request("getPoints", "bot", "memberID=7"));
    let asks = async move {
        let mut connection = Connection::to(address).await;
        let (began, mut took) = (Instant::now(), Vec::new());
        for n in 0_u32.. {
            let due = began + Duration::from_secs(1) / PER_SECOND * n;
            if due > began + held {
                break;
            }
            let waits = due.saturating_duration_since(Instant::now());
            std::thread::sleep(waits);
            // One that is late because the one before it was slow has waited since it was due.
            let asked = if waits.is_zero() { due } else { Instant::now() };
            connection.ask(&request).await.is("3");
            took.push(asked.elapsed());
        }
        took
    };
    let thread = std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(asks)
    });
    tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap()
}

/// The requests of the flood.
async fn requests(dashboard: &Dashboard) -> Vec<String> {
    let mut requests = Vec::new();
    for path in [dashboard.pages().await, vec!["/metrics".to_owned()]].concat() {
        assert_eq!(dashboard.get(&path).await.status, 200, "{path}");
        let cookie = &dashboard.cookie;
        requests
            .push(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"));
    }
    let form = "token=a-wrong-one";
    let length = form.len();
    requests.push(format!(
        "POST /login HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{form}"
    ));
    requests
}

/// Sends these requests without a pause until `stop`, beginning with the `first`.
async fn flood(
    first: usize,
    requests: Arc<[String]>,
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
) {
    for turn in first.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut stream) = TcpStream::connect(address).await else { continue };
        let mut answer = Vec::new();
        // One connection too many is closed without an answer.
        let _ = stream.write_all(requests[turn % requests.len()].as_bytes()).await;
        let _ = stream.read_to_end(&mut answer).await;
        answers.fetch_add(u64::from(answer.starts_with(b"HTTP/1.1 ")), Ordering::Relaxed);
    }
}
