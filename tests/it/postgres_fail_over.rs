//! A PostgreSQL primary is lost, or hangs, and its standby takes over (contract section 5, guarantees 1, 2 and 7):
//! nothing has to be done to the nodes.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::support::*;

/// What a node may take for an answer while its server is silent: the deadlines add up to 4 s, and the machine may be
/// busy.
const SILENT: Duration = Duration::from_secs(12);

/// A listener without a server: the kernel accepts connections, and nothing is answered.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    (listener, host)
}

/// The URL with these hosts before its own.
fn after(hosts: &[&str], url: &str) -> String {
    url.replace("@", &format!("@{},", hosts.join(",")))
}

/// The primary's database, a standby that follows it, and the URL of both.
async fn pair() -> (Postgres, Postgres, String, String) {
    let primary = Postgres::start(&[]);
    let url = primary.database().await;
    let standby = primary.standby();
    let both =
        url.replace(&format!(":{}/", primary.port()), &format!(":{},127.0.0.1:{}/", primary.port(), standby.port()));
    (primary, standby, url, both)
}

/// One caller's member: what was acknowledged last, and what was sent last.
struct Written {
    member: String,
    acknowledged: i64,
    sent: i64,
}

async fn write_until_refused(gate: &TestGateway, member: u64, some: Gate) -> Written {
    let mut written = Written { member: member.to_string(), acknowledged: 0, sent: 0 };
    loop {
        written.sent += 1;
        let answer = gate.set_points("bot", &written.member, written.sent).await;
        if answer.status != 200 {
            assert!([Some(20), Some(21)].contains(&answer.code()), "{answer:#?}");
            return written;
        }
        written.acknowledged = written.sent;
        if written.sent == 5 {
            some.open();
        }
    }
}

#[tokio::test]
async fn guarantee_1_a_synchronous_standby_that_takes_over_has_every_acknowledged_write() {
    let (primary, standby, url, both) = pair().await;
    let admin = postgres::connect(&url).await;
    admin.batch_execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await.unwrap();
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let follows = async || {
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        admin.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1
    };
    eventually(PATIENCE, "the standby is waited for", follows).await;
    let here = TestGateway::on(Kind::Postgres).store(&both).key("bot").key("other").points("7", 3).start().await;
    let there = here.node(&both).await;
    there.get_points("bot", "7").await.is("3");
    there.get_points("bot", "7").await.is("3").is_hit();

    let some = Gate::shut();
    let writers = (1..=4).map(|member| write_until_refused(&here, member, some.clone()));
    let crash = async {
        some.passed().await;
        primary.stop("immediate");
    };
    let (written, ()) = tokio::join!(futures_util::future::join_all(writers), crash);
    for node in [&here, &there] {
        let down = async || node.get_points("bot", "7").await.code() == Some(21);
        eventually(SECOND_AND_SLACK, "21, and no cached answer", down).await;
    }
    assert_eq!(here.set_points("bot", "7", 99).await.code(), Some(21));
    standby.promote();

    for node in [&here, &there] {
        eventually(PATIENCE, "it answers again", async || node.get_points("bot", "7").await.status == 200).await;
        for Written { member, acknowledged, sent } in &written {
            let found: i64 = node.get_points("bot", member).await.body.parse().unwrap();
            let outcome = format!("member {member} has {found}; {acknowledged} was acknowledged, {sent} sent");
            assert!((*acknowledged..=*sent).contains(&found), "{outcome}");
        }
    }
    here.get_points("bot", "7").await.is("3");
    // The feed goes on: what is written, and what is revoked.
    here.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
    eventually(SECOND_AND_SLACK, "4", async || there.get_points("bot", "7").await.body == "4").await;
    let hit = async || format!("{:?}", there.get_points("bot", "7").await).contains("hit");
    eventually(PATIENCE, "cached answers are given again", hit).await;
    here.run(&["key", "revoke", &here.key_id("bot")]).done();
    let stopped = async || there.get_points("bot", "7").await.code() == Some(2);
    eventually(SECOND_AND_SLACK, "02", stopped).await;
    there.get_points("other", "7").await.is("4");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn guarantee_2_a_write_that_an_asynchronous_standby_never_had_is_in_no_cache_once_it_took_over() {
    let (primary, standby, url, _) = pair().await;
    let proxy = Proxy::to(primary.port()).await;
    let address = proxy.of(&url, primary.port());
    let here = TestGateway::on(Kind::Postgres).store(&address).key("bot").points("7", 3).start().await;
    let there = here.node(&address).await;
    here.set_points("bot", "7", 10).await.is("Successfully set 'Ada' points to '10'");
    let copy = url.replace(&format!(":{}/", primary.port()), &format!(":{}/", standby.port()));
    let copy = postgres::connect(&copy).await;
    let has = async || {
        let row = copy.query_opt("SELECT 1 FROM member WHERE member = 7 AND points = 10", &[]).await.unwrap();
        row.is_some()
    };
    eventually(PATIENCE, "the standby has it", has).await;
    standby.stop("fast");
    here.set_points("bot", "7", 11).await.is("Successfully set 'Ada' points to '11'");
    eventually(SECOND_AND_SLACK, "11", async || there.get_points("bot", "7").await.body == "11").await;
    // The feed may tell of the change after the first read of it, and then the second is a miss.
    let hit = async || there.get_points("bot", "7").await.is("11").cache_status().contains("hit");
    eventually(PATIENCE, "11 is cached", hit).await;
    // Another server is behind the same address from one moment to the next, and gives the number of the
    // change that it never had to another one.
    standby.stand_alone();
    proxy.lead_to(standby.port());
    let written = async || here.set_points("bot", "8", 6).await.status == 200;
    eventually(PATIENCE, "it answers again", written).await;
    for node in [&here, &there] {
        eventually(SECOND_AND_SLACK, "10", async || node.get_points("bot", "7").await.body == "10").await;
    }
    here.set_points("bot", "7", 12).await.is("Successfully set 'Ada' points to '12'");
    eventually(SECOND_AND_SLACK, "12", async || there.get_points("bot", "7").await.body == "12").await;
}

#[tokio::test]
async fn a_primary_that_hangs_is_passed_over_for_the_standby_that_took_over_and_not_used_again() {
    let (primary, standby, url, both) = pair().await;
    let here = TestGateway::on(Kind::Postgres).store(&both).key("bot").key("other").points("7", 3).start().await;
    let there = here.node(&both).await;
    // Makes the connections of both writers, which will hang.
    there.set_points("bot", "8", 5).await.is("Successfully set '8' points to '5'");
    here.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
    let copy = url.replace(&format!(":{}/", primary.port()), &format!(":{}/", standby.port()));
    let copy = postgres::connect(&copy).await;
    let points = async |member: i64| -> Option<i64> {
        let row = copy.query_opt("SELECT points FROM member WHERE member = $1", &[&member]).await.unwrap();
        row.map(|row| row.get(0))
    };
    eventually(PATIENCE, "the standby has it", async || points(7).await == Some(4)).await;
    let frozen = primary.freeze();
    let start = Instant::now();
    let (read, written) = tokio::join!(here.get_points("bot", "9"), here.set_points("bot", "7", 99));
    assert_eq!((read.code(), written.code()), (Some(21), Some(21)), "{read:#?} {written:#?}");
    assert!(start.elapsed() < SILENT, "{:?}", start.elapsed());
    standby.promote();
    for node in [&here, &there] {
        eventually(PATIENCE, "it answers again", async || node.get_points("bot", "7").await.body == "4").await;
    }
    let written = async || here.set_points("bot", "7", 6).await.status == 200;
    eventually(PATIENCE, "it is written to", written).await;
    eventually(SECOND_AND_SLACK, "6", async || there.get_points("bot", "7").await.body == "6").await;
    here.run(&["key", "revoke", &here.key_id("other")]).done();
    for node in [&here, &there] {
        eventually(SECOND_AND_SLACK, "02", async || node.get_points("other", "7").await.code() == Some(2)).await;
    }
    // The old primary goes on, and takes writes as before: the connection by which this node wrote leads there.
    drop(frozen);
    there.set_points("bot", "8", 7).await.is("Successfully set '8' points to '7'");
    assert_eq!(points(8).await, Some(7), "the old primary was written to");
}

#[tokio::test]
async fn hosts_that_are_silent_from_the_start_are_passed_over_by_every_connection() {
    let url = Postgres::shared().database().await;
    let ((_one, one), (_two, two)) = (silent(), silent());
    let all = after(&[&one, &two], &url);
    let gate = TestGateway::on(Kind::Postgres).store(&all).key("bot").points("7", 3).start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
    assert!(gate.stderr().contains(&format!("{one} does not answer")), "{}", gate.stderr());
    // All connections are made again, and none tries the silent hosts first.
    let admin = postgres::connect(&url).await;
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
        WHERE application_name = 'guildgate' AND datname = current_database()";
    assert!(admin.query_one(cut, &[]).await.unwrap().get::<_, i64>(0) > 2);
    gate.get_points("bot", "8").await.is("0");
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_host_that_falls_silent_before_another_silent_one_does_not_keep_requests_from_the_third() {
    let server = Postgres::shared();
    let url = server.database().await;
    let (proxy, (_two, two)) = (Proxy::to(server.port()).await, silent());
    let one = format!("127.0.0.1:{}", proxy.port());
    let all = after(&[&one, &two], &url);
    let gate = TestGateway::on(Kind::Postgres).store(&all).key("bot").points("7", 3).start().await;
    gate.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
    proxy.hold(Holds::Everything);
    let written = async || gate.set_points("bot", "7", 5).await.status == 200;
    eventually(PATIENCE, "it is written to", written).await;
    eventually(PATIENCE, "it answers again", async || gate.get_points("bot", "7").await.body == "5").await;
}
