//! Contract section 5, guarantee 7: what ends, ends within one second, cached answers included.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::*;

const DEPARTED: &str = "03 | Error while retrieving guild using this API key. Is Guildgate still on guild?";

async fn guarantee_7_a_revoked_key_is_refused_even_when_the_answer_is_cached(kind: Kind) {
    let gate = TestGateway::on(kind).key("bot").key("other").points("7", 3).start().await;
    let mut kept = gate.connect().await;
    gate.get_points("bot", "7").await.is("3");
    kept.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3").is_hit();
    gate.run(&["key", "revoke", &gate.key_id("bot")]).done();
    eventually(SECOND_AND_SLACK, "02", || async { gate.get_points("bot", "7").await.code() == Some(2) }).await;
    kept.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is_refused(401, INCORRECT_KEY);
    gate.set_points("bot", "7", 5).await.is_refused(401, INCORRECT_KEY);
    gate.get_points("other", "7").await.is("3");
}

async fn guarantee_7_a_server_that_stood_still_goes_by_nothing_that_was_changed_meanwhile(kind: Kind) {
    let mut gate = TestGateway::on(kind).key("bot").key("other").points("7", 3).start().await;
    let asks = ["bot", "other"].map(|key| gate.request("getPoints", key, "memberID=7"));
    let mut kept = Vec::new();
    for _ in 0..16 {
        for ask in &asks {
            let mut connection = gate.connect().await;
            connection.ask(ask).await.is("3");
            kept.push(connection);
        }
    }
    gate.process().signal(Signal::SIGSTOP);
    gate.run(&["key", "revoke", &gate.key_id("bot")]).done();
    gate.run(&["member", "set", "--guild", GUILD, "--member", "7", "--points", "5"]).done();
    tokio::time::sleep(Duration::from_secs(1)).await; // which is what both may take to be seen
    for connections in kept.chunks_mut(2) {
        connections[0].send(asks[0].bytes()).await;
        connections[1].send(asks[1].bytes()).await;
    }
    gate.process().signal(Signal::SIGCONT);
    for connections in kept.chunks_mut(2) {
        let answer = connections[0].answer().await;
        assert!(matches!(answer.code(), Some(2 | 21)), "the key was revoked: {answer:#?}");
        let answer = connections[1].answer().await;
        assert!(answer.body == "5" || answer.code() == Some(21), "{answer:#?}");
    }
    eventually(SECOND_AND_SLACK, "it has caught up", || async { gate.get_points("other", "7").await.body == "5" })
        .await;
    gate.get_points("bot", "7").await.is_refused(401, INCORRECT_KEY);
}

#[tokio::test]
async fn guarantee_7_a_key_in_a_file_expires_to_the_second() {
    let soon = unix_now() + 3;
    let gate = TestGateway::before_http()
        .key_expiring("brief", &soon.to_string())
        .key_expiring("over", "1000")
        .points("7", 3)
        .start()
        .await;
    gate.get_points("over", "7").await.is_refused(401, INCORRECT_KEY);
    let mut served = 0;
    loop {
        let over = unix_now() >= soon; // judged before asking
        let answer = gate.get_points("brief", "7").await;
        if over {
            answer.is_refused(401, INCORRECT_KEY);
            break;
        }
        served += usize::from(answer.status == 200);
    }
    assert!(served > 0, "it never worked");
}

async fn guarantee_7_a_departed_guild_answers_03_until_it_returns(kind: Kind) {
    let gate = TestGateway::on(kind).key("bot").key_of_guild("elsewhere", "999").points("7", 3).start().await;
    for _ in 0..2 {
        gate.get_points("bot", "7").await.is("3");
        gate.run(&["guild", "leave", GUILD]).done();
        eventually(SECOND_AND_SLACK, "03", || async { gate.get_points("bot", "7").await.code() == Some(3) }).await;
        gate.get_points("bot", "7").await.is_refused(403, DEPARTED);
        gate.set_points("bot", "7", 4).await.is_refused(403, DEPARTED);
        gate.get_points("elsewhere", "7").await.is("0");
        gate.run(&["guild", "return", GUILD]).done();
        eventually(SECOND_AND_SLACK, "its points are back", || async {
            gate.get_points("bot", "7").await.status == 200
        })
        .await;
        gate.get_points("bot", "7").await.is("3");
    }
}

async fn guarantee_7_keys_in_a_file_stay_the_keys_whatever_the_store_is_told(kind: Kind) {
    let mut gate = TestGateway::on(kind).keys_in_file().key("bot").points("7", 3).start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.run(&["guild", "add", "555", "--name", "Other"]).done();
    let created = gate.run_with_keys_in_store(&["key", "create", "--guild", "555"]).done();
    let in_store = created.stdout.trim().to_owned();
    gate.process().signal(Signal::SIGHUP);
    gate.has_said("key file reloaded").await;
    // What the store says of guilds is heard; of keys it is not.
    gate.run(&["guild", "leave", GUILD]).done();
    eventually(SECOND_AND_SLACK, "03", || async { gate.get_points("bot", "7").await.code() == Some(3) }).await;
    gate.get_points("bot", "7").await.is_refused(403, DEPARTED);
    gate.run(&["guild", "return", GUILD]).done();
    eventually(SECOND_AND_SLACK, "3", || async { gate.get_points("bot", "7").await.body == "3" }).await;
    gate.send(&Request::post("/getPoints", "memberID=7").key(&in_store)).await.is_refused(401, INCORRECT_KEY);
}

on_both_stores!(
    guarantee_7_a_server_that_stood_still_goes_by_nothing_that_was_changed_meanwhile,
    guarantee_7_a_revoked_key_is_refused_even_when_the_answer_is_cached,
    guarantee_7_a_departed_guild_answers_03_until_it_returns,
    guarantee_7_keys_in_a_file_stay_the_keys_whatever_the_store_is_told,
);
