//! Contract section 1, "Order": a request is admitted by its header and performed when its body has come. What has
//! changed by then counts, of the key (each change: `src/gateway/tests/key_life.rs`) and of the configuration.

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

/// Puts another origin in the place of the one that a gateway was started before.
async fn move_to(gate: &TestGateway, other: &ScriptedOrigin) {
    gate.reloaded_with(&gate.origin().url(), &other.url()).await;
    gate.get_points("other", "1").await.is("100");
}

#[tokio::test]
async fn a_body_held_back_over_a_reload_brings_nothing_of_the_old_origin_whose_answer_is_given_and_not_kept() {
    let gate = gate().start_here().await;
    let other = ScriptedOrigin::start(0).await;
    other.put_points("1", 100);
    other.put_points("7", 4);
    let mut held = Vec::new();
    held.push(HeldBody::begin(&gate, gate.request("getPoints", "bot", "memberID=7")).await);
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut asking = gate.connect_and_send(gate.request("getPoints", "new", "memberID=7")).await;
    gate.origin().has_been_asked("getPoints", 1).await;
    move_to(&gate, &other).await;
    for held in held {
        held.release().await.is("4");
    }
    hold.open();
    asking.answer().await.is("3");
    gate.get_points("bot", "7").await.is("4").is_hit();
    assert_eq!(gate.origin().asked_about("getPoints", "7"), 1);
}

#[tokio::test]
async fn a_learned_key_is_not_proven_by_the_word_of_an_origin_that_is_not_asked_any_more() {
    let gate = gate().keys_at_the_origin().start_here().await;
    let other = ScriptedOrigin::start(0).await;
    other.let_in(gate.secret("other"), GUILD);
    other.put_points("1", 100);
    other.put_points("7", 4);
    let mut held = Vec::new();
    gate.get_points("bot", "7").await.is("3");
    held.push(HeldBody::begin(&gate, gate.request("getPoints", "bot", "memberID=7")).await);
    held.push(HeldBody::begin(&gate, gate.request("setPoints", "bot", "memberID=7&amount=9")).await);
    let hold = Gate::shut();
    gate.origin().next("getWarns", Act::HoldAnswer(hold.clone()));
    let mut asking = gate.connect_and_send(gate.request("getWarns", "bot", "memberID=7")).await;
    gate.origin().has_been_asked("getWarns", 1).await;
    // Others wait for the proof of a key that the old origin is asked about.
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let asked = gate.origin().asked("getPoints");
    let mut proving = gate.connect_and_send(gate.request("getPoints", "new", "memberID=7")).await;
    gate.origin().has_been_asked("getPoints", asked + 1).await;
    let mut waiting = Vec::new();
    for body in ["memberID=7", "memberID=8"] {
        waiting.push(gate.connect_and_send(gate.request("getPoints", "new", body)).await);
    }
    move_to(&gate, &other).await;
    hold.open();
    asking.answer().await.is("{}");
    proving.answer().await.is("3");
    for connection in &mut waiting {
        connection.answer().await.is_refused(401, INCORRECT_KEY);
    }
    for key in ["bot", "new"] {
        for member in ["7", "8"] {
            gate.get_points(key, member).await.is_refused(401, INCORRECT_KEY);
        }
    }
    for held in held {
        held.release().await.is_refused(401, INCORRECT_KEY);
    }
    assert_eq!((gate.origin().points("7"), other.points("7")), (3, 4));
}
