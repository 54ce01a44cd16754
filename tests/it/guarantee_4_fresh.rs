//! Contract section 5, guarantee 4: no warn past its expiry, no failure and no refusal from memory.

use crate::support::*;

fn gate() -> Builder {
    TestGateway::before_http().key("bot").points("7", 3)
}

#[tokio::test]
async fn guarantee_4_a_warn_is_not_shown_past_its_expiry_even_when_the_answer_is_cached() {
    let soon = unix_now() + 2;
    let gate = TestGateway::builder()
        .key("bot")
        .points("7", 0)
        .warn("7", 1, "Mod", "short", soon)
        .warn("7", 2, "Mod", "long", 4_000_000_000)
        .start()
        .await;
    let long = "{warns_7_id_2_4000000000=Mod: long (Expires 4000000000)}";
    let (mut shown, mut hits) = (0, 0);
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let over = unix_now() >= soon; // judged before asking: what is over now stays over
        let answer = gate.get_warns("bot", "7").await;
        assert!(answer.body.contains("Mod: long"), "{answer:#?}");
        if over {
            answer.is(long);
            break;
        }
        shown += usize::from(answer.body.contains("Mod: short"));
        hits += usize::from(answer.was_hit());
        assert!(std::time::Instant::now() < end, "the wall's clock does not move");
    }
    assert!(shown > 0 && hits > 0, "it was shown {shown} times, {hits} times from the cache");
    gate.get_warns("bot", "7").await.is(long);
}

#[tokio::test]
async fn guarantee_4_an_expiry_behind_an_id_that_hides_it_is_read_in_the_entrys_value() {
    let past = "{warns_7_id_a=b_1000=Mod: long over (Expires 1000)}";
    let gate = gate().start().await;
    gate.origin().put_map("getWarns", "7", past);
    for _ in 0..2 {
        assert_eq!(gate.get_warns("bot", "7").await.is(past).cache_status(), "guildgate; fwd=miss");
    }
}

/// A gate before an HTTP origin, with each way there is to know its keys.
fn gates() -> [Builder; 3] {
    [gate().keys_in_file(), gate().keys_in_store(), gate().keys_at_the_origin()]
}

#[tokio::test]
async fn guarantee_4_a_map_with_a_warn_that_has_expired_is_passed_on_and_not_kept_fresh_or_stale() {
    let long = "warns_7_id_2_4000000000=Mod: long (Expires 4000000000)";
    let over = format!("{{warns_7_id_1_1000=Mod: over (Expires 1000), {long}}}");
    for builder in gates() {
        let gate = builder.set("cache.warns.stale_if_error", r#""10m""#).set("origin.retries", "0").start().await;
        gate.origin().put_map("getWarns", "7", &over);
        for asked in 1..=3 {
            let answer = gate.get_warns("bot", "7").await;
            assert_eq!(answer.is(&over).cache_status(), "guildgate; fwd=miss");
            assert_eq!(gate.origin().asked("getWarns"), asked, "each is a question of its own");
        }
        gate.origin().next("getWarns", Act::say(500, "<html>"));
        gate.get_warns("bot", "7").await.is_refused(502, NO_ANSWER);
        // Nor does it keep out the next one, which holds none any more.
        let without = format!("{{{long}}}");
        gate.origin().put_map("getWarns", "7", &without);
        assert_eq!(gate.get_warns("bot", "7").await.is(&without).cache_status(), "guildgate; fwd=miss; stored");
        gate.get_warns("bot", "7").await.is(&without).is_hit();
    }
}

#[tokio::test]
async fn guarantee_4_an_origin_whose_clock_is_behind_ours_does_not_prolong_a_warn() {
    for builder in gates() {
        let soon = unix_now() + 2;
        let gate = builder.warn("7", 1, "Mod", "short", soon).start().await;
        let short = gate.get_warns("bot", "7").await.body;
        assert!(short.contains("Mod: short"), "{short}");
        // To the origin the warn stands for a moment longer: the question that comes when our TTL ends is told of it.
        let (mut hits, end) = (0, std::time::Instant::now() + PATIENCE);
        while unix_now() < soon {
            hits += usize::from(gate.get_warns("bot", "7").await.was_hit());
            assert!(std::time::Instant::now() < end, "the wall's clock does not move");
        }
        let told = gate.get_warns("bot", "7").await;
        assert_eq!(told.is(&short).cache_status(), "guildgate; fwd=stale", "{told:#?}");
        gate.origin().put_map("getWarns", "7", "{}");
        gate.get_warns("bot", "7").await.is("{}");
        assert!(hits > 0, "it was never cached: this tells nothing");
    }
}

#[tokio::test]
async fn guarantee_4_an_origins_failure_is_never_cached() {
    let gate = gate().set("origin.timeout", r#""300ms""#).set("origin.retries", "0").start().await;
    let failures = [
        Act::say(500, "<html>"),
        Act::say(503, "later"),
        Act::say(200, "no number"),
        Act::Cut(Cut::MidBody),
        Act::Stall,
        Act::Raw(b"garbage\r\n\r\n".to_vec()),
    ];
    for (i, failure) in failures.into_iter().enumerate() {
        let member = (100 + i).to_string();
        gate.origin().next("getPoints", failure.clone());
        let answer = gate.get_points("bot", &member).await;
        assert!(matches!(answer.code(), Some(20..=22)), "{failure:?}: {answer:#?}");
        gate.get_points("bot", &member).await.is("0").is_miss();
        gate.get_points("bot", &member).await.is("0").is_hit();
    }
}

#[tokio::test]
async fn guarantee_4_a_refusal_is_never_cached() {
    let gate = gate().start().await;
    for (i, code) in ["02", "03", "04", "05"].into_iter().enumerate() {
        let member = (100 + i).to_string();
        for operation in ["getPoints", "getWarns", "getReviews"] {
            gate.origin().next(operation, Act::say(200, &format!("{code} | some words")));
            let request = gate.request(operation, "bot", &format!("memberID={member}"));
            assert_eq!(gate.send(&request).await.code(), code.parse().ok(), "{operation}");
            assert_eq!(gate.send(&request).await.status, 200, "{operation} after {code}");
        }
    }
}

#[tokio::test]
async fn guarantee_4_parameters_are_judged_before_any_answer_from_memory() {
    let gate = gate().start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("bot", "7").await.is("3").is_hit();
    assert_eq!(gate.send(&gate.request("getPoints", "bot", "memberID=7&memberID=7")).await.code(), Some(8));
}

#[tokio::test]
async fn a_stale_answer_stands_in_while_the_origin_fails() {
    let failures = [Act::say(500, "<html>"), Act::say(503, "later"), Act::Cut(Cut::BeforeHeader), Act::Stall];
    for failure in failures {
        let gate = gate()
            .set("cache.points.ttl", r#""100ms""#)
            .set("cache.points.stale_if_error", r#""10m""#)
            .set("origin.timeout", r#""300ms""#)
            .start()
            .await;
        gate.get_points("bot", "7").await.is("3");
        gate.origin().always(failure.clone());
        let what = format!("a stale answer while the origin does {failure:?}");
        eventually(PATIENCE, &what, || async {
            let answer = gate.get_points("bot", "7").await;
            answer.is("3").cache_status() == "guildgate; hit; detail=stale-if-error"
        })
        .await;
        // What was never asked has no stale answer.
        assert!(matches!(gate.get_points("bot", "8").await.code(), Some(20..=22)));
        gate.origin().put_points("7", 4);
        gate.origin().always(Act::Normal);
        eventually(PATIENCE, "the origin's own answer", || async { gate.get_points("bot", "7").await.body == "4" })
            .await;
    }
}

#[tokio::test]
async fn a_refusal_by_the_origin_is_no_failure_that_a_stale_answer_may_hide() {
    let gate =
        gate().set("cache.points.ttl", r#""100ms""#).set("cache.points.stale_if_error", r#""10m""#).start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.origin().always(Act::say(200, "03 | gone"));
    eventually(PATIENCE, "03", || async { gate.get_points("bot", "7").await.code() == Some(3) }).await;
}

#[tokio::test]
async fn guarantee_4_a_stale_answer_is_given_while_one_question_asks_for_it_again() {
    let gate = gate()
        .set("cache.points.ttl", r#""50ms""#)
        .set("cache.points.stale_while_revalidate", r#""1h""#)
        .set("cache.points.stale_if_error", r#""0s""#)
        .start()
        .await;
    gate.get_points("bot", "7").await.is("3");
    gate.origin().put_points("7", 4);
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAll(hold.clone()));
    // Fresh at first, then stale: the first stale answer sends the one question.
    let stale = "guildgate; hit; detail=stale-while-revalidate";
    let is_stale = || async { gate.get_points("bot", "7").await.is("3").cache_status() == stale };
    eventually(PATIENCE, "a stale answer", is_stale).await;
    gate.origin().has_been_asked("getPoints", 2).await;
    for _ in 0..10 {
        gate.get_points("bot", "7").await.is("3");
    }
    assert_eq!(gate.origin().asked("getPoints"), 2, "asked again while it was being asked");
    hold.open();
    eventually(PATIENCE, "the new answer", || async { gate.get_points("bot", "7").await.body == "4" }).await;
}
