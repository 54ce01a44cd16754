//! Contract section 5, guarantee 7: what ends, ends within one second, cached answers included.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::*;

const DEPARTED: &str = "03 | Error while retrieving guild using this API key. Is Guildgate still on guild?";

#[tokio::test]
async fn guarantee_7_what_is_changed_of_a_key_or_its_guild_holds_within_a_second_cached_answers_included() {
    let gate = TestGateway::builder().key("bot").key("other").key_of_guild("elsewhere", "999").points("7", 3);
    let gate = gate.start().await;
    let mut kept = gate.connect().await;
    let request = gate.request("getPoints", "bot", "memberID=7");
    let (id, departed) = (gate.key_id("bot"), (403, DEPARTED));
    let not_allowed = "15 | This API key is not allowed to use setPoints!";
    for (command, read, write) in [
        (vec!["key", "set", &id, "--scope", "read"], None, Some((403, not_allowed))),
        (vec!["key", "set", &id, "--scope", "write"], None, None),
        (vec!["guild", "leave", GUILD], Some(departed), Some(departed)),
        (vec!["guild", "return", GUILD], None, None),
        (vec!["guild", "leave", GUILD], Some(departed), Some(departed)),
        (vec!["guild", "return", GUILD], None, None),
        (vec!["key", "revoke", &id], Some((401, INCORRECT_KEY)), Some((401, INCORRECT_KEY))),
    ] {
        let is_as = |answer: &Answer, refusal: Option<(u16, &str)>, success: &str| {
            (answer.status, &*answer.body) == refusal.unwrap_or((200, success))
        };
        gate.run(&command).done();
        let written = "Successfully set 'Ada' points to '3'";
        let holds = async || is_as(&gate.set_points("bot", "7", 3).await, write, written);
        eventually(SECOND_AND_SLACK, &command.join(" "), holds).await;
        for _ in 0..2 {
            let answer = kept.ask(&request).await;
            assert!(is_as(&answer, read, "3"), "{command:?}: {answer:#?}");
        }
        gate.get_points("elsewhere", "7").await.is("0");
    }
    gate.get_points("other", "7").await.is("3");
}

#[tokio::test]
async fn guarantee_7_a_server_that_stood_still_goes_by_nothing_that_was_changed_meanwhile() {
    let mut gate = TestGateway::builder().key("bot").key("other").points("7", 3).start().await;
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
async fn guarantee_7_keys_in_a_file_stay_the_keys_whatever_the_store_is_told() {
    let mut gate = TestGateway::builder().keys_in_file().key("bot").read_key("reader").points("7", 3).start().await;
    gate.set_points("bot", "7", 3).await.is("Successfully set 'Ada' points to '3'");
    assert_eq!(gate.set_points("reader", "7", 5).await.code(), Some(15));
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
    // A key of a guild that is not in the store is 03.
    gate.edit_key_file(GUILD, "12345").await;
    gate.get_points("bot", "7").await.is_refused(403, DEPARTED);
}
