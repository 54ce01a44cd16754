//! Two gateways before one HTTP origin, with the bus over a real Redis between them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guildgate::clock::Clock;
use guildgate::cluster::bus::{Bus, Incarnation};
use guildgate::config::{self, OriginKind};
use guildgate::gateway::{Body, CacheStatus, Gateway, KeyFile, KeyList, KeySource, RequestHeader, State};
use guildgate::keys::{InFlightSlot, ListedKey};
use guildgate::model::{Digest, Scope};
use guildgate::origin::{HttpOrigin, Origin};
use guildgate::telemetry::Observer;
use guildgate::wire::{Fault, RequestId, TraceContext};
use nix::sys::signal::Signal;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::redis_server::{RedisServer, eventually};
use crate::redis_stream::stream;

const KEY: &str = "a-key";
const GUILD: &str = "81384788765712384";

/// A service that knows points. It answers setPoints, after the write has taken effect, only while it is open.
struct TestOrigin {
    port: u16,
    questions: Arc<AtomicUsize>,
    is_open: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl TestOrigin {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (questions, is_open) = (Arc::<AtomicUsize>::default(), watch::Sender::new(true));
        let (counted, open) = (questions.clone(), is_open.clone());
        let task = tokio::spawn(async move {
            let points = Arc::<Mutex<HashMap<String, String>>>::default();
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(connection, points.clone(), counted.clone(), open.subscribe()));
            }
        });
        TestOrigin { port, questions, is_open, task }
    }

    fn questions(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }
}

impl Drop for TestOrigin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    connection: TcpStream,
    points: Arc<Mutex<HashMap<String, String>>>,
    questions: Arc<AtomicUsize>,
    mut is_open: watch::Receiver<bool>,
) {
    let mut connection = BufReader::new(connection);
    loop {
        let (mut path, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if connection.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            match line.strip_prefix("content-length:") {
                _ if line.is_empty() => break,
                Some(value) => length = value.trim().parse().unwrap(),
                None if path.is_empty() => path = line,
                None => {}
            }
        }
        let mut body = vec![0; length];
        connection.read_exact(&mut body).await.unwrap();
        questions.fetch_add(1, Ordering::SeqCst);
        let body = String::from_utf8(body).unwrap();
        let answer = match body.split_once("&amount=") {
            Some((member, amount)) => {
                points.lock().unwrap().insert(member.to_owned(), amount.to_owned());
                is_open.wait_for(|open| *open).await.unwrap();
                format!("Successfully set 'Ada' points to '{amount}'")
            }
            None => points.lock().unwrap().get(&body).cloned().unwrap_or("0".to_owned()),
        };
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        if connection.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

struct Whole<'b>(&'b [u8]);

impl Body for Whole<'_> {
    async fn whole(&mut self) -> Result<&[u8], Fault> {
        Ok(self.0)
    }

    async fn flush_answers(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

struct TestGateway {
    gateway: Arc<Gateway>,
    task: JoinHandle<()>,
}

impl TestGateway {
    async fn start(origin: &TestOrigin, server: &RedisServer, timeout: Duration) -> Self {
        let toml = format!(
            "origin = {{ kind = \"http\", upstreams = [\"http://127.0.0.1:{}\"] }}\n\
             keys = {{ source = \"file\", file = \"keys.toml\" }}\n\
             limits.tiers.standard = {{ rate = \"100000/s\", burst = 100000, write_rate = \"100000/s\", write_burst = 100000 }}\n\
             cache.points.ttl = \"1h\"\n",
            origin.port
        );
        let config = config::load_str(&toml, std::path::Path::new("/"), "test").unwrap().config;
        let OriginKind::Http(upstreams) = &config.origin.kind else { unreachable!("it is an HTTP origin") };
        let clock = Clock::system();
        let http = HttpOrigin::start((**upstreams).clone(), None, clock.clone(), None).await.unwrap();
        let key = ListedKey {
            id: "k1".into(),
            digest: Digest::of(KEY.as_bytes()),
            guild: GUILD.parse().unwrap(),
            guild_departed: false,
            tier: None,
            scope: Scope::Write,
            expires: None,
        };
        let keys = KeySource::File(KeyFile::new(vec![key], None));
        let state = State::new(config, Arc::new(Origin::Http(http)), keys, KeyList::default(), Vec::new(), &clock);
        let bus = Bus::new(Incarnation::random(), clock.clone(), timeout);
        let gateway = Arc::new(Gateway::with_bus(clock, state, Observer::new(None, None), Some(bus)));
        let (follows, url) = (gateway.clone(), server.url());
        let task = tokio::spawn(async move { follows.follow_peers(&stream(url, 0)).await });
        let started = TestGateway { gateway, task };
        eventually("it is connected", async || started.peers().status().is_connected).await;
        started
    }

    fn peers(&self) -> &Bus {
        &self.gateway.peers().unwrap().bus
    }

    fn is_stale(&self) -> bool {
        self.peers().freshness().is_stale(self.gateway.clock().now())
    }

    async fn ask(&self, path: &str, body: &str) -> (Result<Arc<str>, Fault>, Option<CacheStatus>) {
        let state = self.gateway.state().clone();
        let slot = InFlightSlot::default();
        let header = RequestHeader {
            method: b"POST",
            path: path.as_bytes(),
            authorization: Some(KEY.as_bytes()),
            content_type: None,
            content_encoded: false,
            content_length: None,
            trace: TraceContext::default(),
            began: self.gateway.clock().now(),
            client: [127, 0, 0, 1].into(),
            id: RequestId::random(),
            in_flight: &slot,
        };
        let reply = self.gateway.handle(&state, &header, &mut Whole(body.as_bytes())).await;
        (reply.answer, reply.details.cache)
    }

    async fn points(&self) -> String {
        self.ask("/getPoints", "memberID=7").await.0.unwrap().to_string()
    }

    async fn is_hit(&self) -> bool {
        matches!(self.ask("/getPoints", "memberID=7").await.1, Some(CacheStatus::Hit { .. }))
    }

    async fn set(&self, points: i64) -> Result<(), Fault> {
        self.ask("/setPoints", &format!("memberID=7&amount={points}")).await.0.map(drop)
    }
}

impl Drop for TestGateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An origin, a Redis, and two gateways that have heard each other.
async fn two(timeout: Duration) -> (TestOrigin, RedisServer, TestGateway, TestGateway) {
    let (origin, server) = (TestOrigin::start().await, RedisServer::start(&[]).await);
    let a = TestGateway::start(&origin, &server, timeout).await;
    let b = TestGateway::start(&origin, &server, timeout).await;
    for node in [&a, &b] {
        eventually("they hear each other", async || node.peers().status().others.len() == 1).await;
    }
    (origin, server, a, b)
}

const LONG: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn what_one_node_has_in_memory_ends_with_a_write_at_the_other() {
    let (_origin, _server, a, b) = two(LONG).await;
    for n in 1..20 {
        b.set(n).await.unwrap();
        eventually("the write is seen", async || a.points().await == n.to_string()).await;
        eventually("its effect is kept again", async || a.is_hit().await).await;
        assert_eq!(b.points().await, n.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_one_node_writes_the_other_asks_the_origin_and_keeps_nothing() {
    let (origin, _server, a, b) = two(LONG).await;
    assert_eq!(a.points().await, "0");
    origin.is_open.send_replace(false);
    let write = async {
        let write = b.set(5);
        let mut write = std::pin::pin!(write);
        tokio::select! {
            _ = &mut write => panic!("the origin has not answered"),
            () = eventually("the write has taken effect", async || a.points().await == "5") => {}
        }
        let asked = origin.questions();
        for _ in 0..3 {
            assert!(!a.is_hit().await);
        }
        assert_eq!(origin.questions(), asked + 3);
        origin.is_open.send_replace(true);
        write.await.unwrap();
    };
    write.await;
    eventually("it is kept again", async || a.is_hit().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_away_no_write_begins_and_every_read_asks_the_origin() {
    let (origin, mut server, a, b) = two(LONG).await;
    b.set(3).await.unwrap();
    eventually("it is kept", async || a.points().await == "3" && a.is_hit().await).await;
    server.kill_nine();
    eventually("it is away", async || !b.peers().status().is_connected).await;
    let asked = origin.questions();
    assert_eq!(b.set(4).await, Err(Fault::Unavailable { retry_after: 1 }));
    assert_eq!(origin.questions(), asked, "the write did not begin");
    eventually("nothing is heard", async || a.is_stale()).await;
    let asked = origin.questions();
    for _ in 0..3 {
        assert_eq!(a.points().await, "3");
    }
    assert_eq!(origin.questions(), asked + 3);
    server.start_again().await;
    eventually("a write begins", async || b.set(6).await.is_ok()).await;
    eventually("it is kept again", async || a.points().await == "6" && a.is_hit().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_end_cannot_be_confirmed_is_22_and_heard_once_it_can() {
    let (origin, server, a, b) = two(Duration::from_secs(2)).await;
    assert_eq!(a.points().await, "0");
    origin.is_open.send_replace(false);
    let asked = origin.questions();
    let write = b.set(5);
    let mut write = std::pin::pin!(write);
    tokio::select! {
        _ = &mut write => panic!("the origin has not answered"),
        () = eventually("the origin is asked", async || origin.questions() > asked) => {}
    }
    server.signal(Signal::SIGSTOP);
    origin.is_open.send_replace(true);
    assert_eq!(write.await, Err(Fault::OriginTimeout));
    server.signal(Signal::SIGCONT);
    eventually("it is seen and kept", async || a.points().await == "5" && a.is_hit().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_reaches_the_other_node() {
    let (origin, _server, a, b) = two(LONG).await;
    let guild = GUILD.parse().unwrap();
    for (guild, member) in [(None, None), (Some(&guild), None), (None, Some("7")), (Some(&guild), Some("7"))] {
        eventually("it is kept", async || a.is_hit().await).await;
        let asked = origin.questions();
        b.gateway.purge(guild, member.map(|member| member.parse().unwrap())).unwrap();
        eventually("the origin is asked again", async || !a.is_hit().await).await;
        assert!(origin.questions() > asked);
    }
}
