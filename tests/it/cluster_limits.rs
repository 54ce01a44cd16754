//! Guarantee 6 over several nodes (contract section 3, `[cluster]`): real nodes on one PostgreSQL, with the limits of
//! each key shared through a real Redis.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::*;

/// The tier of the tests: 20 a second, and ten at once.
pub const RATE: f64 = 20.0;
pub const BURST: f64 = 10.0;

/// Far longer than `cluster.timeout`, and shorter than a wait until Redis is back.
const WAITS_FOR_EVER: Duration = Duration::from_millis(1500);

pub fn limited(redis: &Redis, url: &str) -> Builder {
    TestGateway::on(Kind::Postgres)
        .store(url)
        .set("limits.tiers.slow.rate", r#""20/s""#)
        .set("limits.tiers.slow.burst", "10")
        .set("cluster.redis", &format!("{:?}", redis.url()))
        .set("cluster.nodes", "2")
        .set("cluster.timeout", r#""500ms""#) // a busy machine answers late
        .key_of_tier("slow", "slow")
        .key("bot")
        .points("7", 3)
}

/// Nodes before an origin that judges keys, whose strangers are not limited.
pub fn judged_by_the_origin(redis: &Redis) -> Builder {
    TestGateway::before_http()
        .keys_at_the_origin()
        .set("limits.strangers.rate", r#""100000/s""#)
        .set("limits.strangers.burst", "100000")
        .set("cluster.redis", &format!("{:?}", redis.url()))
        .points("7", 3)
}

async fn two_nodes(redis: &Redis) -> (TestGateway, TestGateway) {
    let url = Postgres::shared().database().await;
    let here = limited(redis, &url).admin().start().await;
    let there = here.node(&url).await;
    (here, there)
}

/// What came of requests that were sent one after the other.
#[derive(Debug, Default)]
pub struct Seen {
    pub admitted: f64,
    refused: u32,
    /// Answers that are neither.
    pub failed: u32,
    slowest: Duration,
}

impl Seen {
    fn and(self, other: Seen) -> Seen {
        Seen {
            admitted: self.admitted + other.admitted,
            refused: self.refused + other.refused,
            failed: self.failed + other.failed,
            slowest: self.slowest.max(other.slowest),
        }
    }
}

/// Sends requests of a key on one connection until then.
async fn flood(gate: &TestGateway, key: &str, until: Instant) -> Seen {
    let mut connection = gate.connect().await;
    let request = gate.request("getPoints", key, "memberID=7");
    let mut seen = Seen::default();
    while Instant::now() < until {
        let begin = Instant::now();
        match connection.ask(&request).await.status {
            200 => seen.admitted += 1.0,
            429 => seen.refused += 1,
            _ => seen.failed += 1,
        }
        seen.slowest = seen.slowest.max(begin.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await; // a caller of 400 a second
    }
    seen
}

pub async fn flood_both(here: &TestGateway, there: &TestGateway, lasts: Duration) -> Seen {
    let until = Instant::now() + lasts;
    let (a, b) = (flood(here, "slow", until), flood(there, "slow", until));
    let (c, d) = (flood(here, "slow", until), flood(there, "slow", until));
    let (a, b, c, d) = tokio::join!(a, b, c, d);
    a.and(b).and(c).and(d)
}

#[tokio::test]
async fn guarantee_6_two_nodes_together_let_a_key_through_at_most_burst_plus_rate_times_t() {
    let redis = Redis::start(&[]).await;
    let (here, there) = two_nodes(&redis).await;
    let begin = Instant::now();
    let seen = flood_both(&here, &there, Duration::from_secs(3)).await;
    let most = BURST + RATE * begin.elapsed().as_secs_f64();
    assert!(seen.admitted <= most, "{seen:?}, {most} at most");
    assert!(seen.admitted >= 0.5 * (BURST + RATE * 3.0), "too few were let in: {seen:?}");
    assert!(seen.refused > 0 && seen.failed == 0, "{seen:?}");
    let text = here.admin().await.with_token("").get("/metrics").await.text;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap().parse::<f64>().unwrap()
    };
    assert_eq!((value("guildgate_redis_up"), value("guildgate_cluster_nodes")), (1.0, 2.0));
    let names = |text: &str, is_end: fn(char) -> bool| -> BTreeSet<String> {
        let all = text.split(is_end).map(str::to_owned);
        all.filter(|name| name.starts_with("guildgate_redis_") || name.starts_with("guildgate_cluster_")).collect()
    };
    let page = include_str!("../../docs/cluster.md");
    let served = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    assert_eq!(names(page, is_end), names(&served, is_end), "docs/cluster.md names all metrics");
    let questions = value(r#"guildgate_redis_questions_total{result="answered"}"#);
    assert!(
        questions * 2.0 < f64::from(seen.refused),
        "a flood costs Redis little: {questions} questions for {seen:?}"
    );
}

#[tokio::test]
async fn guarantee_6_neither_a_killed_node_nor_a_restart_refills_a_key() {
    let redis = Redis::start(&[]).await;
    let (here, mut there) = two_nodes(&redis).await;
    let begin = Instant::now();
    let mut seen = flood_both(&here, &there, Duration::from_millis(500)).await;
    for _ in 0..2 {
        there.restart_after_kill().await;
        seen = seen.and(flood_both(&here, &there, Duration::from_millis(700)).await);
    }
    there.restart().await;
    seen = seen.and(flood_both(&here, &there, Duration::from_millis(700)).await);
    let most = BURST + RATE * begin.elapsed().as_secs_f64();
    assert!(seen.admitted <= most && seen.failed == 0, "{seen:?}, {most} at most");
    assert!(seen.admitted > BURST, "{seen:?}");
}

#[tokio::test]
async fn guarantee_6_a_node_that_stood_still_lets_in_nothing_more() {
    let redis = Redis::start(&[]).await;
    let (here, mut there) = two_nodes(&redis).await;
    let begin = Instant::now();
    let mut seen = flood_both(&here, &there, Duration::from_millis(500)).await;
    there.process().signal(Signal::SIGSTOP);
    seen = seen.and(flood(&here, "slow", Instant::now() + Duration::from_secs(1)).await);
    there.process().signal(Signal::SIGCONT);
    seen = seen.and(flood_both(&here, &there, Duration::from_secs(1)).await);
    let most = BURST + RATE * begin.elapsed().as_secs_f64();
    // A node that wakes up refuses with 21 until it has read the store's changes.
    assert!(seen.admitted <= most, "{seen:?}, {most} at most");
    assert!(seen.admitted > BURST, "the other node went on: {seen:?}");
}

#[tokio::test]
async fn while_redis_is_away_no_read_fails_or_waits_and_each_node_has_its_part_of_the_limit() {
    let mut redis = Redis::start(&[]).await;
    let (here, there) = two_nodes(&redis).await;
    flood_both(&here, &there, Duration::from_millis(300)).await;
    redis.kill_hard();
    let begin = Instant::now();
    let (seen, plenty) = tokio::join!(
        flood_both(&here, &there, Duration::from_secs(2)),
        flood(&here, "bot", begin + Duration::from_secs(2))
    );
    // The key was at its limit, so its shares were empty.
    let most = BURST + RATE * begin.elapsed().as_secs_f64();
    assert!(seen.admitted <= most, "{seen:?}, {most} at most");
    assert!(seen.admitted > 0.5 * RATE * 2.0, "{seen:?}");
    let all = seen.and(plenty);
    assert_eq!(all.failed, 0, "{all:?}");
    assert!(all.slowest < WAITS_FOR_EVER, "a request waited for Redis: {all:?}");
    here.has_said("is away").await;
    assert_eq!(here.stderr().matches("is away").count(), 1, "it is said once:\n{}", here.stderr());
    let ready = here.admin().await.with_token("").get("/readyz").await;
    assert!(ready.status == 200 && ready.text.contains("Redis is away"), "{}", ready.text);
    // The new server knows nothing, and heals by itself.
    redis.start_again().await;
    here.has_said("is back").await;
    there.has_said("is back").await;
    let begin = Instant::now();
    let seen = flood_both(&here, &there, Duration::from_secs(2)).await;
    let most = BURST + RATE * begin.elapsed().as_secs_f64();
    assert!(seen.admitted <= most && seen.failed == 0, "{seen:?}, {most} at most");
    assert!(seen.admitted > 0.5 * RATE * 2.0, "{seen:?}");
}

#[tokio::test]
async fn guarantee_6_a_rate_that_is_raised_while_redis_is_away_gives_no_node_a_burst() {
    let redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let here = limited(&redis, &url).set("limits.tiers.slow.rate", r#""1/m""#);
    let here = here.set("limits.tiers.slow.burst", "40").start().await;
    let let_in = async |key: &str| {
        let mut let_in = 0_u128;
        while here.get_points(key, "7").await.status == 200 {
            let_in += 1;
        }
        let_in
    };
    assert_eq!(let_in("slow").await, 40);
    redis.signal(Signal::SIGSTOP);
    here.has_said("is away").await;
    tokio::time::sleep(Duration::from_secs(1)).await; // in which a burst would come back at the rate that follows
    let begin = Instant::now();
    here.reload_with(r#"rate = "1/m""#, r#"rate = "40/s""#);
    here.has_said("configuration reloaded").await;
    let let_in = let_in("slow").await;
    let most = 1 + begin.elapsed().as_millis() / 50; // its half of the rate
    assert!(let_in <= most, "{let_in} let in, {most} at most");
}

#[tokio::test]
async fn guarantee_6_a_key_that_was_tried_often_before_the_origin_proved_it_has_no_more_than_its_limit() {
    let redis = Redis::start(&[]).await;
    let here = judged_by_the_origin(&redis)
        .set("limits.tiers.standard.rate", r#""20/s""#)
        .set("limits.tiers.standard.burst", "10")
        .set("cluster.nodes", "2")
        .set("cluster.timeout", r#""500ms""#)
        .key("slow")
        .start()
        .await;
    let there = here.node("").await;
    here.origin().always(Act::say(500, "<html>"));
    let failed = flood_both(&here, &there, Duration::from_secs(1)).await;
    assert!(failed.admitted == 0.0 && failed.failed > 0, "{failed:?}");
    here.origin().always(Act::Normal);
    let begin = Instant::now();
    let seen = flood_both(&here, &there, Duration::from_secs(2)).await;
    let most = BURST + RATE * begin.elapsed().as_secs_f64();
    assert!(seen.admitted <= most && seen.admitted >= RATE, "{seen:?}, {most} at most");
}

#[tokio::test]
async fn a_key_over_its_limit_is_12_at_a_node_that_does_not_know_it_yet_however_many_come_at_once() {
    let redis = Redis::start(&[]).await;
    let here = judged_by_the_origin(&redis)
        .set("limits.tiers.standard.rate", r#""1/h""#)
        .set("limits.tiers.standard.burst", "5")
        .set("cluster.nodes", "2")
        .set("cluster.timeout", r#""500ms""#)
        .key("bot")
        .start()
        .await;
    let there = here.node("").await;
    for _ in 0..5 {
        here.get_points("bot", "7").await.is("3");
    }
    here.get_points("bot", "7").await.is_too_many();
    let asked = here.origin().asked("getPoints");
    for answer in futures_util::future::join_all((0..24).map(|_| there.get_points("bot", "7"))).await {
        answer.is_too_many();
    }
    assert_eq!(here.origin().asked("getPoints"), asked);
}

#[tokio::test]
async fn guarantee_7_a_key_that_is_removed_while_its_request_waits_for_redis_reads_nothing_from_memory() {
    const AWAY: &str = "is away; until it answers";
    /// How long such a request waits: the longest that `cluster.timeout` may be.
    const WAITS: Duration = Duration::from_secs(1);
    const TRIES: u32 = 10;
    let redis = Redis::start(&[]).await;
    let names: Vec<String> = (0..TRIES).map(|n| format!("goes-{n}")).collect();
    let mut builder = TestGateway::before_http().key("bot").points("7", 3).set("cache.points.ttl", r#""1h""#);
    for name in &names {
        builder = builder.key(name);
    }
    let mut gate = builder
        .set("cluster.redis", &format!("{:?}", redis.url()))
        .set("cluster.nodes", "1")
        .set("cluster.timeout", r#""1s""#)
        .set("cluster.when_away", r#""local""#)
        .start()
        .await;
    let said = |gate: &TestGateway, what: &str| gate.stderr().matches(what).count();
    for (n, name) in names.iter().enumerate() {
        eventually(PATIENCE, "it is in memory", async || gate.get_points("bot", "7").await.was_hit()).await;
        redis.signal(Signal::SIGSTOP);
        let (sent, away) = (Instant::now(), said(&gate, AWAY));
        let mut read = gate.connect_and_send(gate.request("getPoints", name, "memberID=7")).await;
        gate.has_read_requests().await;
        gate.world().remove_key(name);
        gate.process().signal(Signal::SIGHUP);
        eventually(PATIENCE, "the key file is reloaded", async || said(&gate, "key file reloaded") > n).await;
        let still_waited = sent.elapsed() < WAITS && said(&gate, AWAY) == away;
        let answer = read.answer().await;
        // Otherwise the machine was too busy, and the answer may be from before.
        if still_waited {
            answer.is_refused(401, INCORRECT_KEY);
            return;
        }
        redis.signal(Signal::SIGCONT);
        eventually(PATIENCE, "it is back", async || said(&gate, "is back; limits are shared") == said(&gate, AWAY))
            .await;
    }
    panic!("the key file was not reloaded within {WAITS:?} in {TRIES} tries");
}

#[tokio::test]
async fn where_redis_is_away_and_that_means_refuse_every_request_is_21() {
    let mut redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let gate = limited(&redis, &url).set("cluster.when_away", r#""refuse""#).start().await;
    gate.get_points("bot", "7").await.is("3");
    redis.kill_hard();
    gate.has_said("is away").await;
    let refuses = async || gate.get_points("bot", "7").await.code() == Some(21);
    eventually(PATIENCE, "21", refuses).await;
    redis.start_again().await;
    eventually(PATIENCE, "it heals", async || gate.get_points("bot", "7").await.status == 200).await;
    // In shadow nobody is refused all the same.
    let gate = limited(&redis, &url).set("cluster.when_away", r#""refuse""#).set("limits.shadow", "true").start().await;
    redis.kill_hard();
    gate.has_said("is away").await;
    for _ in 0..30 {
        gate.get_points("slow", "7").await.is("3");
    }
}

#[tokio::test]
async fn what_redis_holds_of_a_key_goes_away_once_everything_has_come_back_and_its_day_is_over() {
    let redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let gate = limited(&redis, &url).set("limits.tiers.standard.daily", "1000").start().await;
    let left = |key: &str| {
        let said = redis.ask(&format!("PTTL guildgate:l:{}", gate.key_id(key)));
        said.trim_start_matches(':').lines().next().unwrap().parse::<i64>().unwrap()
    };
    gate.get_points("slow", "7").await.is("3");
    assert!((1..=2000).contains(&left("slow")), "{}", left("slow"));
    gate.get_points("bot", "7").await.is("3");
    let to_midnight = (86_400 - unix_now().rem_euclid(86_400)) * 1000;
    assert!((left("bot") - to_midnight).abs() < 5000, "{} of {to_midnight}", left("bot"));
}

#[tokio::test]
async fn guarantee_6_another_limit_leaves_a_key_what_it_had_up_to_the_new_burst_at_every_node() {
    let redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let here = limited(&redis, &url).set("limits.tiers.slow.rate", r#""1/h""#).start().await;
    let there = here.node(&url).await;
    for _ in 0..6 {
        here.get_points("slow", "7").await.is("3");
    }
    for (from, to, left) in
        [("burst = 10", "burst = 40", 4), ("burst = 40", "burst = 2", 2), ("burst = 2", "burst = 10", 0)]
    {
        for gate in [&here, &there] {
            gate.reload_with(from, to);
            eventually(PATIENCE, "it is reloaded", async || {
                let policy = gate.get_points("bot", "7").await;
                policy.status == 200 && gate.run(&["check"]).stdout.contains(to)
            })
            .await;
        }
        let mut let_in = 0;
        while there.get_points("slow", "7").await.status == 200 {
            let_in += 1;
        }
        assert!(let_in <= left, "{let_in} let in after {to}");
    }
}

#[tokio::test]
async fn in_flight_is_each_nodes_own() {
    let redis = Redis::start(&[]).await;
    let here = TestGateway::before_http().keys_in_file().key("bot").points("7", 3);
    let here = here.set("cluster.redis", &format!("{:?}", redis.url())).set("cluster.timeout", r#""500ms""#);
    let here = here.set("limits.tiers.standard.in_flight", "1").set("origin.timeout", r#""60s""#).start().await;
    let there = here.node("").await;
    let hold = Gate::shut();
    here.origin().next("getPoints", Act::HoldAll(hold.clone()));
    let mut caller = here.connect_and_send(here.request("getPoints", "bot", "memberID=8")).await;
    here.origin().has_been_asked("getPoints", 1).await;
    assert_eq!(here.get_points("bot", "7").await.code(), Some(12));
    there.get_points("bot", "7").await.is("3");
    hold.open();
    caller.answer().await;
}

#[tokio::test]
async fn garbage_in_a_key_is_named_and_replaced_and_counts_as_nothing() {
    let redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let gate = limited(&redis, &url).start().await;
    let name = format!("guildgate:l:{}", gate.key_id("slow"));
    for garbage in [format!("SET {name} x"), format!("HSET {name} rate1 1e99 day x"), format!("RPUSH {name} 1")] {
        redis.ask("FLUSHALL");
        redis.ask(&garbage);
        gate.get_points("slow", "7").await.is("3");
        let rate = redis.ask(&format!("HGET {name} rate1"));
        assert!(rate.lines().nth(1).is_some_and(|rate| rate.split(' ').count() == 4), "{garbage}: {rate}");
    }
    gate.has_said("something that is not Guildgate's").await;
    assert!(gate.stderr().contains(&name));
}

/// `check` and `serve` end with 2 and say this.
async fn is_refused(redis_url: &str, words: &[&str]) {
    let config =
        format!("[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"\"\n[cluster]\nredis = {redis_url:?}\n");
    let world = World::new(&config);
    let checked = world.run(&["check"]).failed(2).names(words);
    let mut process = world.serve(&[]);
    assert_eq!(process.exit().await, Some(2), "{}", process.stderr());
    let served = process.stderr();
    for word in words {
        assert!(served.contains(word), "{word} is not in\n{served}");
    }
    for said in [format!("{checked:?}"), served] {
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[tokio::test]
async fn a_redis_that_cannot_be_used_ends_check_and_serve_with_a_plain_message() {
    is_refused("redsi://:hunter2@127.0.0.1", &["cluster.redis", "no usable Redis URL"]).await;
    is_refused("redis://:hunter2@127.0.0.1:1", &["127.0.0.1:1", "cannot be used"]).await;
    let guarded = Redis::start(&["--requirepass", "secret"]).await;
    let wrong = guarded.url().replace("redis://", "redis://:hunter2@");
    is_refused(&guarded.url(), &["refuses the user or the password"]).await;
    is_refused(&wrong, &["refuses the user or the password"]).await;
    let replica = Redis::start(&["--replicaof", "127.0.0.1", "1"]).await;
    is_refused(&replica.url(), &["it is a replica"]).await;
    is_refused(&guarded.url().replace("redis:", "rediss:"), &["(redis:// is without)"]).await;
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rediss://{}", plain.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open = Vec::new(); // a closed one would be reset
        for mut stream in plain.incoming().flatten() {
            stream.write_all(b"-ERR unknown command\r\n").unwrap();
            open.push(stream);
        }
    });
    is_refused(&url, &["if it does not speak TLS, name it by redis://"]).await;
    let speaks_tls = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", speaks_tls.local_addr().unwrap());
    std::thread::spawn(move || speaks_tls.incoming().for_each(drop));
    is_refused(&url, &["if it speaks TLS, name it by rediss://"]).await;
}

#[tokio::test]
async fn check_says_what_all_nodes_together_let_through_and_that_redis_answers() {
    let redis = Redis::start(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).await;
    let world = World::new(&format!("[cluster]\nredis = \"{}\"\nnodes = 2\nnode = \"edge-1\"\n", redis.url()));
    let ran = world.run(&["check"]).done();
    let text = &ran.stdout;
    for words in [
        "over all nodes",
        "at most 40 + 20/s * T in any time T",
        "burst 20 at 20/s / 2",
        "answers (version",
        "noeviction",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
}
