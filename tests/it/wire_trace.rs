//! Contract section 1, "Upstream": the id of a request, and the trace that it belongs to.

use crate::support::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn gate() -> Builder {
    TestGateway::before_http().tls().key("bot").set("cache.points.ttl", r#""0s""#)
}

fn trusting() -> Builder {
    gate().set("server.trusted_proxies", r#"["127.0.0.0/8"]"#)
}

/// What the origin was sent last.
fn last(gate: &TestGateway) -> Seen {
    gate.origin().seen().pop().unwrap()
}

/// The request over both versions of HTTP, each answered, and what the origin was sent for each.
async fn sent(gate: &TestGateway, request: &Request) -> [(Answer, Seen); 2] {
    let one = gate.send(request).await;
    let at_origin = last(gate);
    let two = gate.http2().await.ask(request).await;
    [(one, at_origin), (two, last(gate))]
}

#[tokio::test]
async fn a_trusted_proxys_request_id_is_the_requests_own() {
    let gate = trusting().set("log.access", r#""access.log""#).start().await;
    let longest = "x".repeat(64);
    for id in ["7f3c.A_b-9", &longest] {
        let request = gate.request("getPoints", "bot", "memberID=7").header("x-request-ID", id);
        for (answer, at_origin) in sent(&gate, &request).await {
            assert_eq!(answer.is("0").header("x-request-id"), Some(id));
            assert_eq!(at_origin.header("x-request-id"), Some(id));
        }
        gate.has_logged("access.log", id, |line| line.contains(&format!(" id={id} "))).await;
    }
    // Refusals have it as well.
    let refused = gate.send(&Request::post("/getPoints", "").header("X-Request-Id", "r-1")).await;
    assert_eq!(refused.is_refused(401, NO_KEY).header("x-request-id"), Some("r-1"));
}

#[tokio::test]
async fn another_id_than_a_harmless_one_is_replaced() {
    let gate = trusting().start().await;
    let too_long = "x".repeat(65);
    let plain = gate.request("getPoints", "bot", "memberID=7");
    let strange =
        ["", "a b", "a\"b", "a/b", "a;b", "\u{e9}", &too_long].map(|id| plain.clone().header("X-Request-Id", id));
    let twice = plain.header("X-Request-Id", "a").header("X-Request-Id", "a");
    for request in strange.into_iter().chain([twice]) {
        for (answer, at_origin) in sent(&gate, &request).await {
            let id = answer.is("0").header("x-request-id").unwrap();
            assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
            assert_eq!(at_origin.header("x-request-id"), Some(id));
        }
    }
}

#[tokio::test]
async fn anybody_elses_request_id_is_ignored() {
    let gate = gate().start().await;
    let request = gate.request("getPoints", "bot", "memberID=7").header("X-Request-Id", "7f3c");
    for (answer, at_origin) in sent(&gate, &request).await {
        assert_ne!(answer.is("0").header("x-request-id"), Some("7f3c"));
        assert_eq!(at_origin.header("x-request-id"), answer.header("x-request-id"));
    }
}

#[tokio::test]
async fn a_trace_goes_on_to_the_origin_under_a_new_parent() {
    let gate = gate().start().await;
    let longest = format!("a={}", "x".repeat(510));
    let mut parents = std::collections::HashSet::from(["00f067aa0ba902b7".to_owned()]);
    for operation in ["getPoints", "setPoints", "getWarns"] {
        for state in [None, Some("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"), Some(longest.as_str())] {
            let member = parents.len();
            let request = gate.request(operation, "bot", &format!("memberID={member}&amount=1"));
            let request = request.header("Traceparent", PARENT);
            let request = state.iter().fold(request, |request, state| request.header("TraceState", state));
            gate.send(&request).await;
            let at_origin = last(&gate);
            let parts: Vec<&str> = at_origin.header("traceparent").unwrap().split('-').collect();
            assert_eq!((parts[0], parts[1], parts[2].len(), parts[3], parts.len()), ("00", TRACE, 16, "01", 4));
            assert!(parents.insert(parts[2].to_owned()), "a parent id was sent twice: {parts:?}");
            assert_eq!(at_origin.header("tracestate"), state);
        }
    }
    for (_, at_origin) in
        sent(&gate, &gate.request("getPoints", "bot", "memberID=7").header("traceparent", PARENT)).await
    {
        assert!(at_origin.header("traceparent").unwrap().starts_with(&format!("00-{TRACE}-")));
    }
}

#[tokio::test]
async fn each_attempt_is_a_parent_of_its_own() {
    let gate = gate().start().await;
    gate.origin().next("getPoints", Act::Cut(Cut::BeforeHeader));
    gate.send(&gate.request("getPoints", "bot", "memberID=7").header("traceparent", PARENT)).await.is("0");
    let seen = gate.origin().seen();
    assert_eq!(seen.len(), 2);
    assert_ne!(seen[0].header("traceparent"), seen[1].header("traceparent"));
}

#[tokio::test]
async fn what_is_no_trace_is_dropped_and_none_is_made_up() {
    let gate = gate().start().await;
    let plain = gate.request("getPoints", "bot", "memberID=7");
    let with = |parent: &str| plain.clone().header("traceparent", parent).header("tracestate", "a=1");
    let requests = [
        plain.clone(),
        plain.clone().header("tracestate", "a=1"),
        with(""),
        with("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
        with(&PARENT.to_uppercase()),
        with(&PARENT.replace("00-4", "01-4")),
        with(&format!("{PARENT}-x")),
        with(PARENT).header("traceparent", PARENT),
    ];
    for request in requests {
        for (answer, at_origin) in sent(&gate, &request).await {
            answer.is("0");
            assert_eq!((at_origin.header("traceparent"), at_origin.header("tracestate")), (None, None), "{request:?}");
        }
    }
    // A state that is too long, or there twice, goes alone.
    let too_long = "x".repeat(513);
    let with_parent = plain.header("traceparent", PARENT);
    let twice = with_parent.clone().header("tracestate", "a=1").header("tracestate", "b=2");
    for request in [with_parent.header("tracestate", &too_long), twice] {
        for (_, at_origin) in sent(&gate, &request).await {
            assert!(at_origin.header("traceparent").is_some());
            assert_eq!(at_origin.header("tracestate"), None, "{request:?}");
        }
    }
}
