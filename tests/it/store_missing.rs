//! Where there is no store (contract section 2): `serve`, `import` and `guild add` make one and say so; every other
//! command names the place where it looked, exits 1 and makes nothing.

use crate::support::*;

/// A world whose store is to be of this kind, and the place as messages name it.
async fn world(kind: Kind) -> (World, String) {
    let world = World::plain();
    let (store, place) = match kind {
        Kind::Postgres => {
            let url = Postgres::shared().database().await;
            (url.clone(), url)
        }
        Kind::Builtin | Kind::Http => {
            ("guildgate.db".to_owned(), world.path("guildgate.db").to_str().unwrap().to_owned())
        }
    };
    let config = format!("[server]\nlisten = [\"127.0.0.1:0\"]\n[origin]\nstore = {store:?}\n[admin]\nlisten = \"\"\n");
    world.write("gateway.toml", config);
    (world, place)
}

/// The files of a world, without what the test itself put there.
fn made(world: &World) -> Vec<String> {
    let names = world.files().into_iter().map(|(path, _)| path.file_name().unwrap().to_str().unwrap().to_owned());
    names.filter(|name| !["gateway.toml", "guild.jsonl"].contains(&name.as_str())).collect()
}

on_both_stores!(
    a_command_that_needs_a_store_names_where_it_looked_and_makes_none,
    a_command_that_makes_a_store_says_so_and_only_the_first_time,
);

async fn a_command_that_needs_a_store_names_where_it_looked_and_makes_none(kind: Kind) {
    let (world, place) = world(kind).await;
    let of_member = ["--guild", GUILD, "--member", "7"];
    let warn = ["--author", "Mod", "--reason", "spam", "--expires", "90d"];
    let review = ["--author", "Bo", "--rating", "5", "--text", "kind"];
    let commands: [&[&str]; 14] = [
        &["guild", "list"],
        &["guild", "leave", GUILD],
        &["guild", "return", GUILD],
        &["key", "create", "--guild", GUILD],
        &["key", "list", "--json"],
        &["key", "show", "k_1"],
        &["key", "set", "k_1", "--name", "n"],
        &["key", "rotate", "k_1"],
        &["key", "revoke", "k_1"],
        &["member", "list", "--guild", GUILD],
        &[&["member", "set", "--points", "3"][..], &of_member].concat(),
        &[&["warn", "add"][..], &of_member, &warn].concat(),
        &[&["review", "add"][..], &of_member, &review].concat(),
        &["export", "-"],
    ];
    for command in commands {
        let ran = world.run(command).failed(1);
        ran.names(&[&format!("there is no store at {place}"), "`guildgate guild add`", "--config"]);
        assert_eq!(made(&world), Vec::<String>::new(), "{command:?} made something");
    }
    world.run(&["check"]).done();
    world.run(&["import", "none.jsonl"]).failed(1).names(&["none.jsonl cannot be read"]);
    if kind.has_store_file() {
        for command in [&["store", "backup", "b.db"][..], &["store", "verify"]] {
            world.run(command).failed(1).names(&[&format!("there is no store at {place}")]);
            // As it is typed in the folder: the message has to say which one that was.
            Ran::of(&mut world.command(command), "").failed(1).names(&[&format!("there is no store at {place}")]);
        }
    }
    assert_eq!(made(&world), Vec::<String>::new());
    // It was none of the last either: the database is as it was.
    world.run(&["guild", "list"]).failed(1).names(&["there is no store at"]);
}

async fn a_command_that_makes_a_store_says_so_and_only_the_first_time(kind: Kind) {
    for command in ["guild add", "import", "serve"] {
        let (world, place) = world(kind).await;
        world.write("guild.jsonl", format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n"));
        let says = format!("made a new store at {place}");
        for first in [true, false] {
            let id = if first { "1" } else { "2" };
            let said = match command {
                "guild add" => world.run(&["guild", "add", id, "--name", "Night Watch"]).done().stderr,
                "import" => world.run(&["import", "guild.jsonl"]).done().stderr,
                _ => {
                    let mut server = world.serve(&[]);
                    server.ready().await;
                    server.signal(nix::sys::signal::Signal::SIGTERM);
                    assert_eq!(server.exit().await, Some(0));
                    server.stderr()
                }
            };
            assert_eq!(said.contains(&says), first, "{command}: {said}");
        }
        world.run(&["guild", "list"]).done();
    }
}

#[tokio::test]
async fn a_demo_says_nothing_of_the_store_that_it_throws_away() {
    let world = World::plain();
    let mut server = world.serve(&["--demo"]);
    server.ready().await;
    assert!(!server.stderr().contains("made a new store"), "{}", server.stderr());
    server.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(server.exit().await, Some(0));
    // The store ends before its folder is removed.
    assert!(!server.stderr().contains("ERROR"), "{}", server.stderr());
}

#[tokio::test]
async fn a_gateway_before_an_http_origin_makes_the_store_of_its_keys_and_says_so() {
    let origin = ScriptedOrigin::start(0).await;
    let config = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\n[origin]\nkind = \"http\"\nupstreams = [{:?}]\n[admin]\nlisten = \"\"\n",
        origin.url()
    );
    let world = World::new(&config);
    world.run(&["key", "list"]).failed(1).names(&["there is no store at", "guildgate.db"]);
    let mut server = world.serve(&[]);
    server.ready().await;
    assert!(server.stderr().contains("made a new store at"), "{}", server.stderr());
    // It needs none where the keys are elsewhere.
    let world = World::new(&format!("{config}[keys]\nsource = \"origin\"\n"));
    let mut server = world.serve(&[]);
    server.ready().await;
    assert_eq!(made(&world), Vec::<String>::new());
}

#[test]
fn what_stands_in_a_stores_place_is_named_by_its_path() {
    let world = World::plain();
    let store = world.path("guildgate.db");
    std::os::unix::fs::symlink("gone.db", &store).unwrap();
    for command in [&["guild", "add", GUILD, "--name", "N"][..], &["guild", "list"], &["store", "verify"], &["serve"]] {
        let place = format!("{} is a link to gone.db, which is not there", store.display());
        world.run(command).failed(1).names(&[&place]);
    }
    std::fs::remove_file(&store).unwrap();
    world.run(&["guild", "add", GUILD, "--name", "N"]).done();
    world.run(&["store", "backup", "b.db"]).done();
    let open = rusqlite::Connection::open(&store).unwrap();
    open.execute_batch("UPDATE guild SET name = 'Day Watch'").unwrap();
    let log = world.read("guildgate.db-wal");
    drop(open);
    std::fs::remove_file(&store).unwrap();
    std::fs::create_dir(&store).unwrap();
    world.run(&["store", "restore", "b.db"]).failed(1).names(&[&format!("{} is a folder", store.display())]);
    std::fs::remove_dir(&store).unwrap();
    world.write("guildgate.db-wal", log);
    for command in [&["store", "verify"][..], &["store", "backup", "c.db"], &["serve"]] {
        world
            .run(command)
            .failed(1)
            .names(&[&format!("{} is not there, but its write-ahead log is: ", store.display())]);
    }
}
