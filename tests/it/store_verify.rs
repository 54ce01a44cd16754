//! `store verify` changes nothing: not the store, not its log, and where there is no log not the folder either.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use rusqlite::Connection as Sqlite;

use crate::support::*;

/// Kills of a `store verify` while it reads.
const KILLS: usize = 10;

/// Starts until there were this many.
const TRIES: usize = 100;

/// What root can do to any file, and others cannot.
fn as_anybody() -> &'static [&'static str] {
    let root = nix::unistd::geteuid().is_root();
    if root { &["setpriv", "--bounding-set=-dac_override,-dac_read_search"] } else { &[] }
}

/// The files of a folder, with what is in them.
fn files(world: &World, folder: &str) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(world.path(folder)).unwrap().map(|entry| entry.unwrap());
    let named = |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
    let mut files: Vec<_> = entries.map(named).collect();
    files.sort();
    files
}

#[tokio::test]
async fn what_a_crash_left_is_looked_at_with_its_log_and_stays_byte_for_byte() {
    let mut gate = TestGateway::builder().key("bot").points("7", 3).start().await;
    gate.set_points("bot", "8", 5).await.is("Successfully set '8' points to '5'");
    gate.process().kill_hard();
    let read = || ["guildgate.db", "guildgate.db-wal"].map(|name| gate.world().read(name));
    let before = read();
    assert!(!before[1].is_empty());
    for _ in 0..2 {
        let said = gate.run(&["store", "verify"]).done().stdout;
        assert!(said.contains("member: 2\n") && said.ends_with("nothing is wrong\n"), "{said}");
        assert!(read() == before, "it was changed");
    }
    gate.restart_after_kill().await;
    gate.get_points("bot", "8").await.is("5");
}

#[tokio::test]
async fn while_a_server_writes_nothing_is_wrong_and_nobody_is_held_up() {
    let gate = std::sync::Arc::new(TestGateway::builder().key("bot").points("7", 3).start().await);
    let writer = BusyWriter::start(&gate, |gate, which, amount| {
        gate.request("setPoints", "bot", &format!("memberID={}&amount={amount}", 7 + which))
    });
    for _ in 0..20 {
        let verifying = gate.clone();
        let ran = tokio::task::spawn_blocking(move || verifying.run(&["store", "verify"]).done());
        assert!(ran.await.unwrap().stdout.ends_with("nothing is wrong\n"));
    }
    writer.end(1).await;
}

#[test]
fn a_backup_where_nothing_can_be_written_is_verified_to_the_last_row() {
    let world = World::plain();
    world.import(&format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n")).done();
    world
        .run(&["review", "add", "--guild", GUILD, "--member", "7", "--author", "Bo", "--rating", "5", "--text", "t"])
        .done();
    fs::create_dir(world.path("fixed")).unwrap();
    for name in ["fixed/good.db", "fixed/bad.db"] {
        world.run(&["store", "backup", name]).done();
    }
    let bad = Sqlite::open(world.path("fixed/bad.db")).unwrap();
    bad.execute_batch("PRAGMA ignore_check_constraints = ON; UPDATE review SET rating = 9").unwrap();
    drop(bad);
    let before = files(&world, "fixed");
    for (name, _) in &before {
        fs::set_permissions(world.path("fixed").join(name), fs::Permissions::from_mode(0o400)).unwrap();
    }
    fs::set_permissions(world.path("fixed"), fs::Permissions::from_mode(0o500)).unwrap();
    let verify = |name: &str| world.run_by(as_anybody(), &["store", "verify", name]);
    assert!(verify("fixed/good.db").done().stdout.ends_with("review: 1\nkey: 0\nnothing is wrong\n"));
    let said = verify("fixed/bad.db").failed(1).stdout;
    assert!(said.contains("wrong: CHECK constraint failed in review\n"), "{said}");
    assert!(files(&world, "fixed") == before, "something was changed or left");
    fs::set_permissions(world.path("fixed"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[tokio::test]
async fn one_that_is_killed_leaves_nothing_that_the_next_backup_takes_for_use() {
    let world = World::plain();
    let member = |id: u64| format!("{{\"guild\":\"{GUILD}\",\"member\":\"{id}\",\"name\":\"Ada\",\"points\":{id}}}\n");
    let lines = format!("{{\"guild\":\"{GUILD}\",\"name\":\"Night Watch\"}}\n");
    world.import(&(lines + &(1..=60_000).map(member).collect::<String>())).done();
    fs::create_dir(world.path("backups")).unwrap();
    world.run(&["store", "backup", "backups/b.db"]).done();
    let backup = fs::canonicalize(world.path("backups/b.db")).unwrap();
    let mut kills = 0;
    for _ in 0..TRIES {
        let mut verify = Process::start(&mut world.command(&["store", "verify", "backups/b.db"]));
        let is_looking = |process: &Process| {
            let open = fs::read_dir(format!("/proc/{}/fd", process.id())).into_iter().flatten().flatten();
            open.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| file == backup)
        };
        while !is_looking(&verify) && !verify.has_ended() {
            tokio::task::yield_now().await;
        }
        if !verify.has_ended() {
            verify.signal(Signal::SIGKILL);
        }
        // It was done already.
        if verify.exit().await.is_some() {
            continue;
        }
        kills += 1;
        world.run(&["store", "backup", "backups/b.db"]).done();
        if kills == KILLS {
            return;
        }
    }
    panic!("it was killed {kills} times while it read");
}
