//! What is no usable store is refused by name, with what to do about it, by every command that would use it, and is left
//! as it was (exit 1). Where there is none, `serve`, `import` and `guild add` make one and say so; every other command names the place where it looked, and makes nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rusqlite::Connection as Sqlite;

use crate::support::*;

/// Every command that opens the store: those that write to it, those that read, and those that only look.
const COMMANDS: [&[&str]; 6] =
    [&["serve"], &["import", "more.jsonl"], &["export", "-"], &["key", "list"], &["store", "verify"], &["check"]];

/// A world with a store that a guild and some hundred members are in.
fn world() -> World {
    let world = World::plain();
    let members =
        (0..300).map(|id| format!("{{\"guild\":\"{GUILD}\",\"member\":\"{id}\",\"name\":\"Ada\",\"points\":3}}\n"));
    world
        .import(&(format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n") + &members.collect::<String>()))
        .done();
    world.write("more.jsonl", format!("{{\"guild\":\"{GUILD}\",\"name\":\"Day Watch\"}}\n"));
    world
}

/// What is wrong with the store is a fault of the configuration that names it to `check` (exit 2), and a failure to all
/// others.
fn code_of(command: &[&str]) -> i32 {
    if command == ["check"] { 2 } else { 1 }
}

/// Every command fails with its code, through `launcher`, in these words, which name the store.
#[track_caller]
fn refused_by_all(world: &World, name: &str, launcher: &[&str], words: &str) {
    for command in COMMANDS {
        let ran = world.run_by(launcher, command).failed(code_of(command)).names(&["guildgate.db"]);
        let said = ran.stdout.clone() + &ran.stderr;
        assert!(said.contains(words), "{name}: {command:?} does not say {words}: {ran:#?}");
    }
}

#[test]
fn what_is_no_sound_store_of_ours_is_refused_by_every_command_and_left_as_it_is() {
    let world = world();
    let (store, whole) = (world.path("guildgate.db"), world.read("guildgate.db"));
    world.run(&["store", "backup", "b.db"]).done();
    let theirs = world.path("theirs.db");
    Sqlite::open(&theirs).unwrap().execute_batch("CREATE TABLE bookmark (url TEXT)").unwrap();
    let diary = "Dear diary, today nothing happened at all. ".repeat(1000);
    for (name, content, words) in [
        ("cut within the header", whole[..50].to_vec(), "it is no sound store"),
        ("cut within the first page", whole[..2000].to_vec(), "it is no sound store"),
        ("cut between two pages", whole[..whole.len() - 4096].to_vec(), "it is no sound store"),
        ("a text", diary.into(), "it is no sound store"),
        ("another program's", fs::read(theirs).unwrap(), "is an SQLite database of another program; name another file"),
    ] {
        fs::write(&store, &content).unwrap();
        refused_by_all(&world, name, &[], words);
        assert!(fs::read(&store).unwrap() == content, "{name}: it was changed");
    }
    an_empty_file_is_no_store_where_one_is_looked_for(&world);
    // Root may open anything, unless it gives that up.
    let root = nix::unistd::geteuid().is_root();
    let as_anybody: &[&str] = if root { &["setpriv", "--bounding-set=-dac_override,-dac_read_search"] } else { &[] };
    fs::set_permissions(&store, fs::Permissions::from_mode(0o000)).unwrap();
    let words = "check that the file, its -wal and -shm, and its folder belong to this user";
    refused_by_all(&world, "not this user's", as_anybody, words);
    fs::remove_file(&store).unwrap();
    fs::create_dir(&store).unwrap();
    refused_by_all(&world, "a folder", &[], "is not a file");
    world.run(&["store", "restore", "b.db"]).failed(1).names(&[&format!("{} is a folder", store.display())]);
    fs::remove_dir(&store).unwrap();
    fs::write(&store, whole).unwrap();
    one_on_a_read_only_file_system_is_refused_and_verified(&world);
    world.write("gateway.toml", "[origin]\nstore = \"no/such/place.db\"\n");
    world.run(&["serve"]).failed(2).names(&["origin.store", "no/such/place.db"]);
}

fn an_empty_file_is_no_store_where_one_is_looked_for(world: &World) {
    world.write("guildgate.db", "");
    world.run(&["store", "verify"]).failed(1).names(&["guildgate.db is empty"]);
    world.run(&["check"]).done();
    world.run(&["key", "list"]).failed(1).names(&["there is no store at", "guildgate.db"]);
    assert_eq!(world.read("guildgate.db"), b"", "looking made none");
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done().names(&["made a new store at"]);
    world.run(&["store", "verify"]).done();
}

fn one_on_a_read_only_file_system_is_refused_and_verified(world: &World) {
    fs::create_dir(world.path("fixed")).unwrap();
    fs::rename(world.path("guildgate.db"), world.path("fixed/guildgate.db")).unwrap();
    let config = world.text("gateway.toml") + "[origin]\nstore = \"fixed/guildgate.db\"\n";
    world.write("gateway.toml", config);
    let mount = "mount --bind fixed fixed && mount -o remount,bind,ro fixed && exec \"$0\" \"$@\"";
    let as_root: &[&str] = if nix::unistd::geteuid().is_root() { &[] } else { &["--map-root-user"] };
    let fixed = [&["unshare", "--mount"], as_root, &["sh", "-c", mount]].concat();
    for command in COMMANDS.into_iter().filter(|command| *command != ["store", "verify"]) {
        let ran = world.run_by(&fixed, command).failed(code_of(command));
        ran.names(&["fixed/guildgate.db", "how the disk is mounted"]);
    }
    // Whether it is sound can be told all the same.
    assert!(world.run_by(&fixed, &["store", "verify"]).done().stdout.contains("member: 300\n"));
}

#[test]
fn a_store_that_another_process_has_to_itself_is_refused() {
    // Side by side, since each waits for a while, and in worlds of their own.
    std::thread::scope(|scope| {
        for command in COMMANDS {
            scope.spawn(move || {
                let world = world();
                let holder = Sqlite::open(world.path("guildgate.db")).unwrap();
                holder.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; DELETE FROM member").unwrap();
                world.run(command).failed(code_of(command)).names(&["guildgate.db", "another process", "try again"]);
                holder.execute_batch("ROLLBACK").unwrap();
                drop(holder);
                world.run(&["store", "verify"]).done();
            });
        }
    });
}

/// A world whose store is to be of this kind, and the place as messages name it.
async fn without_store(kind: Kind) -> (World, String) {
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

#[tokio::test]
async fn without_a_store_a_command_that_needs_one_says_where_it_looked_and_one_that_makes_it_says_so_the_first_time() {
    for kind in [Kind::Builtin, Kind::Postgres] {
        one_that_needs_a_store_names_where_it_looked_and_makes_none(kind).await;
        one_that_makes_a_store_says_so_only_the_first_time(kind).await;
    }
    where_the_origin_knows_the_keys_there_is_none().await;
}

async fn one_that_needs_a_store_names_where_it_looked_and_makes_none(kind: Kind) {
    let (world, place) = without_store(kind).await;
    let commands: [&[&str]; 3] = [&["guild", "list"], &["key", "create", "--guild", GUILD], &["export", "-"]];
    for command in commands {
        let ran = world.run(command).failed(1);
        ran.names(&[&format!("there is no store at {place}"), "`guildgate guild add`", "--config"]);
        assert_eq!(made(&world), Vec::<String>::new(), "{command:?} on {kind:?} made something");
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
}

async fn one_that_makes_a_store_says_so_only_the_first_time(kind: Kind) {
    for command in ["guild add", "import", "serve"] {
        let (world, place) = without_store(kind).await;
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
            assert_eq!(said.contains(&says), first, "{command} on {kind:?}: {said}");
        }
        world.run(&["guild", "list"]).done();
    }
}

async fn where_the_origin_knows_the_keys_there_is_none() {
    let origin = ScriptedOrigin::start(0).await;
    let config = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\n[origin]\nkind = \"http\"\nupstreams = [{:?}]\n[admin]\nlisten = \"\"\n\
         [keys]\nsource = \"origin\"\n",
        origin.url()
    );
    let world = World::new(&config);
    let mut server = world.serve(&[]);
    server.ready().await;
    assert_eq!(made(&world), Vec::<String>::new());
}
