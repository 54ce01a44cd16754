//! Contract section 1, "Order": a request is admitted by its header and performed when its body has come. What has
//! changed by then counts, of the key and of the configuration.

use std::net::Ipv4Addr;

use nix::sys::signal::Signal;
use tokio::net::{TcpSocket, TcpStream};

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

async fn a_key_that_expires_while_its_body_is_held_back_is_02(kind: Kind) {
    let gate = gate(kind).key_expiring("brief", "4s").start().await;
    let mut held = hold(&gate, Version::Http1, "brief").await;
    held.extend(hold(&gate, Version::Http2, "brief").await);
    eventually(PATIENCE, "02", || async { gate.get_points("brief", "7").await.code() == Some(2) }).await;
    all_are_refused(held, 401, INCORRECT_KEY).await;
    gate.get_points("bot", "7").await.is("3");
}

async fn a_secret_rotated_out_while_its_body_is_held_back_is_02(kind: Kind) {
    let gate = gate(kind).start().await;
    for (version, key) in [(Version::Http1, "bot"), (Version::Http2, "other")] {
        let held = hold(&gate, version, key).await;
        gate.run(&["key", "rotate", &gate.key_id(key), "--overlap", "0s"]).done();
        eventually(SECOND_AND_SLACK, "02", || async { gate.get_points(key, "7").await.code() == Some(2) }).await;
        all_are_refused(held, 401, INCORRECT_KEY).await;
    }
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

async fn a_key_taken_out_of_its_file_while_its_body_is_held_back_is_02(kind: Kind) {
    let gate = gate(kind).keys_in_file().start().await;
    let mut held = hold(&gate, Version::Http1, "bot").await;
    held.extend(hold(&gate, Version::Http2, "bot").await);
    let keys = String::from_utf8(gate.world().read("keys.toml")).unwrap();
    let kept = keys.split_inclusive("[[key]]\n").filter(|part| !part.contains("id = \"bot\"")).collect::<String>();
    gate.world().write("keys.toml", kept);
    eventually(PATIENCE, "02", || async { gate.get_points("bot", "7").await.code() == Some(2) }).await;
    all_are_refused(held, 401, INCORRECT_KEY).await;
    gate.get_points("other", "7").await.is("3");
}

async fn a_key_taken_out_of_its_file_while_the_server_stops_is_02(kind: Kind) {
    let mut gate = gate(kind).keys_in_file().start().await;
    let mut held = hold(&gate, Version::Http1, "bot").await;
    held.extend(hold(&gate, Version::Http2, "bot").await);
    let kept = HeldBody::begin(&gate, Version::Http1, gate.request("getPoints", "other", "memberID=7")).await;
    gate.process().signal(Signal::SIGTERM);
    eventually(PATIENCE, "the server stops", || async { gate.stderr().contains("stopping: ") }).await;
    rewrite_keys(&gate, |key| (!key.contains("id = \"bot\"")).then(|| key.to_owned()));
    let is_read = || async { gate.stderr().contains("key file reloaded") };
    eventually(SECOND_AND_SLACK, "the key file is read", is_read).await;
    all_are_refused(held, 401, INCORRECT_KEY).await;
    kept.release().await.is("3");
    assert_eq!(gate.process().exit().await, Some(0), "{}", gate.stderr());
}

on_both_origins!(
    a_key_revoked_while_its_body_is_held_back_is_02,
    a_key_that_expires_while_its_body_is_held_back_is_02,
    a_secret_rotated_out_while_its_body_is_held_back_is_02,
    a_key_narrowed_while_its_body_is_held_back_writes_nothing,
    a_guild_departed_while_a_body_is_held_back_is_03_after_the_parameters,
    a_key_taken_out_of_its_file_while_its_body_is_held_back_is_02,
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
fn move_to(gate: &mut TestGateway, other: &ScriptedOrigin) {
    let config = String::from_utf8(gate.world().read("gateway.toml")).unwrap();
    let before = gate.origin().url();
    assert!(config.contains(&before));
    gate.world().write("gateway.toml", config.replace(&before, &other.url()));
    gate.process().signal(Signal::SIGHUP);
}

async fn in_force(gate: &TestGateway, points: &str) {
    let what = format!("{points} from the new origin");
    eventually(PATIENCE, &what, || async { gate.get_points("other", "1").await.body == points }).await;
}

#[tokio::test]
async fn a_body_held_back_over_a_reload_brings_nothing_of_the_old_origin() {
    let mut gate = gate(Kind::Http).keys_in_file().start().await;
    let other = ScriptedOrigin::start(0).await;
    other.put_points("1", 100);
    other.put_points("7", 4);
    let mut held = Vec::new();
    for version in Version::BOTH {
        held.push(HeldBody::begin(&gate, version, gate.request("getPoints", "bot", "memberID=7")).await);
    }
    move_to(&mut gate, &other);
    in_force(&gate, "100").await;
    for held in held {
        held.release().await.is("4");
    }
    gate.get_points("bot", "7").await.is("4").is_hit();
    assert_eq!(gate.origin().asked_about("getPoints", "7"), 0);
}

#[tokio::test]
async fn an_answer_asked_for_before_a_reload_is_given_and_not_kept() {
    let mut gate = gate(Kind::Http).keys_in_file().start().await;
    let other = ScriptedOrigin::start(0).await;
    other.put_points("1", 100);
    other.put_points("7", 4);
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut asking = gate.connect().await;
    asking.send(gate.request("getPoints", "bot", "memberID=7").bytes()).await;
    gate.origin().has_been_asked("getPoints", 1).await;
    move_to(&mut gate, &other);
    in_force(&gate, "100").await;
    hold.open();
    asking.answer().await.is("3");
    gate.get_points("bot", "7").await.is("4");
    gate.get_points("other", "7").await.is("4").is_hit();
}

#[tokio::test]
async fn an_answer_that_a_key_asked_for_before_it_moved_to_another_guild_is_not_kept_for_the_old_one() {
    let gate = gate(Kind::Http).keys_in_file().start().await;
    let origin = gate.origin();
    origin.let_in(gate.secret("bot"), GUILD);
    origin.let_in(gate.secret("other"), GUILD);
    origin.put_points_in("999", "7", 70);
    let (hold, hold_other) = (Gate::shut(), Gate::shut());
    origin.next("getPoints", Act::HoldAll(hold.clone()));
    let mut asking = gate.connect().await;
    asking.send(gate.request("getPoints", "bot", "memberID=7").bytes()).await;
    origin.has_been_asked("getPoints", 1).await;
    // Another key of the guild waits for the same question.
    let mut joined = gate.connect().await;
    joined.send(gate.request("getPoints", "other", "memberID=7").bytes()).await;
    let mut held = Vec::new();
    for version in Version::BOTH {
        held.push(HeldBody::begin(&gate, version, gate.request("getPoints", "bot", "memberID=7")).await);
    }
    origin.let_in(gate.secret("bot"), "999");
    let keys = String::from_utf8(gate.world().read("keys.toml")).unwrap();
    gate.world().write("keys.toml", keys.replacen(GUILD, "999", 1));
    eventually(PATIENCE, "the key is of the other guild", || async {
        // Each of the two guilds has its own entry of a member that nobody has asked for.
        gate.get_points("other", "1").await.is("0");
        !gate.get_points("bot", "1").await.header("cache-status").unwrap().contains("hit")
    })
    .await;
    for held in held {
        held.release().await.is("70");
    }
    origin.next("getPoints", Act::HoldAnswer(hold_other.clone()));
    hold.open();
    asking.answer().await.is("70");
    hold_other.open();
    joined.answer().await.is("3");
    gate.get_points("other", "7").await.is("3");
    gate.get_points("bot", "7").await.is("70").is_hit();
}

fn learned() -> Builder {
    TestGateway::before_http().tls().keys_at_the_origin().key("bot").key("other").points("7", 3)
}

#[tokio::test]
async fn a_learned_key_is_not_proven_by_the_word_of_an_origin_that_is_not_asked_any_more() {
    let mut gate = learned().start().await;
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
    let mut asking = gate.connect().await;
    asking.send(gate.request("getWarns", "bot", "memberID=7").bytes()).await;
    gate.origin().has_been_asked("getWarns", 1).await;
    move_to(&mut gate, &other);
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
async fn a_learned_key_refused_while_its_body_is_held_back_is_02() {
    let gate = learned().set("keys.accepted_for", r#""1s""#).start().await;
    gate.get_points("bot", "7").await.is("3");
    let mut held = Vec::new();
    for version in Version::BOTH {
        held.push(HeldBody::begin(&gate, version, gate.request("getPoints", "bot", "memberID=7")).await);
        held.push(HeldBody::begin(&gate, version, gate.request("setPoints", "bot", "memberID=7&amount=9")).await);
        held.push(HeldBody::begin(&gate, version, gate.request("setPoints", "bot", "memberID=x")).await);
    }
    gate.origin().lock_out(gate.secret("bot"));
    eventually(PATIENCE, "02", || async { gate.get_points("bot", "7").await.code() == Some(2) }).await;
    all_are_refused(held, 401, INCORRECT_KEY).await;
    assert_eq!(gate.origin().points("7"), 3);
}

#[tokio::test]
async fn who_waits_for_another_requests_proof_asks_the_origin_that_is_in_force_by_then() {
    let mut gate = learned().start().await;
    let other = ScriptedOrigin::start(0).await;
    other.let_in(gate.secret("other"), GUILD);
    other.put_points("1", 100);
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut asking = gate.connect().await;
    asking.send(gate.request("getPoints", "bot", "memberID=7").bytes()).await;
    gate.origin().has_been_asked("getPoints", 1).await;
    let mut waiting = Vec::new();
    for body in ["memberID=7", "memberID=8"] {
        let mut connection = gate.connect().await;
        connection.send(gate.request("getPoints", "bot", body).bytes()).await;
        waiting.push(connection);
    }
    move_to(&mut gate, &other);
    in_force(&gate, "100").await;
    hold.open();
    asking.answer().await.is("3");
    for connection in &mut waiting {
        connection.answer().await.is_refused(401, INCORRECT_KEY);
    }
    gate.get_points("bot", "7").await.is_refused(401, INCORRECT_KEY);
}

/// A gateway that holds an answer of member 7 which may only stand in for a failure, and an origin whose next question
/// hangs and then fails.
async fn with_a_stale_answer() -> (TestGateway, Gate) {
    let gate = gate(Kind::Http).keys_in_file();
    let gate = gate.set("cache.points.ttl", r#""0s""#).set("cache.points.stale_if_error", r#""10m""#).start().await;
    gate.get_points("bot", "7").await.is("3");
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldThen(hold.clone(), 500, String::new()));
    (gate, hold)
}

async fn asking(gate: &TestGateway, key: &str) -> Connection {
    let mut connection = gate.connect().await;
    connection.send(gate.request("getPoints", key, "memberID=7").bytes()).await;
    connection
}

/// The key file with each key that `change` keeps, as it makes it.
fn rewrite_keys(gate: &TestGateway, change: impl Fn(&str) -> Option<String>) {
    let keys = String::from_utf8(gate.world().read("keys.toml")).unwrap();
    let changed: Vec<String> = keys.split("[[key]]\n").filter(|key| !key.is_empty()).filter_map(change).collect();
    gate.world().write("keys.toml", changed.iter().map(|key| format!("[[key]]\n{key}")).collect::<String>());
}

#[tokio::test]
async fn guarantee_7_a_key_taken_away_while_its_question_hangs_gets_nothing_from_memory() {
    let (gate, hold) = with_a_stale_answer().await;
    let mut waits = asking(&gate, "bot").await;
    gate.origin().has_been_asked("getPoints", 2).await;
    let mut joined = asking(&gate, "other").await;
    // Once the next one is answered, the one before it has joined.
    gate.get_points("other", "8").await.is("0");
    rewrite_keys(&gate, |key| (!key.contains("id = \"bot\"")).then(|| key.to_owned()));
    let is_gone = || async { gate.get_points("bot", "9").await.code() == Some(2) };
    eventually(PATIENCE, "02", is_gone).await;
    hold.open();
    waits.answer().await.is_refused(401, INCORRECT_KEY);
    assert!(joined.answer().await.is("3").cache_status().contains("stale-if-error"));
}

#[tokio::test]
async fn guarantee_7_a_key_taken_away_while_it_waits_for_anothers_question_is_02() {
    let (gate, hold) = with_a_stale_answer().await;
    gate.origin().next("getPoints", Act::Normal);
    let mut waits = asking(&gate, "other").await;
    gate.origin().has_been_asked("getPoints", 2).await;
    let mut joined = asking(&gate, "bot").await;
    gate.get_points("bot", "8").await.is("0");
    rewrite_keys(&gate, |key| (!key.contains("id = \"bot\"")).then(|| key.to_owned()));
    let is_gone = || async { gate.get_points("bot", "9").await.code() == Some(2) };
    eventually(PATIENCE, "02", is_gone).await;
    hold.open();
    joined.answer().await.is_refused(401, INCORRECT_KEY);
    waits.answer().await.is("3");
}

/// Lists "bot" under another guild.
fn list_elsewhere(gate: &TestGateway) {
    rewrite_keys(gate, |key| {
        Some(if key.contains("id = \"bot\"") { key.replace(GUILD, "999") } else { key.to_owned() })
    });
}

#[tokio::test]
async fn guarantee_2_what_a_key_was_told_before_it_moved_to_another_guild_in_two_steps_is_nobodys_answer() {
    let gate = gate(Kind::Http).keys_in_file().start().await;
    let origin = gate.origin();
    origin.let_in(gate.secret("bot"), "999");
    origin.let_in(gate.secret("other"), GUILD);
    origin.put_points_in("999", "7", 70);
    gate.get_points("bot", "7").await.is("70");
    gate.get_points("other", "7").await.is("70").is_hit();
    let keys = gate.world().read("keys.toml");
    rewrite_keys(&gate, |key| (!key.contains("id = \"bot\"")).then(|| key.to_owned()));
    eventually(PATIENCE, "02", || async { gate.get_points("bot", "8").await.code() == Some(2) }).await;
    gate.world().write("keys.toml", keys);
    list_elsewhere(&gate);
    eventually(PATIENCE, "the key is back", || async { gate.get_points("bot", "7").await.body == "70" }).await;
    gate.get_points("other", "7").await.is("3");
}

#[tokio::test]
async fn guarantee_2_after_a_write_of_unknown_outcome_nothing_is_kept_in_the_guild_that_the_key_moved_to() {
    let gate = gate(Kind::Http).keys_in_file().set("origin.timeout", r#""1s""#).set("cache.points.ttl", r#""1m""#);
    let gate = gate.start().await;
    let origin = gate.origin();
    origin.let_in(gate.secret("bot"), "999");
    origin.let_in(gate.secret("other"), "999");
    origin.put_points_in("999", "7", 70);
    rewrite_keys(&gate, |key| {
        Some(if key.contains("id = \"other\"") { key.replace(GUILD, "999") } else { key.to_owned() })
    });
    let has_moved = || async {
        gate.get_points("bot", "1").await;
        !gate.get_points("other", "1").await.was_hit()
    };
    eventually(PATIENCE, "the other key is of the other guild", has_moved).await;
    let hold = Gate::shut();
    origin.next("setPoints", Act::HoldAll(hold.clone()));
    assert_eq!(gate.set_points("bot", "7", 5).await.code(), Some(22));
    list_elsewhere(&gate);
    // A member of whom nobody has asked: while the two are of one guild, what one has asked for is in memory for both.
    eventually(PATIENCE, "both are of one guild", || async {
        gate.get_points("bot", "2").await;
        gate.get_points("other", "2").await.was_hit()
    })
    .await;
    gate.get_points("other", "7").await.is("70");
    hold.open();
    eventually(PATIENCE, "the write takes effect", || async { gate.get_points("other", "7").await.body == "5" }).await;
}

#[tokio::test]
async fn guarantee_2_a_key_that_moves_while_its_question_hangs_gets_no_stale_answer_of_its_old_guild() {
    let (gate, hold) = with_a_stale_answer().await;
    let origin = gate.origin();
    origin.let_in(gate.secret("other"), GUILD);
    origin.let_in(gate.secret("bot"), "999");
    let mut waits = asking(&gate, "bot").await;
    origin.has_been_asked("getPoints", 2).await;
    list_elsewhere(&gate);
    // While the two are of one guild, what one has asked for is in memory for the other.
    gate.get_warns("other", "7").await.is("{}");
    let has_moved = || async { !gate.get_warns("bot", "7").await.was_hit() };
    eventually(PATIENCE, "the key is of the other guild", has_moved).await;
    hold.open();
    waits.answer().await.is_refused(502, NO_ANSWER);
}

/// Connections that have been asked for, and not been accepted, at this port.
fn connecting_to(port: u16) -> usize {
    let (to, syn_sent) = (format!("0100007F:{port:04X}"), "02");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().map(|row| row.split_whitespace().skip(2).take(2).collect::<Vec<_>>());
    rows.filter(|row| row == &[to.as_str(), syn_sent]).count()
}

#[tokio::test]
async fn guarantee_7_a_key_taken_away_while_a_connection_to_the_origin_is_waited_for_asks_nothing() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    // One connection waits to be accepted: there is no room for another.
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let _waits_already = TcpStream::connect(address).await.unwrap();
    let gate = gate(Kind::Http).keys_in_file().upstreams([format!("http://{address}")]);
    let gate = gate.set("origin.connect_timeout", r#""15s""#).set("origin.timeout", r#""20s""#).start().await;
    let mut waiting = Vec::new();
    for (operation, body) in [("setPoints", "memberID=7&amount=666"), ("getPoints", "memberID=7")] {
        let mut connection = gate.connect().await;
        connection.send(gate.request(operation, "bot", body).bytes()).await;
        waiting.push(connection);
    }
    eventually(PATIENCE, "both are waited for", || async { connecting_to(address.port()) == 2 }).await;
    rewrite_keys(&gate, |key| (!key.contains("id = \"bot\"")).then(|| key.to_owned()));
    let is_gone = || async { gate.send(&gate.request("getPoints", "bot", "memberID=x")).await.code() == Some(2) };
    eventually(PATIENCE, "02", is_gone).await;
    let origin = ScriptedOrigin::start_on(listener, 0, None);
    origin.let_in(gate.secret("bot"), GUILD);
    for connection in &mut waiting {
        connection.answer().await.is_refused(401, INCORRECT_KEY);
    }
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
}

#[tokio::test]
async fn guarantee_7_a_learned_key_that_is_not_proven_any_more_gets_no_stale_answer_for_its_failed_question() {
    let gate = learned().set("keys.refused_for", r#""0s""#).set("cache.points.ttl", r#""0s""#);
    let gate = gate.set("cache.points.stale_if_error", r#""10m""#).start().await;
    gate.get_points("bot", "7").await.is("3");
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldThen(hold.clone(), 500, String::new()));
    let mut waits = asking(&gate, "bot").await;
    gate.origin().has_been_asked("getPoints", 2).await;
    gate.origin().lock_out(gate.secret("bot"));
    gate.get_warns("bot", "7").await.is_refused(401, INCORRECT_KEY);
    hold.open();
    waits.answer().await.is_refused(502, NO_ANSWER);
}
