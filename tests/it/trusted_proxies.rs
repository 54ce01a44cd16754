//! Contract section 3, `server.trusted_proxies`: who pays as a stranger.

use crate::support::*;

const INCORRECT: &str = "02 | Incorrect API key!";

fn gate() -> Builder {
    TestGateway::builder().key("bot").set("limits.strangers.rate", r#""1/h""#).set("limits.strangers.burst", "2")
}

fn wrong_key(from: &str) -> Request {
    Request::post("/getPoints", "memberID=7").key("a wrong key").header("X-Forwarded-For", from)
}

#[tokio::test]
async fn behind_a_trusted_proxy_each_client_has_a_budget_of_its_own() {
    let gate = gate().set("server.trusted_proxies", r#"["127.0.0.0/8"]"#).start().await;
    for _ in 0..2 {
        gate.send(&wrong_key("6.6.6.6, 203.0.113.9")).await.is_refused(401, INCORRECT);
    }
    gate.send(&wrong_key("7.7.7.7, 203.0.113.9")).await.is_too_many();
    // One other address may share the bucket by chance; not all of these do.
    let mut others = 0;
    for n in 1..5 {
        others += usize::from(gate.send(&wrong_key(&format!("198.51.100.{n}"))).await.code() == Some(2));
    }
    assert!(others > 0);
    // A client that is no trusted proxy cannot choose who pays.
    let gate = self::gate().start().await;
    for n in 1..3 {
        gate.send(&wrong_key(&format!("203.0.113.{n}"))).await.is_refused(401, INCORRECT);
    }
    gate.send(&wrong_key("203.0.113.9")).await.is_too_many();
    gate.get_points("bot", "7").await.is("0");
}
