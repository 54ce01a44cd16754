//! Contract section 1, "Headers on answers". The client itself refuses every header that the
//! contract does not know.

use std::collections::HashSet;

use crate::support::*;

/// The tier `standard` has the contract's defaults, and `slow` has three requests for an hour.
fn gate() -> Builder {
    let mut gate = TestGateway::before_http().key("bot").key_of_tier("slow", "slow").read_key("reader").points("7", 3);
    for (name, value) in [
        ("standard.rate", r#""20/s""#),
        ("standard.burst", "40"),
        ("standard.write_rate", r#""5/s""#),
        ("standard.write_burst", "10"),
        ("slow.rate", r#""1/m""#),
        ("slow.burst", "3"),
    ] {
        gate = gate.set(&format!("limits.tiers.{name}"), value);
    }
    gate
}

#[tokio::test]
async fn each_answer_has_the_headers_that_the_contract_names() {
    let gate = gate().start_here().await;
    let policy = r#""standard";q=40;w=2, "standard-write";q=10;w=2"#;
    let mut ids = HashSet::new();
    let mut is_whole = |answer: &Answer| {
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{answer:#?}");
        let id = answer.header("x-request-id").unwrap_or_else(|| panic!("no X-Request-Id: {answer:#?}"));
        assert!(!id.is_empty() && id.len() <= 64 && ids.insert(id.to_owned()), "{id} is there twice: {answer:#?}");
    };
    for (n, (operation, most)) in [("getPoints", 30), ("getWarns", 60), ("getReviews", 300)].into_iter().enumerate() {
        let request = gate.request(operation, "bot", "memberID=7");
        let miss = gate.send(&request).await;
        assert_eq!(miss.cache_status(), "guildgate; fwd=miss; stored", "{operation}");
        assert_eq!(miss.header("age"), None, "Age is for a hit: {miss:#?}");
        assert_eq!(miss.header("ratelimit-policy"), Some(policy));
        assert!(n > 0 || miss.header("ratelimit") == Some(r#""standard";r=39;t=1"#), "{miss:#?}");
        let hit = gate.send(&request).await;
        let ttl = hit.is_hit().cache_status().strip_prefix("guildgate; hit; ttl=").and_then(|t| t.parse::<u64>().ok());
        assert!(ttl.is_some_and(|t| t <= most && t + 20 > most), "{operation}: {ttl:?} of {most}");
        assert!(hit.header("age").unwrap().parse::<u64>().unwrap() <= 20, "{hit:#?}");
        is_whole(&miss);
        is_whole(&hit);
    }
    let set = gate.set_points("bot", "7", 4).await;
    assert_eq!((set.cache_status(), set.header("age")), ("guildgate; fwd=method", None));
    assert_eq!(set.header("ratelimit-policy"), Some(policy));
    is_whole(&set);
    // A refusal that is made before the cache has no Cache-Status, and one before the key is known no limits.
    for (request, is_known) in [
        (Request::post("/nothing", ""), false),
        (Request::bare("GET", "/getPoints"), false),
        (Request::post("/getPoints", "x".repeat(5000)), false),
        (Request::post("/getPoints", "memberID=7"), false),
        (Request::post("/getPoints", "memberID=7").key("nobody"), false),
        (gate.request("getPoints", "bot", "memberID=7").without("Host"), false),
        (gate.request("setPoints", "reader", "memberID=7&amount=5"), true),
    ] {
        let answer = gate.send(&request).await;
        assert_eq!(["cache-status", "age"].map(|name| answer.header(name)), [None; 2], "{request:?}: {answer:#?}");
        assert_eq!(answer.header("ratelimit").is_some(), is_known, "{request:?}: {answer:#?}");
        assert_eq!(answer.header("ratelimit-policy").is_some(), is_known, "{request:?}: {answer:#?}");
        is_whole(&answer);
    }
    // RateLimit counts down, and a refusal that is made later counts like an answer.
    for (member, left) in [("7", 2), ("x", 1), ("7", 0)] {
        let answer = gate.get_points("slow", member).await;
        assert_eq!(answer.header("ratelimit-policy"), Some(r#""slow";q=3;w=180"#));
        let limit = answer.header("ratelimit").unwrap_or_default();
        assert!(limit.starts_with(&format!(r#""slow";r={left};t="#)), "{limit}");
    }
    let refused = gate.get_points("slow", "7").await;
    let n = refused.is_too_many();
    assert_eq!(refused.header("ratelimit"), Some(&*format!(r#""slow";r=0;t={n}"#)));
}

#[tokio::test]
async fn each_header_can_be_turned_off() {
    let optional = [
        ("\"cache-status\"", &["cache-status"][..]),
        ("\"ratelimit\"", &["ratelimit", "ratelimit-policy"]),
        ("\"request-id\"", &["x-request-id"]),
        ("\"age\"", &["age"]),
        ("", &[]),
    ];
    let gate = gate().set("answers.headers", "[\"age\", \"ratelimit\"]").start_here().await;
    let mut before = "\"age\", \"ratelimit\"";
    gate.get_points("bot", "7").await.is("3");
    for (only, kept) in optional {
        gate.reloaded_with(&format!("headers = [{before}]"), &format!("headers = [{only}]")).await;
        before = only;
        let hit = gate.get_points("bot", "7").await;
        for name in ["cache-status", "ratelimit", "ratelimit-policy", "x-request-id", "age"] {
            assert_eq!(hit.header(name).is_some(), kept.contains(&name), "headers = [{only}]: {name} in {hit:#?}");
        }
        assert_eq!(hit.is("3").header("cache-control"), Some("no-store"));
    }
}
