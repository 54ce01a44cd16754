//! Contract section 2: no command fails because the reader of its output closes it early, as `| head` does. And `key`: what
//! it lists, makes and refuses is tested beside the command.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;

use crate::support::*;

/// Runs a command whose stdout is closed at its other end.
fn run_unread(world: &World, args: &[&str], input: &str) -> Ran {
    let stdin = File::open(world.write("stdin", input)).unwrap();
    Ran::unread(world.command(args).arg("--config").arg(world.path("gateway.toml")), stdin)
}

/// A gateway that was stopped, with records of each kind in its store.
async fn stopped_gateway() -> TestGateway {
    let mut gate = TestGateway::builder().key("bot").points("7", 3).set("log.decisions", r#""d.log""#).start().await;
    for _ in 0..3 {
        gate.get_points("bot", "7").await.is("3");
    }
    keys_are_shown_once_and_the_stores_files_are_for_their_owner_only(&gate).await;
    assert_eq!(gate.stop().await, Some(0));
    let of = ["--guild", GUILD, "--member", "7", "--author", "Mod"];
    gate.run(&[&["warn", "add"], &of[..], &["--reason", "spam", "--expires", "90d"]].concat()).done();
    gate.run(&[&["review", "add"], &of[..], &["--rating", "5", "--text", "kind"]].concat()).done();
    let member = |m| format!("{{\"guild\":\"{GUILD}\",\"member\":\"{m}\",\"name\":\"Ada\",\"points\":{m}}}\n");
    gate.world().import(&(0..5_000).map(member).collect::<String>()).done();
    gate
}

/// A key is alone on stdout, and one that is typed where an id belongs is not shown.
fn a_key_is_shown_once(world: &World) {
    let created = world.run(&["key", "create", "--guild", GUILD, "--name", "a"]).done();
    let secret = created.stdout.trim_end_matches('\n');
    assert!(secret.len() == 52 && secret.starts_with("gg_"), "{created:?}");
    for args in [
        vec!["key", "show", secret],
        vec!["key", "revoke", secret],
        vec!["key", "rotate", secret],
        vec!["key", "set", secret, "--name", "b"],
        vec!["key", "create", "--guild", secret],
        vec!["key", "create", "--guild", GUILD, "--tier", secret],
        vec!["key", "create", "--guild", GUILD, "--scope", secret],
        vec!["guild", "leave", secret],
        vec![secret],
    ] {
        let ran = world.run(&args).refused();
        assert!(!format!("{}{}", ran.stdout, ran.stderr).contains(&secret[3..]), "{ran:?}");
        assert!(ran.stderr.contains("gg_…"), "{args:?}: {ran:?}");
    }
    // Stdin is read where a key is asked for.
    let hash = world.run_with_input(&["key", "hash"], &created.stdout).done();
    assert_eq!(hash.stdout.trim_end(), digest(secret));
    let found = world.run_with_input(&["key", "find"], &created.stdout).done();
    assert!(found.stdout.contains(GUILD), "{found:?}");
    world.run_with_input(&["key", "find"], "another").failed(1).names(&["no key has this secret"]);
}

async fn keys_are_shown_once_and_the_stores_files_are_for_their_owner_only(gate: &TestGateway) {
    a_key_is_shown_once(gate.world());
    assert_eq!(gate.set_points("bot", "7", 1).await.status, 200);
    let told = async || gate.run(&["key", "list", "--json"]).done().list().iter().any(|key| key["last_used"].is_i64());
    eventually(PATIENCE, "last_used is told", told).await;
    let text = gate.run(&["key", "list"]).done().stdout;
    assert!(text.contains("never") && text.contains("Z  bot"), "{text}");
    let mut checked = 0;
    for (path, _) in gate.world().files() {
        if path.file_name().unwrap().to_string_lossy().starts_with("guildgate.db") {
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
            checked += 1;
        }
    }
    assert!(checked > 0);
}

#[tokio::test]
async fn keys_are_shown_once_and_a_reader_that_closes_the_output_makes_no_command_fail_and_a_full_disk_does() {
    let gate = stopped_gateway().await;
    let world = gate.world();
    a_full_disk_behind_the_output_is_a_failure(world);
    exit_codes(world);
    let id = world.run(&["key", "list", "--json"]).done().list()[0]["id"].as_str().unwrap().to_owned();
    let new = world.write("new.toml", "");
    let (new, in_guild) = (new.to_str().unwrap(), ["--guild", GUILD]);
    world.write("in.jsonl", format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n"));
    let note = ["--guild", GUILD, "1"];
    let of_guild = |command: &[&'static str]| [command, &in_guild[..]].concat();
    let commands: Vec<Vec<&str>> = vec![
        vec!["--help"],
        vec!["schema"],
        vec!["man"],
        vec!["completions", "bash"],
        vec!["check"],
        vec!["guild", "list"],
        vec!["guild", "list", "--json"],
        vec!["key", "list"],
        vec!["key", "list", "--json"],
        vec!["key", "show", &id],
        vec!["key", "show", &id, "--json"],
        vec!["key", "hash"],
        of_guild(&["member", "list"]),
        of_guild(&["member", "list", "--json"]),
        [&of_guild(&["member", "show"])[..], &["--member", "7"]].concat(),
        of_guild(&["warn", "list"]),
        [&["warn", "show"], &note[..]].concat(),
        of_guild(&["review", "list"]),
        [&["review", "show", "--json"], &note[..]].concat(),
        vec!["export", "-"],
        vec!["export", "out.jsonl"],
        vec!["import", "in.jsonl"],
        vec!["store", "backup", "b.db"],
        vec!["store", "verify"],
        vec!["limits", "suggest", "--log", "d.log"],
        vec!["limits", "suggest", "--log", "d.log", "--json"],
        vec!["limits", "plan", new, "--log", "d.log"],
        vec!["guild", "remove", GUILD, "--yes"],
    ];
    for args in commands {
        let ran = run_unread(world, &args, "another service's key\n");
        assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{args:?}: {ran:#?}");
    }
    assert!(world.run(&["guild", "list", "--json"]).done().list().is_empty(), "the guild was removed");
}

/// An exit code does not depend on how much of the output is read.
fn exit_codes(world: &World) {
    let tight = world.write("tight.toml", "[limits.tiers.standard]\nrate = \"1/h\"\nburst = 1\n");
    let plan = ["limits", "plan", tight.to_str().unwrap(), "--log", "d.log"];
    run_unread(world, &plan, "").failed(3).names(&["would refuse 3 requests"]);
    // A key that was not printed has to be revoked.
    let ran = run_unread(world, &["key", "create", "--guild", GUILD], "").failed(1).names(&["key revoke"]);
    let made = world.run(&["key", "list", "--json"]).done().list();
    assert!(made.iter().any(|key| ran.stderr.contains(key["id"].as_str().unwrap())), "{ran:#?}");
    // A damaged store is reported even if nobody reads what is wrong.
    let mut bytes = world.read("guildgate.db");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0x55);
    world.write("damaged.db", bytes);
    run_unread(world, &["store", "verify", "damaged.db"], "").failed(1).names(&["wrong with damaged.db"]);
}

fn a_full_disk_behind_the_output_is_a_failure(world: &World) {
    for args in
        [&["--help"][..], &["--version"], &["guild", "--help"], &["schema"], &["man"], &["check"], &["guild", "list"]]
    {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ran = world.command(args).stdout(full).output().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("the output cannot be written: No space left on device"), "{args:?}: {said}");
    }
}
