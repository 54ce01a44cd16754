//! The disk under the store fails (contract section 5, guarantee 1): nothing is acknowledged that is
//! not there, reads go on, and it heals by itself.

use std::path::Path;
use std::process::Command;

use crate::support::*;

/// A disk of 1 MiB for the server alone, mounted over the store's folder where nobody else sees it, and
/// gone with it.
fn small_disk() -> Vec<&'static str> {
    let mount = "cp small/guildgate.db . && mount -t tmpfs -o size=1m,mode=700 small small && \
        mv guildgate.db small/ && exec \"$0\" \"$@\"";
    // Who is not root is root in a namespace of its own.
    let as_root: &[&str] = if nix::unistd::geteuid().is_root() { &[] } else { &["--map-root-user"] };
    [&["unshare", "--mount"], as_root, &["sh", "-c", mount]].concat()
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
    let mut gate = TestGateway::builder()
        .key("bot")
        .set("origin.store", r#""small/guildgate.db""#)
        .set("log.access", r#""""#)
        .folder("small")
        .launched_by(&small_disk())
        .start()
        .await;
    let disk = format!("/proc/{}/root{}", gate.process_id(), gate.world().path("small").display());
    // Somebody else's file takes most of the room.
    let others = Path::new(&disk).join("others");
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
    // Amid a failure it dies: what it acknowledged is there.
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
async fn guarantee_1_after_one_failed_sync_the_store_is_opened_anew_and_what_was_refused_never_comes_back() {
    let mut gate = TestGateway::builder().key("bot").launched_by(&FAULTY_CALLS).start().await;
    for round in 1..=3 {
        gate.set_points("bot", "8", round).await.is(&format!("Successfully set '8' points to '{round}'"));
        let refused = refused_by_one_failed_sync(&gate, round * 10).await;
        let said = async || gate.stderr().contains("the store was opened anew");
        eventually(PATIENCE, "that it was opened anew is said", said).await;
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
