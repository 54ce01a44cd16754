//! A file that is no usable store is refused by name, with what to do about it, by every command that would use it;
//! and it is left as it was (contract section 2: exit 1, and 2 of `check`).

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

/// Every command fails with its code, through `launcher`, in words that name the store and hold one of these.
#[track_caller]
fn refused_by_all(world: &World, launcher: &[&str], one_of: &[&str]) {
    for command in COMMANDS {
        let ran = world.run_by(launcher, command).failed(code_of(command)).names(&["guildgate.db"]);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(one_of.iter().any(|words| said.contains(words)), "{command:?} says none of {one_of:?}: {ran:#?}");
    }
}

/// As [`refused_by_all`], of a store with this content, which is left as it is.
#[track_caller]
fn is_refused(content: &[u8], one_of: &[&str]) {
    let world = world();
    let store = world.write("guildgate.db", content);
    refused_by_all(&world, &[], one_of);
    assert!(fs::read(store).unwrap() == content, "it was changed");
}

#[test]
fn a_store_cut_short_is_refused_wherever_it_was_cut() {
    let whole = world().read("guildgate.db");
    assert!(whole.len() > 5 * 4096);
    // Within the header, the first page, the second, the last, and between two.
    for kept in [50, 2000, 4096 + 2000, whole.len() - 2000, whole.len() - 4096] {
        is_refused(&whole[..kept], &["damaged or cut short", "a backup in its place", "is not an SQLite file"]);
    }
}

#[test]
fn a_text_file_is_refused() {
    for text in ["[[key]]\n", &"Dear diary, today nothing happened at all. ".repeat(1000)] {
        is_refused(text.as_bytes(), &["is not an SQLite file; name another file"]);
    }
}

#[test]
fn another_programs_database_is_refused() {
    let world = world();
    let theirs = world.path("theirs.db");
    Sqlite::open(&theirs).unwrap().execute_batch("CREATE TABLE bookmark (url TEXT)").unwrap();
    is_refused(&fs::read(theirs).unwrap(), &["is an SQLite database of another program; name another file"]);
}

#[test]
fn a_store_of_a_newer_version_is_refused() {
    let world = world();
    let sql = "INSERT INTO refinery_schema_history SELECT version + 1, 'later', applied_on, checksum \
        FROM refinery_schema_history ORDER BY version DESC LIMIT 1";
    Sqlite::open(world.path("guildgate.db")).unwrap().execute_batch(sql).unwrap();
    for command in COMMANDS.into_iter().filter(|command| *command != ["store", "verify"]) {
        world
            .run(command)
            .failed(code_of(command))
            .names(&["guildgate.db was written by a newer Guildgate", "run that version"]);
    }
    // Whether it is whole can be told all the same.
    assert!(world.run(&["store", "verify"]).done().stdout.contains("of a newer Guildgate"));
}

#[test]
fn an_empty_file_becomes_a_store_where_one_is_made_and_is_none_where_one_is_looked_for() {
    let world = world();
    world.write("guildgate.db", "");
    world.run(&["store", "verify"]).failed(1).names(&["guildgate.db is empty"]);
    world.run(&["check"]).done();
    assert_eq!(world.read("guildgate.db"), b"", "looking made none");
    world.run(&["key", "list"]).failed(1).names(&["there is no store at", "guildgate.db"]);
    assert_eq!(world.read("guildgate.db"), b"", "looking made none");
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done().names(&["made a new store at"]);
    world.run(&["store", "verify"]).done();
}

#[test]
fn a_folder_in_the_stores_place_is_refused() {
    let world = world();
    fs::remove_file(world.path("guildgate.db")).unwrap();
    fs::create_dir(world.path("guildgate.db")).unwrap();
    refused_by_all(&world, &[], &["is a folder", "is not a file"]);
}

#[test]
fn a_store_that_this_user_may_not_open_is_refused() {
    let world = world();
    fs::set_permissions(world.path("guildgate.db"), fs::Permissions::from_mode(0o000)).unwrap();
    // Root may open anything, unless it gives that up.
    let root = nix::unistd::geteuid().is_root();
    let as_anybody: &[&str] = if root { &["setpriv", "--bounding-set=-dac_override,-dac_read_search"] } else { &[] };
    let words = ["is read-only or unreadable for its owner; change its mode (chmod u+rw"];
    refused_by_all(&world, as_anybody, &words);
}

#[test]
fn a_store_on_a_read_only_file_system_is_refused() {
    let world = world();
    fs::create_dir(world.path("fixed")).unwrap();
    fs::rename(world.path("guildgate.db"), world.path("fixed/guildgate.db")).unwrap();
    let config = world.text("gateway.toml") + "[origin]\nstore = \"fixed/guildgate.db\"\n";
    world.write("gateway.toml", config);
    let mount = "mount --bind fixed fixed && mount -o remount,bind,ro fixed && exec \"$0\" \"$@\"";
    let as_root: &[&str] = if nix::unistd::geteuid().is_root() { &[] } else { &["--map-root-user"] };
    let fixed = [&["unshare", "--mount"], as_root, &["sh", "-c", mount]].concat();
    for command in COMMANDS.into_iter().filter(|command| *command != ["store", "verify"]) {
        let ran = world.run_by(&fixed, command).failed(code_of(command));
        ran.names(&["fixed/guildgate.db is read-only; make the file and its folder writable"]);
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
