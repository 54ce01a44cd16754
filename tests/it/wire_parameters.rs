//! Contract section 1, "Parameters": what the gateway takes for equal, the backend takes for equal.

use crate::support::*;

fn gate(kind: Kind) -> Builder {
    TestGateway::on(kind).key("bot").points("7", 3)
}

async fn leading_zeros_are_dropped_in_answer_cache_and_backend(kind: Kind) {
    let gate = gate(kind).warn("7", 1, "Mod", "spam", 4_000_000_000).start().await;
    gate.get_points("bot", "007").await.is("3").is_miss();
    gate.get_points("bot", "7").await.is("3").is_hit();
    gate.get_points("bot", "0000000000000000000000000000007").await.is("3").is_hit();
    gate.get_warns("bot", "07").await.is("{warns_7_id_1_4000000000=Mod: spam (Expires 4000000000)}");
    gate.set_points("bot", "0007", 4).await.is("Successfully set 'Ada' points to '4'");
    gate.get_points("bot", "7").await.is("4");
    gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    gate.get_points("bot", "007").await.is("5");
}

async fn the_same_member_can_be_written_in_many_ways(kind: Kind) {
    let gate = gate(kind).start().await;
    let bodies = [
        "memberID=7",
        "memberID=%37",
        "member%49D=7",
        "%6demberID=7",
        "x=1&memberID=7&y",
        "&&memberID=7&&",
        "memberID=7&amount=x&amount=y",
        "memberID=7&memberid=8&MEMBERID=9",
        "unknown&unknown&memberID=7",
        "memberID=7&%FF=%FF",
        "memberID=7&a=%zz",
    ];
    for body in bodies {
        gate.send(&gate.request("getPoints", "bot", body)).await.is("3");
    }
}

async fn an_id_reaches_to_the_end_of_a_long_and_no_further(kind: Kind) {
    let gate = gate(kind).start().await;
    for member in ["0", "190551803669118976", "9223372036854775807"] {
        let set = gate.set_points("bot", member, 12).await;
        assert_eq!(set.status, 200, "{set:?}");
        gate.get_points("bot", member).await.is("12");
    }
    assert_eq!(gate.get_points("bot", "9223372036854775808").await.code(), Some(5));
    assert_eq!(gate.get_points("bot", "18446744073709551616").await.code(), Some(5));
}

async fn an_amount_is_a_signed_64_bit_value(kind: Kind) {
    let gate = gate(kind).start().await;
    for (written, read) in [
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("-5", "-5"),
        ("0005", "5"),
        ("-0005", "-5"),
        ("-0", "0"),
        ("%2d5", "-5"),
    ] {
        let set = gate.send(&gate.request("setPoints", "bot", &format!("memberID=7&amount={written}"))).await;
        set.is(&format!("Successfully set 'Ada' points to '{read}'"));
        gate.get_points("bot", "7").await.is(read);
    }
}

async fn parameters_in_the_query_are_none(kind: Kind) {
    let gate = gate(kind).start().await;
    let post = |target: &str, body: &str| Request::post(target, body).key(gate.secret("bot"));
    let missing = gate.send(&post("/getPoints?memberID=7", "")).await;
    missing.is_refused(400, "04 | Param 'memberID' is not provided!");
    gate.send(&post("/getPoints?memberID=8", "memberID=7")).await.is("3");
    gate.send(&post("/getPoints?", "memberID=7")).await.is("3");
    let missing = gate.send(&post("/setPoints?amount=9", "memberID=7")).await;
    missing.is_refused(400, "06 | Param 'amount' is not provided!");
    gate.get_points("bot", "7").await.is("3");
}

async fn the_content_type_may_be_missing_or_dressed_up(kind: Kind) {
    let gate = gate(kind).start().await;
    let request = gate.request("getPoints", "bot", "memberID=7").without("Content-Type");
    gate.send(&request).await.is("3");
    for content_type in [
        "APPLICATION/X-WWW-Form-URLEncoded",
        "application/x-www-form-urlencoded; charset=UTF-8",
        "application/x-www-form-urlencoded;charset=koi8-r ; x=y",
    ] {
        gate.send(&request.clone().header("content-type", content_type)).await.is("3");
    }
}

async fn the_key_is_the_whole_value_without_the_space_around_it(kind: Kind) {
    let gate = gate(kind).start().await;
    let padded = format!("  {}\t ", gate.secret("bot"));
    gate.send(&Request::post("/getPoints", "memberID=7").header("aUTHORIZATION", &padded)).await.is("3");
}

async fn header_names_know_no_case(kind: Kind) {
    let gate = gate(kind).start().await;
    let key = gate.secret("bot");
    let head = format!("POST /getPoints HTTP/1.1\r\nhOST:x\r\nAUTHORIZATION:{key}\r\ncontent-LENGTH:10\r\n\r\n");
    let mut connection = gate.connect_and_send(head + "memberID=7").await;
    connection.answer().await.is("3");
}

async fn the_base_path_stands_before_every_operation(kind: Kind) {
    let gate = gate(kind).set("server.base_path", r#""/api/v1""#).start().await;
    let post = |target: &str| Request::post(target, "memberID=7").key(gate.secret("bot"));
    gate.send(&post("/api/v1/getPoints")).await.is("3");
    for target in ["/getPoints", "/api/v1getPoints", "/api/v1//getPoints", "/API/v1/getPoints", "/api/v1", "/api/v1/"] {
        gate.send(&post(target)).await.is_refused(404, "10 | Unknown operation!");
    }
    let health = gate.send(&Request::bare("GET", "/healthz")).await;
    assert_eq!((health.status, &*health.body), (200, "ok"));
    assert_eq!(gate.send(&Request::bare("GET", "/api/v1/healthz")).await.code(), Some(10));
}

async fn a_member_that_nobody_knows_has_nothing(kind: Kind) {
    let gate = gate(kind).start().await;
    gate.get_points("bot", "404").await.is("0");
    gate.get_warns("bot", "404").await.is("{}");
    gate.get_reviews("bot", "404").await.is("{}");
}

#[tokio::test]
async fn an_http_origin_sees_one_canonical_body() {
    let gate = gate(Kind::Http).set("cache.points.ttl", r#""1ms""#).start().await;
    let bodies = ["memberID=007", "x=1&member%49D=%37&amount=2&memberid=3", "memberID=7&amount=&amount="];
    for body in bodies {
        assert_eq!(gate.send(&gate.request("getPoints", "bot", body)).await.status, 200);
    }
    gate.send(&gate.request("setPoints", "bot", "amount=-007&&memberID=%3007&x"))
        .await
        .is("Successfully set 'Ada' points to '-7'");
    let seen = gate.origin().seen();
    assert!(seen.len() >= 2, "{seen:?}");
    for request in &seen {
        let canonical = if request.operation() == "setPoints" { "memberID=7&amount=-7" } else { "memberID=7" };
        assert_eq!(request.body, canonical, "{request:?}");
    }
}

on_both_origins!(
    leading_zeros_are_dropped_in_answer_cache_and_backend,
    the_same_member_can_be_written_in_many_ways,
    an_id_reaches_to_the_end_of_a_long_and_no_further,
    an_amount_is_a_signed_64_bit_value,
    parameters_in_the_query_are_none,
    the_content_type_may_be_missing_or_dressed_up,
    the_key_is_the_whole_value_without_the_space_around_it,
    header_names_know_no_case,
    the_base_path_stands_before_every_operation,
    a_member_that_nobody_knows_has_nothing,
);
