//! The store fails under a running server (contract section 5, guarantee 1): its disk is full, fails or hangs, or its file
//! is moved away or replaced. Nothing is acknowledged that is not there, reads go on, and it heals by itself.

use std::fs;
use std::process::Command;

use futures_util::future::join_all;

use crate::support::*;

/// Every call that Debian's libfiu can fail goes through it; it is told which by `fiu`.
const FAULTY_CALLS: [&str; 4] = ["fiu-run", "-x", "-f", "fiu"];

/// By which SQLite has what it wrote on disk: which of the two depends on how it was built.
const SYNCS: [&str; 2] = ["posix/io/sync/fsync", "posix/io/sync/fdatasync"];

const WRITES: [&str; 1] = ["posix/io/rw/pwrite"];

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Members whose points are on many pages of the file: some were not read before, and they need room when what is in the
/// log is written into the file.
const MANY: u64 = 5000;

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

#[tokio::test]
async fn guarantee_1_a_full_disk_refuses_writes_answers_reads_shows_to_operators_and_heals_when_there_is_room() {
    let gate = TestGateway::builder().key("bot").points("7", 3).admin().on_small_disk("small", 2048);
    let mut gate = gate.set("origin.store", r#""small/guildgate.db""#).set("log.access", r#""""#).start().await;
    let (admin, dashboard) = (gate.admin().await, gate.dashboard().await);
    let shows = async || {
        let (ready, status) = (admin.get("/readyz").await, admin.get("/api/status").await.is(200));
        assert_eq!((ready.status, ready.text.starts_with("ok")), (200, true), "{ready:?}");
        let (metrics, page) = (admin.get("/metrics").await.text, dashboard.get("/").await.text);
        [
            ready.text.contains("ok; the store cannot be written to: "),
            status["store_write_fault"].as_str().is_some_and(|why| why.contains("disk is full")),
            metrics.contains("\nguildgate_store_write_failing 1"),
            page.contains("<dd>cannot be written</dd>") && page.contains("setPoints is refused"),
        ]
    };
    gate.world().run_there(&["store", "backup", "b.db"]).done();
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    assert_eq!(shows().await, [false; 4]);
    // Without these, the server could empty its log into the file, and would need no room for a while.
    let member = |id| format!("{{\"guild\":\"{GUILD}\",\"member\":\"{id}\",\"name\":\"Bo\",\"points\":{id}}}\n");
    gate.world().write("many.jsonl", (1000..1000 + MANY).map(member).collect::<String>());
    gate.world().run_there(&["import", "many.jsonl"]).done();
    let others = gate.world().disk().fill("others");
    for amount in [6, 7] {
        gate.set_points("bot", "7", amount).await.is_unavailable();
        gate.get_points("bot", "7").await.is("5");
    }
    gate.get_points("bot", "1234").await.is("1234");
    gate.has_said("disk is full").await;
    assert_eq!(shows().await, [true; 4]);
    for command in [&["check"][..], &["key", "list"], &["store", "verify"]] {
        gate.world().run_there(command).done();
    }
    assert_eq!(gate.world().run_there(&["export", "-"]).done().stdout.lines().count() as u64, 2 + MANY);
    gate.world().run_there(&["guild", "leave", GUILD]).failed(1).names(&["disk is full"]);
    a_full_disk_under_an_export_or_under_the_copy_of_stdin_is_named(gate.world());

    fs::remove_file(others).unwrap();
    gate.set_points("bot", "7", 8).await.is("Successfully set 'Ada' points to '8'");
    eventually(PATIENCE, "nothing is shown any more", async || shows().await == [false; 4]).await;
    // A restore for which there is no room leaves the store and its log as they were.
    gate.process().kill_hard();
    let others = gate.world().disk().fill("others");
    gate.world().run_there(&["store", "restore", "b.db"]).failed(1).names(&["full"]);
    fs::remove_file(others).unwrap();
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("8");
    gate.get_points("bot", "1234").await.is("1234");
    assert_eq!(gate.stop().await, Some(0));
}

fn a_full_disk_under_an_export_or_under_the_copy_of_stdin_is_named(world: &World) {
    let full = "small/out.jsonl cannot be written: No space left on device";
    world.run_there(&["export", "small/out.jsonl"]).failed(1).names(&[full]);
    let piped = ["sh", "-c", "cat many.jsonl | TMPDIR=small \"$0\" \"$@\""].map(str::to_owned);
    let ran = world.run_by(&[world.disk().launcher(), piped.into()].concat(), &["import", "-"]).failed(1);
    ran.names(&["stdin cannot be read: ", "could not be copied to small (No space left on device"]);
}

#[tokio::test]
async fn guarantee_1_while_syncs_or_writes_fail_nothing_is_acknowledged_and_afterwards_all_goes_on() {
    let mut gate = TestGateway::builder().key("bot").launched_by(&FAULTY_CALLS).start().await;
    let mut member = 0;
    // A commit whose sync fails is there or not; one that finds no room is not.
    for (calls, errno, first) in [(&SYNCS[..], EIO, 20), (&WRITES, EIO, 20), (&WRITES, ENOSPC, 21), (&SYNCS, EIO, 20)] {
        member += 1;
        gate.set_points("bot", &member.to_string(), 1).await.is(&format!("Successfully set '{member}' points to '1'"));
        fiu(&gate, calls, Some(errno));
        for (amount, code) in [(2, first), (3, 21)] {
            let answer = gate.set_points("bot", &member.to_string(), amount).await;
            assert_eq!(answer.code(), Some(code), "{calls:?} {errno}: {answer:#?}");
        }
        gate.get_points("bot", &member.to_string()).await.is("1");
        gate.get_points("bot", "7777").await.is("0");
        fiu(&gate, calls, None);
        gate.set_points("bot", &member.to_string(), 4).await.is(&format!("Successfully set '{member}' points to '4'"));
        gate.get_points("bot", &member.to_string()).await.is("4");
    }
    // During a failure it dies: what it acknowledged is there.
    fiu(&gate, &SYNCS, Some(EIO));
    assert_eq!(gate.set_points("bot", "1", 9).await.code(), Some(20));
    gate.restart_after_kill().await;
    for member in 2..=member {
        gate.get_points("bot", &member.to_string()).await.is("4");
    }
    let one = gate.get_points("bot", "1").await;
    assert!(["4", "9"].contains(&&*one.body), "there whole or not at all: {one:#?}");
    gate.run(&["store", "verify"]).done();
    what_a_failed_sync_left_is_settled_before_the_next_write_and_does_not_change_after_that(&mut gate).await;
}

/// Sets member 7's points to `amount` or one more while one sync fails: nobody knows whether it is there.
async fn unknown_by_one_failed_sync(gate: &TestGateway, amount: i64) {
    for (amount, call) in (amount..).zip(SYNCS) {
        fiu_order(gate, &format!("enable name={call},failinfo={EIO},onetime"));
        let answer = gate.set_points("bot", "7", amount).await;
        if answer.status != 200 {
            assert_eq!(answer.code(), Some(20), "{answer:#?}");
            return;
        }
        fiu(gate, &[call], None); // the other one is in use
    }
    panic!("no sync was made");
}

async fn what_a_failed_sync_left_is_settled_before_the_next_write_and_does_not_change_after_that(
    gate: &mut TestGateway,
) {
    for round in 1..=2 {
        gate.set_points("bot", "8", round).await.is(&format!("Successfully set '8' points to '{round}'"));
        unknown_by_one_failed_sync(gate, round * 10).await;
        gate.set_points("bot", "9", 5).await.is("Successfully set '9' points to '5'");
        gate.has_said("can be written to again").await;
        let settled = gate.get_points("bot", "7").await;
        // The commit was whole in the log when its sync failed, and a start reads what is there.
        gate.restart_after_kill().await;
        gate.get_points("bot", "7").await.is(&settled.body);
        gate.get_points("bot", "8").await.is(&round.to_string());
        gate.run(&["store", "verify"]).done();
    }
    gate.get_points("bot", "9").await.is("5");
}

#[tokio::test]
async fn while_the_disk_does_not_respond_all_are_answered_and_files_reload_and_the_server_ends_at_sigterm() {
    let disk = HangingDisk::new();
    let many = (1..=MANY).fold(TestGateway::builder(), |builder, id| builder.points(&id.to_string(), id as i64));
    let many = many.keys_in_file().key("bot").key("gone").launched_by(disk.launcher());
    let mut gate = many.set("cache.points.ttl", r#""20s""#).set("server.drain_timeout", r#""1s""#).start().await;
    gate.get_points("bot", "1").await.is("1");
    disk.stop_responding(Hangs::Reads);
    // More than the server has threads of any kind for.
    let members: Vec<String> = (1..=16).map(|n| (n * MANY / 16).to_string()).collect();
    let answers = join_all(members.iter().map(|member| gate.get_points("bot", member)));
    let health = async {
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
    for member in &members {
        gate.get_points("bot", member).await.is(member);
    }
    for hangs in [Hangs::Commits, Hangs::Reads, Hangs::Looks] {
        gate.set_points("bot", "1", 5).await.is("Successfully set 'Ada' points to '5'");
        disk.stop_responding(hangs);
        let (answer, code) = match hangs {
            Hangs::Reads => (gate.get_points("bot", "2345").await, 21),
            Hangs::Looks | Hangs::Commits => (gate.set_points("bot", "1", 6).await, 22),
        };
        assert_eq!(answer.code(), Some(code), "{hangs:?}");
        assert_eq!(gate.stop().await, Some(0), "{hangs:?}: {}", gate.stderr());
        disk.respond(hangs);
        gate.restart_after_kill().await;
    }
}

/// Checks that the next write is refused, and waits until every key is, as is promised within a second.
async fn refuses_writes_and_soon_all_keys(gate: &TestGateway) {
    gate.set_points("bot", "7", 9).await.is_unavailable();
    eventually(SECOND_AND_SLACK, "every key is refused", || async {
        gate.get_points("bot", "7").await.body.starts_with("21 |")
    })
    .await;
    gate.has_said("guildgate.db was moved away, removed or replaced while it is open").await;
}

#[tokio::test]
async fn a_server_whose_store_was_moved_away_refuses_all_until_it_is_back_and_one_whose_store_was_replaced_until_it_is_started()
 {
    let mut gate = TestGateway::builder().key("bot").points("7", 3).start().await;
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    gate.get_points("bot", "7").await.is("5");
    let (store, moved) = (gate.world().path("guildgate.db"), gate.world().path("moved.db"));
    fs::rename(&store, &moved).unwrap();
    refuses_writes_and_soon_all_keys(&gate).await;
    fs::rename(&moved, &store).unwrap();
    let answers = async || gate.set_points("bot", "7", 6).await.body.starts_with("Success");
    eventually(PATIENCE, "the store is written to", answers).await;
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("6");
    gate.run(&["store", "verify"]).done();
    gate.run(&["store", "backup", "b.db"]).done();
    fs::rename(gate.world().path("b.db"), &store).unwrap();
    refuses_writes_and_soon_all_keys(&gate).await;
    assert_eq!(gate.restart().await, Some(0));
    gate.get_points("bot", "7").await.is("6");
    gate.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
}
