//! Contract section 2, `limits plan` and `limits suggest`, and what they read: `log.decisions`.

use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::support::*;

/// A gateway that records its decisions, with a key of a tier with low limits and one with high limits.
fn recording_gateway() -> Builder {
    TestGateway::builder()
        .points("7", 3)
        .set("log.decisions", r#""d.log""#)
        .set("limits.tiers.slow.rate", r#""40/s""#)
        .set("limits.tiers.slow.burst", "10")
        .set("limits.tiers.slow.write_rate", r#""10/s""#)
        .set("limits.tiers.slow.write_burst", "4")
        .set("limits.tiers.slow.daily", "60")
        .key_of_tier("slow", "slow")
        .key("bot")
}

/// The path of a new configuration with these tiers.
fn new_config(world: &World, tiers: &str) -> String {
    let path =
        world.write("new.toml", format!("[limits.tiers.standard]\nrate = \"1000000/s\"\nburst = 1000000\n{tiers}"));
    path.to_str().unwrap().to_owned()
}

/// Sends `getPoints` this many times; returns how many were accepted and how many were refused with 12.
async fn send_reads(gate: &TestGateway, key: &str, times: usize) -> (usize, usize) {
    let mut connection = gate.connect().await;
    let request = gate.request("getPoints", key, "memberID=7");
    let mut counts = (0, 0);
    for _ in 0..times {
        match connection.ask(&request).await.status {
            200 => counts.0 += 1,
            429 => counts.1 += 1,
            other => panic!("{other}"),
        }
    }
    counts
}

/// Waits until the record contains a key's id, about a second after its first request.
async fn wait_until_recorded(gate: &TestGateway, id: &str) {
    let holds = || async { gate.world().decisions("d.log").contains(id) };
    eventually(PATIENCE, "the key's id in the record", holds).await;
}

#[tokio::test]
async fn a_plan_exits_with_3_and_names_who_would_be_refused_when() {
    let mut gate = recording_gateway().start().await;
    let (slow, bot) = (gate.key_id("slow"), gate.key_id("bot"));
    assert_eq!(send_reads(&gate, "slow", 8).await, (8, 0));
    assert_eq!(send_reads(&gate, "bot", 20).await, (20, 0));
    assert_eq!(gate.stop().await, Some(0));
    let tight = new_config(gate.world(), "[limits.tiers.slow]\nrate = \"1/h\"\nburst = 5\n");
    let ran = gate.run(&["limits", "plan", &tight, "--log", "d.log"]).failed(3).names(&["would refuse 3 requests"]);
    let line = ran.stdout.lines().find(|line| line.starts_with(&slow)).unwrap_or_else(|| panic!("{ran:#?}"));
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(cells[1..7], ["slow", "slow", "8", "0", "3", "3"], "its name and its tier: {ran:#?}");
    assert!(ran.stdout.contains("28 decisions of 2 keys from 2") && !ran.stdout.contains(&bot), "{ran:#?}");
}

#[tokio::test]
async fn the_record_is_the_one_that_the_configuration_names_and_keys_have_names() {
    let mut gate = recording_gateway().start().await;
    send_reads(&gate, "bot", 5).await;
    assert_eq!(gate.stop().await, Some(0));
    let id = gate.key_id("bot");
    let suggested = gate.run(&["limits", "suggest"]).done();
    assert!(suggested.stdout.starts_with("# 5 decisions of 1 key"), "{suggested:#?}");
    let line = suggested.stdout.lines().find(|line| line.contains(&id)).unwrap();
    assert_eq!(line.split_whitespace().nth(2), Some("bot"), "{suggested:#?}");
    let tight = gate.world().write("tight.toml", "[limits.tiers.standard]\nrate = \"1/h\"\nburst = 1\n");
    let planned = gate.run(&["limits", "plan", tight.to_str().unwrap()]).failed(3);
    assert!(planned.stdout.lines().any(|line| line.starts_with(&format!("{id}  bot  "))), "{planned:#?}");
    for args in [&["limits", "suggest", "--json"][..], &["limits", "plan", tight.to_str().unwrap(), "--json"]] {
        let rows = gate.run(args).list();
        assert_eq!((&rows[0]["key"], &rows[0]["name"]), (&id.as_str().into(), &"bot".into()), "{rows:?}");
    }
    // A record from elsewhere is read without a store.
    let elsewhere = World::plain();
    elsewhere.write("d.log", gate.world().read("d.log"));
    let suggested = elsewhere.run(&["limits", "suggest", "--log", "d.log"]).done().names(&["by their ids alone"]);
    assert!(suggested.stdout.contains(&id) && !suggested.stdout.contains("bot"), "{suggested:#?}");
    assert!(!elsewhere.path("guildgate.db").exists(), "a command that reads makes no store");
}

#[tokio::test]
async fn the_first_decisions_of_a_server_are_waited_for() {
    let gate = recording_gateway().start().await;
    send_reads(&gate, "bot", 5).await;
    let suggested = gate.run(&["limits", "suggest"]).done();
    assert!(suggested.stdout.contains(" of 1 key from "), "{suggested:#?}");
}

#[tokio::test]
async fn strangers_who_are_refused_are_counted_without_their_address() {
    let gate = recording_gateway().set("limits.strangers.rate", r#""1/h""#).set("limits.strangers.burst", "3");
    let mut gate = gate.start().await;
    send_reads(&gate, "bot", 2).await;
    let mut connection = gate.connect().await;
    let mut codes = Vec::new();
    for _ in 0..10 {
        codes.push(connection.ask(&Request::post("/getPoints", "memberID=7").key("a wrong key")).await.code().unwrap());
    }
    assert_eq!(codes, [vec![2; 3], vec![12; 7]].concat());
    assert_eq!(gate.stop().await, Some(0));
    let words = "7 requests without a good key were over limits.strangers, and were not replayed";
    let own = gate.world().path("gateway.toml");
    let own = own.to_str().unwrap();
    let plan = gate.run(&["limits", "plan", own]).done();
    assert!(plan.stdout.contains(words) && plan.stdout.contains("2 decisions of 1 key"), "{plan:#?}");
    let suggest = gate.run(&["limits", "suggest"]).done();
    assert!(suggest.stdout.contains(words), "{suggest:#?}");
    for args in [&["limits", "plan", own, "--json"][..], &["limits", "suggest", "--json"]] {
        let ran = gate.run(args).done().names(&[words]);
        assert_eq!(ran.list().len(), usize::from(args[1] == "suggest"), "{ran:#?}");
    }
    assert!(!gate.world().decisions("d.log").contains("127.0.0.1"));
}

#[test]
fn bad_usage_and_a_bad_config_exit_with_2() {
    let world = World::plain();
    world.write("d.log", "");
    let bad = world.write("bad.toml", "[limits.tiers.standard]\nrate = \"fast\"\n");
    let bad = bad.to_str().unwrap();
    world.run(&["limits", "plan", bad, "--log", "d.log"]).failed(2).names(&["bad.toml:2:8", "rate"]);
    world.run(&["limits", "plan", "none.toml", "--log", "d.log"]).failed(2).names(&["none.toml"]);
    world.run(&["limits", "plan", bad]).failed(2).names(&["--log"]);
    world.run(&["limits", "plan", "--log", "d.log"]).failed(2).names(&["NEW"]);
    world.run(&["limits", "suggest"]).failed(2).names(&["--log", "log.decisions"]);
    world.run(&["limits"]).failed(2);
}

#[test]
fn what_is_no_record_exits_with_1_and_says_what_it_is() {
    let world = World::plain();
    let path = |name: &str| world.path(name).to_str().unwrap().to_owned();
    for (file, words) in [
        ("none.log", &["none.log: No such file"][..]),
        ("gateway.toml", &["gateway.toml is no record of decisions", "log.decisions"]),
        ("", &["is no file"]),
    ] {
        world.run(&["limits", "plan", &path("gateway.toml"), "--log", &path(file)]).failed(1).names(words);
        world.run(&["limits", "suggest", "--log", &path(file)]).failed(1).names(words);
    }
}

#[test]
fn an_empty_record_is_said_and_is_no_success() {
    let world = World::plain();
    let config = world.path("gateway.toml");
    let log = world.write("d.log", "");
    let (config, log) = (config.to_str().unwrap(), log.to_str().unwrap());
    let ran = world.run(&["limits", "plan", config, "--log", log]).failed(1).names(&["nothing to plan with"]);
    assert!(ran.stderr.contains("no decision is recorded in") && ran.stderr.contains("within a second"), "{ran:#?}");
    assert!(ran.stdout.contains("There are no decisions, so nothing is known"), "{ran:#?}");
    assert!(world.run(&["limits", "suggest", "--log", log, "--json"]).done().list().is_empty());
    let ran = world.run(&["limits", "suggest", "--log", log]).failed(1).names(&["nothing to suggest from"]);
    assert_eq!(ran.stdout, "", "a redirected file holds no half section");
}

#[tokio::test]
async fn kill_9_loses_a_second_at_most_and_the_next_run_goes_on_in_the_same_file() {
    let mut gate = recording_gateway().start().await;
    let new = new_config(gate.world(), "");
    send_reads(&gate, "bot", 30).await;
    eventually(PATIENCE, "all of them are recorded", || async {
        gate.run(&["limits", "plan", &new, "--log", "d.log"]).stdout.contains("30 decisions of 1 key")
    })
    .await;
    gate.process().kill_hard();
    // As if it had been killed within a write.
    let mut bytes = gate.world().read("d.log");
    bytes.extend_from_within(..50);
    gate.world().write("d.log", bytes);
    let ran = gate.run(&["limits", "plan", &new, "--log", "d.log"]).done();
    assert!(ran.stderr.contains("50 bytes of") && ran.stderr.contains("d.log are damaged"), "{ran:#?}");
    assert!(ran.stdout.contains("30 decisions of 1 key"), "{ran:#?}");

    gate.restart_after_kill().await;
    send_reads(&gate, "bot", 12).await;
    assert_eq!(gate.stop().await, Some(0));
    let ran = gate.run(&["limits", "plan", &new, "--log", "d.log"]).done();
    assert!(ran.stdout.contains("42 decisions of 1 key") && ran.stderr.contains("50 bytes of"), "{ran:#?}");
}

#[tokio::test]
async fn others_may_not_read_a_record_and_what_is_none_is_left_alone() {
    use std::os::unix::fs::PermissionsExt;
    let mut gate = recording_gateway().start().await;
    let mode = std::fs::metadata(gate.world().path("d.log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o137, 0, "others have no business in it: {mode:o}");
    assert_eq!(gate.stop().await, Some(0));
    gate.world().write("d.log", "somebody's notes");
    let mut second = gate.world().serve(&[]);
    assert_eq!(second.exit().await, Some(2));
    assert!(second.stderr().contains("d.log is no record of decisions"), "{}", second.stderr());
}

#[tokio::test]
async fn a_record_moved_away_is_begun_again() {
    let mut gate = recording_gateway().start().await;
    let id = gate.key_id("bot");
    send_reads(&gate, "bot", 3).await;
    wait_until_recorded(&gate, &id).await;
    let (path, moved) = (gate.world().path("d.log"), gate.world().path("moved.log"));
    std::fs::rename(&path, &moved).unwrap();
    send_reads(&gate, "bot", 4).await;
    assert_eq!(gate.stop().await, Some(0));
    let new = new_config(gate.world(), "");
    let planned = |files: &[&PathBuf]| {
        let mut args = vec!["limits", "plan", &new];
        files.iter().for_each(|file| args.extend(["--log", file.to_str().unwrap()]));
        gate.run(&args).done().stdout
    };
    assert!(planned(&[&path]).contains("4 decisions of 1 key"));
    assert!(planned(&[&moved, &path]).contains("7 decisions of 1 key"));
}

#[tokio::test]
async fn a_full_disk_costs_decisions_which_are_counted_and_no_answer() {
    let builder = TestGateway::before_http().points("7", 3).set("log.decisions", r#""d.log""#).key("bot");
    let (world, _origin, secrets) = builder.prepare().await;
    // A soft limit on files as a disk that is full at 512 bytes, told by an error and not by a signal.
    let script = "trap '' XFSZ; ulimit -S -f 1; exec \"$0\" serve";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_guildgate")]).current_dir(world.path(""));
    let mut process = Process::start(&mut shell);
    let mut connection = Connection::to(process.ready().await).await;
    let request = Request::post("/getPoints", "memberID=7").key(&secrets["bot"]);
    for _ in 0..400 {
        connection.ask(&request).await.is("3");
    }
    let said = "the decision record cannot be written";
    process.has_said(said).await;
    let id = i32::try_from(process.id()).unwrap();
    rlimit::prlimit(id, rlimit::Resource::FSIZE, Some((rlimit::INFINITY, rlimit::INFINITY)), None).unwrap();
    connection.ask(&request).await.is("3");
    let said = "the decision record is written again";
    process.has_said(said).await;
    process.signal(Signal::SIGTERM);
    assert_eq!(process.exit().await, Some(0));
    assert_eq!(process.stderr().matches("the decision record cannot be written").count(), 1, "said once");

    let ran = world.run(&["limits", "suggest", "--log", "d.log"]).done();
    let number = |word: &str| -> u64 {
        let before = ran.stdout.split(word).next().unwrap();
        before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap_or_else(|_| panic!("{ran:#?}"))
    };
    let (recorded, lost) = (number(" decision"), number(" decisions were not recorded"));
    assert_eq!(recorded + lost, 401, "{ran:#?}");
    assert!(lost > 100, "{lost}");
}
