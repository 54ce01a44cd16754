//! An export is of one moment, however long it takes, and holds nobody up.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

use crate::support::*;

/// A guild that an export comes to after everything of [`GUILD`].
const LATER: &str = "91384788765712384";

/// Members between what is looked at: more than fits into a pipe and all buffers on the way.
const CROWD: u64 = 12_000;

/// Two keys of two guilds, each with a member 7 that has no points, and a crowd between the two.
async fn gate(kind: Kind) -> TestGateway {
    let crowd: Vec<_> = (1000..1000 + CROWD)
        .map(|id| json!({"guild": GUILD, "member": id.to_string(), "name": "One of many", "points": 1}).to_string())
        .collect();
    let later = json!({"guild": LATER, "member": "7", "name": "Ada", "points": 0}).to_string();
    let gate = TestGateway::on(kind).key("first").key_of_guild("second", LATER).points("7", 0);
    gate.line(&crowd.join("\n")).line(&later).start().await
}

/// The points of member 7 in both guilds, as an export has them.
fn both(export: &[u8]) -> (i64, i64) {
    let records = export.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let records: Vec<Value> = records.map(|line| serde_json::from_slice(line).unwrap()).collect();
    assert!(records.len() as u64 >= CROWD + 4, "{}", records.len());
    let of = |guild: &str| {
        let found: Vec<_> = records.iter().filter(|r| r["guild"] == guild && r["member"] == "7").collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]["points"].as_i64().unwrap()
    };
    (of(GUILD), of(LATER))
}

async fn set_both(connection: &mut Connection, gate: &TestGateway, amount: i64) {
    for key in ["first", "second"] {
        let body = format!("memberID=7&amount={amount}");
        connection
            .ask(&gate.request("setPoints", key, &body))
            .await
            .is(&format!("Successfully set 'Ada' points to '{amount}'"));
    }
}

async fn what_is_written_while_an_export_is_held_up_is_neither_in_it_nor_held_up(kind: Kind) {
    let gate = gate(kind).await;
    let pipe = gate.world().path("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let mut export = Process::start(&mut gate.world().command(&["export", "pipe"]));
    let begun = tokio::task::spawn_blocking(move || {
        let (mut pipe, mut exported) = (File::open(pipe).unwrap(), vec![0; 1000]);
        pipe.read_exact(&mut exported).unwrap();
        (pipe, exported)
    });
    let (mut pipe, mut exported) = begun.await.unwrap();
    // It is midway now, and stays there until somebody reads on.
    let mut connection = gate.connect().await;
    for amount in 1..=50 {
        set_both(&mut connection, &gate, amount).await;
    }
    gate.world().import(&json!({"guild": LATER, "member": "8", "name": "Eve", "points": 1}).to_string()).done();
    let exported = tokio::task::spawn_blocking(move || {
        pipe.read_to_end(&mut exported).unwrap();
        exported
    });
    let exported = exported.await.unwrap();
    assert_eq!(export.exit().await, Some(0), "{}", export.stderr());
    assert_eq!(both(&exported), (0, 0));
    assert!(!String::from_utf8(exported).unwrap().contains("Eve"));
    gate.run(&["export", "next.jsonl"]).done();
    assert_eq!(both(&gate.world().read("next.jsonl")), (50, 50));
}

async fn every_export_during_a_busy_writer_is_of_one_moment(kind: Kind) {
    let gate = Arc::new(gate(kind).await);
    let writer = BusyWriter::start(&gate, |gate, which, amount| {
        gate.request("setPoints", ["first", "second"][which], &format!("memberID=7&amount={amount}"))
    });
    let mut last = 0;
    for _ in 0..10 {
        let exporting = gate.clone();
        let ran = tokio::task::spawn_blocking(move || exporting.run(&["export", "out.jsonl"]).done());
        ran.await.unwrap();
        last = BusyWriter::is_one_moment(both(&gate.world().read("out.jsonl")), last);
    }
    writer.end(last).await;
}

on_both_stores!(
    what_is_written_while_an_export_is_held_up_is_neither_in_it_nor_held_up,
    every_export_during_a_busy_writer_is_of_one_moment,
);
