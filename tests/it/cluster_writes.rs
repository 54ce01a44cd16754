//! Guarantee 2 over several nodes before one HTTP origin (contract section 3, `[cluster]`): real nodes before a scripted
//! origin, which tell each other of writes, purges and departed guilds through a real Redis.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::*;

/// A node whose answers stay in memory until something invalidates them.
fn node(redis: &str) -> Builder {
    TestGateway::before_http()
        .set("cache.points.ttl", r#""1h""#)
        .set("cluster.redis", &format!("{redis:?}"))
        .set("cluster.nodes", "2")
        // The longest there is, because tests share a machine.
        .set("cluster.timeout", r#""1s""#)
        .key("bot")
        .points("7", 3)
}

/// The first one has the origin.
async fn two_nodes(builder: Builder) -> (TestGateway, TestGateway) {
    let here = builder.start().await;
    let there = here.node("").await;
    (here, there)
}

async fn has_in_memory_of(gate: &TestGateway, member: &str) {
    eventually(PATIENCE, "it is in memory", async || gate.get_points("bot", member).await.was_hit()).await;
}

async fn has_in_memory(gate: &TestGateway) {
    eventually(PATIENCE, "it is in memory", async || gate.get_points("bot", "7").await.was_hit()).await;
}

async fn writes(gate: &TestGateway, points: i64) {
    gate.set_points("bot", "7", points).await.is(&format!("Successfully set 'Ada' points to '{points}'"));
}

/// Two nodes, each with a way of its own to Redis. The first one has the origin.
struct TwoNodes {
    redis: RedisDatabase,
    ways: [Proxy; 2],
    here: TestGateway,
    there: TestGateway,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn guarantee_2_a_write_or_purge_at_one_node_ends_what_the_others_have_in_memory_whatever_becomes_of_them() {
    let redis = RedisDatabase::new().await;
    let ways = [Proxy::to(redis.port()).await, Proxy::to(redis.port()).await];
    let url = |way: &Proxy| redis.url_at(way.port());
    // With `daily`, each node has a store of its own beside the key file.
    let builder = node(&url(&ways[0])).admin().set("server.handover", r#""handover.sock""#);
    let builder = builder.set("limits.tiers.standard.daily", "1000000").set("origin.queue_timeout", r#""30s""#);
    let builder = builder.set("pass.paths", r#"["/page"]"#);
    let here = builder.start().await;
    let there = here.node_with(&url(&ways[0]), &url(&ways[1])).await;
    let mut nodes = TwoNodes { redis, ways, here, there };
    nodes.what_is_written_at_one_is_seen_at_the_other().await;
    nodes.what_is_purged_at_one_is_purged_at_the_other().await;
    nodes.what_a_passed_request_may_have_changed_is_asked_for_again_at_the_other().await;
    nodes.one_that_stood_still_gives_nothing_that_is_older_than_a_second().await;
    nodes.while_the_other_is_not_heard_the_origin_has_one_question_of_a_key_at_a_time().await;
    nodes.after_a_write_of_unknown_outcome_none_keeps_its_members_answers().await;
    nodes.one_that_was_cut_off_hears_of_a_write_of_unknown_outcome_when_it_is_back().await;
    nodes.a_hand_over_passes_on_the_writes_of_unknown_outcome_of_every_node().await;
    nodes.a_guild_that_ones_own_store_says_is_left_is_out_of_the_others_memory().await;
}

impl TwoNodes {
    async fn what_is_written_at_one_is_seen_at_the_other(&self) {
        let TwoNodes { here, there, .. } = self;
        for n in 1..=5 {
            for (writer, reader) in [(here, there), (there, here)] {
                has_in_memory(reader).await;
                let points = if std::ptr::eq(writer, here) { n } else { -n };
                writes(writer, points).await;
                let seen = async || reader.get_points("bot", "7").await.body == points.to_string();
                eventually(SECOND_AND_SLACK, "the write is seen", seen).await;
                writer.get_points("bot", "7").await.is(&points.to_string());
            }
        }
        has_in_memory(there).await;
        let admin = there.admin().await;
        let age = admin.metric("guildgate_bus_age_seconds").await;
        assert!((0.0..0.95).contains(&age), "{age}");
        assert_eq!(admin.metric("guildgate_bus_cut_off").await, 0.0);
        let page = include_str!("../../docs/cluster.md");
        let served = admin.metrics().await;
        let served: String = served.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
        let names = |text: &str| -> BTreeSet<String> {
            let all = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_owned);
            all.filter(|name| name.starts_with("guildgate_bus_")).collect()
        };
        assert_eq!(names(page), names(&served), "docs/cluster.md names all metrics");
    }

    async fn what_is_purged_at_one_is_purged_at_the_other(&self) {
        let TwoNodes { here, there, .. } = self;
        let admin = here.admin().await;
        for (purge, points) in [
            (r#"{"member":"7"}"#.to_owned(), 24),
            (format!(r#"{{"guild":"{GUILD}"}}"#), 25),
            (format!(r#"{{"guild":"{GUILD}","member":"7"}}"#), 26),
            ("{}".to_owned(), 27),
        ] {
            has_in_memory(there).await;
            here.origin().put_points("7", points);
            admin.post("/api/cache/purge", &purge).await.is(204);
            let is_purged = async || there.get_points("bot", "7").await.body == points.to_string();
            eventually(SECOND_AND_SLACK, &purge, is_purged).await;
        }
    }

    async fn what_a_passed_request_may_have_changed_is_asked_for_again_at_the_other(&self) {
        let TwoNodes { here, there, .. } = self;
        has_in_memory(there).await;
        here.origin().put_points("7", 28);
        here.origin().next("page", Act::say(200, "done"));
        assert_eq!(here.send(&Request::post("/page", "").key(here.secret("bot"))).await.body, "done");
        let is_told = async || there.get_points("bot", "7").await.body == "28";
        eventually(SECOND_AND_SLACK, "it is told", is_told).await;
    }

    async fn one_that_stood_still_gives_nothing_that_is_older_than_a_second(&mut self) {
        let TwoNodes { here, there, .. } = self;
        has_in_memory(there).await;
        let mut kept = there.connect().await;
        let read = there.request("getPoints", "bot", "memberID=7");
        kept.ask(&read).await.is_hit();
        there.process().stop_threads().await;
        let stopped = Instant::now();
        let mut points = 100;
        while stopped.elapsed() < SECOND_AND_SLACK {
            points += 1;
            writes(here, points).await;
            here.get_points("bot", "7").await.is(&points.to_string());
        }
        // A read after the last write, which is there before anything that the bus could tell.
        kept.send(read.bytes()).await;
        there.process().signal(Signal::SIGCONT);
        kept.answer().await.is(&points.to_string());
        has_in_memory(there).await;
        writes(there, 5).await;
        let seen = async || here.get_points("bot", "7").await.body == "5";
        eventually(SECOND_AND_SLACK, "it writes again", seen).await;
    }

    async fn while_the_other_is_not_heard_the_origin_has_one_question_of_a_key_at_a_time(&self) {
        let TwoNodes { here, redis, ways, .. } = self;
        ways[0].lead_to(1); // where nobody listens
        here.has_said("the bus is away").await;
        let points = here.origin().points("7").to_string();
        let hold = Gate::shut();
        here.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
        let asked = here.origin().asked("getPoints");
        let request = here.request("getPoints", "bot", "memberID=7");
        let mut asking = vec![here.connect_and_send(request.clone()).await];
        here.origin().has_been_asked("getPoints", asked + 1).await;
        for _ in 0..40 {
            asking.push(here.connect_and_send(request.clone()).await);
        }
        here.has_read_requests().await;
        hold.open();
        for mut connection in asking {
            connection.answer().await.is(&points);
        }
        assert_eq!(here.origin().asked("getPoints"), asked + 2, "one before they came, and one for all of them");
        ways[0].lead_to(redis.port());
        here.has_said("the bus works again").await;
    }

    async fn after_a_write_of_unknown_outcome_none_keeps_its_members_answers(&self) {
        let TwoNodes { here, there, .. } = self;
        has_in_memory_of(there, "11").await;
        has_in_memory_of(there, "8").await;
        here.origin().next("setPoints", Act::Cut(Cut::BeforeHeader));
        here.set_points("bot", "11", 5).await.is_refused(502, NO_ANSWER);
        let is_seen = async || there.get_points("bot", "11").await.body == "5";
        eventually(SECOND_AND_SLACK, "the write is seen", is_seen).await;
        for gate in [here, there] {
            for _ in 0..5 {
                gate.get_points("bot", "11").await.is("5").is_miss();
            }
        }
        there.get_points("bot", "8").await.is_hit();
    }

    async fn one_that_was_cut_off_hears_of_a_write_of_unknown_outcome_when_it_is_back(&self) {
        let TwoNodes { here, there, ways, .. } = self;
        has_in_memory_of(there, "10").await;
        let times = |words: &str| there.stderr().matches(words).count();
        let (away, works) = (times("the bus is away"), times("the bus works again"));
        ways[1].hold(Holds::Everything);
        eventually(PATIENCE, "the bus is away", async || times("the bus is away") > away).await;
        here.origin().next("setPoints", Act::Cut(Cut::BeforeHeader));
        here.set_points("bot", "10", 5).await.is_refused(502, NO_ANSWER);
        ways[1].hold(Holds::Nothing);
        eventually(PATIENCE, "it works again", async || times("the bus works again") > works).await;
        has_in_memory_of(there, "8").await;
        for _ in 0..5 {
            there.get_points("bot", "10").await.is_miss();
        }
    }

    async fn a_hand_over_passes_on_the_writes_of_unknown_outcome_of_every_node(&mut self) {
        let TwoNodes { here, there, .. } = self;
        has_in_memory_of(here, "13").await;
        for (gate, member) in [(&*there, "13"), (&*here, "14")] {
            here.origin().next("setPoints", Act::Cut(Cut::BeforeHeader));
            gate.set_points("bot", member, 5).await.is_refused(502, NO_ANSWER);
        }
        let is_heard = async || here.get_points("bot", "13").await.body == "5";
        eventually(SECOND_AND_SLACK, "the write is heard of", is_heard).await;
        assert_eq!(here.replace().await.exit().await, Some(0));
        here.has_said("answers no more requests").await;
        for _ in 0..5 {
            here.get_points("bot", "13").await.is("5").is_miss();
            here.get_points("bot", "14").await.is("5").is_miss();
        }
    }

    async fn a_guild_that_ones_own_store_says_is_left_is_out_of_the_others_memory(&self) {
        let TwoNodes { here, there, .. } = self;
        here.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
        has_in_memory(there).await;
        here.origin().put_points("7", 1008);
        here.run(&["guild", "leave", GUILD]).done();
        let is_purged = async || there.get_points("bot", "7").await.body == "1008";
        eventually(SECOND_AND_SLACK, "its answers are purged", is_purged).await;
    }
}

/// Sends reads one after the other until it is done; how many there were, and what each answered but 200.
async fn reads(gate: &TestGateway, is_done: &AtomicBool) -> (usize, Vec<Answer>) {
    let mut connection = gate.connect().await;
    let request = gate.request("getPoints", "bot", "memberID=7");
    let (mut count, mut failed) = (0, Vec::new());
    while !is_done.load(Ordering::SeqCst) {
        let answer = connection.ask(&request).await;
        count += 1;
        failed.extend(Some(answer).filter(|answer| answer.status != 200));
        tokio::time::sleep(Duration::from_millis(2)).await; // a caller of 400 a second
    }
    (count, failed)
}

#[tokio::test]
async fn a_fail_over_by_sentinel_fails_no_read_and_the_nodes_hear_each_other_by_the_new_primary() {
    let mut primary = Redis::start(&["--repl-diskless-sync-delay", "0"]).await;
    let _replicas = (replica_of(&primary).await, replica_of(&primary).await);
    let linked = async || primary.ask("INFO replication").matches("state=online").count() == 2;
    eventually(PATIENCE, "the replicas are linked", linked).await;
    let sentinel = primary.sentinel().await;
    let known = async || sentinel.ask("SENTINEL replicas m").matches("master-link-status\r\n$2\r\nok").count() == 2;
    eventually(PATIENCE, "the replicas are known", known).await;
    let url = format!("\"{}/0?master=m\"", sentinel.url().replace("redis://", "redis-sentinel://"));
    let (here, there) = two_nodes(node(&primary.url()).set("cluster.redis", &url).set("cluster.replicas", "1")).await;
    writes(&here, 5).await;
    has_in_memory(&there).await;
    let is_done = AtomicBool::new(false);
    let script = async {
        primary.kill_hard();
        assert_eq!(sentinel.ask("SENTINEL FAILOVER m").lines().next(), Some("+OK"));
        for gate in [&here, &there] {
            gate.has_said("the bus works again").await;
        }
        has_in_memory(&there).await;
        eventually(PATIENCE, "a replica has a notice", async || here.set_points("bot", "7", 6).await.status == 200)
            .await;
        let seen = async || there.get_points("bot", "7").await.body == "6";
        eventually(SECOND_AND_SLACK, "the write is seen", seen).await;
        is_done.store(true, Ordering::SeqCst);
    };
    let ((), of_here, of_there) = tokio::join!(script, reads(&here, &is_done), reads(&there, &is_done));
    for (count, failed) in [of_here, of_there] {
        assert!(count > 50 && failed.is_empty(), "{count} reads, of which failed: {failed:?}");
    }
}

#[tokio::test]
async fn guarantee_2_when_a_node_ends_amid_a_write_the_others_keep_nothing_for_as_long_as_that_takes() {
    let timeout = Duration::from_secs(3);
    let redis = RedisDatabase::new().await;
    let builder = node(&redis.url()).set("origin.timeout", r#""3s""#).set("server.drain_timeout", r#""500ms""#);
    let (here, mut there) = two_nodes(builder).await;
    // One that stops with a write under way ...
    has_in_memory(&here).await;
    here.origin().next("setPoints", Act::Stall);
    let writer = there.connect_and_send(there.request("setPoints", "bot", "memberID=7&amount=4")).await;
    here.origin().has_been_asked("setPoints", 1).await;
    there.restart().await;
    let is_noticed = async || !here.get_points("bot", "7").await.was_hit();
    eventually(PATIENCE, "it is noticed", is_noticed).await;
    drop(writer);
    here.origin().put_points("7", 4);
    here.get_points("bot", "7").await.is("4").is_miss();
    // ... and one that is killed.
    has_in_memory(&here).await;
    here.origin().next("setPoints", Act::Stall);
    let _writer = there.connect_and_send(there.request("setPoints", "bot", "memberID=7&amount=5")).await;
    here.origin().has_been_asked("setPoints", 2).await;
    let killed = Instant::now();
    there.process().kill_hard();
    let is_noticed = async || !here.get_points("bot", "7").await.was_hit();
    eventually(PATIENCE, "it is noticed", is_noticed).await;
    assert!(killed.elapsed() < SECOND_AND_SLACK, "{:?}", killed.elapsed());
    here.get_points("bot", "7").await.is("4").is_miss();
    here.origin().put_points("7", 5); // the write of the killed node
    while killed.elapsed() < timeout {
        here.get_points("bot", "7").await.is("5").is_miss();
    }
    has_in_memory(&here).await;
}

/// A world whose configuration has this Redis.
fn world(redis: &str, more: &str) -> World {
    World::new(&format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"\"\n[keys]\nsource = \"origin\"\n\
         [origin]\nkind = \"http\"\nupstreams = [\"http://127.0.0.1:9\"]\n[cluster]\nredis = {redis:?}\n{more}"
    ))
}

#[tokio::test]
async fn the_rights_that_the_page_names_are_enough_and_a_missing_right_or_replica_ends_check_and_serve() {
    let rights = Redis::documented_rights();
    let (_redis, url) = Redis::with_rights(&rights).await;
    let allowed = world(&url, "nodes = 2\n");
    let checked = allowed.run(&["check"]).done();
    assert!(checked.stdout.contains("answers (version"), "{}", checked.stdout);
    let mut process = allowed.serve(&[]);
    process.ready().await;
    assert!(allowed.run(&["cluster", "status"]).done().stdout.contains("; 1 node\n"));
    process.signal(Signal::SIGTERM);
    assert_eq!(process.exit().await, Some(0), "{}", process.stderr());

    let (_redis, url) = Redis::with_rights(&rights.replace("+xadd", "")).await;
    let world = self::world(&url, "");
    let checked = world.run(&["check"]).failed(2).names(&["cluster.redis", "lacks rights", "xadd"]);
    let mut process = world.serve(&[]);
    assert_eq!(process.exit().await, Some(2), "{}", process.stderr());
    assert!(process.stderr().contains("lacks rights"), "{}", process.stderr());
    for said in [format!("{checked:?}"), process.stderr()] {
        assert!(!said.contains("hunter2"), "{said}");
    }
    // A start waits five seconds for the replicas that must have a notice.
    let redis = Redis::start(&["--repl-diskless-sync-delay", "0"]).await;
    let world = self::world(&redis.url(), "replicas = 1\n");
    world.run(&["check"]).failed(2).names(&["cluster.redis", "only 0 of 1 replicas"]);
    let begin = Instant::now();
    let mut process = world.serve(&[]);
    assert_eq!(process.exit().await, Some(2), "{}", process.stderr());
    assert!(process.stderr().contains("only 0 of 1 replicas"), "{}", process.stderr());
    assert!(begin.elapsed() >= Duration::from_secs(5), "{:?}", begin.elapsed());
    let mut process = world.serve(&[]);
    let _replica = replica_of(&redis).await;
    process.ready().await;
}

async fn replica_of(primary: &Redis) -> Redis {
    let port = primary.port().to_string();
    Redis::start(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]).await
}
