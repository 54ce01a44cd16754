//! Contract section 2: `check`, `completions`, `man`.

use crate::support::*;

#[test]
fn an_empty_config_is_valid_and_its_defaults_are_printed() {
    let ran = World::new("").run(&["check"]).done();
    let output = ran.stdout.replace([',', '_', '\u{a0}', '\u{202f}'], "");
    assert!(output.contains("standard"), "{output}");
    // 20 a second, 40 at once: 40 + 60 * 20 in the first minute.
    for figure in ["20", "40", "1240"] {
        assert!(output.contains(figure), "{figure} is not printed:\n{output}");
    }
}

#[test]
fn every_fault_is_named_at_once_with_its_place_and_the_nearest_name() {
    let world = World::new(
        "[server]\n\
         listen = [\"127.0.0.1\"]\n\
         max_bodi = \"4KiB\"\n\
         header_timeout = \"5 parsecs\"\n\
         [limits.tiers.standard]\n\
         rate = \"20 per second\"\n\
         burts = 40\n\
         [cache.points]\n\
         ttl = 30\n\
         [lmits]\n\
         [origin]\n\
         kind = \"htp\"\n",
    );
    let ran = world.run(&["check"]).failed(2);
    let output = format!("{}{}", ran.stdout, ran.stderr);
    for (line, name) in [
        (2, "listen"),
        (3, "max_bodi"),
        (4, "header_timeout"),
        (6, "rate"),
        (7, "burts"),
        (9, "ttl"),
        (10, "lmits"),
        (12, "kind"),
    ] {
        assert!(output.contains(name), "{name} is not named:\n{output}");
        assert!(output.contains(&format!("gateway.toml:{line}:")), "line {line} ({name}) is not named:\n{output}");
    }
    for nearest in ["max_body", "burst", "limits"] {
        assert!(output.contains(nearest), "the nearest name {nearest} is not printed:\n{output}");
    }
}

#[tokio::test]
async fn a_setting_that_protects_and_cannot_take_effect_ends_check_and_serve() {
    for section in [
        "[server]\nlisten = [\"127.0.0.1:0\"]\ntls = { certificate = \"no-cert.pem\", private_key = \"no-key.pem\" }\n",
        "[server]\nlisten = [\"127.0.0.1:0\"]\n[cluster]\nredis = \"redis://127.0.0.1:1\"\n",
    ] {
        let world = World::new(section);
        let named = if section.contains("tls") { "no-cert.pem" } else { "redis" };
        let ran = world.run(&["check"]).failed(2);
        assert!(format!("{}{}", ran.stdout, ran.stderr).contains(named), "{ran:?}");
        let mut process = world.serve(&[]);
        assert_eq!(process.exit().await, Some(2), "{}", process.stderr());
    }
}

#[test]
fn a_key_whose_tier_is_gone_is_named() {
    let world = World::new("[limits.tiers.standard]\nrate = \"20/s\"\n[limits.tiers.gold]\nrate = \"100/s\"\n");
    world.run(&["guild", "add", GUILD, "--name", "N"]).done();
    world.run(&["key", "create", "--guild", GUILD, "--tier", "gold"]).done();
    let keys = world.run(&["key", "list", "--json"]).done().list();
    let id = keys[0]["id"].as_str().unwrap();
    let output = |ran: Ran| format!("{}{}", ran.stdout, ran.stderr);
    assert!(!output(world.run(&["check"]).done()).contains(id));
    world.write("gateway.toml", "[limits.tiers.standard]\nrate = \"20/s\"\n");
    let now = output(world.run(&["check"]));
    assert!(now.contains(id) && now.contains("gold"), "{now}");
}

#[test]
fn check_makes_nothing() {
    let world = World::plain();
    world.run(&["check"]).done();
    let files: Vec<_> = world.files().into_iter().map(|(path, _)| path).collect();
    assert_eq!(files, [world.path("gateway.toml")]);
}

#[test]
fn without_a_config_the_defaults_are_in_force() {
    let empty = tempfile::tempdir().unwrap();
    let world = World::plain();
    Ran::of(world.command(&["check"]).current_dir(empty.path()), "").done();
}

const PORT: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"\"\n";

#[tokio::test]
async fn what_ends_serve_for_its_configuration_ends_check_in_the_same_words() {
    let twelve = |line: &str| format!("{PORT}{line}\n");
    for (config, place) in [
        (twelve("[origin]\nstore = \"no/such/folder/guildgate.db\""), "6:9: origin.store: the folder of"),
        (twelve("[log]\naccess = \"nowhere/access.log\""), "6:10: log.access: the folder of"),
        (twelve("[log]\naccess = \".\""), "6:10: log.access: "),
        (twelve("[log]\ndecisions = \"nowhere/d.log\""), "6:13: log.decisions: the folder of"),
        ("[server]\nlisten = [\"127.0.0.1:0\", \"unix:no/g.sock\"]\n".into(), "2:26: server.listen[1]: the folder of"),
        ("[server]\nlisten = [\"unix:gateway.toml\"]\n".into(), "2:11: server.listen[0]: "),
        ("[server]\nlisten = [\"192.0.2.1:0\"]\n".into(), "2:11: server.listen[0]: "),
        (
            "[server]\nlisten = [\"127.0.0.1:0\"]\nhandover = \"no/h.sock\"\n".into(),
            "3:12: server.handover: the folder",
        ),
        ("[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\ntoken = \"file:no/token\"\n".into(), "4:9: admin.token: "),
        (twelve("[origin]\nupstreams = [\"http://127.0.0.1:1\"]"), "6:13: origin.upstreams: needs `origin.kind`"),
        (twelve("[origin]\nkind = \"http\"\nupstreams = [\"http://a/<x>\"]"), "7:14: origin.upstreams[0]: "),
        (
            twelve("[origin]\nkind = \"http\"\nupstreams = [\"http://a\"]\nhealth = { path = \"/<\" }"),
            "8:19: origin.health.path: ",
        ),
        (
            twelve("[origin]\nkind = \"http\"\nupstreams = [\"https://a\"]\ntls = { ca = \"no.pem\" }"),
            "8:14: origin.tls.ca: no.pem cannot be read",
        ),
        (
            twelve("[origin]\nstore = \"postgres://me@127.0.0.1:1/db?sslmode=verify-ca&sslrootcert=no.pem\""),
            "6:9: origin.store: sslrootcert: ",
        ),
    ] {
        let world = World::new(&config);
        let in_folder = |command: &mut std::process::Command| Ran::of(command, "");
        let checked = in_folder(&mut world.command(&["check"])).failed(2);
        let faults: Vec<_> = checked.stderr.lines().filter(|line| line.contains("gateway.toml:")).collect();
        assert!(faults.len() == 1 && faults[0].contains(&format!("gateway.toml:{place}")), "{config}\n{checked:?}");
        let served = in_folder(&mut world.command(&["serve"])).failed(2);
        assert!(served.stderr.contains(faults[0]), "{config}\n{served:?}");
        let files: Vec<_> = world.files().into_iter().map(|(path, _)| path).collect();
        assert_eq!(files, [world.path("gateway.toml")], "something was made");
    }
}

#[test]
fn a_store_that_serve_cannot_use_ends_check_at_the_setting_that_names_it() {
    type Put = fn(&World);
    let cases: [(Put, &str); 3] = [
        (|world| drop(world.write("guildgate.db", "Dear diary, today nothing")), "it is no sound store"),
        (|world| std::fs::create_dir(world.path("guildgate.db")).unwrap(), "is not a file; name a file for the store"),
        (
            |world| std::os::unix::fs::symlink("gone.db", world.path("guildgate.db")).unwrap(),
            "No such file or directory",
        ),
    ];
    for (put, what) in cases {
        for (setting, place) in [("[origin]\nstore = \"guildgate.db\"\n", "6:9"), ("", "1:1")] {
            let world = World::new(&format!("{PORT}{setting}"));
            put(&world);
            let before = world.files();
            let here = format!("gateway.toml:{place}: origin.store: {}", world.path("guildgate.db").display());
            world.run(&["check"]).failed(1).names(&[&here, what]);
            world.run(&["serve"]).failed(1).names(&[what]);
            assert!(world.files() == before, "something was changed");
        }
    }
}
