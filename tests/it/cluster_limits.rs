//! Guarantee 6 over several nodes (contract section 3, `[cluster]`): real nodes, with the limits and the day of each key
//! shared through a real Redis.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::*;

/// The tier of the tests: 20 a second, and ten at once.
const RATE: f64 = 20.0;
const BURST: f64 = 10.0;

fn limited(redis: &str, url: &str) -> Builder {
    TestGateway::on(Kind::Postgres)
        .store(url)
        .set("limits.tiers.slow.rate", r#""20/s""#)
        .set("limits.tiers.slow.burst", "10")
        .set("cluster.redis", &format!("{redis:?}"))
        .set("cluster.nodes", "2")
        .set("cluster.timeout", r#""500ms""#) // a busy machine answers late
        .key_of_tier("slow", "slow")
        .key("bot")
        .points("7", 3)
}

/// Sends requests of a key on one connection until then: how many were let in, were refused, and got 21.
async fn flood(gate: &TestGateway, until: Instant) -> [u32; 3] {
    let mut connection = gate.connect().await;
    let request = gate.request("getPoints", "slow", "memberID=7");
    let mut seen = [0; 3];
    while Instant::now() < until {
        match connection.ask(&request).await.status {
            200 => seen[0] += 1,
            429 => seen[1] += 1,
            _ => seen[2] += 1,
        }
        tokio::time::sleep(Duration::from_millis(2)).await; // a caller of 400 a second
    }
    seen
}

#[tokio::test]
async fn guarantee_6_nodes_together_let_through_burst_plus_rate_times_t_and_a_day_though_they_are_killed_or_reloaded() {
    let redis = RedisDatabase::new().await;
    let url = Postgres::shared().database().await;
    let here = limited(&redis.url(), &url).key_of_tier("hourly", "hourly").set("limits.tiers.hourly.burst", "10");
    let here = here.set("limits.tiers.hourly.rate", r#""1/h""#).set("limits.tiers.standard.daily", "30");
    let mut here = here.admin().start().await;
    let mut there = here.node(&url).await;
    they_let_through_burst_plus_rate_times_t_though_they_are_killed_and_stand_still(&here, &mut there).await;
    another_limit_leaves_a_key_what_it_had_up_to_the_new_burst_at_every_node(&here, &there).await;
    a_day_is_counted_over_all_nodes_and_given_back_at_each_though_one_was_started_since(&redis, &mut here, &there)
        .await;
}

async fn they_let_through_burst_plus_rate_times_t_though_they_are_killed_and_stand_still(
    here: &TestGateway,
    there: &mut TestGateway,
) {
    let begin = Instant::now();
    let mut seen = [0; 3];
    for what in ["both serve", "killed", "stands still", "goes on"] {
        match what {
            "killed" => there.restart_after_kill().await,
            "stands still" => there.process().signal(Signal::SIGSTOP),
            _ => there.process().signal(Signal::SIGCONT),
        }
        let until = Instant::now() + Duration::from_secs(1);
        let (a, b) = tokio::join!(flood(here, until), flood(here, until));
        let c = if what == "stands still" { [0; 3] } else { flood(there, until + Duration::from_millis(500)).await };
        seen = std::array::from_fn(|n| seen[n] + a[n] + b[n] + c[n]);
    }
    let lasted = begin.elapsed().as_secs_f64();
    // A node that wakes up refuses with 21 until it has read the store's changes.
    assert!(f64::from(seen[0]) <= BURST + RATE * lasted && seen[1] > 0, "{seen:?} in {lasted} s");
    assert!(f64::from(seen[0]) >= 0.5 * RATE * lasted, "too few were let in: {seen:?} in {lasted} s");
    let admin = here.admin().await;
    let text = admin.metrics().await;
    assert_eq!(admin.metric("guildgate_redis_up").await, 1.0);
    let questions = admin.metric(r#"guildgate_redis_questions_total{result="answered"}"#).await;
    assert!(questions < f64::from(seen[1]), "a flood costs Redis little: {questions} questions for {seen:?}");
    let names = |text: &str, is_end: fn(char) -> bool| -> BTreeSet<String> {
        let all = text.split(is_end).map(str::to_owned);
        all.filter(|name| name.starts_with("guildgate_redis_") || name.starts_with("guildgate_cluster_")).collect()
    };
    let page = include_str!("../../docs/cluster.md");
    let served = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    assert_eq!(names(page, is_end), names(&served, is_end), "docs/cluster.md names all metrics");
}

#[tokio::test]
async fn a_key_over_its_limit_is_12_at_a_node_that_does_not_know_it_yet_however_many_come_at_once() {
    let redis = RedisDatabase::new().await;
    // Before an origin that judges keys, whose strangers are not limited.
    let here = TestGateway::before_http()
        .keys_at_the_origin()
        .set("limits.strangers.rate", r#""100000/s""#)
        .set("limits.strangers.burst", "100000")
        .set("cluster.redis", &format!("{:?}", redis.url()))
        .points("7", 3)
        .set("limits.tiers.standard.daily", "100000")
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
    // The day of a key that only the origin knows is given back.
    let config =
        here.world().text("gateway.toml").replace("burst = 5\n", "burst = 100000\n").replace("\"1/h\"", "\"100000/s\"");
    here.world().write("gateway.toml", config.replace("daily = 100000", "daily = 3"));
    here.has_said("configuration reloaded").await;
    here.get_points("bot", "7").await.is_too_many();
    let id = format!("o_{}", &digest(here.secret("bot"))["sha256:".len()..][..16]);
    // There is such a key once its first count is stored.
    eventually(PATIENCE, "the reset", async || here.run(&["limits", "reset", &id]).code == Some(0)).await;
    has_its_day_back(&here).await;
}

#[tokio::test]
async fn where_redis_is_away_and_that_means_refuse_every_request_is_21() {
    let mut redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let gate = limited(&redis.url(), &url).set("cluster.when_away", r#""refuse""#).start().await;
    // On a busy machine Redis may answer too late for the first.
    eventually(PATIENCE, "an answer", async || gate.get_points("bot", "7").await.status == 200).await;
    redis.kill_hard();
    gate.has_said("is away").await;
    let refuses = async || gate.get_points("bot", "7").await.code() == Some(21);
    eventually(PATIENCE, "21", refuses).await;
    redis.start_again().await;
    eventually(PATIENCE, "it heals", async || gate.get_points("bot", "7").await.status == 200).await;
    // In shadow nobody is refused all the same.
    let gate =
        limited(&redis.url(), &url).set("cluster.when_away", r#""refuse""#).set("limits.shadow", "true").start().await;
    redis.kill_hard();
    gate.has_said("is away").await;
    for _ in 0..30 {
        gate.get_points("slow", "7").await.is("3");
    }
}

async fn another_limit_leaves_a_key_what_it_had_up_to_the_new_burst_at_every_node(
    here: &TestGateway,
    there: &TestGateway,
) {
    for _ in 0..6 {
        here.get_points("hourly", "7").await.is("3");
    }
    for (from, to, left) in
        [("burst = 10", "burst = 40", 4), ("burst = 40", "burst = 2", 2), ("burst = 2", "burst = 10", 0)]
    {
        for gate in [here, there] {
            let reloads = || gate.stderr().matches("configuration reloaded").count();
            let before = reloads();
            gate.reload_with(from, to);
            eventually(PATIENCE, "it is reloaded", async || reloads() > before).await;
        }
        let mut let_in = 0;
        while there.get_points("hourly", "7").await.status == 200 {
            let_in += 1;
        }
        assert!(let_in <= left, "{let_in} let in after {to}");
    }
}

async fn a_day_is_counted_over_all_nodes_and_given_back_at_each_though_one_was_started_since(
    redis: &RedisDatabase,
    here: &mut TestGateway,
    there: &TestGateway,
) {
    let mut admitted = 0;
    for _ in 0..40 {
        for gate in [&*here, there] {
            admitted += u32::from(gate.get_points("bot", "7").await.status == 200);
        }
    }
    assert_eq!(admitted, 30);
    // What Redis holds of a key goes away once everything has come back and its day is over.
    let left = |key: &str| {
        let said = redis.ask(&format!("PTTL guildgate:l:{}", here.key_id(key)));
        said.trim_start_matches(':').lines().next().unwrap().parse::<i64>().unwrap()
    };
    let to_midnight = (86_400 - unix_now().rem_euclid(86_400)) * 1000;
    assert!((left("bot") - to_midnight).abs() < 5000, "{} of {to_midnight}", left("bot"));
    here.restart().await;
    here.run(&["limits", "reset", &here.key_id("bot")]).done();
    has_its_day_back(here).await;
    has_its_day_back(there).await;
}

async fn has_its_day_back(gate: &TestGateway) {
    let is_answered = async || gate.get_points("bot", "7").await.status == 200;
    eventually(PATIENCE, "the day is given back", is_answered).await;
}

/// `check` ends with 2 and says this.
fn is_refused(redis_url: &str, words: &[&str]) -> World {
    let config =
        format!("[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"\"\n[cluster]\nredis = {redis_url:?}\n");
    let world = World::new(&config);
    let checked = world.run(&["check"]).failed(2).names(words);
    assert!(!format!("{checked:?}").contains("hunter2"), "{checked:?}");
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn check_says_what_all_nodes_let_through_and_a_redis_that_cannot_be_used_ends_it_with_a_plain_message() {
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
    // One that answers later than a request waits is told.
    let redis = RedisDatabase::new().await;
    let proxy = Proxy::to(redis.port()).await;
    let port = proxy.port();
    let says = |timeout: &str| {
        let world = World::new(&format!("[cluster]\nredis = \"redis://127.0.0.1:{port}\"\ntimeout = {timeout:?}\n"));
        world.run(&["check"]).done().stdout.contains("is as good as away: it answers after")
    };
    proxy.hold(Holds::For(Duration::from_millis(20)));
    assert!(says("30ms"));
    proxy.hold(Holds::Nothing);
    assert!(!says("1s"));
    // One that cannot be used ends `check` and `serve`.
    is_refused("redsi://:hunter2@127.0.0.1", &["cluster.redis", "no usable Redis URL"]);
    is_refused("redis://:hunter2@127.0.0.1:1", &["127.0.0.1:1", "cannot be used"]);
    let guarded = Redis::start(&["--requirepass", "secret"]).await;
    let wrong = guarded.url().replace("redis://", "redis://:hunter2@");
    is_refused(&guarded.url(), &["refuses the user or the password"]);
    let world = is_refused(&wrong, &["refuses the user or the password"]);
    let mut process = world.serve(&[]);
    assert_eq!(process.exit().await, Some(2));
    let said = process.stderr();
    assert!(said.contains("refuses the user or the password") && !said.contains("hunter2"), "{said}");
    let replica = Redis::start(&["--replicaof", "127.0.0.1", "1"]).await;
    is_refused(&replica.url(), &["it is a replica"]);
    is_refused(&guarded.url().replace("redis:", "rediss:"), &["(redis:// is without)"]);
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rediss://{}", plain.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open = Vec::new(); // a closed one would be reset
        for mut stream in plain.incoming().flatten() {
            stream.write_all(b"-ERR unknown command\r\n").unwrap();
            open.push(stream);
        }
    });
    is_refused(&url, &["if it does not speak TLS, name it by redis://"]);
    let speaks_tls = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", speaks_tls.local_addr().unwrap());
    std::thread::spawn(move || speaks_tls.incoming().for_each(drop));
    is_refused(&url, &["if it speaks TLS, name it by rediss://"]);
    one_whose_certificate_has_signed_itself_is_trusted_where_it_is_a_root().await;
}

async fn one_whose_certificate_has_signed_itself_is_trusted_where_it_is_a_root() {
    let folder = tempfile::tempdir().unwrap();
    let (_, certificate, key) = Authority::self_signed("127.0.0.1");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).display().to_string()
    };
    let (certificate, key) = (write("redis.pem", &certificate), write("redis.key", &key));
    let other = write("other.pem", &Authority::new().pem());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &certificate];
    let _redis = Redis::start(&[&["--tls-port", &*free, "--tls-auth-clients", "no"], &files[..]].concat()).await;
    let world = World::new(&format!("[cluster]\nredis = \"rediss://127.0.0.1:{free}\"\n"));
    let config = world.path("gateway.toml");
    let check = |roots: &str| {
        let mut command = world.command(&["check", "--config", config.to_str().unwrap()]);
        Ran::of(command.env("SSL_CERT_FILE", roots).env_remove("SSL_CERT_DIR"), "")
    };
    assert!(check(&certificate).done().stdout.contains("answers (version"));
    let ran = check(&other).failed(2).names(&["itself not in this machine's root certificates"]);
    assert!(!ran.stderr.contains("redis://"), "{ran:?}");
}

#[tokio::test]
async fn guarantee_6_nodes_with_stores_of_their_own_share_a_day_and_tell_it_a_redis_that_has_lost_everything() {
    let redis = RedisDatabase::new().await;
    let here = TestGateway::before_http().keys_in_file().key("bot").points("7", 3);
    let here = here.set("cluster.redis", &format!("{:?}", redis.url())).set("cluster.timeout", r#""500ms""#);
    let here = here.set("limits.tiers.standard.daily", "40").start().await;
    let there = here.node("").await;
    for _ in 0..20 {
        here.get_points("bot", "7").await.is("3");
    }
    // A caller is told what all nodes have left.
    let answer = there.get_points("bot", "7").await;
    let left = answer.header("ratelimit").unwrap().split_once("-daily\";r=").unwrap().1.split(';').next().unwrap();
    assert_eq!(left, "19", "{answer:#?}");
    let mut let_in = 21;
    redis.ask("FLUSHDB");
    for node in [&there, &here] {
        while node.get_points("bot", "7").await.status == 200 {
            let_in += 1;
        }
    }
    assert!((35..=40).contains(&let_in), "{let_in} of 40 were let in");
}
