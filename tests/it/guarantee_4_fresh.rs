//! Contract section 5, guarantee 4: no warn past its expiry, no failure and no refusal from memory.

use crate::support::*;

const LATER: i64 = 4_000_000_000;

fn gate() -> Builder {
    TestGateway::before_http().key("bot").points("7", 3)
}

#[tokio::test]
async fn guarantee_4_a_map_with_a_warn_that_has_expired_is_passed_on_and_not_kept_fresh_or_stale() {
    let long = "warns_7_id_2_4000000000=Mod: long (Expires 4000000000)";
    let over = format!("{{warns_7_id_1_1000=Mod: over (Expires 1000), {long}}}");
    let gate = gate()
        .set("cache.warns.stale_if_error", r#""10m""#)
        .set("cache.warns.ttl", r#""1h""#)
        .set("origin.retries", "0")
        .start()
        .await;
    // The second one's id hides its expiry: it is read in the entry's value.
    for (member, over) in [("7", &*over), ("8", "{warns_8_id_a=b_1000=Mod: long over (Expires 1000)}")] {
        gate.origin().put_map("getWarns", member, over);
        for asked in 1..=3 {
            let answer = gate.get_warns("bot", member).await;
            assert_eq!(answer.is(over).cache_status(), "guildgate; fwd=miss");
            assert_eq!(gate.origin().asked_about("getWarns", member), asked, "each is a question of its own");
        }
    }
    gate.origin().next("getWarns", Act::say(500, "<html>"));
    gate.get_warns("bot", "7").await.is_refused(502, NO_ANSWER);
    // Nor does it keep out the next one, which holds none any more.
    let without = format!("{{{long}}}");
    gate.origin().put_map("getWarns", "7", &without);
    assert_eq!(gate.get_warns("bot", "7").await.is(&without).cache_status(), "guildgate; fwd=miss; stored");
    gate.get_warns("bot", "7").await.is(&without).is_hit();
    // A map's TTL ends with the first expiry still to come.
    let soon = unix_now() + 100;
    let entry = |id: i64, expires: i64| format!("warns_7_id_{id}_{expires}=Mod: spam (Expires {expires})");
    let map = |expiries: &[i64]| {
        let entries: Vec<_> = expiries.iter().enumerate().map(|(id, expires)| entry(id as i64, *expires)).collect();
        format!("{{{}}}", entries.join(", "))
    };
    let ttl = async |member: &str, expiries: &[i64]| {
        gate.origin().put_map("getWarns", member, &map(expiries).replace("warns_7_", &format!("warns_{member}_")));
        gate.get_warns("bot", member).await.is_miss();
        ttl_of(&gate.get_warns("bot", member).await)
    };
    let cut = ttl("17", &[LATER, soon]).await;
    assert!((60..=100).contains(&cut), "{cut} s, but it is over in 100 s");
    let whole = ttl("18", &[LATER]).await;
    assert!((3500..=3600).contains(&whole), "{whole} s: what is over in years cuts nothing");
    // An origin whose clock is behind ours does not prolong a warn.
    let soon = unix_now() + 2;
    gate.origin().put_map("getWarns", "9", &format!("{{warns_9_id_1_{soon}=Mod: short (Expires {soon})}}"));
    let short = gate.get_warns("bot", "9").await.body;
    assert!(short.contains("Mod: short"), "{short}");
    // To the origin the warn stands for a moment longer: the question that comes when our TTL ends is told of it.
    let (mut hits, end) = (0, std::time::Instant::now() + PATIENCE);
    while unix_now() < soon {
        hits += usize::from(gate.get_warns("bot", "9").await.was_hit());
        assert!(std::time::Instant::now() < end, "the wall's clock does not move");
    }
    let told = gate.get_warns("bot", "9").await;
    assert_eq!(told.is(&short).cache_status(), "guildgate; fwd=stale", "{told:#?}");
    gate.origin().put_map("getWarns", "9", "{}");
    gate.get_warns("bot", "9").await.is("{}");
    assert!(hits > 0, "it was never cached: this tells nothing");
}

#[track_caller]
fn ttl_of(answer: &Answer) -> u64 {
    let ttl = answer.cache_status().strip_prefix("guildgate; hit; ttl=").and_then(|ttl| ttl.parse().ok());
    ttl.unwrap_or_else(|| panic!("no hit: {answer:#?}"))
}

#[tokio::test]
async fn guarantee_4_neither_an_origins_failure_nor_a_refusal_is_cached() {
    let gate = gate().set("origin.timeout", r#""300ms""#).set("origin.retries", "0").start_here().await;
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
    for (i, code) in ["02", "03", "04", "05"].into_iter().enumerate() {
        let member = (200 + i).to_string();
        for operation in ["getPoints", "getWarns", "getReviews"] {
            gate.origin().next(operation, Act::say(200, &format!("{code} | some words")));
            let request = gate.request(operation, "bot", &format!("memberID={member}"));
            assert_eq!(gate.send(&request).await.code(), code.parse().ok(), "{operation}");
            assert_eq!(gate.send(&request).await.status, 200, "{operation} after {code}");
        }
    }
}

#[tokio::test]
async fn a_stale_answer_stands_in_while_the_origin_fails_and_a_refusal_is_no_failure() {
    let gate = gate()
        .set("cache.points.ttl", r#""100ms""#)
        .set("cache.points.stale_if_error", r#""10m""#)
        .set("origin.timeout", r#""300ms""#)
        .start_here()
        .await;
    let failures = [Act::say(500, "<html>"), Act::say(503, "later"), Act::Cut(Cut::BeforeHeader), Act::Stall];
    for failure in failures {
        gate.origin().put_points("7", 3);
        eventually(PATIENCE, "what the origin has", async || gate.get_points("bot", "7").await.body == "3").await;
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
    gate.origin().always(Act::say(200, "03 | gone"));
    eventually(PATIENCE, "03", || async { gate.get_points("bot", "7").await.code() == Some(3) }).await;
}
