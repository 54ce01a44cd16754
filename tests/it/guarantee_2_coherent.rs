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
    for kind in [Kind::Builtin, Kind::Http] {
        let gate = TestGateway::on(kind).key("bot").points("7", 3).start().await;
        for amount in 10..20 {
            gate.get_points("bot", "7").await;
            gate.get_points("bot", "7").await.is_hit();
            gate.set_points("bot", "7", amount).await.is(&format!("Successfully set 'Ada' points to '{amount}'"));
            gate.get_points("bot", "7").await.is(&amount.to_string());
        }
    }
}

#[tokio::test]
async fn guarantee_2_a_fill_that_began_before_a_write_does_not_bring_the_old_value_back() {
    let gate = gate().start().await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut early = ask_later(&gate, "getPoints", "memberID=7").await;
    gate.origin().has_been_asked("getPoints", 1).await; // the origin holds a 3 in its hands
    gate.set_points("bot", "7", 10).await.is("Successfully set 'Ada' points to '10'");
    hold.open();
    let concurrent = early.answer().await.body;
    assert!(concurrent == "3" || concurrent == "10", "{concurrent}");
    for _ in 0..3 {
        gate.get_points("bot", "7").await.is("10");
    }
}

#[tokio::test]
async fn guarantee_2_after_a_write_of_unknown_outcome_answers_are_not_kept() {
    let unusable = Act::say(500, "<html>");
    let cuts = [Cut::BeforeHeader, Cut::MidHeader, Cut::AfterHeader, Cut::MidBody].map(Act::Cut);
    for unknown in [Act::Stall, unusable, Act::Raw(b"garbage\r\n\r\n".to_vec())].into_iter().chain(cuts) {
        let gate = gate().set("origin.timeout", r#""300ms""#).set("cache.points.ttl", r#""20s""#).start().await;
        gate.get_points("bot", "7").await.is("3");
        gate.get_points("bot", "7").await.is("3").is_hit();
        gate.origin().next("setPoints", unknown.clone());
        let answer = gate.set_points("bot", "7", 10).await;
        assert!(matches!(answer.code(), Some(20 | 22)), "{unknown:?}: {answer:#?}");
        // Whatever the origin holds now, and whenever the lost write lands, is seen at once.
        for landed in [3, 10, 3, 10] {
            gate.origin().put_points("7", landed);
            let answer = gate.get_points("bot", "7").await;
            assert_eq!(answer.body, landed.to_string(), "{unknown:?}: {answer:#?}");
            assert!(!answer.was_hit(), "{unknown:?}: {answer:#?}");
        }
        gate.get_points("bot", "8").await.is("0");
    }
}

#[tokio::test]
async fn guarantee_2_an_answer_asked_for_within_a_ttl_after_a_write_of_unknown_outcome_is_not_kept_however_late_it_comes()
 {
    const TTL: std::time::Duration = std::time::Duration::from_secs(4);
    let gate = gate().set("cache.points.ttl", r#""4s""#).start().await;
    gate.origin().next("setPoints", Act::Cut(Cut::AfterHeader));
    gate.set_points("bot", "7", 10).await.is_refused(502, NO_ANSWER);
    let end = std::time::Instant::now();
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    tokio::time::sleep_until((end + TTL / 2).into()).await;
    let mut read = gate.connect_and_send(gate.request("getPoints", "bot", "memberID=7")).await;
    gate.origin().has_been_asked("getPoints", 1).await;
    assert!(end.elapsed() < TTL, "the machine was too slow");
    // Only now the lost write takes effect.
    gate.origin().put_points("7", 20);
    tokio::time::sleep_until((end + TTL).into()).await;
    hold.open();
    read.answer().await.is("10");
    gate.get_points("bot", "7").await.is("20");
}

#[tokio::test]
async fn guarantee_2_a_question_from_within_a_ttl_after_a_write_of_unknown_outcome_is_not_shared_after_it() {
    const TTL: std::time::Duration = std::time::Duration::from_secs(2);
    let gate = gate().key("other").keys_at_the_origin().set("cache.points.ttl", r#""2s""#);
    let gate = gate.set("origin.timeout", r#""60s""#).start().await;
    for key in ["bot", "other"] {
        gate.get_points(key, "8").await.is("0");
    }
    gate.origin().next("setPoints", Act::Raw(b"garbage\r\n\r\n".to_vec()));
    assert_eq!(gate.set_points("bot", "7", 10).await.code(), Some(20));
    let end = std::time::Instant::now();
    let (hold, asked) = (Gate::shut(), gate.origin().asked("getPoints"));
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut first = gate.connect_and_send(gate.request("getPoints", "bot", "memberID=7")).await;
    gate.origin().has_been_asked("getPoints", asked + 1).await;
    assert!(end.elapsed() < TTL, "the machine was too slow");
    // Only now the lost write takes effect.
    gate.origin().put_points("7", 10);
    tokio::time::sleep_until((end + TTL).into()).await;
    gate.get_points("other", "7").await.is("10");
    let mut second = gate.connect_and_send(gate.request("getPoints", "bot", "memberID=7")).await;
    gate.origin().has_been_asked("getPoints", asked + 3).await;
    second.answer().await.is("10");
    hold.open();
    first.answer().await.is("3");
}

#[tokio::test]
async fn guarantee_2_a_question_that_waited_for_a_place_over_that_ttl_does_not_bring_an_older_value_back() {
    const TTL: std::time::Duration = std::time::Duration::from_secs(3);
    let gate = gate().key("other").key("writer").set("cache.points.ttl", r#""3s""#);
    // Of four places a key takes one while it has none, and no second one.
    let gate = gate.set("origin.max_in_flight", "4").set("origin.queue_timeout", r#""60s""#);
    let gate = gate.set("origin.timeout", r#""60s""#).start().await;
    gate.origin().next("setPoints", Act::Raw(b"garbage\r\n\r\n".to_vec()));
    assert_eq!(gate.set_points("writer", "7", 9).await.code(), Some(20));
    let end = std::time::Instant::now();
    let [hold_place, hold_read, hold_write] = [(); 3].map(|()| Gate::shut());
    gate.origin().next("getPoints", Act::HoldAnswer(hold_place.clone()));
    let mut with_place = ask_later(&gate, "getPoints", "memberID=8").await;
    gate.origin().has_been_asked("getPoints", 1).await;
    let mut waits = ask_later(&gate, "getPoints", "memberID=7").await;
    // A write during which answers are kept: it takes effect below, and is answered later.
    gate.origin().next("setPoints", Act::HoldAll(hold_write.clone()));
    let mut write = gate.connect_and_send(gate.request("setPoints", "writer", "memberID=7&amount=20")).await;
    gate.origin().has_been_asked("setPoints", 2).await;
    assert!(end.elapsed() < TTL, "the machine was too slow");
    tokio::time::sleep_until((end + TTL).into()).await;
    gate.origin().next("getPoints", Act::HoldAnswer(hold_read.clone()));
    hold_place.open();
    with_place.answer().await.is("0");
    gate.origin().has_been_asked("getPoints", 2).await; // The origin holds a 3 for the one that waited.
    gate.origin().put_points("7", 20);
    // Another key shares that question, or has the newer value, which is not taken back then.
    let mut other = gate.connect_and_send(gate.request("getPoints", "other", "memberID=7")).await;
    let mut answer = std::pin::pin!(other.answer());
    let early = tokio::time::timeout(std::time::Duration::from_secs(1), &mut answer).await;
    hold_read.open();
    waits.answer().await.is("3");
    match early {
        Ok(newer) => {
            newer.is("20");
            gate.get_points("other", "7").await.is("20");
        }
        Err(_) => {
            answer.await.is("3");
        }
    }
    hold_write.open();
    write.answer().await.is("Successfully set 'Ada' points to '20'");
}

#[tokio::test]
async fn guarantee_2_after_a_write_of_unknown_outcome_nobody_is_told_an_older_value_where_nothing_is_kept_either() {
    let gate = gate().key("other").keys_at_the_origin().set("cache.points.ttl", r#""0s""#);
    let gate = gate.set("origin.timeout", r#""60s""#).start().await;
    for key in ["bot", "other"] {
        gate.get_points(key, "8").await.is("0");
    }
    gate.origin().next("setPoints", Act::Raw(b"garbage\r\n\r\n".to_vec()));
    assert_eq!(gate.set_points("other", "7", 10).await.code(), Some(20));
    let (hold, asked) = (Gate::shut(), gate.origin().asked("getPoints"));
    gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
    let mut early = ask_later(&gate, "getPoints", "memberID=7").await;
    gate.origin().has_been_asked("getPoints", asked + 1).await;
    // Only now the lost write takes effect.
    gate.origin().put_points("7", 10);
    gate.get_points("other", "7").await.is("10");
    let mut late = ask_later(&gate, "getPoints", "memberID=7").await;
    gate.origin().has_been_asked("getPoints", asked + 3).await;
    late.answer().await.is("10");
    hold.open();
    early.answer().await.is("3");
    gate.origin().always(Act::Cut(Cut::BeforeHeader));
    for key in ["bot", "other"] {
        assert_ne!(gate.get_points(key, "7").await.body, "3", "{key}");
    }
}

#[tokio::test]
async fn guarantee_2_a_refused_write_leaves_the_answers_right() {
    let gate = gate().start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.origin().next("setPoints", Act::say(403, "03 | gone"));
    assert_eq!(gate.set_points("bot", "7", 10).await.code(), Some(3));
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("bot", "7").await.is("3").is_hit();
}

/// Two questions about one entry are under way at once, and the one that began first comes back
/// with the newer value: from then on nobody may be given the other's older one, be it by joining it
/// or from the cache, though the write itself is still unanswered.
#[tokio::test]
async fn guarantee_2_no_one_reads_an_older_value_than_was_read_before_it() {
    let gate = gate().start().await;
    let (hold_early, hold_late, hold_write) = (Gate::shut(), Gate::shut(), Gate::shut());
    gate.origin().next("getPoints", Act::HoldAll(hold_early.clone()));
    let mut early = ask_later(&gate, "getPoints", "memberID=7").await;
    gate.origin().has_been_asked("getPoints", 1).await; // the origin has not looked yet
    gate.origin().next("setPoints", Act::HoldAll(hold_write.clone()));
    let mut write = ask_later(&gate, "setPoints", "memberID=7&amount=10").await;
    gate.origin().has_been_asked("setPoints", 1).await;
    gate.origin().next("getPoints", Act::HoldAnswer(hold_late.clone()));
    let mut late = ask_later(&gate, "getPoints", "memberID=7").await;
    gate.origin().has_been_asked("getPoints", 2).await; // the origin has looked, and holds a 3
    gate.origin().put_points("7", 10); // the write takes effect; its answer is still to come
    hold_early.open();
    early.answer().await.is("10");
    // Whoever asks from here on asks after somebody was told 10.
    let mut after = ask_later(&gate, "getPoints", "memberID=7").await;
    gate.has_read_requests().await;
    hold_late.open();
    assert_eq!(late.answer().await.status, 200); // 3 or 10: it began before anyone was told 10
    assert_eq!(after.answer().await.body, "10", "it was given the answer of a question from before the 10");
    assert_eq!(gate.get_points("bot", "7").await.body, "10", "the older value was kept");
    hold_write.open();
    write.answer().await.is("Successfully set 'Ada' points to '10'");
    gate.get_points("bot", "7").await.is("10");
}

/// The key of a flight's leader is taken out during a write. If its followers asked for themselves, the newer of their
/// answers could be told first and the older one kept.
#[tokio::test]
async fn guarantee_2_what_followers_of_a_leader_whose_key_is_gone_are_told_is_not_undone() {
    let gate = gate().key("b").key("c").key("leader").start().await;
    let read = async |key| gate.connect_and_send(gate.request("getPoints", key, "memberID=7")).await;
    let [hold_leader, hold_older, hold_newer, hold_write] = std::array::from_fn(|_| Gate::shut());
    gate.origin().next("getPoints", Act::HoldAnswer(hold_leader.clone()));
    let mut leader = read("leader").await;
    gate.origin().has_been_asked("getPoints", 1).await;
    let mut followers = [read("b").await, read("c").await];
    gate.has_read_requests().await;
    gate.edit_key_file("id = \"leader\"", "expires = 1\nid = \"leader\"").await;
    gate.origin().next("setPoints", Act::HoldAll(hold_write.clone()));
    let mut write = ask_later(&gate, "setPoints", "memberID=7&amount=10").await;
    gate.origin().has_been_asked("setPoints", 1).await;
    gate.origin().next("getPoints", Act::HoldAnswer(hold_older.clone()));
    gate.origin().next("getPoints", Act::HoldAll(hold_newer.clone()));
    hold_leader.open();
    leader.answer().await.is("3");
    gate.origin().has_been_asked("getPoints", 2).await;
    gate.has_read_requests().await;
    gate.origin().put_points("7", 10); // the write takes effect; its answer is still to come
    hold_newer.open();
    gate.has_read_requests().await;
    let mut between = read("bot").await;
    gate.has_read_requests().await;
    hold_older.open();
    let mut told = vec![between.answer().await.body];
    for follower in &mut followers {
        told.push(follower.answer().await.body);
    }
    let after = gate.get_points("bot", "7").await.body;
    assert!(after == "10" || !told.contains(&"10".into()), "{after} after {told:?}");
    hold_write.open();
    write.answer().await.is("Successfully set 'Ada' points to '10'");
    gate.get_points("bot", "7").await.is("10");
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

#[tokio::test]
async fn an_answer_during_a_write_leaves_another_guilds_answers_valid_though_the_origin_once_limited_a_key() {
    let gate = TestGateway::before_http().key_of_guild("one", "100").key_of_guild("other", "200");
    let gate = gate.points("7", 3).start().await;
    gate.origin().next("getPoints", Act::say(429, "slow down"));
    assert_eq!(gate.get_points("one", "8").await.code(), Some(21));
    gate.get_points("other", "7").await.is("3");
    let hold = Gate::shut();
    gate.origin().next("setPoints", Act::HoldAll(hold.clone()));
    let mut writer = gate.connect_and_send(gate.request("setPoints", "one", "memberID=7&amount=4").bytes()).await;
    gate.origin().has_been_asked("setPoints", 1).await;
    gate.get_points("one", "7").await.is("3");
    let answer = gate.get_points("other", "7").await;
    assert!(answer.header("cache-status").unwrap().contains("hit"), "{answer:?}");
    hold.open();
    writer.answer().await;
}
