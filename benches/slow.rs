//! What a thousand slow clients cost a good one, and what an idle connection costs in memory: the real
//! server, started as a child.
//!
//! `cargo bench --bench slow` holds them for a minute; `cargo bench --bench slow -- 10 header` for ten
//! seconds, and those alone that drip a header. Compare lines of one run only, and on a machine that does
//! nothing else. Without `--bench` (as `cargo test` runs it) there are few clients, for a second.

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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{Builder, Connection, Http2, Slow, SlowClients, TestGateway, TlsClient};

/// How much is measured.
#[derive(Clone, Copy)]
struct Size {
    slow: usize,
    /// Connections that idle while memory is measured.
    idle: usize,
    /// How long the slow clients are held.
    seconds: u64,
}

const BENCH: Size = Size { slow: 1000, idle: 2000, seconds: 60 };
const TRIAL: Size = Size { slow: 50, idle: 50, seconds: 1 };

/// A good client's requests: so few that it waits for nobody but the gateway.
const PER_SECOND: u32 = 200;

fn main() {
    let Size { slow, idle, seconds } = if shared::is_measured() { BENCH } else { TRIAL };
    let seconds = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(seconds);
    let named = |kind: &Slow| std::env::args().any(|arg| arg.eq_ignore_ascii_case(&format!("{kind:?}")));
    let kinds: Vec<Slow> = Slow::ALL.into_iter().filter(named).collect();
    let kinds = if kinds.is_empty() { Slow::ALL.to_vec() } else { kinds };
    shared::client_runtime().block_on(async {
        eprintln!("memory of an idle connection after one request, {idle} of them, KiB:");
        for (what, tls, http_2) in
            [("HTTP/1.1", false, false), ("HTTP/1.1 over TLS", true, false), ("HTTP/2 over TLS", true, true)]
        {
            eprintln!("  {what:<18} {:>6.1}", idle_kib(tls, http_2, idle).await);
        }
        beside(slow, Duration::from_secs(seconds), &kinds).await;
    });
}

fn gate() -> Builder {
    TestGateway::builder()
        .key("bot")
        .points("7", 3)
        .set("cache.points.ttl", r#""1h""#)
        .set("log.access", r#""""#)
        .set("server.max_connections_per_address", "0")
}

/// KiB that a connection holds while it idles.
async fn idle_kib(tls: bool, http_2: bool, connections: usize) -> f64 {
    let gate = gate().set("server.idle_timeout", r#""10m""#);
    let gate = if tls { gate.tls() } else { gate }.start().await;
    let request = gate.request("getPoints", "bot", "memberID=7");
    let (http_1, two) = if tls {
        (Some(gate.tls_client(&["http/1.1"])), gate.tls_client(&["h2"]))
    } else {
        (None, TlsClient::new(&[], &[]))
    };
    let (mut ones, mut twos) = (Vec::new(), Vec::new());
    let mut before = 0;
    for n in 0..connections + connections / 10 {
        // The first tenth warms up what all of them share.
        if n == connections / 10 {
            before = gate.resident_kib();
        }
        if http_2 {
            let mut connection = Http2::over(two.connect(gate.address()).await.unwrap()).await;
            connection.ask(&request).await.is("3");
            twos.push(connection);
        } else {
            let mut connection = match &http_1 {
                Some(client) => Connection::over(client.connect(gate.address()).await.unwrap()),
                None => Connection::to(gate.address()).await,
            };
            connection.ask(&request).await.is("3");
            ones.push(connection);
        }
    }
    let grown = gate.resident_kib().saturating_sub(before);
    grown as f64 / connections as f64
}

/// A good client without slow ones, with them, and without them again.
async fn beside(count: usize, held: Duration, kinds: &[Slow]) {
    let gate = gate().tls().review("7", 1, "Bo", 5, &"x".repeat(8000)).start().await;
    let good = Good::new(&gate);
    good.measure(Duration::from_secs(3)).await; // warms up
    let mut alone = good.measure(held / 2).await;
    let before = gate.resident_kib();
    let slow = SlowClients::start(&gate, kinds, count, Duration::from_millis(500));
    slow.have_come().await;
    let beside = good.measure(held).await;
    let grown = gate.resident_kib().saturating_sub(before);
    let shown_out = slow.shown_out();
    drop(slow);
    tokio::time::sleep(Duration::from_secs(2)).await; // until the last of them is gone
    alone.add(good.measure(held / 2).await);
    let (alone, beside) = (alone.summary(), beside.summary());
    eprintln!("a good client at {PER_SECOND} requests a second over TLS, latency in microseconds:");
    let heads = ["p50", "p99", "a second's", "max", "requests", "failed"].map(|head| format!("{head:>10}"));
    eprintln!("  {:<30} {}", "", heads.join(" "));
    let kinds = format!("beside {count} slow ones of {} kinds", kinds.len());
    for (what, summary) in [("alone, before and after", &alone), (kinds.as_str(), &beside)] {
        let Summary { p50, p99, p99_of_a_second, max, requests, failed } = summary;
        eprintln!("  {what:<30} {p50:>10} {p99:>10} {p99_of_a_second:>10} {max:>10} {requests:>10} {failed:>10}");
    }
    let ratio = |a: u128, b: u128| a as f64 / b as f64;
    eprintln!(
        "  ratio of p50 {:.2}, of p99 {:.2}, of the median second's p99 {:.2}",
        ratio(beside.p50, alone.p50),
        ratio(beside.p99, alone.p99),
        ratio(beside.p99_of_a_second, alone.p99_of_a_second)
    );
    eprintln!(
        "  slow clients were shown out {shown_out} times; memory for each: {:.1} KiB",
        grown as f64 / count as f64
    );
}

/// A client on a thread and a kept connection of its own, which asks at a fixed rate.
struct Good {
    client: Arc<TlsClient>,
    address: std::net::SocketAddr,
    request: support::Request,
}

#[derive(Default)]
struct Measured {
    took: Vec<Duration>,
    failed: usize,
}

struct Summary {
    p50: u128,
    p99: u128,
    /// Of the median second: what else the machine does in some seconds is not in it.
    p99_of_a_second: u128,
    max: u128,
    requests: usize,
    failed: usize,
}

impl Good {
    fn new(gate: &TestGateway) -> Good {
        let request = gate.request("getPoints", "bot", "memberID=7");
        Good { client: Arc::new(gate.tls_client(&["http/1.1"])), address: gate.address(), request }
    }

    async fn measure(&self, held: Duration) -> Measured {
        let (client, address, request) = (self.client.clone(), self.address, self.request.clone());
        let over = Arc::new(AtomicBool::new(false));
        let stop = over.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(asks(&client, address, &request, &stop))
        });
        tokio::time::sleep(held).await;
        over.store(true, Ordering::Relaxed);
        tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap()
    }
}

async fn asks(
    client: &TlsClient,
    address: std::net::SocketAddr,
    request: &support::Request,
    over: &AtomicBool,
) -> Measured {
    let connect = || async { Connection::over(client.connect(address).await.unwrap()) };
    let mut measured = Measured::default();
    let mut connection = connect().await;
    connection.ask(request).await.is("3");
    let began = Instant::now();
    for n in 0_u32.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let due = began + Duration::from_secs(1) / PER_SECOND * n;
        let waits = due.saturating_duration_since(Instant::now());
        std::thread::sleep(waits);
        // One that is late because the one before it was slow has waited since it was due.
        let asked = if waits.is_zero() { due } else { Instant::now() };
        let sent = connection.try_send(request.bytes()).await;
        let answer = connection.answer_if_any().await;
        measured.took.push(asked.elapsed());
        if sent.is_err() || answer.is_none_or(|answer| !answer.was_hit() || answer.body != "3") {
            measured.failed += 1;
            connection = connect().await;
        }
    }
    measured
}

impl Measured {
    fn add(&mut self, more: Measured) {
        self.took.extend(more.took);
        self.failed += more.failed;
    }

    fn summary(mut self) -> Summary {
        let p99 = |second: &[Duration]| {
            let mut second = second.to_vec();
            second.sort_unstable();
            second[(second.len() - 1) * 99 / 100].as_micros()
        };
        let mut seconds: Vec<u128> = self.took.chunks(PER_SECOND as usize).map(p99).collect();
        seconds.sort_unstable();
        let p99_of_a_second = seconds[seconds.len() / 2];
        self.took.sort_unstable();
        let at = |part: f64| self.took[((self.took.len() - 1) as f64 * part) as usize].as_micros();
        let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
        Summary { p50, p99, p99_of_a_second, max, requests: self.took.len(), failed: self.failed }
    }
}
