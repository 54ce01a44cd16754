//! What a running server does if its store's file is moved away, replaced, or copied over, and what is in the file
//! after that.

use std::fs;
use std::os::unix::fs::FileExt;

use rusqlite::Connection as Sqlite;

use crate::support::*;

/// A gateway with a backup `b.db`, in which member 7 has 3 points.
async fn with_backup() -> TestGateway {
    let gate = TestGateway::builder().key("bot").points("7", 3).start().await;
    gate.run(&["store", "backup", "b.db"]).done();
    gate
}

/// Where a file has its lineage, in four bytes.
const LINEAGE_AT: u64 = 60;

fn lineage(gate: &TestGateway, file: &str) -> u32 {
    let mut number = [0; 4];
    fs::File::open(gate.world().path(file)).unwrap().read_exact_at(&mut number, LINEAGE_AT).unwrap();
    u32::from_be_bytes(number)
}

/// Waits until every key is refused, as is promised within a second, and checks that no write is accepted.
async fn refuses_all_keys(gate: &TestGateway) {
    eventually(SECOND_AND_SLACK, "every key is refused", || async {
        gate.get_points("bot", "7").await.body.starts_with("21 |")
    })
    .await;
    gate.set_points("bot", "7", 9).await.is_unavailable();
}

fn copy(gate: &TestGateway, from: &str, to: &str) {
    fs::copy(gate.world().path(from), gate.world().path(to)).unwrap();
}

fn rename(gate: &TestGateway, from: &str, to: &str) {
    fs::rename(gate.world().path(from), gate.world().path(to)).unwrap();
}

#[tokio::test]
async fn a_backup_copied_over_the_file_of_a_running_server_is_not_written_to() {
    // With something in the log and without; stopped at once, and when the server has seen it.
    for (writes, waits) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut gate = with_backup().await;
        if writes {
            gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
        }
        copy(&gate, "b.db", "guildgate.db");
        if waits {
            gate.set_points("bot", "7", 6).await.is_unavailable();
            refuses_all_keys(&gate).await;
            assert!(gate.stderr().contains("had another file copied over it; stop the server"), "{}", gate.stderr());
        }
        assert_eq!(gate.stop().await, Some(0));
        assert!(gate.world().read("guildgate.db") == gate.world().read("b.db"), "{writes} {waits}");
        if writes {
            gate.run(&["serve"]).failed(1).names(&["guildgate.db-wal is not the write-ahead log of"]);
            rename(&gate, "guildgate.db-wal", "guildgate.db-wal.old");
        }
        gate.restart_after_kill().await;
        gate.get_points("bot", "7").await.is("3");
        gate.run(&["store", "verify"]).done();
    }
}

#[tokio::test]
async fn a_store_cut_to_nothing_under_a_running_server_is_not_filled_from_its_log() {
    let mut gate = with_backup().await;
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    fs::write(gate.world().path("guildgate.db"), "").unwrap();
    // More reads at once than connections are open: SQLite removes the log of an empty file that it opens.
    let members: Vec<String> = (100..200).map(|member| member.to_string()).collect();
    futures_util::future::join_all(members.iter().map(|member| gate.get_points("bot", member))).await;
    refuses_all_keys(&gate).await;
    assert_eq!(gate.stop().await, Some(0));
    assert!(gate.world().read("guildgate.db").is_empty());
    gate.run(&["serve"]).failed(1).names(&["guildgate.db is not there, but its write-ahead log is"]);
}

#[tokio::test]
async fn a_server_whose_store_was_moved_away_refuses_all_keys_until_it_is_back_and_no_other_is_restored_meanwhile() {
    let mut gate = with_backup().await;
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    gate.get_points("bot", "7").await.is("5");
    rename(&gate, "guildgate.db", "moved.db");
    refuses_all_keys(&gate).await;
    assert!(gate.stderr().contains("guildgate.db was moved away or removed"), "{}", gate.stderr());
    let process = format!("process {} has", gate.process_id());
    gate.run(&["store", "restore", "b.db"]).failed(1).names(&[&process, "stop it first"]);
    rename(&gate, "moved.db", "guildgate.db");
    let answers = async || gate.set_points("bot", "7", 6).await.body.starts_with("Success");
    eventually(PATIENCE, "the store is written to", answers).await;
    gate.get_points("bot", "7").await.is("6");
    // If it is stopped meanwhile, it leaves the file and its log as they are.
    rename(&gate, "guildgate.db", "moved.db");
    assert_eq!(gate.stop().await, Some(0));
    gate.run(&["serve"]).failed(1).names(&["guildgate.db is not there, but its write-ahead log is"]);
    rename(&gate, "moved.db", "guildgate.db");
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("6");
    gate.run(&["store", "verify"]).done();
}

#[tokio::test]
async fn a_server_whose_store_was_replaced_refuses_all_keys_until_it_is_started_again() {
    let mut gate = with_backup().await;
    rename(&gate, "b.db", "guildgate.db");
    refuses_all_keys(&gate).await;
    assert!(gate.stderr().contains("guildgate.db is another file now"), "{}", gate.stderr());
    assert_eq!(gate.restart().await, Some(0));
    gate.get_points("bot", "7").await.is("3");
    gate.set_points("bot", "7", 4).await.is("Successfully set 'Ada' points to '4'");
}

/// Runs a command that writes to the store, and leaves an empty log.
fn empties_the_log(gate: &TestGateway, guild: &str) {
    gate.run(&["guild", "add", guild, "--name", "Day Watch"]).done();
    assert!(gate.world().read("guildgate.db-wal").is_empty());
}

#[tokio::test]
async fn a_copy_of_the_live_file_is_told_from_a_later_state_whose_log_began_after_it() {
    let mut gate = with_backup().await;
    // As soon as it would not be complete with what is in the log.
    for (round, guild) in [(5, "1001"), (6, "1002"), (7, "1003")] {
        let [before, after] = ["before.db", "after.db"];
        copy(&gate, "guildgate.db", before);
        empties_the_log(&gate, guild);
        copy(&gate, "guildgate.db", after);
        gate.set_points("bot", "7", round).await.is(&format!("Successfully set 'Ada' points to '{round}'"));
        gate.process().kill_hard();
        copy(&gate, before, "guildgate.db");
        gate.run(&["serve"]).failed(1).names(&["guildgate.db-wal is not the write-ahead log of"]);
        let said = gate.run(&["store", "verify"]).failed(1).stdout;
        assert!(said.contains("is not the write-ahead log of"), "{said}");
        // A later copy is as good as the file itself.
        copy(&gate, after, "guildgate.db");
        gate.restart_after_kill().await;
        gate.get_points("bot", "7").await.is(&round.to_string());
        gate.run(&["store", "verify"]).done();
    }
}

#[tokio::test]
async fn a_backup_copied_over_the_file_of_a_running_server_is_noticed_whatever_a_command_writes_to_it() {
    let gate = with_backup().await;
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    // The log is empty, so that the command finds nothing in it that does not belong to the file.
    empties_the_log(&gate, "1001");
    // Backups have random lineages, and one in 256 would not be recognised.
    let far = lineage(&gate, "guildgate.db").wrapping_add(1 << 31);
    let backup = fs::File::options().write(true).open(gate.world().path("b.db")).unwrap();
    backup.write_all_at(&far.to_be_bytes(), LINEAGE_AT).unwrap();
    copy(&gate, "b.db", "guildgate.db");
    gate.run(&["member", "set", "--guild", GUILD, "--member", "8", "--name", "Bo", "--points", "1"]).done();
    refuses_all_keys(&gate).await;
}

#[tokio::test]
async fn a_copy_that_went_its_own_way_is_not_taken_for_the_store_under_whose_numbers_it_began() {
    let mut gate = with_backup().await;
    let other = World::plain();
    for lives in [false, true] {
        copy(&gate, "guildgate.db", "copy.db");
        fs::rename(gate.world().path("copy.db"), other.path("guildgate.db")).unwrap();
        for points in ["1", "2", "3"] {
            other.run(&["member", "set", "--guild", GUILD, "--member", "9", "--name", "Cy", "--points", points]).done();
        }
        for points in 10..20 {
            gate.set_points("bot", "7", points).await.is(&format!("Successfully set 'Ada' points to '{points}'"));
        }
        if lives {
            fs::copy(other.path("guildgate.db"), gate.world().path("guildgate.db")).unwrap();
            refuses_all_keys(&gate).await;
        } else {
            gate.process().kill_hard();
            copy(&gate, "guildgate.db", "kept.db");
            fs::copy(other.path("guildgate.db"), gate.world().path("guildgate.db")).unwrap();
            gate.run(&["serve"]).failed(1).names(&["guildgate.db-wal is not the write-ahead log of"]);
            copy(&gate, "kept.db", "guildgate.db");
            gate.restart_after_kill().await;
            gate.get_points("bot", "7").await.is("19");
        }
    }
}

#[tokio::test]
async fn a_server_whose_log_was_moved_away_acknowledges_nothing_until_it_is_back_and_loses_nothing_at_its_end() {
    let mut gate = with_backup().await;
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    for name in ["guildgate.db-wal", "guildgate.db-shm"] {
        rename(&gate, name, "aside");
        refuses_all_keys(&gate).await;
        assert!(gate.stderr().contains(&format!("{name} was moved away or removed")), "{}", gate.stderr());
        rename(&gate, "aside", name);
        let answers = async || gate.set_points("bot", "8", 6).await.body.starts_with("Success");
        eventually(PATIENCE, "the store is written to", answers).await;
    }
    // A command makes another log, which is empty.
    for command in [false, true] {
        fs::remove_file(gate.world().path("guildgate.db-wal")).unwrap();
        refuses_all_keys(&gate).await;
        if command {
            gate.run(&["key", "list"]);
            assert!(gate.world().path("guildgate.db-wal").exists());
        }
        assert_eq!(gate.restart().await, Some(0));
        gate.get_points("bot", "7").await.is("5");
        gate.get_points("bot", "8").await.is("6");
        gate.run(&["store", "verify"]).done();
        gate.set_points("bot", "8", 6).await.is("Successfully set '8' points to '6'");
    }
}

#[tokio::test]
async fn a_server_that_starts_during_a_long_read_of_its_store_takes_it_for_its_own() {
    let mut gate = with_backup().await;
    assert_eq!(gate.stop().await, Some(0));
    let mut server = gate.world().serve(&[]);
    let reader = Sqlite::open(gate.world().path("guildgate.db")).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM member").unwrap();
    server.ready().await;
    drop(server);
    gate.restart_after_kill().await;
    for points in 0..20 {
        gate.set_points("bot", "8", points).await.is(&format!("Successfully set '8' points to '{points}'"));
    }
    drop(reader);
    // Now the log can be written into the file.
    empties_the_log(&gate, "1001");
    gate.set_points("bot", "8", 1).await.is("Successfully set '8' points to '1'");
    assert!(!gate.stderr().contains("another file"), "{}", gate.stderr());
}
