//! Contract section 1, "Order": a request is admitted by its header and performed when its body has come. What has
//! changed by then counts, of the key and of the configuration.

use nix::sys::signal::Signal;

use crate::support::*;

const NOT_ALLOWED: &str = "15 | This API key is not allowed to use setPoints!";
const DEPARTED: &str = "03 | Error while retrieving guild using this API key. Is Guildgate still on guild?";
const NOT_DIGITS: &str = "05 | Param 'memberID' should contain only integers!";

fn gate(kind: Kind) -> Builder {
    TestGateway::on(kind).tls().keys_in_store().key("bot").key("other").points("7", 3)
}

/// A write, a read, a read whose answer is in memory, and one whose parameters are no good; each of them held back.
async fn hold(gate: &TestGateway, version: Version, key: &str) -> Vec<HeldBody> {
    gate.get_points(key, "7").await;
    let mut held = Vec::new();
    for (operation, body) in [
        ("setPoints", "memberID=7&amount=666"),
        ("getReviews", "memberID=7"),
        ("getPoints", "memberID=7"),
        ("getPoints", "memberID=x"),
    ] {
        held.push(HeldBody::begin(gate, version, gate.request(operation, key, body)).await);
    }
    held
}

async fn all_are_refused(held: Vec<HeldBody>, status: u16, line: &str) {
    for held in held {
        held.release().await.is_refused(status, line);
    }
}

async fn a_key_revoked_while_its_body_is_held_back_is_02(kind: Kind) {
    let gate = gate(kind).start().await;
    for (version, key) in [(Version::Http1, "bot"), (Version::Http2, "other")] {
        let held = hold(&gate, version, key).await;
        gate.run(&["key", "revoke", &gate.key_id(key)]).done();
        eventually(SECOND_AND_SLACK, "02", || async { gate.get_points(key, "7").await.code() == Some(2) }).await;
        all_are_refused(held, 401, INCORRECT_KEY).await;
    }
    let key = gate.run(&["key", "create", "--guild", GUILD]).done().stdout.trim().to_owned();
    let read = Request::post("/getPoints", "memberID=7").key(&key);
    eventually(SECOND_AND_SLACK, "the new key", || async { gate.send(&read).await.body == "3" }).await;
}

async fn a_key_narrowed_while_its_body_is_held_back_writes_nothing(kind: Kind) {
    let gate = gate(kind).start().await;
    for (version, key) in [(Version::Http1, "bot"), (Version::Http2, "other")] {
        let write = |body: &'static str| HeldBody::begin(&gate, version, gate.request("setPoints", key, body));
        let held = vec![write("memberID=7&amount=666").await, write("memberID=x").await];
        let read = HeldBody::begin(&gate, version, gate.request("getPoints", key, "memberID=7")).await;
        gate.run(&["key", "set", &gate.key_id(key), "--scope", "read"]).done();
        let is_narrow = || async { gate.set_points(key, "8", 1).await.code() == Some(15) };
        eventually(SECOND_AND_SLACK, "15", is_narrow).await;
        all_are_refused(held, 403, NOT_ALLOWED).await;
        read.release().await.is("3");
    }
}

async fn a_guild_departed_while_a_body_is_held_back_is_03_after_the_parameters(kind: Kind) {
    let gate = gate(kind).start().await;
    for version in Version::BOTH {
        let mut held = hold(&gate, version, "bot").await;
        gate.run(&["guild", "leave", GUILD]).done();
        eventually(SECOND_AND_SLACK, "03", || async { gate.get_points("bot", "7").await.code() == Some(3) }).await;
        held.pop().unwrap().release().await.is_refused(400, NOT_DIGITS);
        all_are_refused(held, 403, DEPARTED).await;
        gate.run(&["guild", "return", GUILD]).done();
        eventually(SECOND_AND_SLACK, "3", || async { gate.get_points("bot", "7").await.body == "3" }).await;
    }
}

async fn a_key_taken_out_of_its_file_while_the_server_stops_is_02(kind: Kind) {
    let mut gate = gate(kind).keys_in_file().start().await;
    let mut held = hold(&gate, Version::Http1, "bot").await;
    held.extend(hold(&gate, Version::Http2, "bot").await);
    let kept = HeldBody::begin(&gate, Version::Http1, gate.request("getPoints", "other", "memberID=7")).await;
    gate.process().signal(Signal::SIGTERM);
    gate.has_said("stopping: ").await;
    gate.world().remove_key("bot");
    let is_read = || async { gate.stderr().contains("key file reloaded") };
    eventually(SECOND_AND_SLACK, "the key file is read", is_read).await;
    all_are_refused(held, 401, INCORRECT_KEY).await;
    kept.release().await.is("3");
    assert_eq!(gate.process().exit().await, Some(0), "{}", gate.stderr());
}

on_both_origins!(
    a_key_revoked_while_its_body_is_held_back_is_02,
    a_key_narrowed_while_its_body_is_held_back_writes_nothing,
    a_guild_departed_while_a_body_is_held_back_is_03_after_the_parameters,
    a_key_taken_out_of_its_file_while_the_server_stops_is_02,
);

#[tokio::test]
async fn a_held_body_is_charged_once() {
    let limits = [("rate", r#""1/h""#), ("burst", "4"), ("write_rate", r#""1/h""#), ("write_burst", "2")];
    let gate = gate(Kind::Http).keys_in_file();
    let gate =
        limits.iter().fold(gate, |gate, (name, value)| gate.set(&format!("limits.tiers.standard.{name}"), value));
    let gate = gate.start().await;
    for version in Version::BOTH {
        let held = HeldBody::begin(&gate, version, gate.request("setPoints", "bot", "memberID=7&amount=5")).await;
        held.release().await.is("Successfully set 'Ada' points to '5'");
    }
    assert_eq!(gate.set_points("bot", "7", 6).await.code(), Some(12), "both writes were charged");
    gate.get_points("bot", "7").await.is("5");
    gate.get_points("bot", "7").await.is("5");
    assert_eq!(gate.get_points("bot", "7").await.code(), Some(12), "two writes and two reads");
}

/// Puts another origin in the place of the one that a gateway was started before.
fn move_to(gate: &TestGateway, other: &ScriptedOrigin) {
    gate.reload_with(&gate.origin().url(), &other.url());
}

async fn in_force(gate: &TestGateway, points: &str) {
    let what = format!("{points} from the new origin");
    eventually(PATIENCE, &what, || async { gate.get_points("other", "1").await.body == points }).await;
}

#[tokio::test]
async fn a_body_held_back_over_a_reload_brings_nothing_of_the_old_origin() {
    let gate = gate(Kind::Http).keys_in_file().start().await;
    let other = ScriptedOrigin::start(0).await;
    other.put_points("1", 100);
    other.put_points("7", 4);
    let mut held = Vec::new();
    for version in Version::BOTH {
        held.push(HeldBody::begin(&gate, version, gate.request("getPoints", "bot", "memberID=7")).await);
    }
    move_to(&gate, &other);
    in_force(&gate, "100").await;
    for held in held {
        held.release().await.is("4");
    }
    gate.get_points("bot", "7").await.is("4").is_hit();
    assert_eq!(gate.origin().asked_about("getPoints", "7"), 0);
}

#[tokio::test]
async fn an_answer_asked_for_before_a_reload_is_given_and_not_kept() {
    let gate = gate(Kind::Http).keys_in_file().start().await;
    let other = ScriptedOrigin::start(0).await;
    other.put_points("1", 100);
    other.put_points("7", 4);
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut asking = gate.connect_and_send(gate.request("getPoints", "bot", "memberID=7")).await;
    gate.origin().has_been_asked("getPoints", 1).await;
    move_to(&gate, &other);
    in_force(&gate, "100").await;
    hold.open();
    asking.answer().await.is("3");
    gate.get_points("bot", "7").await.is("4");
    gate.get_points("other", "7").await.is("4").is_hit();
}

fn learned() -> Builder {
    TestGateway::before_http().tls().keys_at_the_origin().key("bot").key("other").points("7", 3)
}

#[tokio::test]
async fn a_learned_key_is_not_proven_by_the_word_of_an_origin_that_is_not_asked_any_more() {
    let gate = learned().start().await;
    let other = ScriptedOrigin::start(0).await;
    other.let_in(gate.secret("other"), GUILD);
    other.put_points("1", 100);
    other.put_points("7", 4);
    let mut held = Vec::new();
    gate.get_points("bot", "7").await.is("3");
    for version in Version::BOTH {
        held.push(HeldBody::begin(&gate, version, gate.request("getPoints", "bot", "memberID=7")).await);
        held.push(HeldBody::begin(&gate, version, gate.request("setPoints", "bot", "memberID=7&amount=9")).await);
    }
    let hold = Gate::shut();
    gate.origin().next("getWarns", Act::HoldAnswer(hold.clone()));
    let mut asking = gate.connect_and_send(gate.request("getWarns", "bot", "memberID=7")).await;
    gate.origin().has_been_asked("getWarns", 1).await;
    move_to(&gate, &other);
    in_force(&gate, "100").await;
    hold.open();
    asking.answer().await.is("{}");
    for member in ["7", "8"] {
        gate.get_points("bot", member).await.is_refused(401, INCORRECT_KEY);
    }
    for held in held {
        held.release().await.is_refused(401, INCORRECT_KEY);
    }
    assert_eq!((gate.origin().points("7"), other.points("7")), (3, 4));
}

#[tokio::test]
async fn who_waits_for_another_requests_proof_asks_the_origin_that_is_in_force_by_then() {
    let gate = learned().start().await;
    let other = ScriptedOrigin::start(0).await;
    other.let_in(gate.secret("other"), GUILD);
    other.put_points("1", 100);
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut asking = gate.connect_and_send(gate.request("getPoints", "bot", "memberID=7")).await;
    gate.origin().has_been_asked("getPoints", 1).await;
    let mut waiting = Vec::new();
    for body in ["memberID=7", "memberID=8"] {
        waiting.push(gate.connect_and_send(gate.request("getPoints", "bot", body)).await);
    }
    move_to(&gate, &other);
    in_force(&gate, "100").await;
    hold.open();
    asking.answer().await.is("3");
    for connection in &mut waiting {
        connection.answer().await.is_refused(401, INCORRECT_KEY);
    }
    gate.get_points("bot", "7").await.is_refused(401, INCORRECT_KEY);
}
