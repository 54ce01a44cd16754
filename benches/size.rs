//! What a store of ten thousand guilds and 15 million members takes, in an SQLite file and in PostgreSQL:
//! its import, its size, the start of the real server on it, and the reads that miss.
//!
//! `cargo bench --bench size`; `-- --guilds 100` for a small one, `-- postgres` or `-- sqlite` for one kind.
//! Needs 10 GB where temporary files are kept: TMPDIR names another disk.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a bench that cannot set itself up has nothing to measure"
)]

#[path = "../examples/store_fill/service.rs"]
mod service;
#[expect(dead_code, reason = "other benches use more of it")]
mod shared;
#[expect(dead_code, unused_imports, reason = "the tests use more of it")]
#[path = "../tests/it/support/mod.rs"]
mod support;

use std::io::BufWriter;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use guildgate::keys::ApiKey;
use guildgate::store::KeyRecord;
use service::Service;
use support::{Connection, Postgres, Request, TestGateway, World};
use tokio::task::JoinSet;

/// Keys to a guild, in hundredths.
const KEYS: u64 = 120;

/// How much more the first is asked for than those after it: keys, and members in a guild.
const ZIPF_KEYS: f64 = 1.1;
const ZIPF_MEMBERS: f64 = 0.9;

/// Who asks at once: one, and as many as the gateway has connections to PostgreSQL for reads.
const CONNECTIONS: [u64; 2] = [1, 16];

/// Keys that are made at once.
const MAKERS: usize = 16;

const SEED: u64 = 1;

/// What PostgreSQL is given beside its defaults.
const SETTINGS: [&str; 2] = ["shared_buffers = 2GB", "max_wal_size = 4GB"];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let measured = shared::is_measured();
    let guilds = args.iter().skip_while(|arg| *arg != "--guilds").nth(1).map(|number| number.parse().unwrap());
    let service = Arc::new(Service::new(guilds.unwrap_or(if measured { 10_000 } else { 20 }), SEED));
    let held = if measured { Duration::from_secs(30) } else { Duration::from_millis(200) };
    let file = tempfile::NamedTempFile::new().unwrap();
    let records = service.write(&mut BufWriter::with_capacity(1 << 18, file.as_file())).unwrap();
    let bytes = file.as_file().metadata().unwrap().len();
    let (guilds, members) = (service.guilds.len(), service.members());
    eprintln!("{guilds} guilds, {members} members, {records} records, {} of JSON Lines", mib(bytes));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        if shared::is_asked("sqlite") {
            eprintln!("\nSQLite:");
            Box::pin(measure(&service, file.path(), None, held)).await;
        }
        if shared::is_asked("postgres") {
            eprintln!("\nPostgreSQL, with {}:", SETTINGS.join(", "));
            let server = Postgres::start(&SETTINGS);
            let url = server.database().await;
            Box::pin(measure(&service, file.path(), Some(&url), held)).await;
        }
    });
}

async fn measure(service: &Arc<Service>, file: &Path, url: Option<&str>, held: Duration) {
    let builder = TestGateway::builder().set("log.access", r#""""#);
    let builder = url.into_iter().fold(builder, |builder, url| builder.store(url));
    let (world, ..) = builder.prepare().await;
    let path = world.path("guildgate.db");
    import(&world, file, service).await;
    let start = Instant::now();
    let store = url.map_or_else(|| path.to_str().unwrap().to_owned(), str::to_owned);
    let keys = Arc::new(make_keys(service, &store).await);
    eprintln!("  {} keys made in {:.1} s", keys.len(), start.elapsed().as_secs_f64());
    let size = match url {
        None => std::fs::metadata(&path).unwrap().len(),
        Some(url) => settled(url).await,
    };
    eprintln!("  the store: {}, {} bytes a member", mib(size), size / service.members());
    let (start, mut process) = (Instant::now(), world.serve(&[]));
    let address = process.ready().await;
    Connection::to(address).await.ask(&Request::post("/getPoints", "memberID=1").key(&keys[0])).await.is("0");
    eprintln!("  the first answer {:.0} ms after the start", start.elapsed().as_secs_f64() * 1000.0);
    eprintln!("  memory of the server then: {}", mib(process.resident_kib() * 1024));
    for connections in CONNECTIONS {
        let Asked { hits, misses } = ask(service, &keys, address, connections, held).await;
        let rate = (hits.len() + misses.len()) as f64 / held.as_secs_f64();
        let part = hits.len() as f64 * 100.0 / (hits.len() + misses.len()) as f64;
        eprintln!("  asked by {connections}: {rate:.0} reads a second, {part:.0} in 100 answered from memory:");
        for (what, took) in [("misses", misses), ("hits", hits)] {
            let (count, [p50, p99]) = (took.len(), shared::p50_and_p99(took));
            eprintln!("    {count} {what}: p50 {p50:.3} ms, p99 {p99:.3} ms");
        }
    }
    eprintln!("  memory of the server after that: {}", mib(process.resident_kib() * 1024));
}

/// By the real command, which prints how many records there were.
async fn import(world: &World, file: &Path, service: &Service) {
    let (start, mut peak) = (Instant::now(), 0);
    let mut command = world.command(&["import", file.to_str().unwrap(), "--config", "gateway.toml"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let status = loop {
        peak = peak.max(most_memory(&child));
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None => tokio::time::sleep(Duration::from_millis(20)).await, // between two looks at the child
        }
    };
    assert!(status.success(), "the import failed: {status}");
    let took = start.elapsed().as_secs_f64();
    let rate = service.members() as f64 / took / 1000.0;
    eprintln!("  imported in {took:.1} s ({rate:.0},000 members a second), with {} of memory at the most", mib(peak));
}

/// The most bytes of memory that a process has held so far.
fn most_memory(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Makes keys as `key create` does, but many at once. The secrets, those most asked with first.
async fn make_keys(service: &Service, store: &str) -> Vec<String> {
    let store = shared::open(store).await;
    let count = (service.guilds.len() as u64 * KEYS / 100) as usize;
    let keys: Vec<ApiKey> = (0..count).map(|_| ApiKey::generate().unwrap()).collect();
    let secrets = keys.iter().map(|key| key.reveal().to_owned()).collect();
    let guild = |n: usize| service.guilds[n % service.guilds.len()].id.parse().unwrap();
    let record = |(n, key): (usize, &ApiKey)| shared::record(&format!("k_{n:08}"), key, &guild(n));
    let records: Arc<Vec<KeyRecord>> = Arc::new(keys.iter().enumerate().map(record).collect());
    let mut makers = JoinSet::new();
    for first in 0..MAKERS {
        let (store, records) = (store.clone(), records.clone());
        makers.spawn(async move {
            for record in records.iter().skip(first).step_by(MAKERS) {
                store.create_key(record.clone()).await.unwrap();
            }
        });
    }
    makers.join_all().await;
    secrets
}

/// The size of a database, once what the server does by itself after an import is done.
async fn settled(url: &str) -> u64 {
    let client = support::postgres::connect(url).await;
    client.batch_execute("VACUUM ANALYZE").await.unwrap();
    client.batch_execute("CHECKPOINT").await.unwrap();
    let row = client.query_one("SELECT pg_database_size(current_database())", &[]).await.unwrap();
    row.get::<_, i64>(0).unsigned_abs()
}

/// How long answers took.
#[derive(Default)]
struct Asked {
    hits: Vec<Duration>,
    misses: Vec<Duration>,
}

async fn ask(
    service: &Arc<Service>,
    keys: &Arc<Vec<String>>,
    address: SocketAddr,
    connections: u64,
    held: Duration,
) -> Asked {
    let (mut askers, mut all) = (JoinSet::new(), Asked::default());
    for nth in 0..connections {
        let (service, keys) = (service.clone(), keys.clone());
        askers.spawn(async move {
            let (mut rng, mut connection) = (Rng::with_seed(SEED + connections + nth), Connection::to(address).await);
            let (mut asked, start) = (Asked::default(), Instant::now());
            while start.elapsed() < held {
                let request = request(&service, &keys, &mut rng);
                let sent = Instant::now();
                let answer = connection.ask(&request).await;
                let took = sent.elapsed();
                assert_eq!(answer.status, 200, "{answer:?}");
                if answer.was_hit() { &mut asked.hits } else { &mut asked.misses }.push(took);
            }
            asked
        });
    }
    for asked in askers.join_all().await {
        all.hits.extend(asked.hits);
        all.misses.extend(asked.misses);
    }
    all
}

fn request(service: &Service, keys: &[String], rng: &mut Rng) -> Request {
    let key = zipf(rng, keys.len() as u64, ZIPF_KEYS) as usize;
    let guild = &service.guilds[key % service.guilds.len()];
    let member = service.member(guild, zipf(rng, guild.members, ZIPF_MEMBERS));
    let operation = match rng.u32(0..100) {
        0..75 => "/getPoints",
        75..90 => "/getWarns",
        _ => "/getReviews",
    };
    Request::post(operation, format!("memberID={member}")).key(&keys[key])
}

/// A number below `count`, the small ones more often: Zipf's law, smoothed so that it can be inverted.
fn zipf(rng: &mut Rng, count: u64, exponent: f64) -> u64 {
    let rest = 1.0 - exponent;
    let most = ((count + 1) as f64).powf(rest);
    let rank = (1.0 + rng.f64() * (most - 1.0)).powf(1.0 / rest);
    (rank as u64).clamp(1, count) - 1
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
