//! Contract section 1, "Refusals": the table, row by row, on both kinds of origin.

use crate::support::*;

fn gate(kind: Kind) -> Builder {
    TestGateway::on(kind).key("bot").points("7", 3)
}

async fn row_01_a_missing_or_empty_key(kind: Kind) {
    let gate = gate(kind).start().await;
    let request = Request::post("/getPoints", "memberID=7");
    gate.send(&request).await.is_refused(401, NO_KEY);
    gate.send(&request.clone().header("Authorization", "")).await.is_refused(401, NO_KEY);
    gate.send(&request.header("Authorization", "  ")).await.is_refused(401, NO_KEY);
}

async fn row_02_an_unknown_key(kind: Kind) {
    let gate = gate(kind).start().await;
    let good = gate.secret("bot").to_owned();
    let almost = [format!("{good}x"), good[..good.len() - 1].to_owned(), format!("Bearer {good}"), "gg_short".into()];
    let foreign = ["x".to_owned(), "é".to_owned(), "a b".to_owned(), "k".repeat(5000)];
    for key in almost.iter().chain(&foreign) {
        let request = Request::post("/getPoints", "memberID=7").key(key);
        gate.send(&request).await.is_refused(401, INCORRECT_KEY);
    }
    gate.get_points("bot", "7").await.is("3");
}

async fn row_03_a_departed_guild(kind: Kind) {
    let gate = gate(kind).start().await;
    let line = "03 | Error while retrieving guild using this API key. Is Guildgate still on guild?";
    match kind {
        Kind::Builtin | Kind::Postgres => drop(gate.run(&["guild", "leave", GUILD]).done()),
        // The origin's own words for it give way to Guildgate's.
        Kind::Http => gate
            .origin()
            .always(Act::say(200, "03 | Error while retrieving guild using this API key. Is Some Bot still on guild?")),
    }
    eventually(SECOND_AND_SLACK, "03", || async { gate.get_points("bot", "8").await.code() == Some(3) }).await;
    for operation in ["getPoints", "getWarns", "getReviews", "setPoints"] {
        let request = gate.request(operation, "bot", "memberID=7&amount=5");
        gate.send(&request).await.is_refused(403, line);
    }
}

async fn row_04_a_missing_member(kind: Kind) {
    let gate = gate(kind).start().await;
    for operation in ["getPoints", "getWarns", "getReviews", "setPoints"] {
        for body in ["", "memberID", "memberID=", "memberid=7&amount=1", "memberID%3D7", "=7", "&&"] {
            let answer = gate.send(&gate.request(operation, "bot", body)).await;
            answer.is_refused(400, "04 | Param 'memberID' is not provided!");
        }
    }
}

async fn row_05_a_member_that_is_not_an_integer(kind: Kind) {
    let gate = gate(kind).start().await;
    for operation in ["getPoints", "getWarns", "getReviews", "setPoints"] {
        for member in ["x", "-7", "+7", "7.0", "7+", "%207", "0x7", "%D9%A7", "7%00", "9223372036854775808", "1e3"] {
            let body = format!("memberID={member}&amount=5");
            let answer = gate.send(&gate.request(operation, "bot", &body)).await;
            answer.is_refused(400, "05 | Param 'memberID' should contain only integers!");
        }
    }
}

async fn row_06_a_missing_amount(kind: Kind) {
    let gate = gate(kind).start().await;
    for body in ["memberID=7", "memberID=7&amount", "memberID=7&amount=", "memberID=7&Amount=5"] {
        let answer = gate.send(&gate.request("setPoints", "bot", body)).await;
        answer.is_refused(400, "06 | Param 'amount' is not provided!");
    }
    gate.get_points("bot", "7").await.is("3");
}

async fn row_07_an_amount_that_is_not_an_integer(kind: Kind) {
    let gate = gate(kind).start().await;
    let out_of_range = ["9223372036854775808", "-9223372036854775809", "99999999999999999999999"];
    for amount in ["x", "5.0", "%2B5", "+5", "-", "--5", "5-", "1e3", "0x5", "%D9%A7"].iter().chain(&out_of_range) {
        let body = format!("memberID=7&amount={amount}");
        let answer = gate.send(&gate.request("setPoints", "bot", &body)).await;
        answer.is_refused(400, "07 | Param 'amount' should contain only integers!");
    }
    gate.get_points("bot", "7").await.is("3");
}

async fn row_08_a_parameter_given_twice(kind: Kind) {
    let gate = gate(kind).start().await;
    for body in ["memberID=7&memberID=7", "memberID=&memberID=7", "memberID=7&member%49D=8", "memberID&x=1&memberID"] {
        let answer = gate.send(&gate.request("getPoints", "bot", body)).await;
        answer.is_refused(400, "08 | Param 'memberID' is provided more than once!");
    }
    for body in ["memberID=7&amount=1&amount=1", "amount=&memberID=7&amount=5"] {
        let answer = gate.send(&gate.request("setPoints", "bot", body)).await;
        answer.is_refused(400, "08 | Param 'amount' is provided more than once!");
    }
    gate.get_points("bot", "7").await.is("3");
}

async fn row_10_an_unknown_operation(kind: Kind) {
    let gate = gate(kind).start().await;
    let paths = [
        "/",
        "/getpoints",
        "/GETPOINTS",
        "/getPoints/",
        "//getPoints",
        "/./getPoints",
        "/get%50oints",
        "/getPointsX",
        "/x/getPoints",
        "/getPoints;x",
        "/deletePoints",
        "/healthz/",
    ];
    for path in paths {
        let request = Request::post(path, "memberID=7").key(gate.secret("bot"));
        gate.send(&request).await.is_refused(404, "10 | Unknown operation!");
    }
}

async fn row_11_a_method_other_than_post(kind: Kind) {
    let gate = gate(kind).start().await;
    for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "post", "MKCOL"] {
        let request = Request::bare(method, "/getPoints").key(gate.secret("bot"));
        gate.send(&request).await.is_refused(405, "11 | Method should be POST!");
    }
}

async fn row_11_to_head_has_no_body(kind: Kind) {
    let gate = gate(kind).start().await;
    let mut connection = gate.connect_and_send(Request::bare("HEAD", "/getPoints").key(gate.secret("bot"))).await;
    let answer = connection.answer_to_head().await;
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")), "{answer:?}");
    // Whatever follows is the next answer, not the body that HEAD does not have.
    if connection.try_send(gate.request("getPoints", "bot", "memberID=7").bytes()).await.is_ok()
        && let Some(next) = connection.answer_or_close().await
    {
        next.is("3");
    }
}

async fn row_12_too_many_requests(kind: Kind) {
    let gate =
        gate(kind).set("limits.tiers.standard.rate", r#""1/m""#).set("limits.tiers.standard.burst", "2").start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("bot", "7").await.is("3");
    let n = gate.get_points("bot", "7").await.is_too_many();
    assert!((30..=60).contains(&n), "one a minute, but try again in {n} s");
}

async fn row_13_a_body_of_another_type(kind: Kind) {
    let gate = gate(kind).start().await;
    let line = "13 | Body should be application/x-www-form-urlencoded!";
    let request = gate.request("getPoints", "bot", "memberID=7").without("Content-Type");
    for content_type in ["application/json", "text/plain", "multipart/form-data; boundary=x", "x"] {
        gate.send(&request.clone().header("Content-Type", content_type)).await.is_refused(415, line);
    }
    let form = request.header("Content-Type", "application/x-www-form-urlencoded");
    gate.send(&form.clone().header("Content-Encoding", "gzip")).await.is_refused(415, line);
    gate.send(&form).await.is("3");
}

async fn row_14_a_body_over_its_bound(kind: Kind) {
    let gate = gate(kind).start().await;
    let padded = |length: usize| format!("memberID=7&x={}", "y".repeat(length - "memberID=7&x=".len()));
    gate.send(&gate.request("getPoints", "bot", &padded(4096))).await.is("3");
    gate.send(&gate.request("getPoints", "bot", &padded(4097))).await.is_refused(413, TOO_LARGE);
    gate.send(&gate.request("getPoints", "bot", &padded(4097)).chunked(1000)).await.is_refused(413, TOO_LARGE);
}

async fn row_15_a_read_key_that_wants_to_write(kind: Kind) {
    let gate = gate(kind).read_key("reader").start().await;
    let answer = gate.set_points("reader", "7", 5).await;
    answer.is_refused(403, "15 | This API key is not allowed to use setPoints!");
    gate.get_points("reader", "7").await.is("3");
    gate.get_warns("reader", "7").await.is("{}");
    gate.get_reviews("reader", "7").await.is("{}");
}

async fn the_operators_words_stand_in_the_lines(kind: Kind) {
    let gate = gate(kind)
        .set("answers.service_name", r#""Night's Watch""#)
        .set("answers.key_command", r#""/keys new""#)
        .start()
        .await;
    let answer = gate.send(&Request::post("/getPoints", "memberID=7")).await;
    answer.is_refused(401, "01 | No api key provided! Create it using: /keys new");
    match kind {
        Kind::Builtin | Kind::Postgres => drop(gate.run(&["guild", "leave", GUILD]).done()),
        Kind::Http => gate.origin().always(Act::say(500, "03 | Is X still on guild?")),
    }
    eventually(SECOND_AND_SLACK, "03", || async { gate.get_points("bot", "8").await.code() == Some(3) }).await;
    let line = "03 | Error while retrieving guild using this API key. Is Night's Watch still on guild?";
    gate.get_points("bot", "9").await.is_refused(403, line);
}

async fn error_status_ok_sends_every_refusal_with_200(kind: Kind) {
    let gate = gate(kind)
        .set("answers.error_status", r#""ok""#)
        .set("limits.tiers.slow.rate", r#""1/m""#)
        .set("limits.tiers.slow.burst", "1")
        .key_of_tier("slow", "slow")
        .read_key("reader")
        .start()
        .await;
    let bot = |body: &str| gate.request("setPoints", "bot", body);
    let refused = [
        (1, Request::post("/getPoints", "memberID=7")),
        (2, Request::post("/getPoints", "memberID=7").key("nobody")),
        (4, bot("")),
        (5, bot("memberID=x")),
        (6, bot("memberID=7")),
        (7, bot("memberID=7&amount=x")),
        (8, bot("memberID=7&memberID=7")),
        (10, Request::post("/nothing", "")),
        (11, Request::bare("GET", "/getPoints")),
        (13, bot("{}").without("Content-Type").header("Content-Type", "application/json")),
        (14, bot(&"x".repeat(5000))),
        (15, gate.request("setPoints", "reader", "memberID=7&amount=5")),
        (16, bot("memberID=7&amount=5").without("Host")),
    ];
    for (code, request) in refused {
        let answer = gate.send(&request).await;
        answer.is_a_refusal();
        assert_eq!((answer.status, answer.code()), (200, Some(code)), "{answer:#?}");
    }
    gate.get_points("slow", "7").await.is("3");
    let answer = gate.get_points("slow", "7").await;
    answer.is_a_refusal();
    assert_eq!((answer.status, answer.code()), (200, Some(12)), "{answer:#?}");
    gate.get_points("bot", "7").await.is("3");
}

on_every_origin!(
    row_01_a_missing_or_empty_key,
    row_02_an_unknown_key,
    row_03_a_departed_guild,
    row_04_a_missing_member,
    row_05_a_member_that_is_not_an_integer,
    row_06_a_missing_amount,
    row_07_an_amount_that_is_not_an_integer,
    row_08_a_parameter_given_twice,
    row_10_an_unknown_operation,
    row_11_a_method_other_than_post,
    row_11_to_head_has_no_body,
    row_12_too_many_requests,
    row_13_a_body_of_another_type,
    row_14_a_body_over_its_bound,
    row_15_a_read_key_that_wants_to_write,
    the_operators_words_stand_in_the_lines,
    error_status_ok_sends_every_refusal_with_200,
);
