//! One limit at several nodes: real nodes that share a key's limit by escrow, beside stand-ins of two other methods, a
//! script in Redis for every request (as Traefik and envoyproxy/ratelimit do it) and counts that are synchronised every
//! second (as Kong and APISIX do it). How many requests were let through beyond burst + rate * T, how many fewer than one
//! bucket would have let through (refused early), what Redis was asked, and how long answers took, also with a slow Redis.
//!
//! `cargo bench --bench cluster` tries it on 2 and 4 nodes. Latencies of the stand-ins are those of a decision, and of real
//! nodes those of an answer over HTTP: compare each with its own line for a quick Redis. Without `--bench` (as
//! `cargo test` runs it) it lasts a few seconds.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a bench that cannot set itself up has nothing to measure"
)]

#[expect(dead_code, reason = "other benches use more of it")]
mod shared;
#[expect(dead_code, unused_imports, unused_macros, reason = "the tests use more of it")]
#[path = "../tests/it/support/mod.rs"]
mod support;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Script;
use redis::aio::MultiplexedConnection;
use support::{Connection, Redis, Request, TestGateway, excess};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{interval, sleep, sleep_until};

/// The limit of the one key.
const RATE: f64 = 400.0;
const BURST: f64 = 200.0;

/// Requests of one node that are under way at the same time.
const WORKERS: usize = 8;

/// How much later what the slow Redis says comes.
const SLOWED_BY: Duration = Duration::from_millis(50);

/// Time after which the whole burst is free again, and all leases are back.
const PAUSE: Duration = Duration::from_millis(2500);

/// A GCRA bucket in Redis, asked for every request.
const CHARGE: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local tat = math.max(now, tonumber(redis.call('GET', KEYS[1]) or now))
if tat - now > (burst - 1) * interval then return 0 end
redis.call('SET', KEYS[1], string.format('%.0f', tat + interval), 'PX', 60000)
return 1";

/// The level of a bucket in Redis, to which a node adds what it let through since it asked last.
const ADD: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst, n = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tat = math.max(now, tonumber(redis.call('GET', KEYS[1]) or now)) + n * interval
redis.call('SET', KEYS[1], string.format('%.0f', tat), 'PX', 60000)
return string.format('%.0f', (tat - now) / interval * 1000)";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    Escrow,
    Script,
    Synchronised,
}

/// A node, which asks whether a request is within the limit.
#[derive(Clone)]
enum Node {
    Gateway(Arc<[Mutex<Connection>]>, Arc<Request>),
    Script(MultiplexedConnection, Arc<Script>),
    Synchronised(Arc<Mutex<Bucket>>),
}

/// What a node of the second stand-in knows: the level as of a moment, and what it let through since.
struct Bucket {
    level: f64,
    as_of: Instant,
    untold: u32,
}

/// One request: when it was sent and answered, and whether it was let through.
#[derive(Clone, Copy)]
struct Asked {
    begin: Duration,
    end: Duration,
    admitted: bool,
}

/// When requests come, at each node alike.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// Requests a second at all nodes together.
    rate: f64,
    lasts: Duration,
    /// The key has been asked like this for a second before. Otherwise it has not been asked for a while.
    goes_on: bool,
}

fn main() {
    shared::client_runtime().block_on(async {
        for nodes in [2, 4].into_iter().filter(|nodes| shared::is_measured() || *nodes == 2) {
            for method in [Method::Escrow, Method::Script, Method::Synchronised] {
                measure(method, nodes).await;
            }
        }
    });
}

async fn measure(method: Method, nodes: usize) {
    let redis = Redis::start(&[]).await;
    let slow = slow_redis(redis.port()).await;
    let lasts = if shared::is_measured() { Duration::from_secs(10) } else { Duration::from_millis(500) };
    let loads = [
        Load { name: "burst in 30 ms", rate: BURST / 0.03, lasts: Duration::from_millis(30), goes_on: false },
        Load { name: "3 times the rate", rate: 3.0 * RATE, lasts, goes_on: false },
        Load { name: "0.9 of the rate", rate: 0.9 * RATE, lasts, goes_on: false },
    ];
    let ran = run(method, nodes, &redis.url(), &redis, &loads).await;
    let calm = Load { name: "half the rate", rate: 0.5 * RATE, lasts, goes_on: true };
    let quick = run(method, nodes, &redis.url(), &redis, &[calm]).await;
    let slowed = run(method, nodes, &format!("redis://127.0.0.1:{slow}"), &redis, &[calm]).await;
    eprintln!("{nodes} nodes, {method:?}:");
    for (load, asked, commands) in ran.iter().chain(&quick) {
        report(load.name, asked, *commands);
    }
    report("half, slow Redis", &slowed[0].1, slowed[0].2);
}

/// Puts each load on the nodes, after a pause; what was asked, and how many scripts Redis ran.
async fn run(method: Method, nodes: usize, url: &str, redis: &Redis, loads: &[Load]) -> Vec<(Load, Vec<Asked>, u64)> {
    redis.ask("FLUSHALL"); // what nodes of another run still hold
    let (nodes, _running) = start(method, nodes, url).await;
    let mut ran = Vec::new();
    for load in loads {
        // As after a first request, so that connections and scripts are there.
        for node in &nodes {
            node.ask(0).await;
        }
        match load.goes_on {
            true => drop(put(Load { lasts: Duration::from_secs(1), ..*load }, &nodes).await),
            false => sleep(PAUSE).await,
        }
        let before = scripts_run(redis);
        let asked = put(*load, &nodes).await;
        ran.push((*load, asked, scripts_run(redis) - before));
    }
    ran
}

async fn start(method: Method, count: usize, url: &str) -> (Vec<Node>, Vec<TestGateway>) {
    let (mut nodes, mut running) = (Vec::new(), Vec::new());
    for _ in 0..count {
        match method {
            Method::Escrow => running.push(match running.first() {
                None => gateway(url, count).start().await,
                Some(first) => TestGateway::node(first, "").await,
            }),
            Method::Script => nodes.push(Node::Script(connect(url).await, Arc::new(Script::new(CHARGE)))),
            Method::Synchronised => {
                let bucket = Bucket { level: 0.0, as_of: Instant::now(), untold: 0 };
                let bucket = Arc::new(Mutex::new(bucket));
                tokio::spawn(synchronise(Arc::downgrade(&bucket), connect(url).await));
                nodes.push(Node::Synchronised(bucket));
            }
        }
    }
    // Only now: a connection without a request is closed after a while.
    for gate in &running {
        let mut connections = Vec::new();
        for _ in 0..WORKERS {
            connections.push(Mutex::new(gate.connect().await));
        }
        // The first node has the keys.
        let request = Arc::new(running[0].request("getPoints", "key", "memberID=7"));
        nodes.push(Node::Gateway(connections.into(), request));
    }
    (nodes, running)
}

fn gateway(url: &str, nodes: usize) -> support::Builder {
    TestGateway::before_http()
        .set("cache.points.ttl", r#""1h""#)
        .set("log.access", r#""""#)
        .set("limits.tiers.limited.rate", r#""400/s""#)
        .set("limits.tiers.limited.burst", "200")
        .set("cluster.redis", &format!("{url:?}"))
        .set("cluster.nodes", &nodes.to_string())
        .key_of_tier("key", "limited")
        .points("7", 3)
}

async fn connect(url: &str) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// Tells what a node let through every second, and learns what all of them did.
async fn synchronise(bucket: std::sync::Weak<Mutex<Bucket>>, mut redis: MultiplexedConnection) {
    let (script, mut ticks) = (Script::new(ADD), interval(Duration::from_secs(1)));
    while let Some(bucket) = {
        ticks.tick().await;
        bucket.upgrade()
    } {
        let untold = std::mem::take(&mut bucket.lock().await.untold);
        let mut call = script.key("synchronised");
        let thousandths: f64 = call
            .arg(1e6 / RATE)
            .arg(BURST)
            .arg(untold)
            .invoke_async::<String>(&mut redis)
            .await
            .unwrap()
            .parse()
            .unwrap();
        let mut bucket = bucket.lock().await;
        (bucket.level, bucket.as_of) = (thousandths / 1000.0 + f64::from(bucket.untold), Instant::now());
    }
}

impl Node {
    async fn ask(&self, worker: usize) -> bool {
        match self {
            Node::Gateway(connections, request) => match connections[worker].lock().await.ask(request).await.status {
                200 => true,
                429 => false,
                status => panic!("status {status}"),
            },
            Node::Script(redis, script) => {
                let mut call = script.key("script");
                call.arg(1e6 / RATE).arg(BURST).invoke_async::<u8>(&mut redis.clone()).await.unwrap() == 1
            }
            Node::Synchronised(bucket) => {
                let mut bucket = bucket.lock().await;
                let now = Instant::now();
                let drained = now.duration_since(bucket.as_of).as_secs_f64() * RATE;
                (bucket.level, bucket.as_of) = ((bucket.level - drained).max(0.0), now);
                let admitted = bucket.level + 1.0 <= BURST;
                bucket.level += f64::from(u8::from(admitted));
                bucket.untold += u32::from(admitted);
                admitted
            }
        }
    }
}

/// Sends the requests of a load to the nodes in turn, each when it is due.
async fn put(load: Load, nodes: &[Node]) -> Vec<Asked> {
    let begin = Instant::now();
    let count = (load.rate * load.lasts.as_secs_f64()).round() as usize;
    let places = nodes.len() * WORKERS;
    let workers = (0..places).map(|place| {
        let (node, worker) = (nodes[place % nodes.len()].clone(), place / nodes.len());
        tokio::spawn(async move {
            let mut asked = Vec::new();
            for n in (place..count).step_by(places) {
                let due = begin + Duration::from_secs_f64(n as f64 / load.rate);
                sleep_until(due.into()).await;
                let sent = begin.elapsed();
                let admitted = node.ask(worker).await;
                asked.push(Asked { begin: sent, end: begin.elapsed(), admitted });
            }
            asked
        })
    });
    let mut asked = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        asked.extend(worker.await.unwrap());
    }
    asked
}

fn report(load: &str, asked: &[Asked], scripts: u64) {
    let let_through = asked.iter().filter(|asked| asked.admitted);
    let admitted = let_through.clone().count();
    let spans = let_through.map(|asked| (asked.begin.as_secs_f64(), asked.end.as_secs_f64()));
    let took = asked.iter().map(|asked| asked.end - asked.begin).collect();
    let [p50, p99] = shared::p50_and_p99(took);
    let early = 100.0 * one_bucket(asked).saturating_sub(admitted) as f64 / one_bucket(asked) as f64;
    eprintln!(
        "  {load:<17} of {:>5} let through {admitted:>5}, excess {:>4.0}, refused early {early:>4.1} %, scripts per 1,000 \
         requests {:>5.0}, answer p50 {p50:.2} ms, p99 {p99:.2} ms",
        asked.len(),
        excess(RATE, BURST, spans).max(0.0),
        1000.0 * scripts as f64 / asked.len() as f64
    );
}

/// How many of these requests a single bucket would have let through.
fn one_bucket(asked: &[Asked]) -> usize {
    let mut begins: Vec<Duration> = asked.iter().map(|asked| asked.begin).collect();
    begins.sort_unstable();
    let (mut level, mut at, mut admitted) = (0.0_f64, Duration::ZERO, 0);
    for begin in begins {
        level = (level - RATE * (begin - at).as_secs_f64()).max(0.0);
        at = begin;
        if level + 1.0 <= BURST {
            (level, admitted) = (level + 1.0, admitted + 1);
        }
    }
    admitted
}

/// How many scripts the server has run.
fn scripts_run(redis: &Redis) -> u64 {
    let info = redis.ask("INFO commandstats");
    let calls =
        info.lines().filter_map(|line| line.strip_prefix("cmdstat_eval")?.split_once("calls=")?.1.split_once(','));
    calls.map(|(calls, _)| calls.parse::<u64>().unwrap()).sum()
}

/// A proxy to the server on this port, whose answers come later; its own port.
async fn slow_redis(port: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((here, _)) = listener.accept().await {
            let there = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
            let ((from_here, to_here), (from_there, to_there)) = (here.into_split(), there.into_split());
            tokio::spawn(copy(from_here, to_there, Duration::ZERO));
            tokio::spawn(copy(from_there, to_here, SLOWED_BY));
        }
    });
    own
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, later: Duration) {
    let (send, mut sent) = mpsc::unbounded_channel::<(tokio::time::Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((due, bytes)) = sent.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut bytes = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        if send.send((tokio::time::Instant::now() + later, bytes[..length].to_vec())).is_err() {
            return;
        }
    }
}
