//! `server.handover` where one of those that follow each other ends, or is stuck, at a bad moment.

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
async fn one_that_is_stopped_while_the_new_ones_store_opens_ends_at_once_and_the_other_serves() {
    let mut gate = gate(Kind::Builtin).start().await;
    let folder = std::fs::File::open(gate.world().path("")).unwrap();
    folder.lock().unwrap(); // as a store's opening does, so that the new one waits there
    let mut next = gate.world().serve(&[]);
    gate.has_said("asks to take over").await;
    next.signal(Signal::SIGTERM);
    assert_eq!(next.exit().await, Some(0), "{}", next.stderr());
    gate.has_said("goes on as before").await;
    gate.get_points("bot", "7").await.is("3");
    let ask = gate.request("getPoints", "bot", "memberID=7");
    let mut next = gate.world().serve(&[]);
    let asks = async || gate.stderr().matches("asks to take over").count() == 2;
    eventually(PATIENCE, "it asks", asks).await;
    gate.process().signal(Signal::SIGTERM);
    assert_eq!(gate.process().exit().await, Some(0), "{}", gate.stderr());
    let mut early = gate.connect_and_send(ask.bytes()).await;
    folder.unlock().unwrap();
    assert_eq!(next.ready().await, gate.address());
    early.answer().await.is("3");
}
