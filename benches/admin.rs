//! What a flood of the admin listener costs callers: the latency of a caller's hits when the listener is quiet, and while
//! `/metrics`, pages and log-ins with a wrong token are asked for without a pause. The real server, started as a child.
//!
//! `cargo bench --bench admin` floods it for 20 seconds; `cargo bench --bench admin -- 60` for a minute. Compare lines of
//! one run only, and on a machine that does nothing else. Without `--bench` (as `cargo test` runs it) it is one second.

#![expect(clippy::unwrap_used, reason = "a bench that cannot set itself up has nothing to measure")]

#[expect(dead_code, unused_imports, unused_macros, reason = "the tests use more of it")]
#[path = "../tests/it/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::{AdminClient, Connection, Dashboard, TestGateway};

/// The caller's requests: so few that it waits for nobody but the gateway.
const PER_SECOND: u32 = 500;

/// Connections that flood: half of those that the admin listener allows.
const FLOODERS: usize = 32;

fn main() {
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let seconds = std::env::args().filter_map(|arg| arg.parse().ok()).next();
    let held = Duration::from_secs(seconds.unwrap_or(if is_bench { 20 } else { 1 }));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .on_thread_start(move || {
            if is_bench {
                stand_back()
            }
        })
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(measure(held));
}

/// Gives this thread only what no other one wants of the cores: who floods has a machine of their own.
fn stand_back() {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let id = thread.file_name().unwrap().to_owned();
    let done = std::process::Command::new("chrt").args(["--idle", "--pid", "0"]).arg(id).status().unwrap();
    assert!(done.success(), "chrt (of util-linux)");
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
    let flooders: Vec<_> =
        (0..FLOODERS).map(|n| tokio::spawn(flood(n, dashboard.clone(), stop.clone(), answers.clone()))).collect();
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

/// Asks without a pause until `stop`.
async fn flood(n: usize, dashboard: Dashboard, stop: Arc<AtomicBool>, answers: Arc<AtomicU64>) {
    let api = AdminClient { address: dashboard.client.address, token: String::new() };
    for turn in n.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let answer = match turn % 6 {
            0 => api.get("/metrics").await,
            1 => dashboard.get("/").await,
            2 => dashboard.get("/keys").await,
            3 => dashboard.get("/configuration").await,
            4 => dashboard.get("/log").await,
            _ => Dashboard::try_log_in(&api, "a wrong token").await,
        };
        assert!([200, 401, 429].contains(&answer.status), "{answer:?}");
        answers.fetch_add(1, Ordering::Relaxed);
    }
}
