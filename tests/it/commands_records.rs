//! Contract section 2: `guild`, `member`, `warn`, `review`. What they list, add, refuse and remove is tested beside the
//! commands.

use crate::support::*;

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
