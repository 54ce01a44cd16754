//! Contract section 3, the last paragraph: SIGHUP or a change of the file loads the configuration
//! again, all or nothing, and one line says what became of it.

use nix::sys::signal::Signal;

use crate::support::*;

/// The lines that speak of reloading, without their time.
fn told_of_reloads(gate: &TestGateway) -> Vec<String> {
    let told = gate.stderr();
    let reloads = told.lines().filter(|line| ["reload", "restart", "in force"].iter().any(|word| line.contains(word)));
    reloads.map(|line| line.split_once(' ').unwrap().1.trim().to_owned()).collect()
}

#[tokio::test]
async fn one_message_tells_what_was_taken_up_and_a_file_is_so_without_a_signal() {
    let mut gate = TestGateway::builder()
        .key("bot")
        .points("7", 3)
        .set("answers.key_command", r#""/old""#)
        .set("server.max_header", r#""16KiB""#)
        .start()
        .await;
    let file = gate.world().path("gateway.toml");
    let message = "configuration reloaded; what `after_restart` names takes effect after a restart";
    let config = gate
        .world()
        .edited("gateway.toml", "127.0.0.1:0", "127.0.0.1:1")
        .replace("threads = 2", "threads = 3")
        .replace("/old", "/new");
    gate.world().write("gateway.toml", config);
    gate.process().signal(Signal::SIGHUP);
    gate.has_said("configuration reloaded").await;
    let told = format!(
        "WARN {message} file={} changed=\"answers\" after_restart=\"server.listen, server.threads\"",
        file.display()
    );
    assert_eq!(told_of_reloads(&gate), [told.as_str()]);
    let no_key = Request::bare("POST", "/getPoints");
    gate.send(&no_key).await.is_refused(401, "01 | No api key provided! Create it using: /new");
    gate.get_points("bot", "7").await.is("3");
    // As it was at the start: nothing is left to wait for a restart.
    let config =
        gate.world().edited("gateway.toml", "127.0.0.1:1", "127.0.0.1:0").replace("threads = 3", "threads = 2");
    gate.world().write("gateway.toml", config.replace("16KiB", "17KiB"));
    let last = format!("INFO configuration reloaded file={} changed=\"server\"", file.display());
    eventually(PATIENCE, "the next message", || async { told_of_reloads(&gate).len() == 2 }).await;
    assert_eq!(told_of_reloads(&gate), [told, last]);
    let command = || async { gate.send(&no_key).await.body };
    // As editors and ConfigMaps do it: written aside, then renamed.
    let aside = gate.world().write("gateway.toml.new", gate.world().edited("gateway.toml", "/new", "/newer"));
    std::fs::rename(aside, gate.world().path("gateway.toml")).unwrap();
    eventually(PATIENCE, "the new file", || async { command().await.ends_with("/newer") }).await;
    // An empty one waits to be written, and a bad one is rejected; the good one stays in force.
    gate.world().write("gateway.toml", "");
    gate.has_said("gateway.toml is empty; write it, or send SIGHUP to read it").await;
    assert!(command().await.ends_with("/newer"));
    gate.world().write("gateway.toml", "[answers]\nkey_comand = \"/bad\"\n");
    gate.has_said("did you mean `key_command`").await;
    assert!(command().await.ends_with("/newer"));
}

#[tokio::test]
async fn another_source_of_keys_or_kind_of_origin_takes_effect_after_a_restart_and_another_origin_at_once() {
    let gate = TestGateway::before_http().key("bot").points("7", 3).set("answers.key_command", r#""/old""#);
    let gate = gate.start().await;
    let (original, no_key) = (gate.world().text("gateway.toml"), Request::bare("POST", "/getPoints"));
    gate.get_points("bot", "7").await.is("3");
    for (n, (from, to, name)) in [
        ("source = \"file\"", "source = \"origin\"", "keys.source"),
        ("source = \"file\"", "source = \"store\"", "keys.source"),
        ("kind = \"http\"", "kind = \"builtin\"", "origin.kind"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut config = original.replace(from, to).replace("/old", &format!("/new{n}"));
        if name == "origin.kind" {
            config = config.replace("\nupstreams = ", "\n# upstreams = ");
        }
        gate.world().write("gateway.toml", config);
        let told = format!("after_restart=\"{name}\"");
        let is_told = async || {
            let said = gate.stderr();
            said.matches("after_restart=").count() == n + 1 && said.lines().last().unwrap().contains(&told)
        };
        eventually(PATIENCE, &format!("{to}: {told}"), is_told).await;
        gate.send(&no_key).await.is_refused(401, &format!("01 | No api key provided! Create it using: /new{n}"));
        let asked = gate.origin().asked("getPoints");
        let unknown = Request::post("/getPoints", "memberID=7").key("somebody-elses");
        gate.send(&unknown).await.is_refused(401, INCORRECT_KEY);
        assert_eq!(gate.origin().asked("getPoints"), asked, "{to}: the key file is still what lets in");
        gate.get_points("bot", "7").await.is("3");
    }
    // What another origin said is not given.
    gate.get_points("bot", "7").await.is("3").is_hit();
    let other = ScriptedOrigin::start(1).await;
    other.put_points("7", 222);
    gate.world().write("gateway.toml", original.replace(&gate.origin().url(), &other.url()));
    let is_reloaded = async || gate.stderr().matches("configuration reloaded").count() == 4;
    eventually(PATIENCE, "it is reloaded", is_reloaded).await;
    gate.get_points("bot", "7").await.is("222");
}
