//! Contract section 1, "Order": a request with several faults is refused for the first of them.

use crate::support::*;

fn gate(kind: Kind) -> Builder {
    TestGateway::on(kind).key("bot").read_key("reader").points("7", 3)
}

/// A gateway whose key `spent` has nothing left.
async fn with_a_spent_key(kind: Kind) -> TestGateway {
    let gate = gate(kind)
        .set("limits.tiers.slow.rate", r#""1/h""#)
        .set("limits.tiers.slow.burst", "1")
        .set("limits.tiers.standard.write_rate", r#""1000/s""#)
        .key_of_tier("spent", "slow")
        .start()
        .await;
    gate.get_points("spent", "7").await.is("3");
    gate
}

async fn framing_comes_before_the_path(kind: Kind) {
    let gate = gate(kind).start().await;
    let request = Request::post("/nothing", "").without("Host");
    gate.send(&request).await.is_refused(400, MALFORMED);
}

async fn an_unknown_path_comes_before_a_bad_method(kind: Kind) {
    let gate = gate(kind).start().await;
    gate.send(&Request::bare("GET", "/nothing")).await.is_refused(404, "10 | Unknown operation!");
    gate.send(&Request::post("/nothing", "x".repeat(9000))).await.is_refused(404, "10 | Unknown operation!");
}

async fn a_bad_method_comes_before_a_large_body(kind: Kind) {
    let gate = gate(kind).start().await;
    let request = Request::bare("PUT", "/setPoints").body("x".repeat(5000));
    gate.send(&request).await.is_refused(405, "11 | Method should be POST!");
}

async fn a_large_content_length_comes_before_the_key(kind: Kind) {
    let gate = gate(kind).start().await;
    let request = Request::post("/setPoints", "x".repeat(5000));
    gate.send(&request).await.is_refused(413, TOO_LARGE);
    gate.send(&request.key("nobody")).await.is_refused(413, TOO_LARGE);
}

async fn a_bad_key_learns_nothing_of_what_else_is_wrong(kind: Kind) {
    let gate = gate(kind).start().await;
    let wrong = Request::post("/setPoints", "memberID=x&memberID=y").header("Content-Encoding", "gzip");
    gate.send(&wrong).await.is_refused(401, NO_KEY);
    gate.send(&wrong.key("nobody")).await.is_refused(401, INCORRECT_KEY);
    let chunks = Request::post("/setPoints", "x".repeat(9000)).key("nobody").chunked(4000);
    gate.send(&chunks).await.is_refused(401, INCORRECT_KEY);
}

async fn a_key_over_its_limit_is_told_so_before_anything_else(kind: Kind) {
    let gate = with_a_spent_key(kind).await;
    let json = |body: &str| {
        let request = gate.request("setPoints", "spent", body);
        request.without("Content-Type").header("Content-Type", "application/json")
    };
    gate.send(&json("memberID=x")).await.is_too_many();
    gate.send(&json(&"x".repeat(9000)).chunked(4000)).await.is_too_many();
}

async fn a_read_keys_limit_comes_before_its_scope(kind: Kind) {
    let gate =
        gate(kind).set("limits.tiers.standard.rate", r#""1/h""#).set("limits.tiers.standard.burst", "1").start().await;
    gate.set_points("reader", "7", 5).await.is_refused(403, "15 | This API key is not allowed to use setPoints!");
    gate.set_points("reader", "7", 5).await.is_too_many();
}

async fn scope_comes_before_the_content_type(kind: Kind) {
    let gate = gate(kind).start().await;
    let request = gate.request("setPoints", "reader", "{}").without("Content-Type");
    let answer = gate.send(&request.header("Content-Type", "application/json")).await;
    answer.is_refused(403, "15 | This API key is not allowed to use setPoints!");
}

async fn the_content_type_comes_before_the_body(kind: Kind) {
    let gate = gate(kind).start().await;
    let json = |body: &str| {
        let request = gate.request("setPoints", "bot", body).without("Content-Type");
        request.header("Content-Type", "application/json")
    };
    let line = "13 | Body should be application/x-www-form-urlencoded!";
    gate.send(&json("memberID=x")).await.is_refused(415, line);
    gate.send(&json(&"x".repeat(9000)).chunked(4000)).await.is_refused(415, line);
}

async fn the_member_comes_before_the_amount(kind: Kind) {
    let gate = gate(kind).start().await;
    for (body, line) in [
        ("amount=x", "04 | Param 'memberID' is not provided!"),
        ("amount=1&amount=2", "04 | Param 'memberID' is not provided!"),
        ("memberID=x&amount=x", "05 | Param 'memberID' should contain only integers!"),
        ("memberID=x&amount=1&amount=2", "05 | Param 'memberID' should contain only integers!"),
        ("memberID=x&memberID=&amount=x", "08 | Param 'memberID' is provided more than once!"),
        ("memberID=7&amount=x&amount=", "08 | Param 'amount' is provided more than once!"),
    ] {
        gate.send(&gate.request("setPoints", "bot", body)).await.is_refused(400, line);
    }
}

async fn the_parameters_come_before_the_guild(kind: Kind) {
    let gate = gate(kind).start().await;
    match kind {
        Kind::Builtin | Kind::Postgres => drop(gate.run(&["guild", "leave", GUILD]).done()),
        Kind::Http => gate.origin().always(Act::say(403, "03 | gone")),
    }
    eventually(SECOND_AND_SLACK, "03", || async { gate.get_points("bot", "8").await.code() == Some(3) }).await;
    for (body, code) in
        [("", 4), ("memberID=x", 5), ("memberID=7", 6), ("memberID=7&amount=x", 7), ("amount=&memberID=&memberID=", 8)]
    {
        let answer = gate.send(&gate.request("setPoints", "bot", body)).await;
        assert_eq!((answer.status, answer.code()), (400, Some(code)), "{body}: {answer:#?}");
    }
    assert_eq!(gate.set_points("bot", "7", 5).await.code(), Some(3));
}

on_both_origins!(
    framing_comes_before_the_path,
    an_unknown_path_comes_before_a_bad_method,
    a_bad_method_comes_before_a_large_body,
    a_large_content_length_comes_before_the_key,
    a_bad_key_learns_nothing_of_what_else_is_wrong,
    a_key_over_its_limit_is_told_so_before_anything_else,
    a_read_keys_limit_comes_before_its_scope,
    scope_comes_before_the_content_type,
    the_content_type_comes_before_the_body,
    the_member_comes_before_the_amount,
    the_parameters_come_before_the_guild,
);
