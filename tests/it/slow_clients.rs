//! Guarantee 8 and `[server]`'s time-outs together: some hundred slow clients of every kind, and a
//! good one next to them. (`benches/slow.rs` has a thousand of them for a minute, and figures.)

use std::time::{Duration, Instant};

use crate::support::*;

const SLOW: usize = 40 * Slow::ALL.len();

/// What the gateway may hold for each of them. One that does not read its answers has 64 KiB and an
/// answer in the works.
const KIB_EACH: u64 = 256;

#[tokio::test]
async fn guarantee_8_slow_clients_of_every_kind_harm_no_good_one_and_leave_nothing_behind() {
    let gate = TestGateway::builder()
        .tls()
        .key("bot")
        .points("7", 3)
        .review("7", 1, "Bo", 5, &"x".repeat(8000))
        .set("server.header_timeout", r#""3s""#)
        .set("server.body_timeout", r#""2s""#)
        .set("server.write_timeout", r#""2s""#)
        .start()
        .await;
    let request = gate.request("getPoints", "bot", "memberID=7");
    let (mut one, mut two) = (gate.connect().await, gate.http2().await);
    one.ask(&request).await.is("3");
    two.ask(&request).await.is("3");
    let (sockets, before) = (gate.open_sockets(), gate.resident_kib());

    let slow = SlowClients::start(&gate, &Slow::ALL, SLOW, Duration::from_millis(50));
    slow.have_come().await;
    let (began, mut asked) = (Instant::now(), 0);
    // Long enough for every deadline but the idle one to have come round.
    while asked < 84 || began.elapsed() < Duration::from_secs(4) || slow.shown_out() < SLOW / 2 {
        assert!(began.elapsed() < 4 * PATIENCE, "{asked} requests, {} shown out", slow.shown_out());
        for _ in 0..20 {
            one.ask(&request).await.is("3");
            two.ask(&request).await.is("3");
        }
        gate.connect().await.ask(&request).await.is("3");
        let mut new = gate.http2().await;
        new.ask(&request).await.is("3");
        new.end().await.unwrap();
        asked += 42;
    }
    let grown = gate.resident_kib().saturating_sub(before);
    assert!(grown < KIB_EACH * SLOW as u64, "{grown} KiB for {SLOW} slow clients");
    // They are still there, those of the idle kind since the beginning.
    assert!(gate.open_sockets() > sockets + SLOW / 2, "{} sockets", gate.open_sockets());
    one.ask(&request).await.is("3");
    two.ask(&request).await.is("3");

    drop(slow);
    eventually(PATIENCE, "all of them are gone", || async { gate.open_sockets() <= sockets }).await;
    one.ask(&request).await.is("3");
    two.ask(&request).await.is("3");
}
