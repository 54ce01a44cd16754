//! A PostgreSQL server that stops, crashes, hangs or is full: deadlines hold, callers get 21, and once the server is
//! back nothing has to be done.

use std::time::{Duration, Instant};

use crate::support::*;

const DOWN: &str = "21 | The service is not available. Try again later.";

/// What a node may take for an answer while its server is silent: the deadlines add up to 4 s, and the machine may be
/// busy.
const SILENT: Duration = Duration::from_secs(12);

fn is_down(answer: &Answer) -> bool {
    answer.status == 503 && answer.body == DOWN
}

#[tokio::test]
async fn guarantee_7_where_no_key_can_be_read_none_is_let_in_and_a_server_that_is_read_only_or_restarted_heals_by_itself()
 {
    let server = Postgres::start(&[]);
    let url = server.database().await;
    let gate = TestGateway::on(Kind::Postgres).store(&url).key("bot").key("gone").points("7", 3).admin().start().await;
    while_the_list_of_keys_does_not_come_a_revoked_key_is_21_and_so_is_every_other(&gate, &url).await;
    let (admin, other) = (gate.admin().await, postgres::connect(&url).await);
    gate.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
    other.batch_execute("SET default_transaction_read_only = off").await.unwrap();
    let set = async |value: &str| {
        other.batch_execute(&format!("ALTER SYSTEM {value}")).await.unwrap();
        other.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    };
    set("SET default_transaction_read_only = on").await;
    let refused = async || is_down(&gate.set_points("bot", "7", 4).await);
    eventually(PATIENCE, "writes are refused", refused).await;
    // A read that finds no idle connection is 21, since no new one is made to such a server.
    for member in 100..110 {
        let is_read = async || gate.get_points("bot", &member.to_string()).await.body == "0";
        eventually(PATIENCE, "a read", is_read).await;
    }
    let ready = async || admin.get("/readyz").await;
    let told = async || ready().await.text.contains("ok; the store cannot be written to: ");
    eventually(PATIENCE, "it is told", told).await;
    assert_eq!(ready().await.status, 200);
    set("RESET default_transaction_read_only").await;
    eventually(PATIENCE, "a write", async || gate.set_points("bot", "7", 5).await.status == 200).await;
    eventually(PATIENCE, "nothing is said any more", async || ready().await.text == "ok").await;
    a_server_that_is_restarted_is_21_meanwhile_and_nothing_has_to_be_done_after(&gate, &server).await;
}

/// Waits until a statement with these words in it waits for a lock.
async fn has_to_wait(client: &tokio_postgres::Client, words: &str) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' \
        AND query LIKE '%' || $1 || '%'";
    let waits = async || client.query_one(sql, &[&words]).await.unwrap().get::<_, i64>(0) == 1;
    eventually(PATIENCE, &format!("{words} waits"), waits).await;
}

/// Of a key `gone`, and the others.
async fn while_the_list_of_keys_does_not_come_a_revoked_key_is_21_and_so_is_every_other(gate: &TestGateway, url: &str) {
    let stranger = Request::post("/getPoints", "memberID=7").key("nobody's");
    for key in ["gone", "bot", "gone", "bot"] {
        gate.get_points(key, "7").await.is("3");
    }
    gate.send(&stranger).await.is_refused(401, INCORRECT_KEY);
    let id = gate.key_id("gone");
    let [first, second, watch] = [(); 3].map(|()| postgres::connect(url));
    let (first, second, watch) = (first.await, second.await, watch.await);
    // The revocation waits for the first, and the second for the revocation: from its commit on, nobody reads a key.
    first.batch_execute("BEGIN; LOCK TABLE key IN SHARE MODE").await.unwrap();
    let mut revoke = Process::start(&mut gate.world().command(&["key", "revoke", &id]));
    has_to_wait(&watch, "DELETE FROM key").await;
    let lock = tokio::spawn(async move {
        second.batch_execute("BEGIN; LOCK TABLE key IN ACCESS EXCLUSIVE MODE").await.unwrap();
        second
    });
    has_to_wait(&watch, "ACCESS EXCLUSIVE MODE").await;
    first.batch_execute("COMMIT").await.unwrap();
    let second = lock.await.unwrap();
    assert_eq!(revoke.exit().await, Some(0), "{}", revoke.stderr());

    eventually(SECOND_AND_SLACK, "21", async || gate.get_points("gone", "7").await.code() == Some(21)).await;
    for _ in 0..20 {
        gate.get_points("gone", "7").await.is_unavailable();
        gate.set_points("gone", "7", 9).await.is_unavailable();
        gate.get_points("bot", "7").await.is_unavailable();
        gate.send(&stranger).await.is_unavailable(); // it may have been made meanwhile
    }
    second.batch_execute("COMMIT").await.unwrap();
    eventually(PATIENCE, "the list comes", async || gate.get_points("bot", "7").await.status == 200).await;
    gate.get_points("gone", "7").await.is_refused(401, INCORRECT_KEY);
    gate.send(&stranger).await.is_refused(401, INCORRECT_KEY);
    gate.get_points("bot", "7").await.is("3");
}

async fn a_server_that_is_restarted_is_21_meanwhile_and_nothing_has_to_be_done_after(
    gate: &TestGateway,
    server: &Postgres,
) {
    gate.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
    gate.get_points("bot", "7").await.is("4");
    for mode in ["fast", "immediate"] {
        server.stop(mode);
        // Cached answers are not given either: the node would not learn of a change.
        eventually(SECOND_AND_SLACK, "21", async || is_down(&gate.get_points("bot", "7").await)).await;
        for _ in 0..3 {
            assert!(is_down(&gate.set_points("bot", "7", 99).await));
            assert!(is_down(&gate.get_points("bot", "8").await));
        }
        gate.run(&["guild", "list"]).failed(1).names(&["127.0.0.1", "check that the server runs"]);
        server.resume().unwrap();
        eventually(PATIENCE, "an answer", async || gate.get_points("bot", "7").await.body == "4").await;
        eventually(PATIENCE, "a write", async || gate.set_points("bot", "7", 4).await.status == 200).await;
        let hit = async || format!("{:?}", gate.get_points("bot", "7").await).contains("hit");
        eventually(PATIENCE, "cached answers are given again", hit).await;
    }
}

/// Two nodes on one database, of which the first has a proxy before it. The keys are in a file, since those of the store
/// would be refused wherever the store is away. The proxy needs a thread besides the test's, which stands still while a
/// command runs.
struct Nodes {
    gate: TestGateway,
    other: TestGateway,
    proxy: Proxy,
    database: tokio_postgres::Client,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn guarantee_2_whatever_is_lost_on_the_way_to_the_server_no_answer_is_old_or_late_and_no_write_is_done_twice() {
    let server = Postgres::shared();
    let (url, proxy) = (server.database().await, Proxy::to(server.port()).await);
    let gate = TestGateway::on(Kind::Postgres).keys_in_file().store(&proxy.of(&url, server.port()));
    let gate = gate.key("bot").points("7", 3).set("limits.tiers.standard.daily", "100000").start().await;
    let nodes = Nodes { other: gate.node(&url).await, gate, proxy, database: postgres::connect(&url).await };
    nodes.a_day_is_counted_once_though_the_connection_is_lost_while_it_is_written().await;
    nodes.a_connection_that_dies_under_a_read_costs_no_answer_and_under_a_write_one().await;
    nodes.a_server_that_swallows_everything_is_21_by_the_deadline_and_nothing_is_written_later().await;
    nodes.connections_that_are_used_up_are_21_within_the_deadline().await;
    nodes.a_node_without_the_change_feed_gives_no_old_cached_answer().await;
    nodes.a_write_whose_commit_was_lost_is_20_and_all_nodes_agree_on_what_became_of_it().await;
}

impl Nodes {
    async fn a_day_is_counted_once_though_the_connection_is_lost_while_it_is_written(&self) {
        let Nodes { gate, proxy, database, .. } = self;
        let counted = async || -> i64 {
            let row = database.query_one("SELECT coalesce(sum(count), 0)::bigint FROM daily", &[]).await;
            row.unwrap().get(0)
        };
        gate.get_points("bot", "7").await.is("3");
        eventually(PATIENCE, "the first is counted", async || counted().await == 1).await;
        proxy.cut_answer("INSERT 0");
        for _ in 0..3 {
            gate.get_points("bot", "7").await.is("3");
        }
        eventually(PATIENCE, "the connection is lost", async || proxy.has_cut()).await;
        eventually(PATIENCE, "all are counted", async || counted().await >= 4).await;
        assert_eq!(counted().await, 4);
    }

    async fn a_connection_that_dies_under_a_read_costs_no_answer_and_under_a_write_one(&self) {
        let Nodes { gate, proxy, .. } = self;
        // Makes the connections, which are idle and seem open when they are cut.
        gate.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
        gate.get_points("bot", "7").await.is("4");
        for member in ["8", "9", "10"] {
            proxy.cut_at(GUILD);
            gate.get_points("bot", member).await.is("0");
            assert!(proxy.has_cut());
            proxy.cut_at(GUILD);
            assert!(is_down(&gate.set_points("bot", member, 5).await));
            assert!(proxy.has_cut());
            gate.set_points("bot", member, 5).await.is(&format!("Successfully set '{member}' points to '5'"));
        }
    }

    async fn a_server_that_swallows_everything_is_21_by_the_deadline_and_nothing_is_written_later(&self) {
        let Nodes { gate, proxy, database, .. } = self;
        // So that connections to write and to read by are there, and are what is swallowed.
        gate.set_points("bot", "7", 3).await.is("Successfully set 'Ada' points to '3'");
        gate.get_points("bot", "7").await.is("3");
        let told = gate.stderr().matches("cannot be written to: ").count();
        proxy.hold(Holds::Everything);
        let start = Instant::now();
        let (read, written) = tokio::join!(gate.get_points("bot", "8"), gate.set_points("bot", "7", 99));
        assert!(is_down(&read) && is_down(&written), "{read:#?} {written:#?}");
        assert!(start.elapsed() < SILENT, "{:?}", start.elapsed());
        // Cached answers are not given either.
        assert!(is_down(&gate.get_points("bot", "7").await));
        let is_told = async || gate.stderr().matches("cannot be written to: ").count() > told;
        eventually(PATIENCE, "it is told", is_told).await;
        gate.run(&["guild", "list"]).failed(1).names(&["cannot connect", "did not answer in time"]);
        proxy.hold(Holds::Nothing);
        eventually(PATIENCE, "it answers again", async || gate.get_points("bot", "7").await.status == 200).await;
        gate.set_points("bot", "8", 5).await.is("Successfully set '8' points to '5'");
        // 21 means that nothing was written, nor will be by what the proxy still held.
        gate.get_points("bot", "7").await.is("3");
        let row = database.query_one("SELECT points FROM member WHERE member = 7", &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 3);
    }

    async fn connections_that_are_used_up_are_21_within_the_deadline(&self) {
        let Nodes { gate, database, .. } = self;
        // Every read stands still now, on a connection of its own.
        database.batch_execute("BEGIN; LOCK TABLE member IN ACCESS EXCLUSIVE MODE").await.unwrap();
        let start = Instant::now();
        let reads = (100..140).map(|member| {
            let request = gate.request("getPoints", "bot", &format!("memberID={member}"));
            async move { gate.send(&request).await }
        });
        let (answers, written) = tokio::join!(futures_util::future::join_all(reads), gate.set_points("bot", "7", 9));
        assert!(answers.iter().all(is_down) && is_down(&written), "{answers:#?} {written:#?}");
        assert!(start.elapsed() < SILENT, "{:?}", start.elapsed());
        database.batch_execute("COMMIT").await.unwrap();
        eventually(PATIENCE, "it answers again", async || gate.get_points("bot", "100").await.body == "0").await;
        gate.get_points("bot", "7").await.is("3");
    }

    async fn a_node_without_the_change_feed_gives_no_old_cached_answer(&self) {
        let Nodes { gate, other, proxy, .. } = self;
        eventually(PATIENCE, "it is kept", async || gate.get_points("bot", "7").await.is("3").was_hit()).await;
        let times = |words: &str| gate.stderr().matches(words).count();
        let (lost, works) = (times("change feed cannot be read"), times("change feed works again"));
        proxy.hold(Holds::Feed);
        for amount in 10..15 {
            other.set_points("bot", "7", amount).await.is(&format!("Successfully set 'Ada' points to '{amount}'"));
            let follows = async || gate.get_points("bot", "7").await.body == amount.to_string();
            eventually(SECOND_AND_SLACK, "the node without the feed has the new value", follows).await;
        }
        let logged = async || times("change feed cannot be read") > lost;
        eventually(PATIENCE, "the log says that the feed is lost", logged).await;
        proxy.hold(Holds::Nothing);
        let logged = async || times("change feed works again") > works;
        eventually(PATIENCE, "the log says that the feed works again", logged).await;
        gate.get_points("bot", "7").await.is("14");
        let hit = async || format!("{:?}", gate.get_points("bot", "7").await).contains("hit");
        eventually(PATIENCE, "cached answers are given again", hit).await;
    }

    async fn a_write_whose_commit_was_lost_is_20_and_all_nodes_agree_on_what_became_of_it(&self) {
        let Nodes { gate, other, proxy, .. } = self;
        gate.set_points("bot", "7", 3).await.is("Successfully set 'Ada' points to '3'");
        proxy.hold(Holds::Commits);
        let start = Instant::now();
        let answer = gate.set_points("bot", "7", 99).await;
        assert_eq!((answer.status, answer.code()), (502, Some(20)), "{answer:#?}");
        assert!(start.elapsed() < SILENT, "{:?}", start.elapsed());
        // Reads do not stand still behind it, and the lock that it held is let go.
        eventually(SECOND_AND_SLACK, "an answer", async || gate.get_points("bot", "7").await.status == 200).await;
        proxy.hold(Holds::Nothing);
        let free = async || other.set_points("bot", "8", 1).await.status == 200;
        eventually(PATIENCE, "the other node can write", free).await;
        let (here, there) = (gate.get_points("bot", "7").await, other.get_points("bot", "7").await);
        assert!(["3", "99"].contains(&here.body.as_str()), "{here:#?}");
        assert_eq!(here.body, there.body);
        gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
        let follows = async || other.get_points("bot", "7").await.body == "5";
        eventually(SECOND_AND_SLACK, "the other node follows", follows).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn guarantee_7_a_node_that_can_neither_follow_changes_nor_read_keys_accepts_none_before_an_http_origin_either() {
    let server = Postgres::shared();
    let (url, proxy) = (server.database().await, Proxy::to(server.port()).await);
    let gate = TestGateway::before_http().keys_in_store().store(&proxy.of(&url, server.port()));
    let gate = gate.key("bot").key("other").points("7", 3).points("8", 4).start().await;
    let other = gate.node(&url).await;
    for key in ["bot", "other"] {
        gate.get_points(key, "7").await.is("3");
    }
    let id = other.key_id("bot");
    proxy.hold(Holds::Everything);
    other.run(&["key", "revoke", &id]).done();
    eventually(SECOND_AND_SLACK, "21", async || is_down(&gate.get_points("bot", "7").await)).await;
    eventually(SECOND_AND_SLACK, "02", async || other.get_points("bot", "7").await.code() == Some(2)).await;
    let asked = gate.origin().seen().len();
    assert!(is_down(&gate.get_points("other", "8").await) && is_down(&gate.set_points("other", "8", 5).await));
    assert_eq!(gate.origin().seen().len(), asked, "the origin was asked");
    proxy.hold(Holds::Nothing);
    let refused = async || {
        let answer = gate.get_points("bot", "7").await;
        assert!(is_down(&answer) || answer.code() == Some(2), "{answer:#?}");
        answer.code() == Some(2)
    };
    eventually(PATIENCE, "02, and no answer before", refused).await;
    eventually(PATIENCE, "the other key works again", async || gate.get_points("other", "8").await.body == "4").await;
    // A guild that the bot leaves is left at every node.
    other.run(&["guild", "leave", GUILD]).done();
    for node in [&gate, &other] {
        let is_left = async || node.get_points("other", "8").await.code() == Some(3);
        eventually(SECOND_AND_SLACK, "03", is_left).await;
    }
}
