//! Contract sections 1 ("Headers on answers"), 3 (`[cache]`) and 5 (guarantees 2 and 4): how long each
//! operation's answers are given from memory, fresh or stale, and what is said of it.

use std::collections::BTreeSet;

use crate::support::*;

const WHILE_REVALIDATING: &str = "guildgate; hit; detail=stale-while-revalidate";
const IF_ERROR: &str = "guildgate; hit; detail=stale-if-error";
const LATER: i64 = 4_000_000_000;

/// A read operation, its section of the config, and what the origin says of member 7 before and after.
const READS: [(&str, &str, &str, &str); 3] = [
    ("getPoints", "cache.points", "3", "4"),
    ("getWarns", "cache.warns", "{warns_7_id_1_4000000000=Mod: spam (Expires 4000000000)}", "{}"),
    ("getReviews", "cache.reviews", "{}", "{reviews_7_id_9_5=Bo (5★): Quick}"),
];

/// Before an origin that says what is before; fresh for a moment, then stale as said for one operation.
async fn gate(section: &str, while_revalidating: &str, if_error: &str) -> TestGateway {
    let mut builder = TestGateway::before_http()
        .key("bot")
        .points("7", 3)
        .warn("7", 1, "Mod", "spam", LATER)
        .set("origin.retries", "0");
    for (_, other, ..) in READS {
        let of = |on: &str| format!("{:?}", if other == section { on } else { "0s" });
        builder = builder
            .set(&format!("{other}.ttl"), r#""50ms""#)
            .set(&format!("{other}.stale_while_revalidate"), &of(while_revalidating))
            .set(&format!("{other}.stale_if_error"), &of(if_error));
    }
    builder.start_here().await
}

async fn ask(gate: &TestGateway, operation: &str) -> Answer {
    gate.send(&gate.request(operation, "bot", "memberID=7")).await
}

fn change(gate: &TestGateway, operation: &str, to: &str) {
    match operation {
        "getPoints" => gate.origin().put_points("7", to.parse().unwrap()),
        map => gate.origin().put_map(map, "7", to),
    }
}

/// Asks until this is said of the cache's part; all that was said on the way.
async fn until_said(gate: &TestGateway, operation: &str, said: &str) -> (Answer, BTreeSet<String>) {
    let (mut all, end) = (BTreeSet::new(), std::time::Instant::now() + PATIENCE);
    loop {
        let answer = ask(gate, operation).await;
        let status = answer.cache_status().to_owned();
        if status == said {
            return (answer, all);
        }
        // Of what is fresh, how long it stays so is another test's.
        all.insert(if answer.was_hit() && status.contains("ttl=") { "fresh".to_owned() } else { status });
        assert!(std::time::Instant::now() < end, "{operation}: never {said}, but {all:?}");
    }
}

#[tokio::test]
async fn each_operation_gives_a_stale_answer_while_it_asks_again_where_it_is_told_to() {
    for (operation, section, before, after) in READS {
        let gate = gate(section, "1h", "0s").await;
        ask(&gate, operation).await.is(before);
        change(&gate, operation, after);
        let hold = Gate::shut();
        gate.origin().next(operation, Act::HoldAll(hold.clone()));
        let (stale, _) = until_said(&gate, operation, WHILE_REVALIDATING).await;
        stale.is(before);
        assert!(stale.header("age").is_some(), "{stale:#?}");
        hold.open();
        eventually(PATIENCE, "the new answer", || async { ask(&gate, operation).await.body == after }).await;
        // The others, told nothing, ask and wait.
        for (other, _, _, after) in READS.iter().filter(|read| read.0 != operation) {
            ask(&gate, other).await;
            change(&gate, other, after);
            let (answer, said) = until_said(&gate, other, "guildgate; fwd=stale; stored").await;
            answer.is(after);
            assert!(said.iter().all(|said| said == "fresh"), "{other}: {said:?}");
        }
    }
}

#[tokio::test]
async fn each_operation_gives_a_stale_answer_for_a_failing_origin_where_it_is_told_to() {
    for (operation, section, before, _) in READS {
        let mut gate = gate(section, "0s", "1h").await;
        for (read, ..) in READS {
            ask(&gate, read).await;
        }
        // A write to another member leaves this one's answers, and is said to be forwarded whatever came of it.
        for outcome in [Act::Normal, Act::say(500, "oops"), Act::say(503, "later"), Act::say(200, "03 | gone")] {
            gate.origin().next("setPoints", outcome.clone());
            let answer = gate.set_points("bot", "8", 5).await;
            assert_eq!((answer.cache_status(), answer.header("age")), ("guildgate; fwd=method", None), "{outcome:?}");
        }
        gate.origin_mut().refuse().await;
        let (stale, _) = until_said(&gate, operation, IF_ERROR).await;
        stale.is(before);
        assert!(stale.header("age").is_some(), "{stale:#?}");
        for (other, ..) in READS.iter().filter(|read| read.0 != operation) {
            let (answer, said) = until_said(&gate, other, "guildgate; fwd=stale").await;
            answer.is_unavailable();
            assert!(said.iter().all(|said| said == "fresh"), "{other}: {said:?}");
        }
    }
}

#[tokio::test]
async fn guarantee_2_no_stale_answer_comes_back_after_a_write_whatever_became_of_it() {
    let outcomes = [Act::Normal, Act::say(500, "oops"), Act::say(200, "03 | gone"), Act::Cut(Cut::BeforeHeader)];
    for dead in [false, true] {
        let mut gate = gate("cache.points", "1h", "1h").await;
        for (member, outcome) in outcomes.iter().enumerate() {
            let member = &(100 + member).to_string();
            gate.origin().put_points(member, 3);
            gate.get_points("bot", member).await.is("3");
            let is_stale = async || gate.get_points("bot", member).await.cache_status() == WHILE_REVALIDATING;
            eventually(PATIENCE, "a stale answer", is_stale).await;
            gate.origin().next("setPoints", outcome.clone());
            gate.set_points("bot", member, 10).await;
            match dead {
                true => gate.origin_mut().refuse().await,
                false => gate.origin().always(Act::say(500, "oops")),
            }
            // A refresh on a busy machine may ask only after the write: its answer is as new as the write.
            let points = gate.origin().points(member).to_string();
            let mut failed = 0;
            eventually(PATIENCE, "no answer is given", async || {
                let answer = gate.get_points("bot", member).await;
                let is_new = answer.body == points && ![WHILE_REVALIDATING, IF_ERROR].contains(&answer.cache_status());
                let is_none = matches!(answer.code(), Some(20 | 21));
                assert!(is_none || (is_new && failed == 0), "{outcome:?}: it was given from before: {answer:#?}");
                failed += u32::from(is_none);
                failed > 3
            })
            .await;
            match dead {
                true => gate.origin_mut().come_back(),
                false => gate.origin().always(Act::Normal),
            }
            if dead {
                let is_back = async || gate.get_points("bot", &format!("999{member}")).await.status == 200;
                eventually(PATIENCE, "the origin is back", is_back).await;
            }
        }
    }
}

#[tokio::test]
async fn what_is_not_stored_is_not_said_to_be() {
    let gate = TestGateway::before_http()
        .key("bot")
        .points("7", 3)
        .set("cache.points.ttl", r#""0s""#)
        .set("cache.points.stale_if_error", r#""0s""#)
        .start_here()
        .await;
    for _ in 0..2 {
        assert_eq!(ask(&gate, "getPoints").await.is("3").cache_status(), "guildgate; fwd=miss");
    }
    gate.origin().next("getWarns", Act::say(500, "oops"));
    let failed = ask(&gate, "getWarns").await;
    failed.is_refused(502, NO_ANSWER);
    assert_eq!((failed.cache_status(), failed.header("age")), ("guildgate; fwd=miss", None));
    assert_eq!(ask(&gate, "getWarns").await.is("{}").cache_status(), "guildgate; fwd=miss; stored");
}
