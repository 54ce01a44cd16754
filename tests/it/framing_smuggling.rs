//! Regression tests for faults of the framework below: each was a way to have bytes taken for
//! something that they are not, and each would be a fault of ours as well. The origin counts what
//! reaches it. (CVE-2025-8671 and the floods like it are in `http2_floods`.)

use crate::support::*;

/// A request that must never be performed; where it is, member 7 has 666 points.
fn hidden(gate: &TestGateway) -> Vec<u8> {
    gate.request("setPoints", "bot", "memberID=7&amount=666").bytes()
}

async fn gate() -> TestGateway {
    TestGateway::before_http().key("bot").points("7", 3).start().await
}

#[tokio::test]
async fn the_body_of_what_was_refused_early_is_not_the_next_request() {
    // CVE-2025-4366: an early answer left the body in the connection.
    let gate = gate().await;
    for refused in [
        Request::post("/getPoints", hidden(&gate)),
        Request::post("/getPoints", hidden(&gate)).key("nobody"),
        Request::bare("GET", "/getPoints").body(hidden(&gate)),
        Request::bare("GET", "/healthz").body(hidden(&gate)),
    ] {
        for request in [refused.clone(), refused.chunked(7)] {
            let mut connection = gate.connect().await;
            connection.ask(&request).await;
            let next = gate.request("getPoints", "bot", "memberID=7");
            if connection.try_send(next.bytes()).await.is_ok()
                && let Some(answer) = connection.answer_or_close().await
            {
                answer.is("3");
            }
            gate.get_points("bot", "7").await.is("3");
        }
    }
    assert_eq!((gate.origin().asked("setPoints"), gate.origin().asked("getPoints")), (0, 1), "one miss, then hits");
}

#[tokio::test]
async fn bytes_behind_a_request_to_upgrade_are_requests_like_any_other() {
    // CVE-2026-2833: they were passed through before the other side had agreed to an upgrade.
    let gate = gate().await;
    let upgrade =
        gate.request("getPoints", "bot", "memberID=7").header("Connection", "Upgrade").header("Upgrade", "websocket");
    let refused = Request::post("/setPoints", "memberID=7&amount=666");
    let mut connection = gate.connect_and_send([upgrade.bytes(), refused.bytes()].concat()).await;
    connection.answer().await.is("3");
    connection.answer().await.is_refused(401, NO_KEY);
    assert_eq!(gate.origin().asked("setPoints"), 0);
    assert!(gate.origin().seen().iter().all(|seen| seen.header("upgrade").is_none()));
    // And an origin that agrees to what it was not asked gives no usable answer, on no connection.
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n666";
    gate.origin().next("getPoints", Act::Raw(switch.to_vec()));
    let mut connection = gate.connect().await;
    connection
        .ask(&gate.request("getPoints", "bot", "memberID=8").header("Upgrade", "websocket"))
        .await
        .is_refused(502, NO_ANSWER);
    connection.ask(&gate.request("getPoints", "bot", "memberID=8")).await.is("0");
}

#[tokio::test]
async fn an_answer_is_held_for_its_guild_and_not_for_its_path() {
    // CVE-2026-2836: the cache's key was the path alone, whoever and whichever host was asked for.
    let gate = TestGateway::before_http().key("bot").key_of_guild("other", "999").start().await;
    for (key, guild, points) in [("bot", GUILD, 3), ("other", "999", 77)] {
        gate.origin().let_in(gate.secret(key), guild);
        gate.origin().put_points_in(guild, "7", points);
    }
    for _ in ["misses", "hits"] {
        for (key, points) in [("bot", "3"), ("other", "77")] {
            gate.get_points(key, "7").await.is(points);
            // What the caller may write at will is no part of what an answer is held under.
            let request = gate.request("getPoints", key, "memberID=7").without("Host").header("Host", "evil.test");
            gate.send(&request.header("X-Forwarded-Host", "evil.test")).await.is(points).is_hit();
        }
    }
    assert_eq!(gate.origin().asked("getPoints"), 2, "once for each guild");
}
