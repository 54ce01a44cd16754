//! Contract section 1, "Order", and guarantee 6, where the origin alone knows the keys: who pays.

use std::time::Duration;

use crate::support::*;

/// For how long a key is good where that is to end: once it has passed since an answer, the key's time is over.
const ACCEPTED_FOR: Duration = Duration::from_secs(1);

/// An address may bring two unproven keys, and no more for an hour.
fn gate() -> Builder {
    TestGateway::before_http()
        .key("bot")
        .points("7", 3)
        .keys_at_the_origin()
        .set("limits.strangers.rate", r#""1/h""#)
        .set("limits.strangers.burst", "2")
}

fn stranger(secret: &str) -> Request {
    Request::post("/getPoints", "memberID=7").key(secret)
}

#[tokio::test]
async fn a_proven_key_is_paid_back_and_a_refused_one_is_not_and_a_known_one_pays_nothing() {
    let mut builder = gate();
    for n in 0..10 {
        builder = builder.key(&format!("good{n}"));
    }
    let gate = builder.set("keys.accepted_for", r#""1s""#).start().await;
    // An 03 of the origin proves a key too, and is not kept.
    let departed = "03 | Error while retrieving guild using this API key. Is Guildgate still on guild?";
    gate.origin().next("getPoints", Act::say(403, departed));
    let answer = gate.get_points("good0", "7").await;
    assert!(answer.is_refused(403, departed).header("ratelimit").is_some(), "{answer:#?}");
    for n in 0..10 {
        gate.get_points(&format!("good{n}"), "7").await.is("3");
    }
    for n in 0..2 {
        gate.send(&stranger(&format!("bad{n}"))).await.is_refused(401, INCORRECT_KEY);
    }
    gate.send(&stranger("bad2")).await.is_too_many();
    assert_eq!(gate.origin().asked("getPoints"), 13, "who cannot pay is not asked about");
    // A known key pays nothing for a stranger at its address, even when its time is over and it is asked about again.
    eventually(PATIENCE, "the key is asked about again", || async {
        gate.get_points("good0", "7").await.is("3");
        gate.origin().asked("getPoints") > 13
    })
    .await;
}

#[tokio::test]
async fn requests_that_come_before_the_key_is_known_count_for_it() {
    let gate = gate()
        .set("keys.accepted_for", &format!("\"{}s\"", ACCEPTED_FOR.as_secs()))
        .set("limits.strangers.burst", "20")
        .set("limits.tiers.standard.rate", r#""1/h""#)
        .set("limits.tiers.standard.burst", "3")
        .start()
        .await;
    let request = gate.request("getPoints", "bot", "memberID=7");
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(gate.connect_and_send(request.head()).await);
    }
    gate.has_read_requests().await;
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("bot", "7").await.is_too_many();
    tokio::time::sleep(ACCEPTED_FOR).await;
    for connection in &mut held {
        connection.send("memberID=7").await;
        connection.answer().await.is("3");
    }
}

#[tokio::test]
async fn a_key_over_its_own_day_costs_its_address_nothing() {
    let mut gate = gate().key("other").set("limits.tiers.standard.daily", "2").start().await;
    for _ in 0..2 {
        gate.get_points("bot", "7").await.is("3");
    }
    assert_eq!(gate.restart().await, Some(0));
    for _ in 0..5 {
        let refused = gate.get_points("bot", "7").await;
        assert!(refused.is_too_many() >= 1);
        assert!(refused.header("ratelimit").unwrap().contains("\"standard-daily\";r=0;"), "{refused:#?}");
    }
    gate.get_points("other", "7").await.is("3");
}
