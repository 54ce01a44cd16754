//! Contract section 2: `guild remove`, while servers run.

use crate::support::*;

/// A gateway that keeps answers for an hour, with points of member 7.
fn caching_gateway(kind: Kind) -> Builder {
    let ttl = ["points", "warns", "reviews"].map(|read| format!("cache.{read}.ttl"));
    ttl.iter().fold(TestGateway::on(kind).points("7", 3), |gate, ttl| gate.set(ttl, r#""1h""#))
}

/// Adds a warn and a review to member 7.
fn add_warn_and_review(gate: &TestGateway, reason: &str) {
    let of = ["--guild", GUILD, "--member", "7", "--author", "Mod"];
    gate.run(&[&["warn", "add"], &of[..], &["--reason", reason, "--expires", "4000000000"]].concat()).done();
    gate.run(&[&["review", "add"], &of[..], &["--rating", "5", "--text", reason]].concat()).done();
}

#[tokio::test]
async fn a_removed_guilds_keys_stop_on_every_node_and_a_guild_added_again_sees_nothing_of_it() {
    nothing_is_left_of_a_removed_guild().await;
    one_is_03_to_a_key_of_a_file_and_answers_of_an_http_origin_are_forgotten().await;
}

async fn nothing_is_left_of_a_removed_guild() {
    let gate = caching_gateway(Kind::Builtin).key("bot").key_of_guild("other", "999").start().await;
    gate.set_points("other", "7", 4).await.is("Successfully set '7' points to '4'");
    add_warn_and_review(&gate, "spam");
    let warns = "{warns_7_id_1_4000000000=Mod: spam (Expires 4000000000)}";
    eventually(SECOND_AND_SLACK, "the warn", || async { gate.get_warns("bot", "7").await.body == warns }).await;
    for _ in 0..2 {
        gate.get_points("bot", "7").await.is("3");
        gate.get_warns("bot", "7").await.is(warns);
        gate.get_reviews("bot", "7").await.is("{reviews_7_id_1_5=Mod (5★): spam}");
    }
    // Another server on the same store.
    let path = gate.world().write("second.toml", gate.world().read("gateway.toml"));
    let mut second = Process::start(&mut gate.world().command(&["serve", "--config", path.to_str().unwrap()]));
    let mut connection = Connection::to(second.ready().await).await;
    let (bot, other) =
        (gate.request("getPoints", "bot", "memberID=7"), gate.request("getPoints", "other", "memberID=7"));
    connection.ask(&bot).await.is("3");
    connection.ask(&other).await.is("4");
    let removed = gate.run(&["guild", "remove", GUILD, "--yes"]).done();
    assert_eq!(removed.stdout, format!("guild {GUILD} was removed, with 1 member, 1 warn, 1 review and 1 key\n"));
    let stopped = || async { gate.get_points("bot", "7").await.body == INCORRECT_KEY };
    eventually(SECOND_AND_SLACK, "the key stops", stopped).await;
    gate.set_points("bot", "7", 9).await.is_refused(401, INCORRECT_KEY);
    let follows = async || connection.ask(&bot).await.body == INCORRECT_KEY;
    eventually(SECOND_AND_SLACK, "the other node follows", follows).await;
    // Other guilds are left alone.
    connection.ask(&other).await.is("4");
    gate.get_points("other", "7").await.is("4");
    assert_eq!(gate.run(&["key", "list", "--json"]).done().list().len(), 1);

    gate.run(&["guild", "add", GUILD, "--name", "Another"]).done();
    let key = gate.run(&["key", "create", "--guild", GUILD]).done().stdout.trim_end().to_owned();
    let ask = async |operation: &str| gate.send(&Request::post(&format!("/{operation}"), "memberID=7").key(&key)).await;
    eventually(SECOND_AND_SLACK, "the new key", || async { ask("getPoints").await.status == 200 }).await;
    ask("getPoints").await.is("0");
    ask("getWarns").await.is("{}");
    ask("getReviews").await.is("{}");
    assert_eq!(gate.run(&["member", "list", "--guild", GUILD]).done().stdout, "MEMBER  POINTS  NAME\n");
    add_warn_and_review(&gate, "again");
    let warns = "{warns_7_id_1_4000000000=Mod: again (Expires 4000000000)}";
    eventually(SECOND_AND_SLACK, "ids begin again", || async { ask("getWarns").await.body == warns }).await;
}

async fn one_is_03_to_a_key_of_a_file_and_answers_of_an_http_origin_are_forgotten() {
    let gate = caching_gateway(Kind::Builtin).key("bot").keys_in_file().start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("bot", "7").await.is_hit();
    gate.run(&["guild", "remove", GUILD, "--yes"]).done();
    eventually(SECOND_AND_SLACK, "03", || async { gate.get_points("bot", "7").await.code() == Some(3) }).await;
    assert_eq!(gate.set_points("bot", "7", 9).await.code(), Some(3));
    gate.run(&["guild", "add", GUILD, "--name", "Another"]).done();
    eventually(SECOND_AND_SLACK, "it is there", || async { gate.get_points("bot", "7").await.status == 200 }).await;
    gate.get_points("bot", "7").await.is("0");

    // Answers of an HTTP origin are forgotten with the guild whose they were.
    let gate = caching_gateway(Kind::Http).key("bot").keys_in_store().start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("bot", "7").await.is("3").is_hit();
    gate.origin().put_points("7", 4); // behind the gateway's back
    gate.get_points("bot", "7").await.is("3").is_hit();
    gate.run(&["guild", "remove", GUILD, "--yes"]).done();
    let stopped = || async { gate.get_points("bot", "7").await.body == INCORRECT_KEY };
    eventually(SECOND_AND_SLACK, "the key stops", stopped).await;
    gate.run(&["guild", "add", GUILD, "--name", "Another"]).done();
    let key = gate.run(&["key", "create", "--guild", GUILD]).done().stdout.trim_end().to_owned();
    let request = Request::post("/getPoints", "memberID=7").key(&key);
    eventually(SECOND_AND_SLACK, "the new key", || async { gate.send(&request).await.status == 200 }).await;
    gate.send(&request).await.is("4");
}
