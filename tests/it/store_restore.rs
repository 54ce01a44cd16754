//! A backup put in the store's place: `store restore`, killed at each of its steps, and the refusal of a backup that
//! was copied there by hand beside the log of what was there before.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rusqlite::Connection as Sqlite;

use crate::support::*;

/// The system calls of `store restore` that change a file or a folder. `strace` kills it at each.
const STEPS: [&str; 7] = [
    "pwrite64",
    "ftruncate",
    "fsync,fdatasync",
    "fchown",
    "link,linkat",
    "rename,renameat,renameat2",
    "unlink,unlinkat",
];

/// More of one step than a restore takes.
const MOST: usize = 400;

fn of_store(line: &str) -> bool {
    line.contains("guildgate.db")
}

/// A gateway that was killed after it wrote, with a backup `b.db` of before: member 7 has 3 points in that, and 5 in
/// the store, whose log has them.
async fn killed_after_a_backup() -> TestGateway {
    let mut gate = TestGateway::builder().key("bot").points("7", 3).start().await;
    gate.set_points("bot", "8", 1).await.is("Successfully set '8' points to '1'");
    gate.run(&["store", "backup", "b.db"]).done();
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    gate.process().kill_hard();
    assert!(!gate.world().read("guildgate.db-wal").is_empty());
    gate
}

/// The files whose names begin with the store's, but for shared memory, which holds nothing of its own.
fn stores(world: &World) -> HashMap<String, Vec<u8>> {
    let named = |(path, content): (std::path::PathBuf, Vec<u8>)| (name(&path).to_owned(), content);
    world.files().into_iter().map(named).filter(|(name, _)| of_store(name) && !name.ends_with("-shm")).collect()
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// The name of the one store that was replaced.
fn kept_store(world: &World) -> String {
    let aside = |name: &String| name.contains(".before-restore-") && !name.ends_with("-wal") && !name.ends_with("-shm");
    let mut names: Vec<_> = stores(world).into_keys().filter(aside).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    names.remove(0)
}

fn points(store: &Path, member: i64) -> i64 {
    let sql = "SELECT coalesce(max(points), 0) FROM member WHERE member = ?1";
    Sqlite::open(store).unwrap().query_row(sql, [member], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_restore_after_a_crash_puts_the_backup_in_place_and_sets_aside_what_was_acknowledged() {
    let mut gate = killed_after_a_backup().await;
    let said = gate.run(&["store", "restore", "b.db"]).done().stdout;
    let aside = kept_store(gate.world());
    assert!(said.contains("guildgate.db is a copy of b.db now") && said.contains(&aside), "{said}");
    assert_eq!(gate.world().read("b.db").len(), gate.world().read("guildgate.db").len());
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("bot", "8").await.is("1");
    gate.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
    gate.process().kill_hard();
    // What was kept is a store as good as any: it is restored in the same way.
    assert!(gate.run(&["store", "verify", &aside]).done().stdout.ends_with("nothing is wrong\n"));
    gate.run(&["store", "restore", &aside]).done();
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("5");
    assert_eq!(stores(gate.world()).keys().filter(|name| name.contains(".before-restore-")).count(), 2);
    gate.run(&["store", "verify"]).done();
}

#[tokio::test]
async fn a_restore_is_refused_while_a_server_or_a_command_has_the_store_open() {
    let gate = TestGateway::builder().key("bot").points("7", 3).start().await;
    gate.run(&["store", "backup", "b.db"]).done();
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    let process = format!("process {} has", gate.process_id());
    gate.run(&["store", "restore", "b.db"]).failed(1).names(&[&process, "guildgate.db open", "stop it first"]);
    gate.get_points("bot", "7").await.is("5");
    gate.set_points("bot", "7", 6).await.is("Successfully set 'Ada' points to '6'");
    assert!(stores(gate.world()).keys().all(|name| !name.contains("before")));
    // A connection of any other program counts as well.
    let world = World::plain();
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    world.run(&["store", "backup", "b.db"]).done();
    let open = Sqlite::open(world.path("guildgate.db")).unwrap();
    open.execute_batch("SELECT count(*) FROM guild").unwrap();
    world.run(&["store", "restore", "b.db"]).failed(1).names(&[&format!("process {} has", std::process::id())]);
    drop(open);
    world.run(&["store", "restore", "b.db"]).done();
}

#[test]
fn what_is_no_sound_backup_is_not_restored_and_nothing_is_changed() {
    let world = World::plain();
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    let good = world.read("guildgate.db");
    let scribbled = good.len() - 4096;
    let scribbled: Vec<u8> = good.iter().enumerate().map(|(at, b)| if at >= scribbled { 0xa5 } else { *b }).collect();
    world.write("scribbled.db", scribbled);
    world.write("cut.db", &good[..good.len() - 1000]);
    world.write("text.db", "no database at all ".repeat(100));
    world.write("empty.db", "");
    Sqlite::open(world.path("other.db")).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let newer = world.write("newer.db", &good);
    let sql = "INSERT INTO refinery_schema_history SELECT version + 1, 'later', applied_on, checksum \
        FROM refinery_schema_history ORDER BY version DESC LIMIT 1";
    Sqlite::open(newer).unwrap().execute_batch(sql).unwrap();
    fs::hard_link(world.path("guildgate.db"), world.path("itself.db")).unwrap();
    for (file, words) in [
        ("scribbled.db", "scribbled.db"),
        ("cut.db", "cut.db"),
        ("text.db", "is not an SQLite file"),
        ("empty.db", "empty.db is empty"),
        ("other.db", "another program"),
        ("newer.db", "was written by a newer Guildgate"),
        ("none.db", "none.db"),
        ("itself.db", "is the store itself"),
        ("guildgate.db", "is the store itself"),
    ] {
        world.run(&["store", "restore", file]).failed(1).names(&[words]);
        assert!(world.read("guildgate.db") == good, "{file}: the store was changed");
        assert_eq!(stores(&world).len(), 1, "{file}: {:?}", stores(&world).keys());
    }
    for command in ["restore", "backup", "verify"] {
        let said = world.run(&["store", command, "postgres://me:hunter2@host/db"]).failed(1).names(&["take a file"]);
        assert!(!said.stderr.contains("hunter2"), "{said:?}");
    }
    world.write("gateway.toml", "[origin]\nstore = \"postgres://me:hunter2@host/db\"\n");
    let said = world.run(&["store", "restore", "b.db"]).failed(1).names(&["pg_restore"]);
    assert!(!said.stderr.contains("hunter2"), "{said:?}");
}

#[test]
fn a_backup_is_restored_where_there_is_no_store_and_over_one_that_is_damaged() {
    let world = World::plain();
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    world.run(&["store", "backup", "b.db"]).done();
    fs::remove_file(world.path("guildgate.db")).unwrap();
    let said = world.run(&["store", "restore", "b.db"]).done().stdout;
    assert!(said.contains("there was no store before"), "{said}");
    assert_eq!(fs::metadata(world.path("guildgate.db")).unwrap().mode() & 0o777, 0o600);
    world.run(&["guild", "leave", GUILD]).done();
    world.write("guildgate.db", "something else");
    world.run(&["store", "restore", "b.db"]).done();
    assert_eq!(world.read(&kept_store(&world)), b"something else");
    assert_eq!(world.run(&["guild", "list", "--json"]).done().list().len(), 1);
}

#[tokio::test]
async fn a_backup_copied_over_a_store_by_hand_is_refused_with_the_log_of_what_was_there() {
    let mut gate = killed_after_a_backup().await;
    let other = World::plain();
    other.run(&["guild", "add", GUILD, "--name", "Day Watch"]).done();
    other.run(&["store", "backup", "b.db"]).done();
    fs::copy(gate.world().path("guildgate.db"), gate.world().path("kept.db")).unwrap();
    for backup in [gate.world().path("b.db"), other.path("b.db"), other.path("guildgate.db")] {
        fs::copy(&backup, gate.world().path("guildgate.db")).unwrap();
        let before = stores(gate.world());
        let names = ["guildgate.db-wal is not the write-ahead log of", "Nothing was changed", "mv "];
        for command in [
            &["serve"][..],
            &["key", "list"],
            &["guild", "add", "1", "--name", "N"],
            &["check"],
            &["store", "backup", "c.db"],
        ] {
            let code = if command == ["check"] { 2 } else { 1 };
            gate.run(command).failed(code).names(&names);
        }
        let said = gate.run(&["store", "verify"]).failed(1).stdout;
        assert!(
            said.contains("wrong: ") && said.contains("is not the write-ahead log of") && said.contains("repair: "),
            "{said}"
        );
        assert!(stores(gate.world()) == before, "it was changed");
    }
    // The file to which the log belongs is as good as before.
    fs::copy(gate.world().path("kept.db"), gate.world().path("guildgate.db")).unwrap();
    gate.run(&["store", "verify"]).done();
    // What the message says helps: moving the log away, or restoring the backup.
    fs::copy(gate.world().path("b.db"), gate.world().path("guildgate.db")).unwrap();
    let said = gate.run(&["store", "restore", "b.db"]).done().stdout;
    assert!(said.contains("-stray-wal"), "{said}");
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn the_same_backup_copied_by_hand_a_second_time_is_told_from_the_first() {
    let mut gate = killed_after_a_backup().await;
    for round in 4..7 {
        fs::copy(gate.world().path("b.db"), gate.world().path("guildgate.db")).unwrap();
        gate.run(&["serve"]).failed(1).names(&["guildgate.db-wal is not the write-ahead log of"]);
        fs::remove_file(gate.world().path("guildgate.db-wal")).unwrap();
        gate.restart_after_kill().await;
        gate.get_points("bot", "7").await.is("3");
        gate.set_points("bot", "7", round).await.is(&format!("Successfully set 'Ada' points to '{round}'"));
        gate.process().kill_hard();
    }
    // So is a copy of a store that was closed in good order.
    fs::remove_file(gate.world().path("guildgate.db-wal")).unwrap();
    gate.restart_after_kill().await;
    assert_eq!(gate.stop().await, Some(0));
    fs::copy(gate.world().path("guildgate.db"), gate.world().path("copy.db")).unwrap();
    gate.restart_after_kill().await;
    gate.set_points("bot", "7", 9).await.is("Successfully set 'Ada' points to '9'");
    gate.process().kill_hard();
    fs::copy(gate.world().path("copy.db"), gate.world().path("guildgate.db")).unwrap();
    gate.run(&["serve"]).failed(1).names(&["guildgate.db-wal is not the write-ahead log of"]);
}

#[tokio::test]
async fn a_log_whose_store_was_removed_is_named_and_no_empty_store_is_made_over_it() {
    let mut gate = killed_after_a_backup().await;
    let log = gate.world().read("guildgate.db-wal");
    fs::rename(gate.world().path("guildgate.db"), gate.world().path("moved.db")).unwrap();
    for command in [&["serve"][..], &["guild", "add", "1", "--name", "N"], &["key", "list"]] {
        gate.run(command).failed(1).names(&["guildgate.db is not there, but its write-ahead log is"]);
        assert!(gate.world().read("guildgate.db-wal") == log && !gate.world().path("guildgate.db").exists());
    }
    fs::rename(gate.world().path("moved.db"), gate.world().path("guildgate.db")).unwrap();
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("5");
}

/// Restores `b.db` in a folder like this one, and kills that at its `nth` of these steps. Whether it came to it.
fn restore_killed_at(world: &World, steps: &str, nth: usize) -> bool {
    let (trace, inject) = (format!("trace={steps}"), format!("inject={steps}:signal=SIGKILL:when={nth}"));
    let log = world.path("strace.log");
    let strace = ["strace", "-f", "-qq", "-o", log.to_str().unwrap(), "-e", &trace, "-e", &inject];
    let ran = world.run_by(&strace, &["store", "restore", "b.db"]);
    assert!(ran.code.is_none() || ran.code == Some(0) || ran.code == Some(137), "{ran:?}");
    ran.code != Some(0)
}

#[tokio::test]
async fn a_log_that_is_the_stores_own_is_kept_whatever_was_left_of_a_restore() {
    let mut gate = killed_after_a_backup().await;
    let world = gate.world();
    // As if a restore was cut off, and then the file that it had kept was removed by hand, but not its log.
    let aside = world.path("guildgate.db.before-restore-20261122T000000Z-wal");
    fs::hard_link(world.path("guildgate.db-wal"), &aside).unwrap();
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("5");
    assert!(!aside.exists(), "the log's second name");
}

#[tokio::test]
async fn a_restore_killed_at_any_step_leaves_a_store_that_serves_and_that_can_be_restored_again() {
    let mut gate = killed_after_a_backup().await;
    let left: Vec<_> = ["guildgate.db", "guildgate.db-wal", "b.db"].map(|name| (name, gate.world().read(name))).into();
    // A log that cannot be written into its file, as on a damaged disk, stays beside it to the end.
    for keeps_log in [false, true] {
        let (mut kills, mut served) = (0, HashMap::<String, usize>::new());
        for steps in STEPS {
            for nth in 1..=MOST {
                for (path, _) in gate.world().files() {
                    if of_store(name(&path)) {
                        fs::remove_file(path).unwrap();
                    }
                }
                left.iter().for_each(|(name, content)| drop(gate.world().write(name, content)));
                // As a log is that is not the store's.
                if keeps_log {
                    fs::copy(gate.world().path("b.db"), gate.world().path("guildgate.db")).unwrap();
                }
                if !restore_killed_at(gate.world(), steps, nth) {
                    break;
                }
                kills += 1;
                let refused = served_after(&mut gate, keeps_log, &mut served).await;
                if refused || nth % 3 == 0 {
                    gate.run(&["store", "restore", "b.db"]).done();
                    gate.restart_after_kill().await;
                    gate.get_points("bot", "7").await.is("3");
                    gate.process().kill_hard();
                }
            }
        }
        assert!(kills > 20, "{kills}");
        assert!(served.len() > 1, "killed before and after the backup was in place: {served:?}");
    }
}

/// Starts a server on what a killed restore left, and counts its answer. Answers whether the server refused to start,
/// which it may do only before the backup is in place, and if the log is not the store's.
async fn served_after(gate: &mut TestGateway, may_refuse: bool, served: &mut HashMap<String, usize>) -> bool {
    let mut server = gate.world().serve(&[]);
    let answer = loop {
        if server.stderr().contains("ready: ") {
            let address = server.ready().await;
            let request = gate.request("getPoints", "bot", "memberID=7");
            break Connection::to(address).await.ask(&request).await.body;
        }
        if server.has_ended() {
            server.exit().await; // all that it said is here then
            assert!(may_refuse && server.stderr().contains("is not the write-ahead log of"), "{}", server.stderr());
            break "refused".to_owned();
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await; // between two looks
    };
    // All of the one or all of the other.
    let whole: &[&str] = if may_refuse { &["3", "refused"] } else { &["3", "5"] };
    assert!(whole.contains(&answer.as_str()), "{answer}: {}", server.stderr());
    if answer != "refused" {
        server.kill_hard();
        let world = gate.world();
        world.run(&["store", "verify"]).done();
        for name in
            stores(world).into_keys().filter(|name| name.contains(".before-restore-") && !name.ends_with("-wal"))
        {
            world.run(&["store", "verify", &name]).done();
            if !may_refuse {
                assert_eq!(points(&world.path(&name), 7), 5, "{name} was separated from its log");
            }
        }
    }
    let refused = answer == "refused";
    *served.entry(answer).or_default() += 1;
    refused
}
