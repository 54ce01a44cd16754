//! Contract section 5, guarantees 1, 2 and 7, where several nodes share one PostgreSQL and nothing else, and where a
//! standby takes over from a primary that is lost: nothing has to be done to the nodes.

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
    let here = TestGateway::on(Kind::Postgres).store(&both).key("bot").points("7", 3).start().await;
    let there = here.node(&both).await;
    there.get_points("bot", "7").await.is("3");
    there.get_points("bot", "7").await.is("3").is_hit();

    for member in 1..=4 {
        let member = member.to_string();
        here.set_points("bot", &member, 5).await.is(&format!("Successfully set '{member}' points to '5'"));
    }
    primary.stop("immediate");
    for node in [&here, &there] {
        let down = async || node.get_points("bot", "7").await.code() == Some(21);
        eventually(SECOND_AND_SLACK, "21, and no cached answer", down).await;
    }
    assert_eq!(here.set_points("bot", "7", 99).await.code(), Some(21));
    standby.promote();

    for node in [&here, &there] {
        eventually(PATIENCE, "it answers again", async || node.get_points("bot", "7").await.status == 200).await;
        for member in 1..=4 {
            let found = async || {
                let answer = node.get_points("bot", &member.to_string()).await;
                answer.status == 200 && answer.is("5").status == 200 // a busy machine may lose the feed once more
            };
            eventually(PATIENCE, "it answers of each member", found).await;
        }
    }
    here.get_points("bot", "7").await.is("3");
    // The feed goes on. The first write may be 21 once more.
    eventually(PATIENCE, "a write", async || here.set_points("bot", "7", 4).await.status == 200).await;
    eventually(SECOND_AND_SLACK, "4", async || there.get_points("bot", "7").await.body == "4").await;
    let hit = async || format!("{:?}", there.get_points("bot", "7").await).contains("hit");
    eventually(PATIENCE, "cached answers are given again", hit).await;
}

#[tokio::test]
async fn guarantees_2_and_7_all_nodes_leave_a_primary_that_became_read_only_and_goes_on_for_the_one_that_took_over() {
    let (primary, standby, url, both) = pair().await;
    let here = TestGateway::on(Kind::Postgres).store(&both).key("bot").key("gone").points("7", 3).start().await;
    let there = here.node(&both).await;
    let nodes = [&here, &there];
    here.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
    for node in nodes {
        for key in ["bot", "gone"] {
            eventually(SECOND_AND_SLACK, "4", async || node.get_points(key, "7").await.body == "4").await;
        }
    }
    let admin = postgres::connect(&url).await;
    admin.batch_execute("ALTER SYSTEM SET default_transaction_read_only = on").await.unwrap();
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let copy =
        postgres::connect(&url.replace(&format!(":{}/", primary.port()), &format!(":{}/", standby.port()))).await;
    let sql = "SELECT 1 FROM member WHERE member = 7 AND points = 4";
    let has = async || copy.query_opt(sql, &[]).await.unwrap().is_some();
    eventually(PATIENCE, "the standby has it", has).await;
    standby.promote();
    // A node that writes, and one that only reads.
    let writes = async || here.set_points("bot", "7", 5).await.status == 200;
    eventually(PATIENCE, "it can be written to", writes).await;
    for _ in 0..20 {
        here.get_points("bot", "7").await.is("5");
    }
    here.run(&["key", "revoke", &here.key_id("gone")]).done();
    for node in nodes {
        eventually(SECOND_AND_SLACK, "5", async || node.get_points("bot", "7").await.body == "5").await;
        eventually(SECOND_AND_SLACK, "02", async || node.get_points("gone", "7").await.code() == Some(2)).await;
    }
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
