//! Contract section 1, "Headers on answers". The client itself refuses every header that the
//! contract does not know.

use crate::support::*;

fn gate(kind: Kind) -> Builder {
    TestGateway::on(kind).key("bot").points("7", 3)
}

/// What every answer must look like, hit or miss or refusal.
const REFUSALS: [(&str, &str); 3] = [("/nothing", "x"), ("/getPoints", ""), ("/getPoints", "memberID=x")];

async fn cache_status_tells_miss_stored_and_hit(kind: Kind) {
    let gate = gate(kind).start().await;
    for operation in ["getPoints", "getWarns", "getReviews"] {
        let request = gate.request(operation, "bot", "memberID=7");
        let miss = gate.send(&request).await;
        assert_eq!(miss.cache_status(), "guildgate; fwd=miss; stored", "{operation}");
        assert_eq!(miss.header("age"), None, "Age is for a hit: {miss:#?}");
        let hit = gate.send(&request).await;
        let ttl = hit.is_hit().cache_status().strip_prefix("guildgate; hit; ttl=").and_then(|t| t.parse::<u64>().ok());
        let most = [("getPoints", 30), ("getWarns", 60), ("getReviews", 300)]
            .into_iter()
            .find(|m| m.0 == operation)
            .unwrap()
            .1;
        assert!(ttl.is_some_and(|t| t <= most && t + 20 > most), "{operation}: {ttl:?} of {most}");
        let age: u64 = hit.header("age").unwrap().parse().unwrap();
        assert!(age <= 20, "{hit:#?}");
    }
    let set = gate.set_points("bot", "7", 4).await;
    assert_eq!(set.cache_status(), "guildgate; fwd=method");
    assert_eq!(set.header("age"), None);
}

async fn a_refusal_made_before_the_cache_has_no_cache_status(kind: Kind) {
    let gate = gate(kind).read_key("reader").start().await;
    let requests = [
        Request::post("/nothing", ""),
        Request::bare("GET", "/getPoints"),
        Request::post("/getPoints", "x".repeat(5000)),
        Request::post("/getPoints", "memberID=7"),
        Request::post("/getPoints", "memberID=7").key("nobody"),
        gate.request("setPoints", "reader", "memberID=7&amount=5"),
        gate.request("getPoints", "bot", "memberID=7").without("Host"),
    ];
    for request in requests {
        let answer = gate.send(&request).await;
        assert_eq!(answer.header("cache-status"), None, "{answer:#?}");
        assert_eq!(answer.header("age"), None, "{answer:#?}");
    }
}

async fn ratelimit_tells_policy_and_what_is_left(kind: Kind) {
    let gate = gate(kind)
        .set("limits.tiers.standard.rate", r#""20/s""#)
        .set("limits.tiers.standard.burst", "40")
        .set("limits.tiers.standard.write_rate", r#""5/s""#)
        .set("limits.tiers.standard.write_burst", "10")
        .start()
        .await;
    let answer = gate.get_points("bot", "7").await;
    let policy = r#""standard";q=40;w=2, "standard-write";q=10;w=2"#;
    assert_eq!(answer.header("ratelimit-policy"), Some(policy));
    assert_eq!(answer.header("ratelimit"), Some(r#""standard";r=39;t=1"#));
    let answer = gate.set_points("bot", "7", 4).await;
    assert_eq!(answer.header("ratelimit-policy"), Some(policy));
    assert!(answer.header("ratelimit").is_some_and(|l| l.starts_with(r#""standard"#)), "{answer:#?}");
}

async fn ratelimit_counts_down_and_stands_on_refusals_too(kind: Kind) {
    let gate = gate(kind)
        .set("limits.default_tier", r#""slow""#)
        .set("limits.tiers.slow.rate", r#""1/m""#)
        .set("limits.tiers.slow.burst", "3")
        .start()
        .await;
    for left in ["2", "1", "0"] {
        // A refusal made later counts like an answer.
        let answer = gate.get_points("bot", if left == "1" { "x" } else { "7" }).await;
        assert_eq!(answer.header("ratelimit-policy"), Some(r#""slow";q=3;w=180"#));
        let limit = answer.header("ratelimit").unwrap_or_default();
        assert!(limit.starts_with(&format!(r#""slow";r={left};t="#)), "{limit}");
    }
    let refused = gate.get_points("bot", "7").await;
    let n = refused.is_too_many();
    assert_eq!(refused.header("ratelimit"), Some(&*format!(r#""slow";r=0;t={n}"#)));
}

async fn ratelimit_waits_for_a_known_key(kind: Kind) {
    let gate = gate(kind).start().await;
    for request in [Request::post("/getPoints", "memberID=7"), Request::post("/getPoints", "memberID=7").key("nobody")]
    {
        let answer = gate.send(&request).await;
        assert_eq!(answer.code().map(|c| c <= 2), Some(true), "{answer:#?}");
        assert_eq!((answer.header("ratelimit"), answer.header("ratelimit-policy")), (None, None));
    }
}

async fn every_answer_has_a_request_id_of_its_own_and_is_not_to_be_stored(kind: Kind) {
    let gate = gate(kind).start().await;
    let mut ids = std::collections::HashSet::new();
    let mut requests: Vec<Request> =
        REFUSALS.iter().map(|(path, body)| Request::post(path, body).key(gate.secret("bot"))).collect();
    requests.push(gate.request("getPoints", "bot", "memberID=7"));
    requests.push(gate.request("getPoints", "bot", "memberID=7"));
    requests.push(gate.request("setPoints", "bot", "memberID=7&amount=1"));
    let asked = requests.len();
    for request in requests {
        let answer = gate.send(&request).await;
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{answer:#?}");
        let id = answer.header("x-request-id").unwrap_or_else(|| panic!("no X-Request-Id: {answer:#?}"));
        assert!(!id.is_empty() && id.len() <= 64, "{id}");
        ids.insert(id.to_owned());
    }
    assert_eq!(ids.len(), asked, "an id was given twice: {ids:?}");
}

async fn each_header_can_be_turned_off(kind: Kind) {
    let optional = [
        ("cache-status", &["cache-status"][..]),
        ("ratelimit", &["ratelimit", "ratelimit-policy"]),
        ("request-id", &["x-request-id"]),
        ("age", &["age"]),
    ];
    for (only, kept) in optional.into_iter().chain([("", &[][..])]) {
        let list = if only.is_empty() { "[]".to_owned() } else { format!("[\"{only}\"]") };
        let gate = gate(kind).set("answers.headers", &list).start().await;
        gate.get_points("bot", "7").await.is("3");
        let hit = gate.get_points("bot", "7").await;
        for name in ["cache-status", "ratelimit", "ratelimit-policy", "x-request-id", "age"] {
            assert_eq!(hit.header(name).is_some(), kept.contains(&name), "headers = {list}: {name} in {hit:#?}");
        }
        assert_eq!(hit.is("3").header("cache-control"), Some("no-store"));
    }
}

async fn the_health_path_answers_ok_and_can_be_moved_or_turned_off(kind: Kind) {
    let health = |answer: Answer| (answer.status, answer.body);
    let usual = gate(kind).start().await;
    assert_eq!(health(usual.send(&Request::bare("GET", "/healthz")).await), (200, "ok".into()));
    let moved = gate(kind).set("server.health_path", r#""/up""#).start().await;
    assert_eq!(health(moved.send(&Request::bare("GET", "/up")).await), (200, "ok".into()));
    assert_eq!(moved.send(&Request::bare("GET", "/healthz")).await.code(), Some(10));
    let off = gate(kind).set("server.health_path", r#""""#).start().await;
    assert_eq!(off.send(&Request::bare("GET", "/healthz")).await.code(), Some(10));
}

on_both_origins!(
    cache_status_tells_miss_stored_and_hit,
    a_refusal_made_before_the_cache_has_no_cache_status,
    ratelimit_tells_policy_and_what_is_left,
    ratelimit_counts_down_and_stands_on_refusals_too,
    ratelimit_waits_for_a_known_key,
    every_answer_has_a_request_id_of_its_own_and_is_not_to_be_stored,
    each_header_can_be_turned_off,
    the_health_path_answers_ok_and_can_be_moved_or_turned_off,
);
