//! `server.handover` where one of those that follow each other ends, or is stuck, at a bad moment.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::*;

fn gate(kind: Kind) -> Builder {
    TestGateway::on(kind)
        .key("bot")
        .points("7", 3)
        .set("server.handover", r#""handover.sock""#)
        .set("server.drain_timeout", r#""60s""#)
}

#[tokio::test]
async fn a_key_that_is_taken_out_of_its_file_stops_at_the_one_that_drains_too() {
    let mut gate = gate(Kind::Builtin).keys_in_file().start().await;
    let ask = gate.request("getPoints", "bot", "memberID=7");
    let mut kept = Vec::new();
    for _ in 0..100 {
        let mut connection = gate.connect().await;
        connection.ask(&ask).await.is("3");
        kept.push(connection);
    }
    let _before = gate.replace().await;
    gate.world().write("keys.toml", "# nobody\n");
    eventually(PATIENCE, "the new one has read the file", || async { gate.send(&ask).await.status == 401 }).await;
    // Each answer of the one that drains is its connection's last.
    loop {
        let mut connection = kept.pop().expect("the one that drains lets the key in for ever");
        let answer = connection.ask(&ask).await;
        assert!(answer.closes());
        if answer.status == 401 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await; // 100 of them: 5 s for what takes one at most
    }
}

#[tokio::test]
async fn where_the_old_one_is_stopped_amid_it_the_new_one_serves() {
    let mut gate = gate(Kind::Builtin).start().await;
    let ask = gate.request("getPoints", "bot", "memberID=7");
    let folder = std::fs::File::open(gate.world().path("")).unwrap();
    folder.lock().unwrap(); // as a store's opening does, so that the new one waits there
    let mut next = gate.world().serve(&[]);
    gate.has_said("asks to take over").await;
    gate.process().signal(Signal::SIGTERM);
    assert_eq!(gate.process().exit().await, Some(0), "{}", gate.stderr());
    let mut early = gate.connect_and_send(ask.bytes()).await;
    folder.unlock().unwrap();
    assert_eq!(next.ready().await, gate.address());
    early.answer().await.is("3");
}

#[tokio::test]
async fn one_that_is_stopped_while_its_store_opens_ends_at_once_and_takes_nothing() {
    let gate = gate(Kind::Builtin).start().await;
    let folder = std::fs::File::open(gate.world().path("")).unwrap();
    folder.lock().unwrap();
    let mut next = gate.world().serve(&[]);
    gate.has_said("asks to take over").await;
    next.signal(Signal::SIGTERM);
    assert_eq!(next.exit().await, Some(0), "{}", next.stderr());
    gate.get_points("bot", "7").await.is("3");
    folder.unlock().unwrap();
}

#[tokio::test]
async fn one_whose_stderr_nobody_reads_takes_over_and_hands_over() {
    // What a pipe holds is in it before the server writes its first line.
    let full = r#"mkfifo full && exec 3<>full && yes | head -c 65536 >&3; exec "$0" "$@" 2>&3 3>&-"#;
    let mut gate = gate(Kind::Builtin).start().await;
    let mut stuck = Command::new("sh");
    stuck.args(["-c", full, env!("CARGO_BIN_EXE_guildgate"), "serve"]).current_dir(gate.world().path(""));
    let mut stuck = Process::start(&mut stuck);
    assert_eq!(gate.process().exit().await, Some(0), "{}", gate.stderr());
    assert!(gate.stderr().contains("handed over"), "{}", gate.stderr());
    gate.get_points("bot", "7").await.is("3");
    let address = gate.address();
    let mut last = gate.world().serve(&[]);
    assert_eq!(last.ready().await, address);
    assert_eq!(stuck.exit().await, Some(0));
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn one_that_is_stopped_once_it_accepts_takes_over_before_it_ends() {
    let mut gate = gate(Kind::Http).start().await;
    for _ in 0..5 {
        let mut next = gate.world().serve(&[]);
        next.ready().await;
        next.signal(Signal::SIGTERM);
        assert_eq!(next.exit().await, Some(0), "{}", next.stderr());
        assert!(next.stderr().contains("took over"), "{}", next.stderr());
        assert_eq!(gate.process().exit().await, Some(0), "{}", gate.stderr());
        gate.restart_after_kill().await;
    }
}
