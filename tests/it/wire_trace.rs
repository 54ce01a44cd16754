//! Contract section 1, "Upstream": the id of a request, and the trace that it belongs to.

use crate::support::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn gate() -> Builder {
    TestGateway::before_http().tls().key("bot").set("cache.points.ttl", r#""0s""#)
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
async fn a_trusted_proxys_harmless_request_id_is_the_requests_own() {
    let gate = gate().set("server.trusted_proxies", r#"["127.0.0.0/8"]"#).set("log.access", r#""access.log""#);
    let gate = gate.start().await;
    let plain = gate.request("getPoints", "bot", "memberID=7");
    let longest = "x".repeat(64);
    for id in ["7f3c.A_b-9", &longest] {
        for (answer, at_origin) in sent(&gate, &plain.clone().header("x-request-ID", id)).await {
            assert_eq!(answer.is("0").header("x-request-id"), Some(id));
            assert_eq!(at_origin.header("x-request-id"), Some(id));
        }
        gate.has_logged("access.log", id, |line| line.contains(&format!(" id={id} "))).await;
    }
    // Refusals have it as well.
    let refused = gate.send(&Request::post("/getPoints", "").header("X-Request-Id", "r-1")).await;
    assert_eq!(refused.is_refused(401, NO_KEY).header("x-request-id"), Some("r-1"));
    // Another one is replaced.
    let too_long = "x".repeat(65);
    let strange = ["", "a b", "a\"b", "\u{e9}", &too_long].map(|id| plain.clone().header("X-Request-Id", id));
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
async fn a_callers_trace_goes_on_to_the_origin_under_a_new_parent_and_none_is_made_up() {
    let gate = gate().start_here().await;
    let longest = format!("a={}", "x".repeat(510));
    let mut parents = std::collections::HashSet::from(["00f067aa0ba902b7".to_owned()]);
    for operation in ["getPoints", "setPoints", "getWarns"] {
        for state in [None, Some("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"), Some(longest.as_str())] {
            let request = gate.request(operation, "bot", &format!("memberID={}&amount=1", parents.len()));
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
    // What is no traceparent goes to nobody. (Its forms are tested in `src/wire/trace_context.rs`.)
    let plain = gate.request("getPoints", "bot", "memberID=99");
    let with_parent = plain.clone().header("traceparent", PARENT);
    let state_alone = plain.clone().header("tracestate", "a=1");
    let bad = state_alone.clone().header("traceparent", &PARENT.replace("00-4", "01-4"));
    let twice = with_parent.clone().header("traceparent", PARENT);
    // A state that is too long, or there twice, goes alone.
    let long_state = with_parent.clone().header("tracestate", &"x".repeat(513));
    let two_states = with_parent.clone().header("tracestate", "a=1").header("tracestate", "b=2");
    for (request, has_parent) in
        [(plain, false), (state_alone, false), (bad, false), (twice, false), (long_state, true), (two_states, true)]
    {
        for (answer, at_origin) in sent(&gate, &request.header("X-Request-Id", "7f3c")).await {
            let parent = at_origin.header("traceparent");
            assert_eq!(parent.is_some_and(|parent| parent.starts_with(&format!("00-{TRACE}-"))), has_parent);
            assert_eq!((parent.is_some(), at_origin.header("tracestate")), (has_parent, None), "{at_origin:?}");
            // Who is no trusted proxy does not choose the request's id.
            assert_ne!(answer.is("0").header("x-request-id"), Some("7f3c"));
            assert_eq!(at_origin.header("x-request-id"), answer.header("x-request-id"));
        }
    }
    // Each attempt is a parent of its own.
    gate.origin().next("getPoints", Act::Cut(Cut::BeforeHeader));
    gate.send(&with_parent).await.is("0");
    let seen = gate.origin().seen();
    let attempts = [&seen[seen.len() - 2], &seen[seen.len() - 1]].map(|seen| seen.header("traceparent"));
    assert_ne!(attempts[0], attempts[1]);
}
