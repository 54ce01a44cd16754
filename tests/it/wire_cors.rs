//! Contract sections 1, "Order" and "Headers on answers", and 3, `answers.cors_origins`: pages that call from a browser.

use crate::support::*;

const SHOP: &str = "https://shop.example";
const CORS: [&str; 6] = [
    "access-control-allow-origin",
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-max-age",
    "access-control-expose-headers",
    "vary",
];

fn gate(origins: &str) -> Builder {
    TestGateway::before_http().tls().key("bot").points("7", 3).set("answers.cors_origins", origins)
}

fn preflight(origin: &str) -> Request {
    Request::bare("OPTIONS", "/getPoints")
        .header("Origin", origin)
        .header("Access-Control-Request-Method", "POST")
        .header("Access-Control-Request-Headers", "authorization")
}

/// The same answer in both versions of HTTP.
async fn both(gate: &TestGateway, request: &Request) -> [Answer; 2] {
    [gate.send(request).await, gate.http2().await.ask(request).await]
}

#[track_caller]
fn may_be_read_by(answer: &Answer, allowed: &str) {
    let exposed = "cache-status, ratelimit, ratelimit-policy, retry-after, x-request-id, age";
    let fields = [Some(allowed), None, None, None, Some(exposed), Some("Origin")];
    assert_eq!(CORS.map(|name| answer.header(name)), fields, "{answer:#?}");
}

#[track_caller]
fn has_no_cors(answer: &Answer) {
    assert_eq!(CORS.map(|name| answer.header(name)), [None; 6], "{answer:#?}");
}

#[tokio::test]
async fn a_preflight_of_a_listed_page_is_answered_and_charged_to_nobody() {
    let gate = gate(r#"["https://other.example", "https://shop.example"]"#)
        .set("server.base_path", r#""/v1""#)
        .set("limits.strangers.rate", r#""1/h""#)
        .set("limits.strangers.burst", "1")
        .set("log.access", r#""access.log""#)
        .start()
        .await;
    for operation in ["getPoints", "setPoints", "getWarns", "getReviews"] {
        let request = Request::bare("OPTIONS", &format!("/v1/{operation}?x"))
            .header("Origin", SHOP)
            .header("Access-Control-Request-Method", "DELETE");
        for answer in both(&gate, &request).await {
            answer.is_preflight(SHOP);
            assert_eq!(answer.header("access-control-expose-headers"), None);
            assert!(answer.header("x-request-id").is_some());
        }
    }
    // On one connection, with a body that nobody reads, and before the request that it asks about.
    let mut connection = gate.connect().await;
    let request = Request::bare("OPTIONS", "/v1/getPoints").header("Origin", SHOP).body("x".repeat(50));
    let request = request.header("Access-Control-Request-Method", "POST");
    connection.ask(&request).await.is_preflight(SHOP);
    let call = Request::post("/v1/getPoints", "memberID=7").key(gate.secret("bot")).header("Origin", SHOP);
    may_be_read_by(connection.ask(&call).await.is("3"), SHOP);
    // The address still has the whole of its one request.
    let stranger = Request::post("/v1/getPoints", "memberID=7").header("Origin", SHOP);
    may_be_read_by(gate.send(&stranger).await.is_refused(401, NO_KEY), SHOP);
    gate.send(&stranger).await.is_too_many();
    gate.has_logged("access.log", "the preflight", |line| line.contains(" setPoints 204 - key=- cache=- ")).await;
}

#[tokio::test]
async fn a_listed_page_reads_answers_and_refusals_and_others_read_neither_until_a_reload_lists_others() {
    let gate = gate(r#"["https://shop.example"]"#).set("limits.tiers.slow.rate", r#""1/h""#);
    let gate = gate.set("limits.tiers.slow.burst", "4").key_of_tier("slow", "slow").start_here().await;
    let refused = "11 | Method should be POST!";
    let not_post = Request::bare("OPTIONS", "/getPoints");
    let strange = [
        not_post.clone(),
        not_post.clone().header("Access-Control-Request-Method", "POST"),
        preflight("https://evil.example"),
        preflight("https://SHOP.example"),
        preflight("HTTPS://shop.example"),
        preflight("https://shop.example/"),
        preflight("https://shop.example:443"),
        preflight("http://shop.example"),
        preflight("https://a.shop.example"),
        preflight("https://shop.example, https://shop.example"),
        preflight("null"),
        preflight("*"),
        preflight(""),
        preflight(SHOP).header("Origin", SHOP),
    ];
    for request in &strange {
        for answer in both(&gate, request).await {
            has_no_cors(answer.is_refused(405, refused));
        }
    }
    // Of a listed page, and yet no preflight: the refusal may be read.
    let get = Request::bare("GET", "/getPoints").header("Access-Control-Request-Method", "POST");
    for request in [not_post.header("Origin", SHOP), get.header("Origin", SHOP)] {
        for answer in both(&gate, &request).await {
            may_be_read_by(answer.is_refused(405, refused), SHOP);
        }
    }
    let elsewhere = Request::bare("OPTIONS", "/nothing").header("Access-Control-Request-Method", "POST");
    for answer in both(&gate, &elsewhere.header("Origin", SHOP)).await {
        may_be_read_by(answer.is_refused(404, "10 | Unknown operation!"), SHOP);
    }
    for answer in both(&gate, &preflight(SHOP).header("Authorization", "a").header("Authorization", "b")).await {
        has_no_cors(answer.is_refused(400, MALFORMED));
    }
    for (key, body, status) in [("bot", "memberID=7", 200), ("bot", "memberID=x", 400), ("slow", "memberID=7", 200)] {
        let plain = gate.request("getPoints", key, body);
        for answer in both(&gate, &plain.clone().header("Origin", SHOP)).await {
            assert_eq!(answer.status, status);
            may_be_read_by(&answer, SHOP);
        }
        for answer in both(&gate, &plain.clone().header("Origin", "https://evil.example")).await {
            has_no_cors(&answer);
        }
    }
    let over = gate.request("getPoints", "slow", "memberID=7").header("Origin", SHOP);
    for answer in both(&gate, &over).await {
        answer.is_too_many();
        may_be_read_by(&answer, SHOP);
    }
    let twice = gate.request("getPoints", "bot", "memberID=7").header("Origin", SHOP).header("origin", SHOP);
    for answer in both(&gate, &twice).await {
        has_no_cors(answer.is("3"));
    }
    for answer in both(&gate, &gate.request("getPoints", "bot", "memberID=7")).await {
        has_no_cors(answer.is("3"));
    }
    let (mut one, mut two) = (gate.connect().await, gate.http2().await);
    one.ask(&preflight(SHOP)).await.is_preflight(SHOP);
    gate.reloaded_with(SHOP, "https://new.example").await;
    for answer in [one.ask(&preflight(SHOP)).await, two.ask(&preflight(SHOP)).await] {
        has_no_cors(answer.is_refused(405, refused));
    }
    one.ask(&preflight("https://new.example")).await.is_preflight("https://new.example");
    two.ask(&preflight("https://new.example")).await.is_preflight("https://new.example");
    // A star lets every page read, and a preflight is 204 where refusals have the status 200.
    gate.reloaded_with("[\"https://new.example\"]", "[\"*\"]\nerror_status = \"ok\"").await;
    for origin in [SHOP, "null", "https://evil.example"] {
        for answer in both(&gate, &preflight(origin)).await {
            answer.is_preflight("*");
        }
        for answer in both(&gate, &gate.request("getPoints", "bot", "memberID=7").header("Origin", origin)).await {
            may_be_read_by(answer.is("3"), "*");
        }
    }
    for answer in both(&gate, &preflight(SHOP).header("Origin", "null")).await {
        has_no_cors(answer.is_refused(200, "11 | Method should be POST!"));
    }
    for answer in both(&gate, &Request::post("/getPoints", "").header("Origin", SHOP)).await {
        may_be_read_by(answer.is_refused(200, NO_KEY), "*");
    }
}
