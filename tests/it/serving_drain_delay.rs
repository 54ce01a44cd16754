//! Contract section 3, `server.drain_delay`: the health path fails before anything else does.

use nix::sys::signal::Signal;

use crate::support::*;

/// What is said when the delay begins.
const DELAYED: &str = "stopping after server.drain_delay";

fn gate() -> Builder {
    TestGateway::builder().key("bot").points("7", 3).set("server.drain_timeout", r#""60s""#)
}

fn health() -> Request {
    Request::bare("GET", "/healthz")
}

#[tokio::test]
async fn while_the_delay_passes_the_health_path_says_503_everything_else_goes_on_and_more_signals_end_it() {
    let mut gate = gate().tls().admin().set("server.drain_delay", r#""1ms""#);
    gate = gate.set("server.body_timeout", r#""60s""#);
    let mut gate = gate.start().await;
    // The delay of a reload counts.
    gate.reload_with("drain_delay = \"1ms\"", "drain_delay = \"60s\"");
    gate.has_said("configuration reloaded").await;
    let ask = gate.request("getPoints", "bot", "memberID=7");
    let admin = gate.admin().await.with_token("");
    let (mut kept, mut http2) = (gate.connect().await, gate.http2().await);
    kept.ask(&ask).await.is("3");
    http2.ask(&ask).await.is("3");
    let _held = HeldBody::begin(&gate, ask.clone()).await;
    gate.process().signal(Signal::SIGTERM);
    gate.has_said(DELAYED).await;
    for _ in 0..3 {
        let answer = kept.ask(&health()).await;
        assert!(answer.status == 503 && answer.body == "draining" && !answer.closes(), "{answer:#?}");
        assert!(!kept.ask(&ask).await.is("3").closes());
        assert_eq!(http2.ask(&health()).await.status, 503);
        http2.ask(&ask).await.is("3");
        let mut new = gate.connect().await;
        assert_eq!(new.ask(&health()).await.status, 503);
        assert!(!new.ask(&ask).await.is("3").closes());
        gate.http2().await.ask(&ask).await.is("3");
    }
    let ready = admin.get("/readyz").await;
    assert!(ready.status == 503 && ready.text.contains("draining"), "{ready:?}");
    assert_eq!(admin.get("/healthz").await.text, "ok");
    // Another signal ends the delay, long before 60 s, and a third one cuts what is left.
    gate.process().signal(Signal::SIGINT);
    http2.is_ended().await.expect("a GOAWAY without fault");
    kept.is_closed().await;
    gate.has_said("finishing the requests under way").await;
    assert!(!gate.stderr().contains("are cut"), "{}", gate.stderr());
    gate.process().signal(Signal::SIGINT);
    gate.has_said("another stop signal; these connections are cut").await;
    assert_eq!(gate.process().exit().await, Some(0), "{}", gate.stderr());
}
