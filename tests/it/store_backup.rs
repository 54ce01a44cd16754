//! Contract section 2: `store backup` while a server writes, `store restore`, killed at each of its steps, and `store
//! verify` of what is good, damaged, foreign and old.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection as Sqlite;

use crate::support::*;

/// The system calls of `store restore` that change a file or a folder. `strace` kills it at each.
const STEPS: [&str; 6] =
    ["pwrite64", "ftruncate", "fsync,fdatasync", "link,linkat", "rename,renameat,renameat2", "unlink,unlinkat"];

/// More of one step than a restore takes.
const MOST: usize = 400;

/// A world whose store holds a guild, a member, a warn and a review.
fn world() -> World {
    let world = World::plain();
    let lines = [
        format!(r#"{{"guild":"{GUILD}","name":"Night Watch"}}"#),
        format!(r#"{{"guild":"{GUILD}","member":"7","name":"Ada","points":3}}"#),
        format!(r#"{{"guild":"{GUILD}","member":"7","warn":"1","author":"Mod","reason":"spam","expires":4000000000}}"#),
        format!(r#"{{"guild":"{GUILD}","member":"7","review":"9","author":"Bo","rating":5,"text":"kind"}}"#),
    ];
    world.import(&lines.join("\n")).done();
    world
}

/// The points of a member in a store's file.
fn points(store: &Path, member: i64) -> i64 {
    let sql = "SELECT coalesce(max(points), 0) FROM member WHERE member = ?1";
    Sqlite::open(store).unwrap().query_row(sql, [member], |row| row.get(0)).unwrap()
}

/// The names of the stores that were replaced.
fn kept_stores(world: &World) -> Vec<String> {
    let names = world.files().into_iter().map(|(path, _)| path.file_name().unwrap().to_str().unwrap().to_owned());
    let is_kept = |name: &String| name.contains(".before-restore-");
    names.filter(|name| is_kept(name) && !name.ends_with("-wal") && !name.ends_with("-shm")).collect()
}

#[test]
fn a_backup_replaces_an_older_one_only_by_force_and_is_restored_where_there_is_no_store_or_a_damaged_one() {
    let world = world();
    world.run(&["store", "backup", "b.db"]).done();
    let first = world.read("b.db");
    world.run(&["member", "set", "--guild", GUILD, "--member", "7", "--points", "4"]).done();
    let refused = world.run(&["store", "backup", "b.db"]).failed(1);
    refused.names(&["b.db is an older backup; --force replaces it, or name another file"]);
    assert!(world.read("b.db") == first, "it was replaced");
    world.run(&["store", "backup", "b.db", "--force"]).done();
    assert_eq!(points(&world.path("b.db"), 7), 4);

    let open = Sqlite::open(world.path("b.db")).unwrap();
    open.execute_batch("PRAGMA journal_mode = WAL; UPDATE member SET points = 5").unwrap();
    fs::create_dir(world.path("there")).unwrap();
    symlink("guildgate.db", world.path("link.db")).unwrap();
    for (file, words) in [
        ("guildgate.db", "is a store in use"),
        ("link.db", "is a store in use"),
        ("nowhere/b.db", "nowhere/b.db"),
        ("there", "is no backup"),
        ("gateway.toml", "gateway.toml is there, and is no backup"),
        ("b.db", "b.db is a store in use"),
    ] {
        for force in [&[][..], &["--force"]] {
            world.run(&[&["store", "backup", file], force].concat()).failed(1).names(&[words]);
        }
    }
    drop(open);
    assert_eq!(points(&world.path("b.db"), 7), 5, "it was left alone");
    let names = fs::read_dir(world.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_str().unwrap().contains(".part")));
    one_is_restored_where_there_is_no_store_or_a_damaged_one(&world);
}

fn one_is_restored_where_there_is_no_store_or_a_damaged_one(world: &World) {
    world.run(&["store", "backup", "c.db"]).done();
    fs::remove_file(world.path("guildgate.db")).unwrap();
    let said = world.run(&["store", "restore", "c.db"]).done().stdout;
    assert!(said.contains("there was no store before"), "{said}");
    assert_eq!(fs::metadata(world.path("guildgate.db")).unwrap().mode() & 0o777, 0o600);
    world.write("guildgate.db", "something else");
    world.run(&["store", "restore", "c.db"]).done();
    let kept = kept_stores(world);
    assert_eq!(world.read(&kept[0]), b"something else");
    // A log of no file would be applied to what is restored.
    fs::remove_file(world.path("guildgate.db")).unwrap();
    world.write("guildgate.db-wal", "of another file");
    world.run(&["store", "restore", "c.db"]).done();
    assert_eq!(kept_stores(world), kept);
    let is_log = |name: &str| name.contains(".before-restore-") && name.ends_with("-wal");
    let log = world.files().into_iter().find(|(path, _)| is_log(path.to_str().unwrap())).unwrap();
    assert_eq!(log.1, b"of another file");
    assert_eq!(world.run(&["guild", "list", "--json"]).done().list().len(), 1);
    world.write("gateway.toml", "[origin]\nstore = \"postgres://me:hunter2@host/db\"\n");
    let said = world.run(&["store", "restore", "c.db"]).failed(1).names(&["pg_restore"]);
    assert!(!said.stderr.contains("hunter2"), "{said:?}");
}

async fn a_backup_of_a_busy_server_is_of_one_moment(gate: &Arc<TestGateway>) {
    let writer = BusyWriter::start(gate, |gate, which, amount| {
        gate.request("setPoints", "bot", &format!("memberID={}&amount={amount}", 7 + which))
    });
    let backup = gate.world().path("backup.db");
    let mut last = 0;
    for _ in 0..5 {
        let ran = gate.run(&["store", "backup", "--force", "backup.db"]).done();
        assert!(ran.stdout.contains(" bytes written to "), "{ran:#?}");
        // Of the store too, while it is written to.
        for file in [&["backup.db"][..], &[]] {
            let said = gate.run(&[&["store", "verify"], file].concat()).done().stdout;
            assert!(said.ends_with("nothing is wrong\n"), "{said}");
        }
        last = BusyWriter::is_one_moment((points(&backup, 7), points(&backup, 8)), last);
    }
    writer.end(last).await;
    assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_of_one_moment_and_its_restore_is_refused_while_the_store_is_open_and_keeps_what_was_acknowledged()
{
    let gate = Arc::new(TestGateway::builder().key("bot").points("7", 0).start().await);
    a_backup_of_a_busy_server_is_of_one_moment(&gate).await;
    let mut gate = Arc::into_inner(gate).unwrap();
    gate.set_points("bot", "7", 3).await.is("Successfully set 'Ada' points to '3'");
    gate.run(&["store", "backup", "b.db"]).done();
    let refused = ["another process has", "guildgate.db open", "stop it first. Nothing was changed"];
    gate.run(&["store", "restore", "b.db"]).failed(1).names(&refused);
    gate.get_points("bot", "7").await.is("3");
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    gate.process().kill_hard();
    verify_reads_what_a_crash_left_with_its_log_and_changes_nothing(gate.world());
    let said = gate.run(&["store", "restore", "b.db"]).done().stdout;
    let kept = kept_stores(gate.world());
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(said.contains("guildgate.db is a copy of b.db now") && said.contains(&kept[0]), "{said}");
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("3");
    gate.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
    gate.process().kill_hard();
    // What was kept is a store as good as any: it is restored in the same way.
    gate.run(&["store", "restore", &kept[0]]).done();
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("5");
    assert_eq!(kept_stores(gate.world()).len(), 2);
    gate.run(&["store", "verify"]).done();
    assert_eq!(gate.stop().await, Some(0));
    let open = Sqlite::open(gate.world().path("guildgate.db")).unwrap();
    open.execute_batch("BEGIN; SELECT count(*) FROM guild").unwrap();
    gate.run(&["store", "restore", "b.db"]).failed(1).names(&refused);
    assert_eq!(kept_stores(gate.world()).len(), 2);
    drop(open);
    gate.run(&["store", "restore", "b.db"]).done();
}

/// And so it does what it may not write to.
fn verify_reads_what_a_crash_left_with_its_log_and_changes_nothing(world: &World) {
    let read = || ["guildgate.db", "guildgate.db-wal"].map(|name| world.read(name));
    let before = read();
    assert!(!before[1].is_empty());
    let said = world.run(&["store", "verify"]).done().stdout;
    assert!(said.contains("member: 2\n") && said.ends_with("nothing is wrong\n"), "{said}");
    assert!(read() == before, "it was changed");
    let fixed = world.path("fixed");
    fs::create_dir(&fixed).unwrap();
    fs::rename(world.path("b.db"), fixed.join("b.db")).unwrap();
    fs::set_permissions(fixed.join("b.db"), fs::Permissions::from_mode(0o400)).unwrap();
    fs::set_permissions(&fixed, fs::Permissions::from_mode(0o500)).unwrap();
    let root = nix::unistd::geteuid().is_root();
    let as_anybody: &[&str] = if root { &["setpriv", "--bounding-set=-dac_override,-dac_read_search"] } else { &[] };
    world.run_by(as_anybody, &["store", "verify", "fixed/b.db"]).done();
    assert_eq!(fs::read_dir(&fixed).unwrap().count(), 1);
    fs::set_permissions(&fixed, fs::Permissions::from_mode(0o700)).unwrap();
    fs::rename(fixed.join("b.db"), world.path("b.db")).unwrap();
}

/// A gateway that was killed after it wrote, with a backup `b.db` of before: member 7 has 3 points in that, and 5 in
/// the store, whose log has them.
async fn killed_after_a_backup() -> TestGateway {
    let mut gate = TestGateway::builder().key("bot").points("7", 3).start().await;
    gate.run(&["store", "backup", "b.db"]).done();
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    gate.process().kill_hard();
    assert!(!gate.world().read("guildgate.db-wal").is_empty());
    gate
}

/// Restores `b.db`, and kills that at its `nth` of these steps. Whether it came to it.
fn restore_killed_at(world: &World, steps: &str, nth: usize) -> bool {
    let (trace, inject) = (format!("trace={steps}"), format!("inject={steps}:signal=SIGKILL:when={nth}"));
    let log = world.path("strace.log");
    let strace = ["strace", "-f", "-qq", "-o", log.to_str().unwrap(), "-e", &trace, "-e", &inject];
    let ran = world.run_by(&strace, &["store", "restore", "b.db"]);
    assert!(ran.code.is_none() || ran.code == Some(0) || ran.code == Some(137), "{ran:?}");
    ran.code != Some(0)
}

#[tokio::test]
async fn a_restore_killed_at_any_step_leaves_the_old_store_or_the_new_one_whole() {
    let gate = killed_after_a_backup().await;
    let world = gate.world();
    let left: Vec<_> = ["guildgate.db", "guildgate.db-wal", "b.db"].map(|name| (name, world.read(name))).into();
    let (mut kills, mut found) = (0, HashSet::new());
    for steps in STEPS {
        for nth in 1..=MOST {
            let of_store = |path: &Path| path.file_name().unwrap().to_str().unwrap().contains("guildgate.db");
            world
                .files()
                .iter()
                .filter(|(path, _)| of_store(path))
                .for_each(|(path, _)| fs::remove_file(path).unwrap());
            left.iter().for_each(|(name, content)| drop(world.write(name, content)));
            if !restore_killed_at(world, steps, nth) {
                break;
            }
            kills += 1;
            let said = world.run(&["store", "verify"]).done().stdout;
            assert!(said.contains("member: 1\n"), "{steps} {nth}: {said}");
            found.insert(points(&world.path("guildgate.db"), 7));
            // What was acknowledged is in the store or in what was kept of it.
            let kept = kept_stores(world).into_iter().chain(["guildgate.db".to_owned()]);
            assert!(kept.map(|name| points(&world.path(&name), 7)).any(|points| points == 5), "{steps} {nth}");
            if nth == 1 {
                world.run(&["store", "restore", "b.db"]).done();
                assert_eq!(points(&world.path("guildgate.db"), 7), 3, "{steps} {nth}");
            }
        }
    }
    assert!(kills > 10, "{kills}");
    assert_eq!(found, HashSet::from([3, 5]), "killed before and after the backup was in place");
}

#[test]
fn verify_counts_what_is_in_a_store_and_what_is_no_sound_one_is_named_and_never_restored() {
    let world = world();
    let said = world.run(&["store", "verify"]).done().stdout;
    for line in ["guild: 1\n", "member: 1\n", "note: 2\n", "key: 0\n", "nothing is wrong\n"] {
        assert!(said.contains(line), "{said}");
    }
    what_is_no_sound_backup_is_refused_and_nothing_is_changed(&world);
    what_another_program_did_is_named();
    an_older_store_is_verified_and_backed_up_as_it_is_and_restored();
}

fn what_is_no_sound_backup_is_refused_and_nothing_is_changed(world: &World) {
    let good = world.read("guildgate.db");
    let from = |at: usize| good.iter().enumerate().map(|(n, byte)| if n >= at { 0xa5 } else { *byte }).collect();
    let (damaged, scribbled): (Vec<u8>, Vec<u8>) = (from(4096), from(good.len() - 4096));
    world.write("damaged.db", damaged);
    world.write("scribbled.db", &scribbled);
    world.write("cut.db", &good[..good.len() - 5000]);
    world.write("foreign.txt", "not a database, but as long as a page header: ".repeat(10));
    world.write("empty.db", "");
    Sqlite::open(world.path("other.db")).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let newer = world.write("newer.db", &good);
    let sql = "INSERT INTO refinery_schema_history (version) SELECT max(version) + 1 FROM refinery_schema_history";
    Sqlite::open(newer).unwrap().execute_batch(sql).unwrap();
    fs::hard_link(world.path("guildgate.db"), world.path("itself.db")).unwrap();
    let files = || world.files().into_iter().collect::<HashSet<_>>();
    let before = files();
    for (file, words) in [
        ("damaged.db", "damaged.db"),
        ("scribbled.db", "scribbled.db"),
        ("cut.db", "cut.db"),
        ("foreign.txt", "it is no sound store"),
        ("empty.db", "empty.db is empty: there is no store in it"),
        ("other.db", "is an SQLite database of another program"),
        ("newer.db", "was written by a newer Guildgate"),
        ("none.db", "none.db"),
        ("itself.db", "is the store itself"),
    ] {
        for command in ["verify", "restore"] {
            if (file, command) == ("itself.db", "verify") {
                continue;
            }
            let Ran { stdout, stderr, .. } = world.run(&["store", command, file]).failed(1);
            let said = format!("{stdout}{stderr}");
            assert!(said.contains(words), "{command} {file}: {said}");
        }
    }
    assert!(files() == before, "something was changed or left");
    // A damaged store does not replace a good backup.
    world.run(&["store", "backup", "good.db"]).done();
    let backup = world.read("good.db");
    world.write("guildgate.db", scribbled);
    for file in [&["./guildgate.db"][..], &[]] {
        let said = world.run(&[&["store", "verify"], file].concat()).failed(1).stdout;
        assert!(said.contains("put a backup in its place"), "{said}");
    }
    world.run(&["store", "backup", "good.db", "--force"]).failed(1).names(&["guildgate.db", "malformed"]);
    assert!(world.read("good.db") == backup, "it was replaced");
}

fn what_another_program_did_is_named() {
    let world = world();
    let store = Sqlite::open(world.path("guildgate.db")).unwrap();
    store.execute_batch("PRAGMA foreign_keys = OFF; DELETE FROM member").unwrap();
    drop(store);
    let ran = world.run(&["store", "verify"]).failed(1).names(&["something is wrong with"]);
    for line in [
        "wrong: table note: 2 rows refer to rows of table member that are missing\n",
        "it cannot be used: take another backup, or if it is the store, stop the server and put a backup in its place (`guildgate store restore FILE`)\n",
    ] {
        assert!(ran.stdout.contains(line), "{line}: {}", ran.stdout);
    }
}

fn an_older_store_is_verified_and_backed_up_as_it_is_and_restored() {
    let world = World::plain();
    let old = include_bytes!("../fixtures/store-v1.db");
    world.write("guildgate.db", old);
    let said = world.run(&["store", "verify"]).done().stdout;
    assert!(said.contains("schema 1, brought up to"), "{said}");
    world.run(&["store", "backup", "b.db"]).done();
    assert!(world.run(&["store", "verify", "b.db"]).done().stdout.contains("schema 1"));
    assert_eq!(world.read("guildgate.db"), old);
    world.run(&["store", "restore", "b.db"]).done();
    assert_eq!(world.run(&["guild", "list", "--json"]).done().list().len(), 2);
}
