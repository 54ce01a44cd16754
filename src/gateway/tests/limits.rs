//! Who is over a limit, what is told and recorded of it, and what a reload leaves of it.

use super::*;

#[tokio::test]
async fn each_decision_on_a_known_key_is_recorded_with_what_it_went_by() {
    let limits = "standard = { rate = \"1/m\", burst = 2, daily = 9, candidate = { rate = \"1/m\", burst = 1 } }";
    for shadow in [false, true] {
        let w = TestGateway::new(&format!("[limits]\nshadow = {shadow}\ntiers.{limits}")).await;
        for (operation, body) in [("getPoints", "memberID=7"), ("getWarns", "nonsense"), ("setPoints", "")] {
            let _ = w.ask(operation, "k1", body).await;
            w.advance(1);
        }
        for no_key in ["", "k9"] {
            let _ = w.ask("getPoints", no_key, "memberID=7").await;
        }
        let decision = |second: u64, operation, over: Option<Limit>| Decision {
            unix_ms: 1_000_000 + 1000 * second as i64,
            at: Tick(0).plus(Duration::from_secs(second)),
            key: "k1".into(),
            tier: None,
            operation,
            over,
            refused: over.is_some() && !shadow,
            over_candidate: second > 0,
            in_flight: 0,
            used_today: second,
        };
        let (get, set, warns) = (Operation::GetPoints, Operation::SetPoints, Operation::GetWarns);
        let expected = [decision(0, get, None), decision(1, warns, None), decision(2, set, Some(Limit::Rate))];
        assert_eq!(w.decisions(), expected, "strangers have no decision");
    }
}

#[tokio::test]
async fn strangers_are_held_to_their_budget_and_a_known_key_is_not() {
    let w = TestGateway::new("limits.strangers = { rate = \"1/s\", burst = 2 }").await;
    for key in ["k8", "k9"] {
        assert_eq!(w.ask("getPoints", key, "").await.answer.unwrap_err(), Fault::IncorrectKey);
    }
    let refused = w.ask("getPoints", "", "").await;
    assert_eq!(refused.answer.unwrap_err(), Fault::TooManyRequests { retry_after: 1 });
    assert!(refused.details.levels.is_none(), "no key, no RateLimit");
    assert!(w.ask("getPoints", "k1", "memberID=7").await.answer.is_ok());
}

#[tokio::test]
async fn a_request_is_charged_once_by_its_header_whatever_comes_of_its_body() {
    let w = TestGateway::new("limits.tiers.standard = { rate = \"1/h\", burst = 3 }").await;
    let state = w.gateway.state().clone();
    for body in ["memberID=7&amount=5", "memberID=7&amount=6", "nonsense"] {
        let mut body = After(body.as_bytes(), || w.advance(1));
        let header = RequestHeader { path: b"/setPoints", ..header() };
        let reply = w.gateway.handle(&state, &w.begun(&header), &mut body).await;
        assert!(!matches!(reply.answer, Err(Fault::TooManyRequests { .. })));
    }
    let refused = w.ask("getPoints", "k1", "memberID=7").await.answer.unwrap_err();
    assert!(matches!(refused, Fault::TooManyRequests { .. }), "{refused:?}");
}
