//! Contract section 3, the last paragraph: SIGHUP or a change of the file loads the configuration
//! anew, all or nothing.

use nix::sys::signal::Signal;

use crate::support::*;

/// The gateway's configuration with `from` replaced by `to`.
fn edited(gate: &TestGateway, from: &str, to: &str) -> String {
    let before = String::from_utf8(gate.world().read("gateway.toml")).unwrap();
    let after = before.replace(from, to);
    assert_ne!(before, after, "nothing to replace in:\n{before}");
    after
}

/// Writes the configuration anew and sends SIGHUP.
async fn reload_with(gate: &mut TestGateway, from: &str, to: &str) {
    gate.world().write("gateway.toml", edited(gate, from, to));
    gate.process().signal(Signal::SIGHUP);
}

async fn says(gate: &TestGateway, what: &str) {
    eventually(PATIENCE, what, || async { gate.stderr().contains(what) }).await;
}

#[tokio::test]
async fn a_good_file_is_in_force_with_the_next_request_and_refills_no_one() {
    let mut gate = TestGateway::builder()
        .key("bot")
        .key_of_tier("slow", "slow")
        .set("limits.tiers.slow.rate", r#""1/h""#)
        .set("limits.tiers.slow.burst", "2")
        .set("answers.key_command", r#""/old""#)
        .start()
        .await;
    for _ in 0..2 {
        gate.get_points("slow", "7").await.is("0");
    }
    let mut kept = gate.connect().await;
    reload_with(&mut gate, "\"/old\"", "\"/new\"").await;
    says(&gate, "is in force").await;
    let no_key = Request::bare("POST", "/getPoints");
    kept.ask(&no_key).await.is_refused(401, "01 | No api key provided! Create it using: /new");
    gate.get_points("slow", "7").await.is_too_many();
    gate.get_points("bot", "7").await.is("0");
}

#[tokio::test]
async fn a_bad_file_is_reported_and_the_running_config_stays() {
    let mut gate =
        TestGateway::builder().key("bot").points("7", 3).set("answers.key_command", r#""/old""#).start().await;
    reload_with(&mut gate, "key_command", "key_comand").await;
    says(&gate, "did you mean `key_command`").await;
    gate.get_points("bot", "7").await.is("3");
    let no_key = Request::bare("POST", "/getPoints");
    gate.send(&no_key).await.is_refused(401, "01 | No api key provided! Create it using: /old");
}

#[tokio::test]
async fn what_cannot_change_while_running_is_said_by_name() {
    let mut gate = TestGateway::builder().key("bot").points("7", 3).set("server.threads", "1").start().await;
    reload_with(&mut gate, "threads = 1", "threads = 2").await;
    says(&gate, "server.threads").await;
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn an_access_log_that_was_moved_away_is_opened_anew() {
    let mut gate = TestGateway::builder().key("bot").set("log.access", r#""access.log""#).start().await;
    gate.get_points("bot", "7").await.is("0");
    gate.has_logged("access.log", "the first request", |log| log.contains("getPoints")).await;
    let (here, there) = (gate.world().path("access.log"), gate.world().path("access.log.1"));
    std::fs::rename(&here, there).unwrap();
    gate.process().signal(Signal::SIGHUP);
    eventually(PATIENCE, "the log is there again", || async { here.exists() }).await;
    gate.get_points("bot", "8").await.is("0");
    gate.has_logged("access.log", "the next request", |log| log.contains("getPoints")).await;
}

#[tokio::test]
async fn what_another_origin_said_is_not_given_after_a_reload() {
    let mut gate = TestGateway::before_http().key("bot").points("7", 3).start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("bot", "7").await.is("3").is_hit();
    let other = ScriptedOrigin::start(1).await;
    other.put_points("7", 222);
    let (from, to) = (gate.origin().url(), other.url());
    reload_with(&mut gate, &from, &to).await;
    says(&gate, "is in force").await;
    gate.get_points("bot", "7").await.is("222");
}

#[tokio::test]
async fn a_file_put_in_place_is_taken_up_without_a_signal() {
    let gate = TestGateway::builder().key("bot").set("answers.key_command", r#""/old""#).start().await;
    let no_key = Request::bare("POST", "/getPoints");
    let command = || async { gate.send(&no_key).await.body };
    assert!(command().await.ends_with("/old"));
    // As editors and ConfigMaps do it: written aside, then renamed.
    let aside = gate.world().write("gateway.toml.new", edited(&gate, "/old", "/new"));
    std::fs::rename(aside, gate.world().path("gateway.toml")).unwrap();
    eventually(PATIENCE, "the new file", || async { command().await.ends_with("/new") }).await;
    // A bad one is reported, and an empty one is not even looked at; the good one stays in force.
    gate.world().write("gateway.toml", "");
    gate.world().write("gateway.toml", "[answers]\nkey_comand = \"/bad\"\n");
    says(&gate, "did you mean `key_command`").await;
    assert!(command().await.ends_with("/new"));
}

#[tokio::test]
async fn a_changed_key_file_is_taken_up_whole_or_not_at_all() {
    let gate = TestGateway::builder().keys_in_file().key("bot").points("7", 3).start().await;
    gate.get_points("bot", "7").await.is("3");
    let good = gate.world().read("keys.toml");
    let bad = [good.clone(), b"[[key]]\nid = \"other\"\ndigest = \"md5:x\"\nguild = \"1\"\n".to_vec()].concat();
    gate.world().write("keys.toml", bad);
    says(&gate, "key 'other'").await;
    gate.get_points("bot", "7").await.is("3");
    gate.world().write("keys.toml", "# no keys any more\n");
    eventually(PATIENCE, "02", || async { gate.get_points("bot", "7").await.code() == Some(2) }).await;
    gate.world().write("keys.toml", good);
    eventually(PATIENCE, "3", || async { gate.get_points("bot", "7").await.body == "3" }).await;
}

#[tokio::test]
async fn a_config_that_is_gone_is_no_reason_for_the_defaults() {
    let world = World::plain();
    let mut process = Process::start(&mut world.command(&["serve"]));
    process.ready().await;
    std::fs::remove_file(world.path("gateway.toml")).unwrap();
    process.signal(Signal::SIGHUP);
    let what = "there is no gateway.toml any more";
    eventually(PATIENCE, what, || async { process.stderr().contains(what) }).await;
}

#[tokio::test]
async fn a_key_file_that_a_refused_config_wanted_is_taken_up_when_it_comes() {
    let mut gate = TestGateway::before_http().key("bot").points("7", 3).start().await;
    let keys = gate.world().read("keys.toml");
    reload_with(&mut gate, "keys.toml", "other.toml").await;
    says(&gate, "was not taken").await;
    gate.world().write("other.toml", keys);
    says(&gate, "is in force").await;
    gate.get_points("bot", "7").await.is("3");
}
