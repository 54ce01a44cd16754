//! The bus over real Redis processes: notices arrive, and whatever Redis loses is noticed.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use guildgate::clock::Clock;
use guildgate::cluster::bus::{Bus, DropReason, Incarnation, Listener, RedisStream, RemoteWrite, Transport};
use guildgate::config::RedisAt;
use guildgate::model::{GuildId, MemberId};
use nix::sys::signal::Signal;
use tokio::task::JoinHandle;

use crate::redis_server::{PATIENCE, RedisServer, eventually};

const MEMBER: MemberId = MemberId::new(190_551_803_669_118_976).unwrap();

/// What a request waits for Redis: longer than by default, since tests share a machine.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq)]
enum Heard {
    Dropped(DropReason),
    Begun(RemoteWrite),
    Over(RemoteWrite, bool),
    Purged(Option<GuildId>, Option<MemberId>),
}

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Heard>>>);

impl Recorder {
    fn push(&self, heard: Heard) {
        self.0.lock().unwrap().push(heard);
    }
}

impl Listener for Recorder {
    fn drop_everything(&mut self, reason: DropReason) {
        self.push(Heard::Dropped(reason));
    }

    fn write_begun(&mut self, write: RemoteWrite, member: MemberId) {
        assert_eq!(member, MEMBER);
        self.push(Heard::Begun(write));
    }

    fn write_over(&mut self, write: RemoteWrite, member: MemberId, settled: bool) {
        assert_eq!(member, MEMBER);
        self.push(Heard::Over(write, settled));
    }

    fn purge(&mut self, guild: Option<&GuildId>, member: Option<MemberId>) {
        self.push(Heard::Purged(guild.cloned(), member));
    }
}

/// A node without a gateway.
struct TestNode {
    bus: Arc<Bus>,
    clock: Clock,
    heard: Recorder,
    task: JoinHandle<()>,
}

impl TestNode {
    fn start(server: &RedisServer, timeout: Duration) -> Self {
        TestNode::start_with(&server.url(), timeout, 0)
    }

    fn start_with(url: &str, timeout: Duration, replicas: u32) -> Self {
        let (clock, heard) = (Clock::system(), Recorder::default());
        let bus = Arc::new(Bus::new(Incarnation::random(), clock.clone(), timeout));
        let (run, listener, url) = (bus.clone(), heard.clone(), url.to_owned());
        let task = tokio::spawn(async move {
            run.run(&stream(url, replicas), listener).await;
        });
        TestNode { bus, clock, heard, task }
    }

    /// Two nodes that have heard each other.
    async fn two(server: &RedisServer) -> (Self, Self) {
        let (a, b) = (TestNode::start(server, TIMEOUT), TestNode::start(server, TIMEOUT));
        for node in [&a, &b] {
            eventually("they hear each other", async || node.bus.status().others.len() == 1).await;
            node.heard.0.lock().unwrap().clear();
        }
        (a, b)
    }

    fn is_stale(&self) -> bool {
        self.bus.freshness().is_stale(self.clock.now())
    }

    async fn hears(&self, what: impl Fn(&Heard) -> bool) {
        let heard = || self.heard.0.lock().unwrap().iter().any(&what);
        eventually("a node hears of it", async || heard()).await;
    }

    /// That a write is announced and settled, and heard by another node.
    async fn writes_and_is_heard_by(&self, other: &TestNode) {
        other.heard.0.lock().unwrap().clear();
        let write = self.bus.begin(MEMBER).await.unwrap();
        other.hears(|heard| matches!(heard, Heard::Begun(_))).await;
        write.end(true).await.unwrap();
        other.hears(|heard| matches!(heard, Heard::Over(_, true))).await;
    }

    async fn writes_again(&self) {
        eventually("a write begins", async || match self.bus.begin(MEMBER).await {
            Ok(write) => write.end(true).await.is_ok(),
            Err(_) => false,
        })
        .await;
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn stream(url: String, replicas: u32) -> RedisStream {
    RedisStream::new(RedisAt::parse(&url).unwrap(), "test", replicas)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_and_a_purge_at_one_node_are_heard_at_the_other_and_not_at_their_own() {
    let server = RedisServer::start(&[]).await;
    let (a, b) = TestNode::two(&server).await;
    let mut write = a.bus.begin(MEMBER).await.unwrap();
    b.hears(|heard| matches!(heard, Heard::Begun(_))).await;
    write.before_asking().await.unwrap();
    write.end(true).await.unwrap();
    b.hears(|heard| matches!(heard, Heard::Over(_, true))).await;
    let guild: GuildId = "81384788765712384".parse().unwrap();
    a.bus.purge(Some(guild.clone()), Some(MEMBER));
    b.hears(|heard| *heard == Heard::Purged(Some(guild.clone()), Some(MEMBER))).await;
    let mut asked = a.bus.begin(MEMBER).await.unwrap();
    asked.before_asking().await.unwrap();
    drop(asked);
    b.hears(|heard| matches!(heard, Heard::Over(_, false))).await;
    drop(a.bus.begin(MEMBER).await.unwrap());
    a.bus.leave().await;
    eventually("B forgets A", async || b.bus.status().others.is_empty()).await;
    let overs = b.heard.0.lock().unwrap().iter().filter(|heard| matches!(heard, Heard::Over(_, true))).count();
    assert_eq!(overs, 2, "the origin was not asked for the last one");
    assert_eq!(*a.heard.0.lock().unwrap(), []);
    assert!(!b.is_stale());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_trimmed_flushed_or_of_another_type_is_noticed_and_used_again() {
    let server = RedisServer::start(&[]).await;
    let (a, b) = TestNode::two(&server).await;
    for command in ["XTRIM test:bus MAXLEN 0", "FLUSHALL", "DEL test:bus"] {
        b.heard.0.lock().unwrap().clear();
        server.run(command).await;
        b.hears(|heard| matches!(heard, Heard::Dropped(DropReason::Removed { .. }))).await;
        a.writes_and_is_heard_by(&b).await;
    }
    // Another type; a last entry of a time to come, before which nothing would ever be removed; and no id that is left.
    for command in [
        "SET test:bus x",
        "XADD test:bus 99999999999999-100000 e x",
        "XADD test:bus 18446744073709551615-18446744073709551615 e x",
    ] {
        b.heard.0.lock().unwrap().clear();
        server.run(command).await;
        b.hears(|heard| matches!(heard, Heard::Dropped(DropReason::Removed { .. }))).await;
        a.writes_again().await;
        a.writes_and_is_heard_by(&b).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_of_others_in_the_stream_drop_everything() {
    let server = RedisServer::start(&[]).await;
    let (_a, b) = TestNode::two(&server).await;
    for fields in ["e hello", "other thing", "e x e y"] {
        b.heard.0.lock().unwrap().clear();
        server.run(&format!("XADD test:bus * {fields}")).await;
        b.hears(|heard| *heard == Heard::Dropped(DropReason::BadEntry)).await;
    }
    assert!(!b.is_stale());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_killed_is_away_and_after_its_restart_another_one() {
    let mut server = RedisServer::start(&["--appendonly", "yes"]).await;
    let (a, b) = TestNode::two(&server).await;
    let held = a.bus.begin(MEMBER).await.unwrap();
    server.kill_nine();
    eventually("it is away", async || !a.bus.status().is_connected).await;
    let begun = Instant::now();
    assert!(a.bus.begin(MEMBER).await.is_err());
    assert!(begun.elapsed() < TIMEOUT / 2, "nobody waits for a Redis that is away");
    eventually("nothing is answered from memory", async || a.is_stale() && b.is_stale()).await;
    b.heard.0.lock().unwrap().clear();
    server.start_again().await;
    b.hears(|heard| matches!(heard, Heard::Dropped(DropReason::OtherServer { .. }))).await;
    b.hears(|heard| *heard == Heard::Dropped(DropReason::Everything)).await;
    b.hears(|heard| matches!(heard, Heard::Begun(_))).await;
    held.end(true).await.unwrap();
    a.writes_again().await;
    a.writes_and_is_heard_by(&b).await;
    eventually("answers from memory are used again", async || !a.is_stale() && !b.is_stale()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_stands_still_lets_no_write_begin_and_goes_on_as_the_same_one() {
    let server = RedisServer::start(&[]).await;
    let (a, b) = (TestNode::start(&server, Duration::from_millis(50)), TestNode::start(&server, TIMEOUT));
    a.writes_again().await;
    b.writes_again().await;
    b.heard.0.lock().unwrap().clear();
    server.signal(Signal::SIGSTOP);
    let begun = Instant::now();
    assert!(a.bus.begin(MEMBER).await.is_err());
    assert!(begun.elapsed() < PATIENCE / 10, "{:?}", begun.elapsed());
    eventually("nothing is answered from memory", async || a.is_stale() && b.is_stale()).await;
    server.signal(Signal::SIGCONT);
    a.writes_again().await;
    b.writes_again().await;
    eventually("answers from memory are used again", async || !a.is_stale() && !b.is_stale()).await;
    let heard = b.heard.0.lock().unwrap().clone();
    assert!(!heard.iter().any(|heard| matches!(heard, Heard::Dropped(_))), "nothing was lost: {heard:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_a_replica_and_too_few_replicas_let_no_write_begin_and_are_named() {
    let locked = RedisServer::start(&["--requirepass", "right"]).await;
    let port = locked.port;
    for url in [locked.url(), format!("redis://:wrong@127.0.0.1:{port}")] {
        let error = stream(url.clone(), 0).open().await.err().unwrap().to_string();
        assert!(error.contains("password"), "{error}");
        let node = TestNode::start_with(&url, TIMEOUT, 0);
        assert!(node.bus.begin(MEMBER).await.is_err());
        eventually("nothing is answered from memory", async || node.is_stale()).await;
    }
    TestNode::start_with(&format!("redis://:right@127.0.0.1:{port}"), TIMEOUT, 0).writes_again().await;

    let primary = RedisServer::start(&[]).await;
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &primary.port.to_string()]).await;
    let error = stream(replica.url(), 0).open().await.err().unwrap().to_string();
    assert!(error.contains("replica"), "{error}");
    TestNode::start_with(&primary.url(), TIMEOUT, 1).writes_again().await;
    let node = TestNode::start_with(&primary.url(), Duration::from_millis(500), 2);
    eventually("it is connected", async || node.bus.status().is_connected).await;
    assert!(node.bus.begin(MEMBER).await.is_err(), "only one replica has the notice");
    eventually("what one replica alone has is not heard", async || node.is_stale()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notice_is_heard_within_milliseconds() {
    let server = RedisServer::start(&[]).await;
    let (a, b) = TestNode::two(&server).await;
    let mut took = Vec::new();
    for _ in 0..200 {
        b.heard.0.lock().unwrap().clear();
        let begun = Instant::now();
        let write = a.bus.begin(MEMBER).await.unwrap();
        while b.heard.0.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        took.push(begun.elapsed());
        write.end(true).await.unwrap();
        b.hears(|heard| matches!(heard, Heard::Over(_, true))).await;
    }
    took.sort_unstable();
    eprintln!("a notice took {:?} (median), {:?} (p99)", took[100], took[197]);
    assert!(took[100] < Duration::from_millis(50), "{:?}", took[100]);
}
