//! Contract section 5, guarantee 2: the orders of events that break a cache, each set up by hand.

use crate::support::*;

fn gate() -> Builder {
    TestGateway::before_http().key("bot").points("7", 3)
}

async fn ask_later(gate: &TestGateway, operation: &str, body: &str) -> Connection {
    gate.connect_and_send(gate.request(operation, "bot", body)).await
}

#[tokio::test]
async fn guarantee_2_a_read_after_a_write_gives_the_new_value() {
    let builtin = TestGateway::builder().key("bot").points("7", 3).start().await;
    let http = gate().start().await;
    for gate in [&builtin, &http] {
        for amount in 10..20 {
            gate.get_points("bot", "7").await;
            gate.get_points("bot", "7").await.is_hit();
            gate.set_points("bot", "7", amount).await.is(&format!("Successfully set 'Ada' points to '{amount}'"));
            gate.get_points("bot", "7").await.is(&amount.to_string());
        }
    }
    // A fill that began before a write does not bring the old value back.
    let hold = Gate::shut();
    let asked = http.origin().asked("getPoints");
    http.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut early = ask_later(&http, "getPoints", "memberID=8").await;
    http.origin().has_been_asked("getPoints", asked + 1).await; // the origin holds a 0 in its hands
    http.set_points("bot", "8", 10).await.is("Successfully set 'Ada' points to '10'");
    hold.open();
    let concurrent = early.answer().await.body;
    assert!(concurrent == "0" || concurrent == "10", "{concurrent}");
    for _ in 0..3 {
        http.get_points("bot", "8").await.is("10");
    }
    // A refused write leaves the answers right.
    http.origin().next("setPoints", Act::say(403, "03 | gone"));
    assert_eq!(http.set_points("bot", "8", 11).await.code(), Some(3));
    http.get_points("bot", "8").await.is("10");
    http.get_points("bot", "8").await.is("10").is_hit();
    no_one_reads_an_older_value_than_was_read_before_it(&http).await;
}

/// Two questions about one entry are under way at once, and the one that began first comes back
/// with the newer value: from then on nobody may be given the other's older one, be it by joining it
/// or from the cache, though the write itself is still unanswered.
async fn no_one_reads_an_older_value_than_was_read_before_it(http: &TestGateway) {
    let (asked, written) = (http.origin().asked("getPoints"), http.origin().asked("setPoints"));
    let (hold_early, hold_late, hold_write) = (Gate::shut(), Gate::shut(), Gate::shut());
    http.origin().next("getPoints", Act::HoldAll(hold_early.clone()));
    let mut early = ask_later(http, "getPoints", "memberID=9").await;
    http.origin().has_been_asked("getPoints", asked + 1).await; // the origin has not looked yet
    http.origin().next("setPoints", Act::HoldAll(hold_write.clone()));
    let mut write = ask_later(http, "setPoints", "memberID=9&amount=10").await;
    http.origin().has_been_asked("setPoints", written + 1).await;
    http.origin().next("getPoints", Act::HoldAnswer(hold_late.clone()));
    let mut late = ask_later(http, "getPoints", "memberID=9").await;
    http.origin().has_been_asked("getPoints", asked + 2).await; // the origin has looked, and holds a 0
    http.origin().put_points("9", 10); // the write takes effect; its answer is still to come
    hold_early.open();
    early.answer().await.is("10");
    // Whoever asks from here on asks after somebody was told 10.
    let mut after = ask_later(http, "getPoints", "memberID=9").await;
    http.has_read_requests().await;
    hold_late.open();
    assert_eq!(late.answer().await.status, 200); // 0 or 10: it began before anyone was told 10
    assert_eq!(after.answer().await.body, "10", "it was given the answer of a question from before the 10");
    assert_eq!(http.get_points("bot", "9").await.body, "10", "the older value was kept");
    hold_write.open();
    write.answer().await.is("Successfully set 'Ada' points to '10'");
    http.get_points("bot", "9").await.is("10");
}

#[tokio::test]
async fn guarantee_2_after_a_write_of_unknown_outcome_answers_are_not_kept() {
    let unusable = Act::say(500, "<html>");
    let cuts = [Cut::BeforeHeader, Cut::MidHeader, Cut::AfterHeader, Cut::MidBody].map(Act::Cut);
    let gate = gate().set("origin.timeout", r#""300ms""#).set("cache.points.ttl", r#""20s""#).start_here().await;
    let outcomes = [Act::Stall, unusable, Act::Raw(b"garbage\r\n\r\n".to_vec())].into_iter().chain(cuts);
    for (member, unknown) in outcomes.enumerate() {
        let member = &member.to_string();
        gate.origin().put_points(member, 3);
        gate.get_points("bot", member).await.is("3");
        gate.get_points("bot", member).await.is("3").is_hit();
        gate.origin().next("setPoints", unknown.clone());
        let answer = gate.set_points("bot", member, 10).await;
        assert!(matches!(answer.code(), Some(20 | 22)), "{unknown:?}: {answer:#?}");
        // Whatever the origin holds now, and whenever the lost write lands, is seen at once.
        for landed in [3, 10, 3, 10] {
            gate.origin().put_points(member, landed);
            let answer = gate.get_points("bot", member).await;
            assert_eq!(answer.body, landed.to_string(), "{unknown:?}: {answer:#?}");
            assert!(!answer.was_hit(), "{unknown:?}: {answer:#?}");
        }
    }
}

#[tokio::test]
async fn guarantee_2_a_write_that_is_done_long_after_its_caller_was_told_22_ends_what_is_in_memory() {
    let disk = HangingDisk::new();
    let builder = TestGateway::builder().key("bot").points("7", 3).set("cache.points.ttl", r#""4s""#);
    let gate = builder.launched_by(disk.launcher()).start().await;
    disk.stop_responding(Hangs::Commits);
    gate.set_points("bot", "7", 4).await.is_refused(504, "22 | The service took too long to answer. Try again later.");
    eventually(PATIENCE, "memory has an answer", async || gate.get_points("bot", "7").await.was_hit()).await;
    gate.get_points("bot", "7").await.is("3");
    disk.respond(Hangs::Commits);
    // Less than the answer's `ttl`.
    eventually(SECOND_AND_SLACK, "the write is seen", async || gate.get_points("bot", "7").await.body == "4").await;
}
