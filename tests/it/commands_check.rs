//! Contract section 2: `check`. What it says of a configuration's text is tested in `src/config`.

use crate::support::*;

#[test]
fn a_configuration_that_is_valid_is_printed_and_nothing_is_made() {
    // Without a file, with an empty one, and with one that names a tier.
    let empty = tempfile::tempdir().unwrap();
    let world = World::new("");
    let without = Ran::of(world.command(&["check"]).current_dir(empty.path()), "").done();
    let checked = world.run(&["check"]).done();
    // 20 a second, 40 at once: 40 + 60 * 20 in the first minute.
    let words = "20/s, burst 40; a key can do at most 1240 in its first minute";
    assert!(checked.stdout.contains(words) && without.stdout.contains(words), "{checked:?} {without:?}");
    let files: Vec<_> = world.files().into_iter().map(|(path, _)| path).collect();
    assert_eq!(files, [world.path("gateway.toml")]);
    // A key whose tier is gone.
    world.write("gateway.toml", "[limits.tiers.standard]\n[limits.tiers.gold]\nrate = \"100/s\"\n");
    world.run(&["guild", "add", GUILD, "--name", "N"]).done();
    world.run(&["key", "create", "--guild", GUILD, "--tier", "gold"]).done();
    let keys = world.run(&["key", "list", "--json"]).done().list();
    let id = keys[0]["id"].as_str().unwrap();
    assert!(!world.run(&["check"]).done().stdout.contains(id));
    world.write("gateway.toml", "[limits.tiers.standard]\n");
    let now = world.run(&["check"]).done().stdout;
    assert!(now.contains(id) && now.contains("gold"), "{now}");
}

const PORT: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"\"\n";

#[test]
fn what_ends_serve_for_its_configuration_or_a_file_or_service_that_it_names_ends_check() {
    const LOCAL: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    const SECRET: &str = "0123456789abcdef";
    let with_port = |line: &str| format!("{PORT}{line}\n");
    for (config, place) in [
        (with_port("[origin]\nstore = \"no/such/folder/guildgate.db\""), "6:9: origin.store: the folder of"),
        (with_port("[log]\naccess = \"nowhere/access.log\""), "6:10: log.access: the folder of"),
        (with_port("[log]\naccess = \".\""), "6:10: log.access: "),
        (with_port("[log]\ndecisions = \"nowhere/d.log\""), "6:13: log.decisions: the folder of"),
        ("[server]\nlisten = [\"127.0.0.1:0\", \"unix:no/g.sock\"]\n".into(), "2:26: server.listen[1]: the folder of"),
        ("[server]\nlisten = [\"unix:gateway.toml\"]\n".into(), "2:11: server.listen[0]: "),
        ("[server]\nlisten = [\"192.0.2.1:0\"]\n".into(), "2:11: server.listen[0]: "),
        (
            "[server]\nlisten = [\"127.0.0.1:0\"]\nhandover = \"no/h.sock\"\n".into(),
            "3:12: server.handover: the folder",
        ),
        ("[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\ntoken = \"file:no/token\"\n".into(), "4:9: admin.token: "),
        (
            with_port("[server.tls]\ncertificate = \"no.pem\"\nprivate_key = \"no.pem\""),
            "6:15: server.tls.certificate: ",
        ),
        (format!("{LOCAL}token = \"0123456789\""), "5:9: admin.token: the token is shorter than 16"),
        (format!("{LOCAL}token = \"{SECRET}\"\nbot_token = \"{SECRET}\""), "6:13: admin.bot_token: "),
        (
            format!("{LOCAL}tls = {{ certificate = \"no.pem\", private_key = \"no.pem\" }}"),
            "5:23: admin.tls.certificate: ",
        ),
        (
            with_port("[origin]\nkind = \"http\"\nupstreams = [\"https://a\"]\ntls = { ca = \"no.pem\" }"),
            "8:14: origin.tls.ca: no.pem cannot be read",
        ),
        (
            with_port("[origin]\nstore = \"postgres://me@127.0.0.1:1/db?sslmode=verify-ca&sslrootcert=no.pem\""),
            "6:9: origin.store: sslrootcert: ",
        ),
    ] {
        let world = World::new(&config);
        let in_folder = |command: &mut std::process::Command| Ran::of(command, "");
        let checked = in_folder(&mut world.command(&["check"])).failed(2);
        let faults: Vec<_> = checked.stderr.lines().filter(|line| line.contains("gateway.toml:")).collect();
        assert!(faults.len() == 1 && faults[0].contains(&format!("gateway.toml:{place}")), "{config}\n{checked:?}");
        let served = in_folder(&mut world.command(&["serve"])).failed(2);
        assert!(served.stderr.contains(faults[0]) && !served.stderr.contains(SECRET), "{config}\n{served:?}");
        let files: Vec<_> = world.files().into_iter().map(|(path, _)| path).collect();
        assert_eq!(files, [world.path("gateway.toml")], "something was made");
    }
    a_file_or_service_that_serve_cannot_use_ends_check_at_the_setting_that_names_it();
}

fn a_file_or_service_that_serve_cannot_use_ends_check_at_the_setting_that_names_it() {
    // A Redis that is away.
    let world = World::new(&format!("{PORT}[cluster]\nredis = \"redis://127.0.0.1:1\"\n"));
    world.run(&["check"]).failed(2).names(&["gateway.toml:6:9: cluster.redis: "]);
    world.run(&["serve"]).failed(2).names(&["Redis at redis://127.0.0.1:1 cannot be used"]);
    // A link to a token that is not there is a fault, and no token is made.
    let world = World::new("[server]\nlisten = [\"127.0.0.1:0\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n");
    std::os::unix::fs::symlink("/nonexistent/token", world.path("admin.token")).unwrap();
    for command in ["check", "serve"] {
        let ran = world.run(&[command]).failed(2).names(&["admin.token", "cannot be read"]);
        assert!(!ran.stderr.contains("made the admin token"), "{ran:?}");
    }
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
            world.run(&["check"]).failed(2).names(&[&here, what]);
            world.run(&["serve"]).failed(1).names(&[what]);
            assert!(world.files() == before, "something was changed");
        }
    }
}
