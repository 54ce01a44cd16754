//! Contract section 1, "Parameters": what the gateway takes for equal, the backend takes for equal. Each way to write a
//! parameter is tested in `src/wire/form.rs`.

use crate::support::*;

fn gate() -> Builder {
    TestGateway::before_http().key("bot").points("7", 3)
}

#[tokio::test]
async fn one_member_and_one_canonical_body_however_a_request_is_written() {
    let gate = gate().start_here().await;
    let key = gate.secret("bot");
    let typed = |value: &str| {
        gate.request("getPoints", "bot", "memberID=7").without("Content-Type").header("content-type", value)
    };
    let post = |target: &str, body: &str| Request::post(target, body).key(key);
    let padded = format!("  {key}\t ");
    gate.get_points("bot", "007").await.is("3").is_miss();
    for (what, request) in [
        ("a shorter id", post("/getPoints", "memberID=7")),
        ("an encoded one", post("/getPoints", "x=1&member%49D=%37&amount=2&memberid=3")),
        ("amounts of a read", post("/getPoints", "memberID=7&amount=&amount=")),
        ("a query", post("/getPoints?memberID=8", "memberID=7")),
        ("an empty query", post("/getPoints?", "memberID=7")),
        // CVE-2026-2836: an answer was held for its path, whichever host was asked for.
        ("another host", post("/getPoints", "memberID=7").without("Host").header("Host", "evil.test")),
        ("a forwarded host", post("/getPoints", "memberID=7").header("X-Forwarded-Host", "evil.test")),
        ("no type", gate.request("getPoints", "bot", "memberID=7").without("Content-Type")),
        ("a type in capitals", typed("APPLICATION/X-WWW-Form-URLEncoded")),
        ("a type with parameters", typed("application/x-www-form-urlencoded;charset=koi8-r ; x=y")),
        ("a key with blanks", Request::post("/getPoints", "memberID=7").header("aUTHORIZATION", &padded)),
    ] {
        let answer = gate.send(&request).await;
        assert!(answer.body == "3" && answer.was_hit(), "{what}: {answer:#?}");
    }
    let head = format!("POST /getPoints HTTP/1.1\r\nhOST:x\r\nAUTHORIZATION:{key}\r\ncontent-LENGTH:10\r\n\r\n");
    gate.connect_and_send(head + "memberID=7").await.answer().await.is("3").is_hit();
    let missing = gate.send(&post("/setPoints?amount=5", "memberID=7")).await;
    missing.is_refused(400, "06 | Param 'amount' is not provided!");
    for (body, member, amount) in [
        ("amount=-007&&memberID=%3007&x", "7", "-7"),
        ("memberID=0&amount=0005", "0", "5"),
        ("memberID=9223372036854775807&amount=-9223372036854775808", "9223372036854775807", "-9223372036854775808"),
    ] {
        gate.send(&post("/setPoints", body)).await.is(&format!("Successfully set 'Ada' points to '{amount}'"));
        assert_eq!(gate.origin().seen().pop().unwrap().body, format!("memberID={member}&amount={amount}"));
        gate.get_points("bot", member).await.is(amount);
        assert_eq!(gate.origin().seen().pop().unwrap().body, format!("memberID={member}"));
    }
}

#[tokio::test]
async fn the_base_path_stands_before_every_operation_and_the_health_path_alone() {
    let gate =
        gate().set("server.base_path", r#""/api/v1""#).set("server.health_path", r#""/healthz""#).start_here().await;
    let post = |target: &str| Request::post(target, "memberID=7").key(gate.secret("bot"));
    gate.send(&post("/api/v1/getPoints")).await.is("3");
    for target in ["/getPoints", "/api/v1getPoints", "/api/v1//getPoints", "/API/v1/getPoints", "/api/v1", "/api/v1/"] {
        gate.send(&post(target)).await.is_refused(404, "10 | Unknown operation!");
    }
    let is_found = async |target: &str| gate.send(&Request::bare("GET", target)).await.status == 200;
    assert!(is_found("/healthz").await && !is_found("/api/v1/healthz").await);
    for (from, to, moved) in [("/healthz", "/up", true), ("/up", "", false)] {
        gate.reloaded_with(&format!("health_path = {from:?}"), &format!("health_path = {to:?}")).await;
        assert_eq!((is_found("/up").await, is_found("/healthz").await), (moved, false), "{to:?}");
    }
}
