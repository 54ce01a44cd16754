//! A PostgreSQL primary is lost and its standby takes over (contract section 5, guarantees 1, 2 and 7): nobody
//! has to do anything to the nodes.

use crate::support::*;

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
        eventually(SECOND_AND_SLACK, "21, and nothing from memory", down).await;
    }
    assert_eq!(here.set_points("bot", "7", 99).await.code(), Some(21));
    standby.promote();

    for node in [&here, &there] {
        eventually(PATIENCE, "it heals", async || node.get_points("bot", "7").await.status == 200).await;
        for Written { member, acknowledged, sent } in &written {
            let found: i64 = node.get_points("bot", member).await.body.parse().unwrap();
            let told = format!("member {member} has {found}; {acknowledged} was acknowledged, {sent} sent");
            assert!((*acknowledged..=*sent).contains(&found), "{told}");
        }
    }
    here.get_points("bot", "7").await.is("3");
    // The feed goes on: what is written, and what is revoked.
    here.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
    eventually(SECOND_AND_SLACK, "4", async || there.get_points("bot", "7").await.body == "4").await;
    let hit = async || format!("{:?}", there.get_points("bot", "7").await).contains("hit");
    eventually(PATIENCE, "memory is used again", hit).await;
    here.run(&["key", "revoke", &here.key_id("bot")]).done();
    let stopped = async || there.get_points("bot", "7").await.code() == Some(2);
    eventually(SECOND_AND_SLACK, "02", stopped).await;
    there.get_points("other", "7").await.is("4");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn guarantee_2_what_an_asynchronous_standby_never_had_is_in_no_nodes_memory_once_it_took_over() {
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
    there.get_points("bot", "7").await.is("11").is_hit();
    // Another server is behind the same address from one moment to the next, and gives the number of the
    // change that it never had to another one.
    standby.stand_alone();
    proxy.lead_to(standby.port());
    let written = async || here.set_points("bot", "8", 6).await.status == 200;
    eventually(PATIENCE, "it heals", written).await;
    for node in [&here, &there] {
        eventually(SECOND_AND_SLACK, "10", async || node.get_points("bot", "7").await.body == "10").await;
    }
    here.set_points("bot", "7", 12).await.is("Successfully set 'Ada' points to '12'");
    eventually(SECOND_AND_SLACK, "12", async || there.get_points("bot", "7").await.body == "12").await;
}
