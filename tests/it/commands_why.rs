//! `guildgate why`: one request explained from the access log.

use std::process::Command;

use serde_json::Value;

use crate::support::*;

fn id_of(answer: &Answer) -> String {
    answer.header("x-request-id").unwrap().to_owned()
}

/// A gateway that writes its access log to a file.
fn logged(builder: Builder) -> Builder {
    builder.set("log.access", r#""access.log""#).key("bot").points("7", 3)
}

/// What `why` says, and that it says no key.
#[track_caller]
fn explained(gate: &TestGateway, id: &str) -> String {
    let ran = gate.run(&["why", id]).done();
    assert!(!ran.stdout.contains(gate.secret("bot")) && !ran.stdout.contains("gg_"), "{ran:?}");
    ran.stdout
}

#[track_caller]
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not said:\n{text}");
    }
}

/// The line of gateway.toml that begins so, as `gateway.toml:37`.
fn place(gate: &TestGateway, section: &str, name: &str) -> String {
    let toml = gate.world().text("gateway.toml");
    let section = toml.lines().position(|line| line == format!("[{section}]")).unwrap();
    let within = toml.lines().skip(section).position(|line| line.starts_with(&format!("{name} = "))).unwrap();
    format!("gateway.toml:{}", section + within + 1)
}

#[tokio::test]
async fn a_request_is_explained_with_its_key_limit_cache_and_answer_wherever_its_log_is() {
    for format in ["text", "json"] {
        let mut gate = logged(TestGateway::builder())
            .key_of_tier("slow", "free")
            .set("limits.tiers.free.rate", r#""1/m""#)
            .set("limits.tiers.free.burst", "1")
            .set("log.format", &format!("{format:?}"))
            .start()
            .await;
        gate.get_points("slow", "7").await.is("3");
        let refused = gate.get_points("slow", "7").await;
        assert_eq!(refused.code(), Some(12));
        let id = id_of(&refused);
        let miss = id_of(&gate.get_points("bot", "8").await);
        let hit = id_of(&gate.get_points("bot", "8").await);
        let unknown = id_of(&gate.send(&Request::post("/getPoints", "memberID=7").key("a wrong key")).await);
        let nowhere = id_of(&gate.send(&Request::post("/nothing", "")).await);
        gate.has_logged("access.log", "the last request", |line| line.contains(&nowhere)).await;
        let said = explained(&gate, &id);
        says(
            &said,
            &[
                "the address 127.0.0.1 sent getPoints.",
                &format!("Its key was {}, named \"slow\", of guild {GUILD}. Its tier was free.", gate.key_id("slow")),
                "It was over the limit `rate` of its tier, which is why it was refused.",
                "with a burst of 1 now",
                &place(&gate, "limits.tiers.free", "rate"),
                "`12 | Too many requests! Try again in N s.` with status 429",
                "Retry-After",
            ],
        );
        assert!(!said.contains("has changed since") && !said.contains(gate.secret("slow")), "{said}");
        let object: Value = serde_json::from_str(&gate.run(&["why", "--json", &id]).done().stdout).unwrap();
        assert_eq!((&object["request_id"], &object["limit"]["name"]), (&id.as_str().into(), &"rate".into()));
        assert_eq!((&object["key_name"], &object["guild"]), (&"slow".into(), &GUILD.into()));
        assert_eq!((&object["config_changed"], &object["code"]), (&false.into(), &12.into()));
        assert_eq!(object["sentences"].as_array().unwrap().len(), said.lines().count());
        assert_eq!(gate.stop().await, Some(0));

        says(&explained(&gate, &miss), &["The cache had no answer, so the origin was asked."]);
        says(
            &explained(&gate, &hit),
            &["The answer came from the cache.", "The caller got the answer with status 200"],
        );
        let said = explained(&gate, &unknown);
        let accepted =
            ["Its API key was not accepted.", "`02 | Incorrect API key!` with status 401", "without `Bearer `"];
        says(&said, &accepted);
        assert!(!said.contains("a wrong key"), "{said}");
        says(&explained(&gate, &nowhere), &["a request that named no operation", "10 | Unknown operation!"]);
        wherever_its_log_is(gate.world(), &hit);
        if format == "text" {
            a_change_since_is_named(&gate, &hit);
        }
    }
}

/// The log before is searched too, and files that are named, even gzipped, and a log that is piped in, whatever precedes its
/// lines.
fn wherever_its_log_is(world: &World, id: &str) {
    let log = world.text("access.log");
    let gone = "\u{1b}[31mgone";
    std::fs::rename(world.path("access.log"), world.path("access.log.1")).unwrap();
    world.write("access.log", "");
    says(&world.run(&["why", id]).done().stdout, &["sent getPoints"]);
    let ran = world.run(&["why", gone]).failed(1).names(&["[31mgone", "access.log, ", "access.log.1", "X-Request-Id"]);
    assert!(!ran.stderr.contains('\u{1b}'), "{ran:?}");
    assert!(Command::new("gzip").arg(world.path("access.log.1")).status().unwrap().success());
    let whole = world.read("access.log.1.gz");
    world.write("twice.gz", [&*whole, &whole].concat());
    says(&world.run(&["why", id, "access.log", "twice.gz"]).done().stdout, &["sent getPoints"]);
    world.write("cut.gz", &whole[..whole.len() - 12]);
    let ran = world.run(&["why", gone, "cut.gz"]).failed(1).names(&["cut.gz cannot be read: "]);
    assert!(ran.stdout.is_empty(), "{ran:?}");

    let prefixed = |line: &str| format!("Nov 22 15:50:33 host guildgate[7]: {line}\n");
    let journal: String = log.lines().map(prefixed).collect();
    says(&world.run_with_input(&["why", id, "-"], &journal).done().stdout, &["sent getPoints", "named \"bot\""]);
    world.edit("gateway.toml", r#"access = "access.log""#, r#"access = "stderr""#);
    says(&world.run_with_input(&["why", id], &journal).done().stdout, &["sent getPoints"]);
    world.run(&["why", id]).failed(1).names(&["log.access is no file", "journalctl"]);
    world.edit("gateway.toml", r#"access = "stderr""#, r#"access = """#);
    world.run(&["why", id]).failed(1).names(&["log.access is \"\"", "set it to a path"]);
    world.edit("gateway.toml", r#"access = """#, r#"access = "access.log""#);
    world.write("access.log", log);
}

/// A configuration that has changed since and a key that is gone are named.
fn a_change_since_is_named(gate: &TestGateway, id: &str) {
    let toml = gate.world().text("gateway.toml");
    // Neither a comment nor the folder in which it is read makes it another one.
    gate.world().write("gateway.toml", format!("# a comment\n{toml}"));
    let ran = Ran::of(&mut gate.world().command(&["why", id]), "").done();
    assert!(!ran.stdout.contains("has changed since"), "{ran:?}");
    gate.world().write("gateway.toml", toml.replace("burst = 1000000", "burst = 999999"));
    let key = gate.key_id("bot");
    gate.run(&["key", "revoke", &key]).done();
    let gone = format!("{key}, which is not listed any more");
    says(&explained(gate, id), &["The configuration has changed since", &gone]);
}

#[tokio::test]
async fn the_upstream_that_was_asked_is_named_with_its_time() {
    let mut gate = logged(TestGateway::before_http()).set("origin.retries", "0").start().await;
    let miss = id_of(&gate.get_points("bot", "7").await);
    let write = id_of(&gate.set_points("bot", "7", 4).await);
    gate.origin().next("getWarns", Act::say(200, "nonsense"));
    let unusable = id_of(&gate.get_warns("bot", "7").await);
    let url = gate.origin().url();
    gate.origin_mut().refuse().await;
    let away = gate.get_reviews("bot", "7").await;
    assert_eq!(away.code(), Some(21));
    assert_eq!(gate.stop().await, Some(0));
    let took = format!("The upstream {url} took ");
    says(&explained(&gate, &miss), &[&took, &format!("bot, of guild {GUILD}"), "so the origin was asked"]);
    says(&explained(&gate, &write), &[&took, "It was a write, which the cache never answers"]);
    says(&explained(&gate, &unusable), &[&took, "20 | The service gave no usable answer."]);
    let unreached = format!("The upstream {url} could not be reached: connection refused.");
    says(&explained(&gate, &id_of(&away)), &[&unreached, "21 | The service is not available.", "status 503"]);
}

#[tokio::test]
async fn a_request_whose_line_is_not_written_yet_is_waited_for_and_nothing_is_printed_raw() {
    nothing_is_printed_raw();
    let world = World::new("[log]\naccess = \"access.log\"\n");
    let log =
        world.write("access.log", "2026-09-21T14:13:20.122Z 10.0.0.1 - 404 10 key=- cache=- took_us=9 id=older\n");
    let mut why = Process::start(&mut world.command(&["why", "newest"]));
    eventually(PATIENCE, "it waits", || async { why.all_threads_wait() }).await;
    let line = "2026-09-21T14:13:20.123Z 10.0.0.1 - 404 10 key=- cache=- took_us=9 id=newest\n";
    std::io::Write::write_all(&mut std::fs::File::options().append(true).open(log).unwrap(), line.as_bytes()).unwrap();
    assert_eq!(why.exit().await, Some(0), "{}", why.stderr());
    assert!(why.stdout().starts_with("At 2026-09-21T14:13:20.123Z "), "{}", why.stdout());
}

/// What a log says is never printed raw.
fn nothing_is_printed_raw() {
    let world = World::plain();
    let nasty = "\u{1b}]0;owned\u{7}";
    let text = format!(
        "{nasty} 2026-09-21T14:13:20.123Z 10.0.0.1 - 404 10 key={nasty} cache=- took_us=9 id=abc \
         tier={nasty} upstream=\"{nasty} {nasty}\" config=0123456789ab\n"
    );
    let json = serde_json::json!({"time": "2026-09-21T14:13:20.123Z", "client": "10.0.0.1", "operation": null, "status": 200, "code": null,
        "key": nasty, "cache": null, "over_limit": nasty, "over_candidate": true, "took_us": 1, "request_id": "abc",
        "tier": nasty, "upstream": nasty, "upstream_us": 1});
    for log in [text, json.to_string()] {
        for args in [&["why", "abc", "-"][..], &["why", "abc", "-", "--json"]] {
            let ran = world.run_with_input(args, &log).done();
            let said = ran.stdout.strip_suffix('\n').unwrap().to_owned() + &ran.stderr;
            assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{said:?}");
            assert!(said.contains("owned"), "{said}");
        }
    }
}
