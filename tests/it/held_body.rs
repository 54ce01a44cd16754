//! Contract section 1, "Order": a request is admitted by its header and performed when its body has come. What has
//! changed by then counts, of the key (each change: `src/gateway/tests/key_life.rs`).

use nix::sys::signal::Signal;

use crate::support::*;

fn gate() -> Builder {
    TestGateway::before_http().tls().key("bot").key("other").key("new").points("7", 3)
}

#[tokio::test]
async fn guarantee_7_a_key_taken_out_of_its_file_while_its_body_is_held_back_and_the_server_stops_is_02() {
    let mut gate = gate().start().await;
    gate.get_points("bot", "7").await.is("3");
    let mut held = Vec::new();
    for (operation, body) in [
        ("setPoints", "memberID=7&amount=666"),
        ("getReviews", "memberID=7"),
        ("getPoints", "memberID=7"),
        ("getPoints", "memberID=x"),
    ] {
        held.push(HeldBody::begin(&gate, gate.request(operation, "bot", body)).await);
    }
    let kept = HeldBody::begin(&gate, gate.request("getPoints", "other", "memberID=7")).await;
    gate.process().signal(Signal::SIGTERM);
    gate.has_said("stopping: ").await;
    gate.world().remove_key("bot");
    let is_read = || async { gate.stderr().contains("key file reloaded") };
    eventually(SECOND_AND_SLACK, "the key file is read", is_read).await;
    for held in held {
        held.release().await.is_refused(401, INCORRECT_KEY);
    }
    kept.release().await.is("3");
    assert_eq!(gate.process().exit().await, Some(0), "{}", gate.stderr());
    assert_eq!(gate.origin().asked("setPoints"), 0);
}
