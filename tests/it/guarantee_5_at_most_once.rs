//! Contract section 5, guarantee 5: setPoints is never sent to an origin twice.

use crate::support::*;

fn gate() -> Builder {
    // As many retries as one could wish for: none of them is for setPoints.
    TestGateway::before_http().key("bot").points("7", 3).set("origin.retries", "3").set("origin.timeout", r#""500ms""#)
}

#[tokio::test]
async fn guarantee_5_whatever_the_origin_does_setpoints_is_sent_once() {
    let mut gate = gate().start().await;
    let cuts = [Cut::BeforeHeader, Cut::MidHeader, Cut::AfterHeader, Cut::MidBody].map(Act::Cut);
    let others = [
        Act::Normal,
        Act::Stall,
        Act::say(500, "<html>"),
        Act::say(503, "later"),
        Act::say(429, "later"),
        Act::say(408, "slow"),
        Act::say(307, "elsewhere"),
        Act::say(200, "02 | wrong"),
        Act::Raw(Vec::new()),
        Act::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort".to_vec()),
        Act::Raw(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()),
    ];
    for (i, act) in cuts.into_iter().chain(others).enumerate() {
        let member = (1000 + i).to_string();
        gate.origin().next("setPoints", act.clone());
        let answer = gate.set_points("bot", &member, 5).await;
        assert!(answer.status != 200 || matches!(act, Act::Normal), "{act:?}: {answer:#?}");
        assert_eq!(gate.origin().asked_about("setPoints", &member), 1, "{act:?}");
    }
    // Nothing was put off and sent again later.
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    for i in 0..15 {
        assert_eq!(gate.origin().asked_about("setPoints", &(1000 + i).to_string()), 1);
    }
    // On a kept connection that had died it is sent once or not at all.
    for amount in 0..20 {
        let member = (2000 + amount).to_string();
        gate.get_warns("bot", &member).await.is("{}"); // leaves a connection idle
        gate.origin().close_idle();
        let answer = gate.set_points("bot", &member, amount).await;
        let times = gate.origin().asked_about("setPoints", &member);
        match answer.status {
            200 => assert_eq!(times, 1, "{answer:#?}"),
            _ => assert!(times <= 1 && matches!(answer.code(), Some(20 | 21)), "{times} times: {answer:#?}"),
        }
    }
    // Nor is it sent twice for a caller that hangs up, ...
    let hold = Gate::shut();
    gate.origin().next("setPoints", Act::HoldAll(hold.clone()));
    let asked = gate.origin().asked("setPoints");
    let connection = gate.connect_and_send(gate.request("setPoints", "bot", "memberID=7&amount=6")).await;
    gate.origin().has_been_asked("setPoints", asked + 1).await;
    drop(connection);
    hold.open();
    let read = || async { gate.get_points("bot", "7").await.body == gate.origin().points("7").to_string() };
    eventually(PATIENCE, "what the origin holds", read).await;
    // ... and where the connection is refused, nothing is sent.
    gate.origin_mut().refuse().await;
    gate.set_points("bot", "7", 7).await.is_unavailable();
    assert_eq!(gate.origin().asked("setPoints"), asked + 1);
}

#[tokio::test]
async fn a_read_never_fails_because_kept_connections_die_idle_or_when_used() {
    let gate = TestGateway::before_http().key("bot").points("7", 3).start_here().await;
    for member in 101..=130 {
        gate.get_points("bot", &member.to_string()).await.is("0");
        gate.origin().close_idle();
    }
    let asked = gate.origin().asked("getPoints");
    // Four connections are kept: four questions at once.
    let hold = Gate::shut();
    let mut asking = Vec::new();
    for member in 10..14 {
        gate.origin().next("getPoints", Act::HoldAll(hold.clone()));
        asking.push(gate.connect_and_send(gate.request("getPoints", "bot", &format!("memberID={member}"))).await);
        gate.origin().has_been_asked("getPoints", asked + asking.len()).await;
    }
    hold.open();
    for connection in &mut asking {
        connection.answer().await.is("0");
    }
    // Whichever is used next dies under the request; the one retry goes out on a new connection.
    gate.origin().next("getPoints", Act::Cut(Cut::BeforeHeader));
    gate.get_points("bot", "7").await.is("3");
}
