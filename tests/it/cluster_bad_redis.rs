//! A Redis that goes bad while nodes run, and well again (contract section 3, `[cluster]`): full, slow, read-only, without
//! rights, emptied, or with something else in Guildgate's keys. Two real nodes before one HTTP origin share limits and
//! tell each other of writes through it. No read fails or waits for long, it is said once, and it heals by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;

/// Far longer than `cluster.timeout` of these tests.
const WAITS_FOR_EVER: Duration = Duration::from_millis(2500);

/// What each node says once when Redis goes bad, and once when it is well again.
const AWAY: [&str; 2] = ["is away; until it answers", "the bus is away"];
const BACK: [&str; 2] = ["is back; limits are shared", "the bus works again"];

/// Two nodes and the way to their Redis, whose user has the documented rights.
struct TwoNodes {
    redis: Redis,
    proxy: Proxy,
    gates: [TestGateway; 2],
}

impl TwoNodes {
    async fn start(timeout: &str) -> TwoNodes {
        let (redis, url) = Redis::with_rights(&Redis::documented_rights()).await;
        let proxy = Proxy::to(redis.port()).await;
        let url = url.replace(&redis.port().to_string(), &proxy.port().to_string());
        let here = TestGateway::before_http()
            .admin()
            .set("cache.points.ttl", r#""1h""#)
            .set("limits.tiers.slow.rate", r#""20/s""#)
            .set("limits.tiers.slow.burst", "10")
            .set("cluster.redis", &format!("{url:?}"))
            .set("cluster.nodes", "2")
            .set("cluster.timeout", &format!("{timeout:?}"))
            .key("bot")
            .key_of_tier("slow", "slow")
            .points("7", 3)
            .start()
            .await;
        let there = here.node("").await;
        let nodes = TwoNodes { redis, proxy, gates: [here, there] };
        nodes.hear_each_other(4).await;
        nodes
    }

    /// A write at one node is seen at the other, and kept.
    async fn hear_each_other(&self, points: i64) {
        let [here, there] = &self.gates;
        for (writer, reader, points) in [(here, there, points), (there, here, points + 1)] {
            writer.set_points("bot", "7", points).await.is(&format!("Successfully set 'Ada' points to '{points}'"));
            let seen = async || reader.get_points("bot", "7").await.body == points.to_string();
            eventually(SECOND_AND_SLACK, "the write is seen", seen).await;
            eventually(PATIENCE, "it is kept", async || reader.get_points("bot", "7").await.was_hit()).await;
        }
    }

    /// Calls at both nodes until `script` is done; none of them may fail or wait for long.
    async fn read_during(&self, script: impl Future<Output = ()>) {
        let is_done = AtomicBool::new(false);
        let script = async {
            script.await;
            is_done.store(true, Ordering::SeqCst);
        };
        let [here, there] = &self.gates;
        tokio::join!(
            script,
            reads(here, "bot", &is_done),
            reads(there, "bot", &is_done),
            reads(there, "slow", &is_done)
        );
    }

    fn times_said(&self, words: &str) -> usize {
        self.gates.iter().map(|gate| gate.stderr().matches(words).count()).sum()
    }

    /// The sum of a metric over both nodes.
    async fn metric(&self, name: &str) -> f64 {
        let mut sum = 0.0;
        for gate in &self.gates {
            sum += gate.admin().await.metric(name).await;
        }
        sum
    }
}

/// Reads until it is done: how often. A key may be over its limit.
async fn reads(gate: &TestGateway, key: &str, is_done: &AtomicBool) -> u32 {
    let mut connection = gate.connect().await;
    let request = gate.request("getPoints", key, "memberID=7");
    let mut count = 0;
    while !is_done.load(Ordering::SeqCst) {
        let begin = Instant::now();
        let answer = connection.ask(&request).await;
        let may_be = answer.status == 200 || (key == "slow" && answer.status == 429);
        assert!(may_be && begin.elapsed() < WAITS_FOR_EVER, "after {:?}: {answer:#?}", begin.elapsed());
        count += 1;
        tokio::time::sleep(Duration::from_millis(3)).await; // a caller of 300 a second
    }
    assert!(count > 1, "{count} reads"); // each may wait until Redis counts as away
    count
}

async fn ready(gate: &TestGateway) -> String {
    let ready = gate.admin().await.with_token("").get("/readyz").await;
    assert_eq!(ready.status, 200, "{}", ready.text);
    ready.text
}

impl TwoNodes {
    /// They live through what `go_bad` does to their Redis until `heal`. The log names it by `words`.
    async fn survive(&self, go_bad: impl Fn(), heal: impl Fn(), words: &str) {
        let before = self.gates.each_ref().map(TestGateway::stderr);
        let said_since = |n: usize| self.gates[n].stderr()[before[n].len()..].to_owned();
        let asked = self.gates[0].origin().asked("setPoints");
        let script = async {
            go_bad();
            for (n, gate) in self.gates.iter().enumerate() {
                let is_away = async || AWAY.iter().all(|line| said_since(n).contains(line));
                eventually(PATIENCE, words, is_away).await;
                gate.set_points("bot", "7", 9).await.is_unavailable();
                let is_named = async || ready(gate).await.contains("the other nodes are not heard over Redis");
                eventually(SECOND_AND_SLACK, "readyz names it", is_named).await;
                assert!(!gate.get_points("bot", "7").await.was_hit(), "nothing is answered from memory");
            }
            assert_eq!(self.metric("guildgate_redis_up").await, 0.0);
            heal();
            for n in 0..2 {
                let is_back = async || BACK.iter().all(|line| said_since(n).contains(line));
                eventually(PATIENCE, words, is_back).await;
            }
            self.hear_each_other(20).await;
            for gate in &self.gates {
                eventually(SECOND_AND_SLACK, "readyz says ok", async || ready(gate).await == "ok").await;
            }
        };
        self.read_during(script).await;
        for n in 0..2 {
            let said = said_since(n);
            for line in AWAY.into_iter().chain(BACK) {
                assert_eq!(said.matches(line).count(), 1, "{line:?} is said once:\n{said}");
            }
            assert!(said.contains(words) && !said.contains("hunter2"), "{words:?} is named, and no password:\n{said}");
        }
        assert_eq!(self.gates[0].origin().asked("setPoints"), asked + 2, "no write began meanwhile");
    }
}

#[tokio::test]
async fn a_redis_that_is_full_a_replica_closed_slow_or_swallowed_is_away_until_it_is_well_again() {
    let nodes = TwoNodes::start("500ms").await;
    let say = |commands: &[&str]| {
        for command in commands {
            let answer = nodes.redis.ask(command);
            assert!(!answer.starts_with('-'), "{command}: {answer}");
        }
    };
    for (go_bad, heal, words) in [
        (&["CONFIG SET maxmemory 1"][..], "CONFIG SET maxmemory 0", "OOM"),
        (&["REPLICAOF 127.0.0.1 1"], "REPLICAOF NO ONE", "it is a replica"),
        (
            &["ACL SETUSER bus resetpass >other", "CLIENT KILL TYPE normal"],
            "ACL SETUSER bus resetpass >hunter2",
            "refuses the user or the password",
        ),
    ] {
        nodes.survive(|| say(go_bad), || say(&[heal]), words).await;
    }
    for holds in [Holds::For(Duration::from_millis(400)), Holds::FromServer] {
        nodes.survive(|| nodes.proxy.hold(holds), || nodes.proxy.hold(Holds::Nothing), "took longer than").await;
    }
}

#[tokio::test]
async fn connections_that_are_cut_fail_no_request_and_a_redis_that_is_emptied_costs_at_most_a_burst() {
    let nodes = TwoNodes::start("1s").await; // a busy machine answers late
    let script = async {
        for _ in 0..5 {
            nodes.redis.ask("CLIENT KILL TYPE normal");
            tokio::time::sleep(Duration::from_millis(100)).await; // in which they are opened and used again
        }
        nodes.redis.ask("CLIENT KILL TYPE normal");
        nodes.hear_each_other(20).await;
    };
    nodes.read_during(script).await;
    assert_eq!(nodes.metric("guildgate_redis_away_decisions_total").await, 0.0);
    let [here, there] = &nodes.gates;
    let begin = Instant::now();
    let mut admitted = 0.0;
    for round in 0..3 {
        for _ in 0..150 {
            for gate in [here, there] {
                admitted += f64::from(u8::from(gate.get_points("slow", "7").await.status == 200));
            }
        }
        if round < 2 {
            nodes.redis.ask("FLUSHALL");
        }
    }
    let most = 30.0 + 20.0 * begin.elapsed().as_secs_f64();
    assert!(admitted <= most, "{admitted} were let in, {most} at most");
    let lost = async || nodes.metric(r#"guildgate_bus_losses_total{reason="unheard"}"#).await >= 2.0;
    eventually(PATIENCE, "somebody notices each time that the notices are gone", lost).await;
    nodes.hear_each_other(20).await;
    for line in AWAY {
        assert_eq!(nodes.times_said(line), 0, "{}", here.stderr());
    }
    // Something else in the keys of Guildgate is replaced.
    let script = async {
        for (key, kind) in [("guildgate:l:bot", "+hash"), ("guildgate:nodes", "+hash"), ("guildgate:bus", "+stream")] {
            nodes.redis.ask(&format!("SET {key} x"));
            let is_replaced = async || nodes.redis.ask(&format!("TYPE {key}")).starts_with(kind);
            eventually(PATIENCE, "it is replaced", is_replaced).await;
        }
        let writes = async || nodes.gates[0].set_points("bot", "7", 9).await.status == 200;
        eventually(PATIENCE, "a write begins", writes).await;
        nodes.hear_each_other(30).await;
    };
    nodes.read_during(script).await;
}
