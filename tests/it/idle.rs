//! What a server does while nobody asks it anything: next to nothing. And what was waiting for events then happens as
//! soon as they come.

use std::time::Duration;

use crate::support::*;

/// The most wake-ups in a second; there are about 25 where nothing else has the cores. A thread that sleeps 10 ms at a time
/// has a hundred alone.
const MOST: u64 = 40;

/// Waits for a second without more wake-ups than that. A start, a request or a write to the store causes more for a while.
async fn is_idle(gate: &TestGateway) {
    let mut last = Vec::new();
    for _ in 0..30 {
        let before = gate.wake_ups();
        tokio::time::sleep(Duration::from_secs(1)).await; // the time in which they are counted
        let of = |thread: &str| before.iter().find(|(id, ..)| id == thread).map_or(0, |(.., count)| *count);
        last = gate.wake_ups().into_iter().map(|(id, name, count)| (name, count - of(&id))).collect();
        if last.iter().map(|(_, count)| count).sum::<u64>() <= MOST {
            return;
        }
    }
    last.retain(|(_, count)| *count > 0);
    panic!("never fewer than {MOST} wake-ups in a second; in the last one: {last:?}");
}

#[tokio::test]
async fn an_idle_server_is_woken_a_few_times_a_second_and_writes_its_logs_when_it_is_asked() {
    let builder = TestGateway::before_http().keys_in_store().key("bot").points("7", 3).admin();
    let builder = builder.set("log.access", r#""access.log""#).set("log.decisions", r#""decisions.rec""#);
    let gate = builder.set("log.audit", r#""audit.log""#).set("server.handover", r#""handover.sock""#).start().await;
    let mut kept = gate.connect().await;
    let ask = gate.request("getPoints", "bot", "memberID=7");
    kept.ask(&ask).await.is("3");
    is_idle(&gate).await;
    let size = || std::fs::metadata(gate.world().path("decisions.rec")).unwrap().len();
    let before = size();
    kept.ask(&ask).await.is("3");
    eventually(PATIENCE, "a second line", || async {
        gate.world().read("access.log").split(|b| *b == b'\n').count() > 2
    })
    .await;
    eventually(PATIENCE, "a second block", || async { size() > before }).await;
    is_idle(&gate).await;
}
