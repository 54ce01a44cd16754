//! The disk under the store fails (contract section 5, guarantee 1): nothing is acknowledged that is
//! not there, reads go on, and it heals by itself.

use std::path::PathBuf;
use std::process::Command;

use futures_util::future::join_all;
use rusqlite::Connection as Sqlite;

use crate::support::*;

/// A gateway whose store is on a disk of 1 MiB.
async fn on_small_disk() -> TestGateway {
    let gate = TestGateway::builder().key("bot").on_small_disk("small", 1024);
    gate.set("origin.store", r#""small/guildgate.db""#).set("log.access", r#""""#).start().await
}

/// Every call that Debian's libfiu can fail goes through it; it is told which by `fiu`.
const FAULTY_CALLS: [&str; 4] = ["fiu-run", "-x", "-f", "fiu"];

/// By which SQLite has what it wrote on disk: which of the two depends on how it was built.
const SYNCS: [&str; 2] = ["posix/io/sync/fsync", "posix/io/sync/fdatasync"];

const WRITES: [&str; 1] = ["posix/io/rw/pwrite"];

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Has the server's calls of these names fail with this error number, or succeed again.
fn fiu(gate: &TestGateway, calls: &[&str], errno: Option<i32>) {
    for call in calls {
        match errno {
            Some(errno) => fiu_order(gate, &format!("enable name={call},failinfo={errno}")),
            None => fiu_order(gate, &format!("disable name={call}")),
        }
    }
}

fn fiu_order(gate: &TestGateway, order: &str) {
    let pid = gate.process_id().to_string();
    let told = Command::new("fiu-ctrl").arg("-f").arg(gate.world().path("fiu")).args(["-c", order, &pid]).output();
    let told = told.unwrap();
    assert!(told.status.success() && told.stdout.is_empty(), "{told:?}");
}

/// Writes members 1, 2, … until one is refused, and gives its number.
async fn first_refused(gate: &TestGateway, most: u64) -> (u64, Answer) {
    let mut connection = gate.connect().await;
    for member in 1..=most {
        let request = gate.request("setPoints", "bot", &format!("memberID={member}&amount={member}"));
        let answer = connection.ask(&request).await;
        if answer.status != 200 {
            return (member, answer);
        }
    }
    panic!("{most} writes, and none was refused");
}

/// Nothing below `refused` was lost, and nothing was made up.
async fn holds_what_was_acknowledged(gate: &TestGateway, refused: u64) {
    let mut connection = gate.connect().await;
    for member in 1..refused {
        let request = gate.request("getPoints", "bot", &format!("memberID={member}"));
        connection.ask(&request).await.is(&member.to_string());
    }
    gate.get_points("bot", &refused.to_string()).await.is("0");
}

#[tokio::test]
async fn guarantee_1_a_full_disk_refuses_writes_answers_reads_and_heals_when_there_is_room() {
    let mut gate = on_small_disk().await;
    // Somebody else's file takes most of the room.
    let others = gate.world().disk().path().join("others");
    std::fs::write(&others, vec![0; 300 * 1024]).unwrap();
    let (refused, answer) = first_refused(&gate, 200_000).await;
    answer.is_unavailable();
    assert!(refused > 10, "{refused}");
    gate.set_points("bot", "999999", 5).await.is_unavailable();
    holds_what_was_acknowledged(&gate, refused).await;
    gate.get_points("bot", "999999").await.is("0");
    assert!(gate.stderr().contains("is full; make room"), "{}", gate.stderr());

    std::fs::remove_file(others).unwrap();
    gate.set_points("bot", &refused.to_string(), 1).await.is(&format!("Successfully set '{refused}' points to '1'"));
    gate.get_points("bot", &refused.to_string()).await.is("1");
    assert_eq!(gate.stop().await, Some(0));
}

/// Members in the log of [`crashed_on_a_full_disk`].
const IN_THE_LOG: usize = 4000;

/// A world whose store is as a crash left it, on a disk with no room for what is in its log but the log; the secret of
/// a key; and the file of somebody else that takes the room.
async fn crashed_on_a_full_disk() -> (World, String, PathBuf) {
    let builder = TestGateway::builder().key("bot").folder("small").set("log.access", r#""""#);
    let (mut world, _, secrets) = builder.set("origin.store", r#""small/guildgate.db""#).prepare().await;
    let files = ["small/guildgate.db", "small/guildgate.db-wal"];
    // Somebody reads meanwhile, so it stays in the log.
    let reader = Sqlite::open(world.path(files[0])).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM guild").unwrap();
    let member = |id| format!("{{\"guild\":\"{GUILD}\",\"member\":\"{id}\",\"name\":\"Ada\",\"points\":{id}}}\n");
    world.import(&(1..=IN_THE_LOG).map(member).collect::<String>()).done();
    let left = files.map(|name| world.read(name));
    drop(reader);
    for (name, bytes) in files.iter().zip(&left) {
        world.write(name, bytes);
    }
    let kib = left.iter().map(|bytes| bytes.len().div_ceil(1024) as u64).sum::<u64>();
    // Somebody else's file, and what SQLite shares between those that use a store.
    world.put_on_small_disk("small", kib + 512 + 64).await;
    let others = world.disk().path().join("others");
    std::fs::write(&others, vec![0; 512 * 1024]).unwrap();
    world.run_there(&["check"]).done();
    world.disk().fill("more");
    (world, secrets["bot"].clone(), others)
}

#[tokio::test]
async fn on_a_full_disk_commands_that_read_work_and_a_server_starts_answers_reads_and_heals() {
    let (world, bot, others) = crashed_on_a_full_disk().await;
    let ask = async |server: &mut Process, operation: &str, body: &str| {
        Connection::to(server.ready().await).await.ask(&Request::post(operation, body).key(&bot)).await
    };
    for _ in 0..2 {
        for command in [&["check"][..], &["key", "list"], &["guild", "list"], &["store", "verify"]] {
            world.run_there(command).done();
        }
        let exported = world.run_there(&["export", "-"]).done().stdout;
        assert_eq!(exported.lines().count(), 1 + IN_THE_LOG);
        // Nor what would need no more room than there is.
        for command in [&["guild", "leave", GUILD][..], &["member", "remove", "--guild", GUILD, "--member", "1"]] {
            world.run_there(command).failed(1).names(&["is full; make room"]);
        }
        let mut server = world.serve(&[]);
        ask(&mut server, "/getPoints", "memberID=7").await.is("7");
        ask(&mut server, "/setPoints", "memberID=7&amount=9").await.is_unavailable();
        ask(&mut server, "/getPoints", "memberID=7").await.is("7");
        let said = "reads go on, and writes are refused until there is room";
        assert!(server.stderr().contains(said), "{}", server.stderr());
        server.kill_hard();
    }
    let mut server = world.serve(&[]);
    ask(&mut server, "/setPoints", "memberID=7&amount=9").await.is_unavailable();
    std::fs::remove_file(others).unwrap();
    ask(&mut server, "/setPoints", "memberID=7&amount=9").await.is("Successfully set 'Ada' points to '9'");
    server.kill_hard();
    let mut server = world.serve(&[]);
    ask(&mut server, "/getPoints", "memberID=7").await.is("9");
    assert!(!server.stderr().contains("writes are refused"), "{}", server.stderr());
    assert_eq!(world.run_there(&["export", "-"]).done().stdout.lines().count(), 1 + IN_THE_LOG);
    world.run_there(&["store", "verify"]).done();
}

#[tokio::test]
async fn what_a_killed_import_staged_does_not_keep_a_full_disk_full() {
    let mut world = World::plain();
    std::fs::create_dir(world.path("small")).unwrap();
    world.write("gateway.toml", "[origin]\nstore = \"small/guildgate.db\"\n");
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    world.put_on_small_disk("small", 1024).await;
    world.disk().fill("guildgate.db.import-0123456789abcdef.tmp");
    world.run_there(&["member", "set", "--guild", GUILD, "--member", "1", "--points", "9"]).done();
    assert_eq!(std::fs::read_dir(world.disk().path()).unwrap().count(), 1);
}

#[tokio::test]
async fn guarantee_1_while_syncs_or_writes_fail_nothing_is_acknowledged_and_afterwards_all_goes_on() {
    let mut gate = TestGateway::builder().key("bot").launched_by(&FAULTY_CALLS).start().await;
    let mut member = 0;
    for (calls, errno) in [(&SYNCS[..], EIO), (&WRITES, EIO), (&WRITES, ENOSPC), (&SYNCS, EIO)] {
        member += 1;
        gate.set_points("bot", &member.to_string(), 1).await.is(&format!("Successfully set '{member}' points to '1'"));
        fiu(&gate, calls, Some(errno));
        for amount in [2, 3] {
            gate.set_points("bot", &member.to_string(), amount).await.is_unavailable();
        }
        gate.get_points("bot", &member.to_string()).await.is("1");
        gate.get_points("bot", "7777").await.is("0");
        fiu(&gate, calls, None);
        gate.set_points("bot", &member.to_string(), 4).await.is(&format!("Successfully set '{member}' points to '4'"));
        gate.get_points("bot", &member.to_string()).await.is("4");
    }
    // During a failure it dies: what it acknowledged is there.
    fiu(&gate, &SYNCS, Some(EIO));
    gate.set_points("bot", "1", 9).await.is_unavailable();
    gate.restart_after_kill().await;
    for member in 2..=member {
        gate.get_points("bot", &member.to_string()).await.is("4");
    }
    let one = gate.get_points("bot", "1").await;
    assert!(["4", "9"].contains(&&*one.body), "there whole or not at all: {one:#?}");
    gate.run(&["store", "verify"]).done();
}

/// Sets member 7's points to `amount` or one more while one sync fails, and is refused.
async fn refused_by_one_failed_sync(gate: &TestGateway, amount: i64) -> i64 {
    for (amount, call) in (amount..).zip(SYNCS) {
        fiu_order(gate, &format!("enable name={call},failinfo={EIO},onetime"));
        let answer = gate.set_points("bot", "7", amount).await;
        if answer.status != 200 {
            answer.is_unavailable();
            return amount;
        }
        fiu(gate, &[call], None); // the other one is in use
    }
    panic!("no sync was made");
}

#[tokio::test]
async fn guarantee_1_after_one_failed_sync_the_store_is_opened_again_and_what_was_refused_never_comes_back() {
    let mut gate = TestGateway::builder().key("bot").launched_by(&FAULTY_CALLS).start().await;
    for round in 1..=3 {
        gate.set_points("bot", "8", round).await.is(&format!("Successfully set '8' points to '{round}'"));
        let refused = refused_by_one_failed_sync(&gate, round * 10).await;
        let said = async || gate.stderr().contains("the store was opened again");
        eventually(PATIENCE, "the log says that it was opened again", said).await;
        let before = gate.get_points("bot", "7").await;
        assert_ne!(before.body, refused.to_string());
        if round == 3 {
            gate.set_points("bot", "9", 5).await.is("Successfully set '9' points to '5'");
        }
        // The refused write was whole in the file when its sync failed, and a start reads what is there.
        gate.restart_after_kill().await;
        gate.get_points("bot", "7").await.is(&before.body);
        gate.get_points("bot", "8").await.is(&round.to_string());
        gate.run(&["store", "verify"]).done();
    }
    gate.get_points("bot", "9").await.is("5");
}

#[tokio::test]
async fn guarantee_1_a_start_that_cannot_settle_what_a_crash_left_is_refused() {
    let mut gate = TestGateway::builder().key("bot").start().await;
    gate.set_points("bot", "7", 5).await.is("Successfully set '7' points to '5'");
    gate.process().kill_hard();
    assert!(!gate.world().read("guildgate.db-wal").is_empty());
    let fail = SYNCS.map(|call| format!("enable name={call},failinfo={EIO}"));
    let failing = ["fiu-run", "-x", "-c", &fail[0], "-c", &fail[1]];
    gate.world().run_by(&failing, &["serve"]).failed(1).names(&["guildgate.db", "disk I/O error"]);
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("5");
}

#[tokio::test]
async fn a_server_whose_disk_does_not_respond_ends_at_sigterm() {
    for hangs in [Hangs::Commits, Hangs::Reads, Hangs::Looks] {
        let disk = HangingDisk::new();
        let gate = TestGateway::builder().key("bot").points("7", 3).launched_by(disk.launcher());
        let mut gate = gate.set("server.drain_timeout", r#""1s""#).start().await;
        gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
        disk.stop_responding(hangs);
        let code = gate.set_points("bot", "7", 6).await.code();
        assert_eq!(code, Some(if let Hangs::Commits = hangs { 22 } else { 21 }), "{hangs:?}");
        gate.process().signal(nix::sys::signal::Signal::SIGTERM);
        assert_eq!(gate.process().exit().await, Some(0), "{hangs:?}: {}", gate.stderr());
    }
}

/// Members whose points are on many pages of the file, so that some were not read before.
const MANY: u64 = 5000;

#[tokio::test]
async fn while_the_disk_does_not_respond_to_reads_all_are_answered_and_files_reload_and_afterwards_all_goes_on() {
    let disk = HangingDisk::new();
    let many = (1..=MANY).fold(TestGateway::builder(), |builder, id| builder.points(&id.to_string(), id as i64));
    let many = many.keys_in_file().key("bot").key("gone").launched_by(disk.launcher());
    let gate = many.set("cache.points.ttl", r#""20s""#).start().await;
    gate.get_points("bot", "1").await.is("1");
    disk.stop_responding(Hangs::Reads);
    // More than the server has threads of any kind for.
    let members: Vec<String> = (1..=16).map(|n| (n * MANY / 16).to_string()).collect();
    let answers = join_all(members.iter().map(|member| gate.get_points("bot", member)));
    let health = async {
        gate.has_said("the store's change feed cannot be read").await;
        gate.send(&Request::bare("GET", "/healthz")).await.is("ok");
        gate.send(&Request::post("/getPoints", "memberID=1").key("unknown")).await.is_refused(401, INCORRECT_KEY);
        gate.edit_key_file("id = \"gone\"", "expires = 1\nid = \"gone\"").await;
        gate.get_points("gone", "1").await.is_refused(401, INCORRECT_KEY);
        gate.reload_with("ttl = \"20s\"", "ttl = \"25s\"");
        gate.has_said("configuration reloaded").await;
    };
    for answer in tokio::join!(answers, health).0 {
        answer.is_unavailable();
    }
    disk.respond(Hangs::Reads);
    gate.has_said("the store's change feed works again").await;
    for member in &members {
        gate.get_points("bot", member).await.is(member);
    }
}

#[tokio::test]
async fn while_the_disk_does_not_respond_to_reads_lists_for_admins_end_and_delay_no_page_that_needs_no_store() {
    let disk = HangingDisk::new();
    let many = (1..=MANY).fold(TestGateway::builder(), |builder, id| builder.points(&id.to_string(), id as i64));
    let gate = many.admin().keys_in_file().key("bot").launched_by(disk.launcher()).start().await;
    let admin = gate.admin().await;
    let list = format!("/api/guilds/{GUILD}/members?limit=1000");
    admin.get("/api/guilds").await.is(200); // its own connections to the store are open
    disk.stop_responding(Hangs::Reads);
    let mut lists = join_all((0..8).map(|_| admin.get(&list)));
    let pages = async {
        gate.has_said("the store's change feed cannot be read").await;
        // Takes a thread for what blocks, as the lists do.
        admin.get("/api/usage").await.is(200);
        admin.get("/api/status").await.is(200);
    };
    tokio::select! {
        _ = &mut lists => panic!("the pages took longer than the lists"),
        () = pages => {}
    }
    for answer in lists.await {
        answer.is_problem(503, "check its disk");
    }
    disk.respond(Hangs::Reads);
    admin.get(&list).await.is(200);
}
