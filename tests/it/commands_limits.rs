//! Contract section 2, `limits plan` and `limits suggest`, and what they read: `log.decisions`.

use std::os::unix::fs::PermissionsExt;

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

#[tokio::test]
async fn the_record_that_the_configuration_names_is_planned_with_keys_have_names_and_kill_9_loses_a_second_at_most() {
    let gate = recording_gateway().set("limits.strangers.rate", r#""1/h""#).set("limits.strangers.burst", "3");
    let mut gate = gate.start().await;
    let (slow, bot) = (gate.key_id("slow"), gate.key_id("bot"));
    assert_eq!(send_reads(&gate, "bot", 5).await, (5, 0));
    let is_recorded = async || !gate.world().read("d.log").is_empty();
    eventually(PATIENCE, "the first decisions are recorded", is_recorded).await;
    let suggested = gate.run(&["limits", "suggest"]).done().stdout;
    assert!(suggested.starts_with("# 5 decisions of 1 key from "), "{suggested}");
    assert_eq!(send_reads(&gate, "slow", 8).await, (8, 0));
    let mut connection = gate.connect().await;
    let mut codes = Vec::new();
    for _ in 0..10 {
        codes.push(connection.ask(&Request::post("/getPoints", "memberID=7").key("a wrong key")).await.code().unwrap());
    }
    assert_eq!(codes, [vec![2; 3], vec![12; 7]].concat());
    assert_eq!(gate.stop().await, Some(0));
    assert!(!gate.world().decisions("d.log").contains("127.0.0.1"));

    let tight = new_config(gate.world(), "[limits.tiers.slow]\nrate = \"1/h\"\nburst = 5\n");
    let strangers = "7 requests without a good key were over limits.strangers, and were not replayed";
    // Exit 3, and who would be refused when.
    let ran = gate.run(&["limits", "plan", &tight]).failed(3).names(&["would refuse 3 requests"]);
    let line = ran.stdout.lines().find(|line| line.starts_with(&slow)).unwrap_or_else(|| panic!("{ran:#?}"));
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(cells[1..7], ["slow", "slow", "8", "0", "3", "3"], "its name and its tier: {ran:#?}");
    assert!(ran.stdout.contains("13 decisions of 2 keys from 2") && ran.stdout.contains(strangers), "{ran:#?}");
    let suggested = gate.run(&["limits", "suggest"]).done();
    let line = suggested.stdout.lines().find(|line| line.contains(&bot)).unwrap();
    assert_eq!(line.split_whitespace().nth(2), Some("bot"), "{suggested:#?}");
    assert!(suggested.stdout.contains(strangers), "{suggested:#?}");
    for args in [&["limits", "suggest", "--json"][..], &["limits", "plan", &tight, "--json"]] {
        let ran = gate.run(args).names(&[strangers]);
        let rows = ran.list();
        let slows = rows.iter().find(|row| row["key"] == slow).unwrap_or_else(|| panic!("{ran:?}"));
        assert_eq!(slows["name"], "slow", "{rows:?}");
    }
    // A record from elsewhere is read without a store.
    let elsewhere = World::plain();
    elsewhere.write("d.log", gate.world().read("d.log"));
    let suggested = elsewhere.run(&["limits", "suggest", "--log", "d.log"]).done().names(&["by their ids alone"]);
    assert!(suggested.stdout.contains(&bot) && !suggested.stdout.contains("bot"), "{suggested:#?}");
    assert!(!elsewhere.path("guildgate.db").exists(), "a command that reads makes no store");
    kill_9_loses_a_second_at_most_and_the_next_run_goes_on_in_the_same_file(gate).await;
}

async fn kill_9_loses_a_second_at_most_and_the_next_run_goes_on_in_the_same_file(mut gate: TestGateway) {
    std::fs::remove_file(gate.world().path("d.log")).unwrap();
    gate.restart_after_kill().await;
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

    let mode = std::fs::metadata(gate.world().path("d.log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o137, 0, "others have no business in it: {mode:o}");
}
