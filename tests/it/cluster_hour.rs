//! Guarantees 2 and 6 over a long time: three nodes behind HAProxy and before one HTTP origin, whose Redis has a replica and
//! a Sentinel. Every minute something fails, while callers read, write and ask too much. `scripts/cluster-hour` runs it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::support::*;

/// Callers that read 50 times a second, and those that write their own member four times a second.
const READERS: usize = 40;
const WRITERS: usize = 8;

/// Callers that ask 25 times a second with the key that is limited.
const FLOODERS: usize = 4;

/// What the limited key may do.
const RATE: f64 = 20.0;
const BURST: f64 = 10.0;

const SECOND: Duration = Duration::from_secs(1);

/// How long after a fault a request may fail or be refused for it.
const AFTER_A_FAULT: Duration = Duration::from_secs(5);

/// What the callers share.
struct Hour {
    clock: Instant,
    client: TlsClient,
    haproxy: HaProxy,
    secret: String,
    limited: String,
    members: Vec<Mutex<Member>>,
    /// Until when requests may fail for a node that was killed, and be refused for a Redis that is away: milliseconds.
    may_fail_until: AtomicU64,
    may_be_refused_until: AtomicU64,
    /// When requests of the limited key that were let in were sent and answered.
    let_in: Mutex<Vec<(f64, f64)>>,
    counts: Mutex<BTreeMap<String, u64>>,
    violations: Mutex<Vec<String>>,
    is_done: AtomicBool,
}

/// The member that one writer writes. After a write of unknown outcome the writer takes another one.
#[derive(Default)]
struct Member {
    taken: usize,
    /// When each value was acknowledged. Values only grow.
    acknowledged: Vec<(Duration, i64)>,
}

impl Hour {
    fn count(&self, what: &str) {
        *self.counts.lock().entry(what.to_owned()).or_default() += 1;
    }

    /// Counts a request that did not get what it asked for, which must be within the time of a fault.
    fn failed(&self, what: &str, until: &AtomicU64, begin: Duration) {
        self.count(what);
        if begin.as_millis() as u64 > until.load(Ordering::SeqCst) {
            self.violations.lock().push(format!("{what} at {begin:?}"));
        }
    }

    /// The member of a writer, and the least value that a read which begins now may answer.
    fn member(&self, writer: usize, now: Duration) -> (usize, i64) {
        let member = self.members[writer].lock();
        let known = member.acknowledged.iter().rev().find(|(at, _)| *at + SECOND < now);
        (1 + writer + WRITERS * member.taken, known.map_or(0, |(_, value)| *value))
    }

    async fn ask(&self, kept: &mut Option<Connection>, request: &Request) -> Option<Answer> {
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => Connection::over(self.client.connect(self.haproxy.address).await.unwrap()),
        };
        let _ = connection.try_send(request.bytes()).await; // without an answer, it may be there or not
        let answer = connection.answer_if_any().await;
        *kept = Some(connection).filter(|_| answer.as_ref().is_some_and(|answer| !answer.closes()));
        answer
    }

    async fn read(&self, mut random: fastrand::Rng) {
        let mut kept = None;
        while !self.is_done.load(Ordering::SeqCst) {
            let begin = self.clock.elapsed();
            let (member, least) = self.member(random.usize(..WRITERS), begin);
            let request = Request::post("/getPoints", format!("memberID={member}")).key(&self.secret);
            match self.ask(&mut kept, &request).await {
                Some(answer) if answer.status == 200 => {
                    self.count(if answer.was_hit() { "reads from memory" } else { "reads from the origin" });
                    let value: i64 = answer.body.parse().unwrap();
                    if value < least {
                        let why = format!("{least} was acknowledged over a second before a read at {begin:?}: {value}");
                        self.violations.lock().push(why);
                    }
                }
                Some(answer) if answer.code() == Some(12) => {
                    self.failed("reads refused with 12", &self.may_be_refused_until, begin);
                }
                answer => {
                    let status = answer.map_or("no answer".to_owned(), |answer| answer.status.to_string());
                    self.failed(&format!("reads failed: {status}"), &self.may_fail_until, begin);
                }
            }
            sleep(Duration::from_millis(20)).await; // the caller's pace
        }
    }

    async fn write(&self, writer: usize) {
        let (mut kept, mut amount) = (None, 0);
        while !self.is_done.load(Ordering::SeqCst) {
            amount += 1;
            let begin = self.clock.elapsed();
            let body = format!("memberID={}&amount={amount}", self.member(writer, begin).0);
            let answer = self.ask(&mut kept, &Request::post("/setPoints", body).key(&self.secret)).await;
            match answer.as_ref().map(|answer| (answer.status, answer.code())) {
                Some((200, _)) => {
                    self.count("writes");
                    self.members[writer].lock().acknowledged.push((self.clock.elapsed(), amount));
                }
                Some((_, Some(code @ (12 | 21)))) => {
                    self.failed(&format!("writes refused with {code}"), &self.may_be_refused_until, begin);
                }
                Some((_, Some(22))) => {
                    self.failed("writes of unknown outcome: 22", &self.may_be_refused_until, begin);
                    self.take_another(writer);
                }
                other => {
                    let status = other.map_or("no answer".to_owned(), |(status, _)| status.to_string());
                    self.failed(&format!("writes failed: {status}"), &self.may_fail_until, begin);
                    self.take_another(writer);
                }
            }
            sleep(Duration::from_millis(250)).await; // the caller's pace
        }
    }

    fn take_another(&self, writer: usize) {
        let mut member = self.members[writer].lock();
        *member = Member { taken: member.taken + 1, acknowledged: Vec::new() };
    }

    async fn flood(&self) {
        let mut kept = None;
        let request = Request::post("/getPoints", "memberID=1").key(&self.limited);
        while !self.is_done.load(Ordering::SeqCst) {
            let begin = self.clock.elapsed();
            match self.ask(&mut kept, &request).await {
                Some(answer) if answer.status == 200 => {
                    self.count("requests of the limited key let in");
                    self.let_in.lock().push((begin.as_secs_f64(), self.clock.elapsed().as_secs_f64()));
                }
                Some(answer) if answer.code() == Some(12) => self.count("requests of the limited key refused"),
                answer => {
                    let status = answer.map_or("no answer".to_owned(), |answer| answer.status.to_string());
                    self.failed(&format!("requests of the limited key failed: {status}"), &self.may_fail_until, begin);
                }
            }
            sleep(Duration::from_millis(40)).await; // the caller's pace
        }
    }

    /// From now until a while after the fault requests may be cut off, or refused.
    async fn during(&self, until: &AtomicU64, fault: impl Future<Output = ()>) {
        until.store(u64::MAX, Ordering::SeqCst);
        fault.await;
        until.store((self.clock.elapsed() + AFTER_A_FAULT).as_millis() as u64, Ordering::SeqCst);
    }
}

/// The two servers of which the Sentinel makes one the primary.
struct RedisPair {
    servers: [Redis; 2],
    sentinel: Redis,
}

impl RedisPair {
    async fn start() -> RedisPair {
        let quick = ["--repl-diskless-sync-delay", "0"];
        let primary = Redis::start(&quick).await;
        let port = primary.port().to_string();
        let replica = Redis::start(&["--replicaof", "127.0.0.1", &port, quick[0], quick[1]]).await;
        let sentinel = primary.sentinel().await;
        let pair = RedisPair { servers: [primary, replica], sentinel };
        pair.has_replica().await;
        pair
    }

    async fn has_replica(&self) {
        let is_known = || self.sentinel.ask("SENTINEL REPLICAS m").contains("master-link-status\r\n$2\r\nok");
        eventually(4 * PATIENCE, "the Sentinel knows the replica", async || is_known()).await;
    }

    fn primary(&self) -> &Redis {
        let address = self.sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME m");
        let is_primary = |server: &&Redis| address.contains(&format!("\r\n{}\r\n", server.port()));
        self.servers.iter().find(is_primary).expect("one of them is the primary")
    }

    async fn fail_over(&self) {
        let before = self.primary().port();
        let told = self.sentinel.ask("SENTINEL FAILOVER m");
        assert!(told.starts_with("+OK"), "{told}");
        eventually(PATIENCE, "another primary", async || self.primary().port() != before).await;
        self.has_replica().await;
    }
}

async fn something_fails(hour: &Hour, nodes: &mut [TestGateway; 3], redis: &RedisPair, turn: usize, node: usize) {
    match turn % 4 {
        0 => {
            eprintln!("{:?}: node {node} is killed", hour.clock.elapsed());
            hour.during(&hour.may_fail_until, nodes[node].restart_after_kill()).await;
        }
        1 => {
            eprintln!("{:?}: the primary Redis stands still for 1.5 s", hour.clock.elapsed());
            let primary = redis.primary();
            let stands_still = async {
                primary.signal(Signal::SIGSTOP);
                sleep(Duration::from_millis(1500)).await;
                primary.signal(Signal::SIGCONT);
            };
            hour.during(&hour.may_be_refused_until, stands_still).await;
        }
        2 => {
            eprintln!("{:?}: node {node} stands still for 3 s", hour.clock.elapsed());
            let stands_still = async {
                nodes[node].process().stop_threads().await;
                sleep(Duration::from_secs(3)).await;
                nodes[node].process().signal(Signal::SIGCONT);
            };
            hour.during(&hour.may_be_refused_until, stands_still).await;
        }
        _ => {
            eprintln!("{:?}: another Redis becomes the primary", hour.clock.elapsed());
            hour.during(&hour.may_be_refused_until, redis.fail_over()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "lasts for minutes; scripts/cluster-hour runs it"]
async fn three_nodes_behind_haproxy_survive_an_hour_of_faults() {
    let minutes: u64 = std::env::var("GUILDGATE_HOUR_MINUTES").map_or(4, |minutes| minutes.parse().unwrap());
    let seconds_each: u64 = std::env::var("GUILDGATE_HOUR_PAUSE").map_or(60, |seconds| seconds.parse().unwrap());
    let redis = RedisPair::start().await;
    let url = format!("redis-sentinel://127.0.0.1:{}/0?master=m", redis.sentinel.port());
    let builder = TestGateway::before_http()
        .set("cache.points.ttl", r#""1h""#)
        .set("cluster.redis", &format!("{url:?}"))
        .set("cluster.nodes", "3")
        .set("cluster.replicas", "1")
        .set("cluster.timeout", r#""500ms""#)
        .set("log.access", r#""""#)
        .set("limits.tiers.fast.rate", r#""100000/s""#)
        .set("limits.tiers.fast.burst", "100000")
        .set("limits.tiers.slow.rate", r#""20/s""#)
        .set("limits.tiers.slow.burst", "10")
        .key_of_tier("bot", "fast")
        .key_of_tier("slow", "slow");
    let mut nodes = HaProxy::nodes(builder).await;
    let haproxy = HaProxy::before(&nodes, "200ms").await;
    let hour = Arc::new(Hour {
        clock: Instant::now(),
        client: haproxy.client(),
        haproxy,
        secret: nodes[0].secret("bot").to_owned(),
        limited: nodes[0].secret("slow").to_owned(),
        members: (0..WRITERS).map(|_| Mutex::default()).collect(),
        may_fail_until: AtomicU64::new(0),
        may_be_refused_until: AtomicU64::new(0),
        let_in: Mutex::default(),
        counts: Mutex::default(),
        violations: Mutex::default(),
        is_done: AtomicBool::new(false),
    });
    let mut tasks = Vec::new();
    for reader in 0..READERS {
        let (hour, random) = (hour.clone(), fastrand::Rng::with_seed(reader as u64));
        tasks.push(tokio::spawn(async move { hour.read(random).await }));
    }
    for writer in 0..WRITERS {
        let hour = hour.clone();
        tasks.push(tokio::spawn(async move { hour.write(writer).await }));
    }
    for _ in 0..FLOODERS {
        let hour = hour.clone();
        tasks.push(tokio::spawn(async move { hour.flood().await }));
    }
    let (begun, mut random) = (Instant::now(), fastrand::Rng::with_seed(minutes));
    for turn in 0_u32..(minutes * 60 / seconds_each) as u32 {
        let due = begun + Duration::from_secs(seconds_each) * turn + Duration::from_secs(seconds_each) / 2;
        sleep(due.saturating_duration_since(Instant::now())).await;
        something_fails(&hour, &mut nodes, &redis, turn as usize, random.usize(..3)).await;
    }
    sleep(AFTER_A_FAULT + SECOND).await;
    hour.is_done.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    let (counts, excess) = (hour.counts.lock().clone(), excess(RATE, BURST, hour.let_in.lock().iter().copied()));
    eprintln!("after {:?}: excess {excess:.1}, {counts:#?}", hour.clock.elapsed());
    let violations = hour.violations.lock().clone();
    assert!(
        violations.is_empty(),
        "{} violations, such as {:#?}",
        violations.len(),
        &violations[..violations.len().min(20)]
    );
    assert!(excess <= 0.0, "{excess}");
    assert!(counts["reads from memory"] > counts["reads from the origin"] && counts["writes"] > 100, "{counts:?}");
}
