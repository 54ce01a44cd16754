//! Contract section 2: `guild`, `member`, `warn`, `review`. What they list, add and remove is tested beside the commands.

use serde_json::Value;

use crate::support::*;

fn world() -> World {
    let world = World::plain();
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    world
}

#[test]
fn what_is_no_guild_member_or_note_is_refused_and_changes_nothing() {
    let world = world();
    let of = ["--guild", GUILD, "--member", "7"];
    let warn = ["warn", "add", "--author", "Mod", "--reason", "spam"];
    let review = ["review", "add", "--author", "Bo", "--text", "kind"];
    for args in [
        vec!["guild", "add", "", "--name", "N"],
        vec!["guild", "add", "two words", "--name", "N"],
        vec!["guild", "add", &"9".repeat(65), "--name", "N"],
        vec!["guild", "leave", "404404"],
        vec!["member", "set", "--guild", "404404", "--member", "7", "--points", "1"],
        vec!["member", "set", "--guild", GUILD, "--member", "-7", "--points", "1"],
        vec!["member", "set", "--guild", GUILD, "--member", "9223372036854775808", "--points", "1"],
        [&["member", "set"], &of[..], &["--points", "many"]].concat(),
        [&["member", "remove"], &of[..]].concat(),
        [&warn[..], &of, &["--expires", "some day"]].concat(),
        [&review[..], &of, &["--rating", "6"]].concat(),
        [&review[..], &of, &["--rating", "4.5"]].concat(),
        vec!["warn", "remove", "--guild", GUILD, "17"],
        vec!["review", "remove", "--guild", GUILD, "x"],
    ] {
        world.run(&args).refused();
    }
    let exported = world.run(&["export", "-"]).done().stdout;
    assert_eq!(exported, format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n"));
}

/// The date of a time, as `jiff` writes it.
fn date(unix: i64) -> String {
    jiff::Timestamp::from_second(unix).unwrap().to_string()
}

#[test]
fn an_expiry_is_a_duration_a_day_a_time_or_unix_seconds_and_in_the_future() {
    let world = world();
    let add = |expires: &str| {
        let args = ["warn", "add", "--guild", GUILD, "--member", "7", "--author", "Mod", "--reason", "spam"];
        world.run(&[&args[..], &["--expires", expires]].concat())
    };
    let ends = [
        ("2100-12-24", 4_133_289_600),
        ("2100-12-24T18:00:00Z", 4_133_354_400),
        ("2100-12-24T19:00:00+01:00", 4_133_354_400),
        ("4133289601", 4_133_289_601),
    ];
    for (expires, _) in ends {
        add(expires).done();
    }
    let now = unix_now();
    add("90d").done();
    let warns = || world.run(&["warn", "list", "--guild", GUILD, "--json"]).done().list();
    let stored: Vec<i64> = warns().iter().map(|warn| warn["expires"].as_i64().unwrap()).collect();
    assert_eq!(stored[..4], ends.map(|(_, unix)| unix));
    assert!((0..60).contains(&(stored[4] - now - 90 * 86_400)), "{stored:?}");
    let listed = world.run(&["warn", "list", "--guild", GUILD]).done().stdout;
    for unix in stored {
        assert!(listed.contains(&date(unix)) && !listed.contains(&unix.to_string()), "{listed}");
    }
    let past = now - 5;
    for expires in ["2020-01-01", "2020-01-01T00:00:00Z", "0s", "1", &past.to_string()] {
        add(expires).failed(1).names(&["not in the future"]);
    }
    add(&past.to_string()).names(&[&date(past)]);
    for expires in ["2100-13-01", "2100-02-30", "24.12.2100", "2100-12-24T18:00:00", "soon"] {
        add(expires).failed(2).names(&["90d", "2026-12-24", "2026-12-24T18:00:00Z", "Unix seconds"]);
    }
    assert_eq!(warns().len(), 5);
}

#[test]
fn one_member_warn_or_review_is_shown_to_people_or_as_an_object() {
    let world = world();
    world.run(&["member", "set", "--guild", GUILD, "--member", "007", "--name", "Ada", "--points", "-5"]).done();
    let of = ["--guild", GUILD, "--member", "7", "--author", "Mod"];
    world.run(&[&["warn", "add"], &of[..], &["--reason", "spam", "--expires", "4133289600"]].concat()).done();
    world.run(&[&["review", "add"], &of[..], &["--rating", "5", "--text", "kind"]].concat()).done();
    let member = ["member", "show", "--guild", GUILD, "--member", "7"];
    let (warn, review) = (["warn", "show", "--guild", GUILD, "1"], ["review", "show", "--guild", GUILD, "1"]);
    for (show, list, told) in [
        (&member[..], "member", &["7", "Ada", "-5"][..]),
        (&warn, "warn", &["7", "Mod", "spam", "2100-12-24T00:00:00Z"]),
        (&review, "review", &["7", "Mod", "5", "kind"]),
    ] {
        let shown = world.run(show).done().stdout;
        assert!(told.iter().all(|word| shown.contains(word)), "{shown}");
        let object: Value = serde_json::from_str(&world.run(&[show, &["--json"]].concat()).done().stdout).unwrap();
        assert_eq!(world.run(&[list, "list", "--guild", GUILD, "--json"]).done().list(), [object]);
    }
    world.run(&["member", "show", "--guild", GUILD, "--member", "8"]).failed(1).names(&["no member 8", "member list"]);
    for note in ["warn", "review"] {
        let what = format!("no {note} 2");
        world.run(&[note, "show", "--guild", GUILD, "2"]).failed(1).names(&[&what, "list"]);
        world.run(&[note, "show", "--guild", "404404", "1"]).failed(1).names(&["404404"]);
        world.run(&[note, "show", "--guild", GUILD, "x"]).failed(2).names(&["an id is a whole number"]);
    }
    world
        .run(&["member", "set", "--guild", GUILD, "--member", "7", "--points", "many"])
        .failed(2)
        .names(&["whole number"]);
}

#[test]
fn what_a_server_does_not_have_in_its_store_is_not_changed_there() {
    let http = "[origin]\nkind = \"http\"\nupstreams = [\"http://127.0.0.1:9\"]\n";
    let of = ["--guild", GUILD, "--member", "7"];
    let with = |args: &[&'static str], more: &[&'static str]| [args, &of[..], more].concat();
    let members = [
        with(&["member", "set"], &["--points", "5"]),
        with(&["warn", "add"], &["--author", "A", "--reason", "R", "--expires", "90d"]),
        with(&["review", "add"], &["--author", "A", "--rating", "5", "--text", "T"]),
        with(&["member", "show"], &[]),
    ];
    let keys = [vec!["key", "create", "--guild", GUILD], vec!["key", "list"]];

    // With the keys in it, there is a store, of guilds and keys.
    let world = World::new(http);
    world.import(&format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n")).done();
    let theirs = "members, warns and reviews are the HTTP origin's (origin.kind = \"http\"); change them there";
    for args in &members {
        world.run(args).failed(1).names(&[theirs]);
    }
    let line = format!("{{\"guild\":\"{GUILD}\",\"member\":\"7\",\"name\":\"Ada\",\"points\":5}}\n");
    world
        .import(&format!("{{\"guild\":\"1\",\"name\":\"G\"}}\n{line}"))
        .failed(1)
        .names(&[theirs, "nothing was imported"]);
    assert_eq!(world.run(&["guild", "list", "--json"]).done().list().len(), 1);
    world.run(&keys[0]).done();

    for (source, theirs) in [
        ("[keys]\nsource = \"file\"\nfile = \"keys.toml\"\n", "the keys are in the key file (keys.file)"),
        ("[keys]\nsource = \"origin\"\n", "only the origin knows the keys (keys.source = \"origin\")"),
    ] {
        let world = World::new(&format!("{http}{source}"));
        for args in &keys {
            world.run(args).failed(1).names(&[theirs]);
        }
        world.run(&["guild", "add", GUILD, "--name", "N"]).failed(1).names(&["this configuration has no store"]);
        world.import(&line).failed(1).names(&["this configuration has no store"]);
        world.run(&["limits", "reset", "k"]).failed(1).names(&["this configuration has no store"]);
        assert!(!world.path("guildgate.db").exists());
    }
    let builtin = World::new("[keys]\nsource = \"file\"\nfile = \"keys.toml\"\n");
    builtin.run(&["guild", "add", GUILD, "--name", "N"]).done();
    builtin.run(&members[0]).done();
    builtin.run(&keys[0]).failed(1).names(&["the keys are in the key file (keys.file)"]);
}
