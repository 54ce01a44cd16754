//! Contract section 5, guarantee 3: however many callers miss at once, the origin is asked once.

use crate::support::*;

fn gate() -> Builder {
    TestGateway::before_http().key("bot").points("7", 3)
}

async fn ask_at_once(gate: &TestGateway, count: usize) -> Vec<Connection> {
    ask_at_once_with(gate, "bot", count).await
}

/// `count` connections that have each asked for member 7, the first of them as the flight's leader.
async fn ask_at_once_with(gate: &TestGateway, key: &str, count: usize) -> Vec<Connection> {
    let request = gate.request("getPoints", key, "memberID=7");
    let asked = gate.origin().asked("getPoints");
    let mut asking = Vec::new();
    for i in 0..count {
        let connection = gate.connect_and_send(request.clone()).await;
        if i == 0 {
            gate.origin().has_been_asked("getPoints", asked + 1).await;
        }
        asking.push(connection);
    }
    gate.has_read_requests().await;
    asking
}

#[tokio::test]
async fn guarantee_3_a_hundred_misses_are_one_question() {
    let gate = gate().start().await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let asking = ask_at_once(&gate, 100).await;
    // Other entries do not wait for it.
    gate.get_points("bot", "8").await.is("0");
    gate.get_warns("bot", "7").await.is("{}");
    hold.open();
    let mut collapsed = 0;
    for mut connection in asking {
        let answer = connection.answer().await;
        collapsed += usize::from(answer.is("3").cache_status().contains("collapsed"));
    }
    assert_eq!(gate.origin().asked_about("getPoints", "7"), 1);
    assert_eq!(collapsed, 99, "all but one are said to be collapsed");
    // A leader that hangs up harms no follower.
    gate.set_points("bot", "7", 4).await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut asking = ask_at_once(&gate, 20).await;
    drop(asking.remove(0));
    gate.has_read_requests().await;
    hold.open();
    for mut connection in asking {
        connection.answer().await.is("4");
    }
    assert_eq!(gate.origin().asked_about("getPoints", "7"), 2);
}

#[tokio::test]
async fn guarantee_3_callers_who_come_while_an_answer_is_kept_are_no_question_of_their_own() {
    let gate = gate().set("server.threads", "4").start().await;
    let mut connections = Vec::new();
    for _ in 0..32 {
        connections.push(gate.connect().await);
    }
    for member in 1000..1300 {
        let request = gate.request("getPoints", "bot", &format!("memberID={member}")).bytes();
        for connection in &mut connections {
            connection.send(&request).await;
        }
        for connection in &mut connections {
            connection.answer().await.is("0");
        }
        assert_eq!(gate.origin().asked_about("getPoints", &member.to_string()), 1, "member {member}");
    }
}

#[tokio::test]
async fn guarantee_3_a_failed_question_fails_its_followers_and_the_next_caller_asks_again() {
    let gate = gate().set("origin.retries", "1").set("origin.timeout", r#""1s""#).start().await;
    gate.origin().next("getPoints", Act::Stall);
    for mut connection in ask_at_once(&gate, 20).await {
        let answer = connection.answer().await;
        assert_eq!(answer.code(), Some(22), "{answer:#?}");
    }
    assert_eq!(gate.origin().asked("getPoints"), 1);
    gate.get_points("bot", "7").await.is("3");
    assert_eq!(gate.origin().asked("getPoints"), 2);
    // One that was cut unanswered is asked again once.
    let asked = gate.origin().asked("getPoints");
    gate.origin().next("getPoints", Act::Cut(Cut::BeforeHeader));
    gate.get_points("bot", "6").await.is("0");
    assert_eq!(gate.origin().asked("getPoints"), asked + 2);
    gate.origin().next("getPoints", Act::Cut(Cut::BeforeHeader));
    gate.origin().next("getPoints", Act::Cut(Cut::BeforeHeader));
    gate.get_points("bot", "8").await.is_refused(502, NO_ANSWER);
    assert_eq!(gate.origin().asked_about("getPoints", "8"), 2);
    // Where something was answered there is no asking again.
    gate.origin().next("getPoints", Act::Cut(Cut::MidBody));
    gate.get_points("bot", "9").await.is_refused(502, NO_ANSWER);
    assert_eq!(gate.origin().asked_about("getPoints", "9"), 1);
}

#[tokio::test]
async fn guarantee_3_a_refusal_of_one_key_is_one_question_and_delays_no_other_key_of_its_guild() {
    let gate = TestGateway::before_http().key("bot").key("dead").key("slow").points("7", 3);
    let gate = gate.set("cache.points.ttl", r#""0s""#).set("cache.points.stale_if_error", r#""0s""#).start().await;
    for (key, status, line, code) in [("dead", 401, "02 | Incorrect API key!", 2), ("slow", 429, "slow down", 21)] {
        let (hold, asked) = (Gate::shut(), gate.origin().asked("getPoints"));
        gate.origin().next("getPoints", Act::HoldThen(hold.clone(), status, line.into()));
        let asking = ask_at_once_with(&gate, key, 100).await;
        gate.get_points("bot", "7").await.is("3");
        hold.open();
        for mut connection in asking {
            assert_eq!(connection.answer().await.code(), Some(code));
        }
        assert_eq!(gate.origin().asked("getPoints"), asked + 2, "one of each key");
    }
}
