//! Guarantee 6 where Redis's replies are lost, questions are repeated, nodes are killed and their clocks are set (contract
//! section 3, `[cluster]`): the nodes' own code and script on a real Redis, behind a proxy that loses replies.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use futures_util::future::join_all;
use guildgate::clock::{Clock, Tick};
use guildgate::cluster::SharedLimits;
use guildgate::config::{self, Config};
use guildgate::keys::{Key, KeyTable, ListedKey};
use guildgate::limits::LimitQuery;
use guildgate::model::{Digest, Scope};
use guildgate::wire::Operation;
use tokio::task::JoinHandle;

use crate::support::*;

/// What came of one request, and in which seconds it was asked and answered.
struct Asked {
    is_let_in: bool,
    between: (f64, f64),
}

/// A node as far as shared limits go, which dies when this is dropped.
struct Node {
    limits: Arc<SharedLimits>,
    key: Arc<Key>,
    clock: Clock,
    task: JoinHandle<()>,
}

impl Node {
    async fn start(config: &Config, random: &mut Rng) -> Node {
        // No clock of any node is that of Redis.
        let clock = Clock::manual(random.i64(0..4_000_000_000));
        let cluster = config.cluster.clone().unwrap();
        let limits = SharedLimits::start(cluster, clock.clone()).await.unwrap();
        let digest = Digest::of(b"a key");
        let listed = ListedKey {
            id: "bot".into(),
            digest,
            guild: "7".parse().unwrap(),
            guild_departed: false,
            tier: None,
            scope: Scope::Write,
            expires: None,
        };
        let table = KeyTable::new(vec![listed], &config.limits, &KeyTable::default(), Tick(0), 0);
        let key = table.find(&digest, || 0).unwrap().clone();
        let runs = limits.clone();
        let task = tokio::spawn(async move { runs.run(|node| node).await });
        Node { limits, key, clock, task }
    }

    /// Sends a request, and decides on it as a gateway does.
    async fn ask(&self, operation: Operation, begun: Instant) -> Asked {
        let Node { limits, key, clock, .. } = self;
        let began = begun.elapsed().as_secs_f64();
        let told = match limits.refusal(key, operation.is_write(), clock.now()) {
            None if limits.is_away() => None,
            None => limits.ask(key, operation.is_write()).await,
            told => told,
        };
        let query = LimitQuery { operation, in_flight: 0, now: clock.now() };
        let is_let_in = (told.is_some() || !limits.refuses_alone())
            && key.budget.decide(&key.policy, query, limits.by(told), || clock.unix()).over.is_none();
        Asked { is_let_in, between: (began, begun.elapsed().as_secs_f64()) }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What was seen of two nodes over a while.
struct Seen {
    asked: Vec<Asked>,
    /// How many requests were asked while replies were lost.
    amid_faults: usize,
}

impl Seen {
    fn let_in(&self) -> usize {
        self.asked.iter().filter(|asked| asked.is_let_in).count()
    }
}

async fn run(seed: u64, limits: &str, when_away: &str, kills: bool) -> Seen {
    let random = &mut Rng::with_seed(seed);
    let redis = RedisDatabase::new().await;
    let proxy = Proxy::to(redis.port()).await;
    let config = |port: u16| {
        let cluster = format!("redis = {:?}\nnodes = 2\ntimeout = \"100ms\"", redis.url_at(port));
        let toml = format!("[limits.tiers.standard]\n{limits}[cluster]\nwhen_away = {when_away:?}\n{cluster}\n");
        config::load_str(&toml, Path::new("/"), "test").unwrap().config
    };
    let through = config(proxy.port());
    let mut nodes = [Node::start(&through, random).await, Node::start(&through, random).await];
    let (begun, mut seen) = (Instant::now(), Seen { asked: Vec::new(), amid_faults: 0 });
    for _ in 0..40 {
        let at = random.usize(0..2);
        if kills && random.u8(0..8) == 0 {
            nodes[at] = Node::start(&through, random).await;
        }
        let node = &nodes[at];
        node.clock.advance(Duration::from_millis(random.u64(0..200)));
        node.clock.set_unix(random.i64(0..4_000_000_000));
        let (requests, is_fault) = (random.usize(1..8), random.u8(0..4) == 0);
        let operations = [Operation::GetPoints, Operation::SetPoints];
        let batch = join_all((0..requests).map(|_| node.ask(operations[random.usize(0..2)], begun)));
        if is_fault {
            // What Redis answers is lost with the connection, in time for another question or not.
            let loses = async {
                proxy.hold(Holds::FromServer);
                tokio::time::sleep(Duration::from_millis([2, 150][at])).await;
                proxy.lead_to(redis.port());
                proxy.hold(Holds::Nothing);
            };
            seen.asked.extend(tokio::join!(batch, loses).0);
            seen.amid_faults += requests;
        } else {
            seen.asked.extend(batch.await);
        }
        tokio::time::sleep(Duration::from_millis(random.u64(0..20))).await;
    }
    // What is left then.
    let node = Node::start(&config(redis.port()), random).await;
    loop {
        let asked = node.ask(Operation::GetPoints, begun).await;
        let is_let_in = asked.is_let_in;
        seen.asked.push(asked);
        if !is_let_in {
            return seen;
        }
    }
}

const HOURLY: &str = "rate = \"1/h\"\nburst = 300\nwrite_rate = \"1/h\"\nwrite_burst = 200\n";
const QUICK: &str = "rate = \"20/s\"\nburst = 10\n";

#[tokio::test]
async fn guarantee_6_with_refuse_nothing_is_let_in_beyond_the_limit_and_a_lost_reply_costs_one_questions_tokens() {
    for seed in 0..3 {
        let seen = run(seed, QUICK, "refuse", true).await;
        let let_in = seen.asked.iter().filter(|asked| asked.is_let_in).map(|asked| asked.between);
        let excess = excess(20.0, 10.0, let_in);
        assert!(excess <= 0.0 && seen.let_in() > 20, "seed {seed}: {excess} more, {} let in", seen.let_in());
        let seen = run(seed, HOURLY, "refuse", true).await;
        let lost = 300_usize.checked_sub(seen.let_in()).expect("no more than the burst is let in");
        // A question may be repeated once.
        assert!(lost <= 2 * seen.amid_faults, "seed {seed}: {lost} lost, {} asked amid faults", seen.amid_faults);
    }
}

#[tokio::test]
async fn guarantee_6_with_share_no_more_than_the_shares_are_let_in_beyond_the_limit() {
    for seed in 0..3 {
        let seen = run(seed, HOURLY, "share", false).await;
        assert!(seen.let_in() <= 300 + 300, "seed {seed}: {} let in", seen.let_in());
    }
}

/// The clocks of the nodes are days apart (see [`Node::start`]), and what Redis holds says where its own was before.
#[tokio::test]
async fn guarantee_6_a_day_begins_when_it_does_by_redis_clock_and_one_that_is_set_back_begins_none() {
    let random = &mut Rng::with_seed(1);
    let redis = RedisDatabase::new().await;
    let toml = format!(
        "[limits.tiers.standard]\nrate = \"1000/s\"\nburst = 1000\ndaily = 30\n\
         [cluster]\nredis = {:?}\nnodes = 2\ntimeout = \"1s\"\nwhen_away = \"refuse\"\n",
        redis.url()
    );
    let config = config::load_str(&toml, Path::new("/"), "test").unwrap().config;
    let today = unix_now() / 86_400;
    for (held, room) in [(None, 30), (Some((today, 20)), 10), (Some((today + 1, 30)), 0), (Some((today - 1, 30)), 30)] {
        redis.ask("DEL guildgate:l:bot");
        if let Some((day, count)) = held {
            redis.ask(&format!("HSET guildgate:l:bot day \"{day} {count}\""));
        }
        let nodes = [Node::start(&config, random).await, Node::start(&config, random).await];
        let (begun, mut let_in) = (Instant::now(), 0);
        for node in nodes.iter().cycle().take(80) {
            let_in += i32::from(node.ask(Operation::GetPoints, begun).await.is_let_in);
        }
        // A question that Redis answers late is charged and lets nobody in.
        assert!((room - 2..=room).contains(&let_in), "{let_in} of {room} let in where it holds {held:?}");
    }
}
