//! Contract section 1, "Refusals": the table, row by row. How parameters are judged and in which order is tested without
//! a process, in `src/wire/form.rs` and `src/gateway/tests`; each code of an HTTP origin in `docs_openapi`.

use crate::support::*;

const NOT_FORM: &str = "13 | Body should be application/x-www-form-urlencoded!";
const UNKNOWN: &str = "10 | Unknown operation!";
const NOT_POST: &str = "11 | Method should be POST!";

/// Requests, each with the status and the line that it is refused with.
fn rows(gate: &TestGateway) -> Vec<(Request, u16, String)> {
    let bot = |operation: &str, body: &str| gate.request(operation, "bot", body);
    let post = |key: &str| Request::post("/getPoints", "memberID=7").key(key);
    let good = gate.secret("bot");
    let mut rows = vec![(post("").without("Authorization"), 401, NO_KEY)];
    rows.extend(["", "  "].map(|key| (post(key), 401, NO_KEY)));
    let almost = [format!("{good}x"), good[..good.len() - 1].to_owned(), format!("Bearer {good}"), "gg_short".into()];
    let foreign = ["x".to_owned(), "é".to_owned(), "a b".to_owned(), "k".repeat(5000)];
    rows.extend(almost.iter().chain(&foreign).map(|key| (post(key), 401, INCORRECT_KEY)));
    for operation in ["getPoints", "getWarns", "getReviews", "setPoints"] {
        for (body, line) in [
            ("amount=5", "04 | Param 'memberID' is not provided!"),
            ("memberID=x&amount=5", "05 | Param 'memberID' should contain only integers!"),
            ("memberID=7&member%49D=7&amount=5", "08 | Param 'memberID' is provided more than once!"),
        ] {
            rows.push((bot(operation, body), 400, line));
        }
    }
    rows.push((bot("setPoints", "memberID=7"), 400, "06 | Param 'amount' is not provided!"));
    rows.push((bot("setPoints", "memberID=7&amount=x"), 400, "07 | Param 'amount' should contain only integers!"));
    rows.push((
        bot("setPoints", "amount=&memberID=7&amount=5"),
        400,
        "08 | Param 'amount' is provided more than once!",
    ));
    for path in [
        "/",
        "/getpoints",
        "/getPoints/",
        "//getPoints",
        "/./getPoints",
        "/get%50oints",
        "/x/getPoints",
        "/getPoints;x",
        "/healthz/",
    ] {
        rows.push((Request::post(path, "memberID=7").key(good), 404, UNKNOWN));
    }
    rows.push((Request::bare("GET", "/nothing"), 404, UNKNOWN));
    rows.push((Request::post("/nothing", "x".repeat(9000)), 404, UNKNOWN));
    for method in ["GET", "PUT", "DELETE", "OPTIONS", "post", "MKCOL"] {
        rows.push((Request::bare(method, "/getPoints").key(good), 405, NOT_POST));
    }
    rows.push((Request::bare("PUT", "/setPoints").body("x".repeat(5000)), 405, NOT_POST));
    let typed = |operation: &str, body: &str, value: &str| {
        bot(operation, body).without("Content-Type").header("Content-Type", value)
    };
    for content_type in ["application/json", "text/plain", "multipart/form-data; boundary=x", "x"] {
        rows.push((typed("getPoints", "memberID=7", content_type), 415, NOT_FORM));
    }
    rows.push((bot("getPoints", "memberID=7").header("Content-Encoding", "gzip"), 415, NOT_FORM));
    rows.push((typed("getPoints", &"x".repeat(9000), "text/plain").chunked(4000), 415, NOT_FORM));
    let padded = format!("memberID=7&x={}", "y".repeat(4097 - "memberID=7&x=".len()));
    rows.push((bot("getPoints", &padded), 413, TOO_LARGE));
    rows.push((bot("getPoints", &padded).chunked(1000), 413, TOO_LARGE));
    rows.push((Request::post("/setPoints", "x".repeat(5000)).key("nobody"), 413, TOO_LARGE));
    let not_allowed = "15 | This API key is not allowed to use setPoints!";
    rows.push((gate.request("setPoints", "reader", "memberID=7&amount=5"), 403, not_allowed));
    rows.push((Request::post("/nothing", "").without("Host"), 400, MALFORMED));
    rows.into_iter().map(|(request, status, line)| (request, status, line.to_owned())).collect()
}

#[tokio::test]
async fn every_row_of_the_table_has_its_line_and_its_status_or_200_where_the_operator_says_so() {
    let gate = TestGateway::before_http().key("bot").read_key("reader").key_of_tier("slow", "slow").points("7", 3);
    let gate = gate.set("answers.error_status", r#""http""#).set("answers.service_name", r#""Night's Watch""#);
    let gate = gate.set("limits.tiers.slow.rate", r#""1/m""#).set("limits.tiers.slow.burst", "1").start_here().await;
    for (request, status, line) in rows(&gate) {
        let answer = gate.send(&request).await;
        assert_eq!((answer.status, &answer.body), (status, &line), "{request:?}");
        answer.is_a_refusal();
    }
    let padded = format!("memberID=7&x={}", "y".repeat(4096 - "memberID=7&x=".len()));
    gate.send(&gate.request("getPoints", "bot", &padded)).await.is("3");
    for (operation, answer) in [("getPoints", "3"), ("getWarns", "{}"), ("getReviews", "{}")] {
        gate.send(&gate.request(operation, "reader", "memberID=7")).await.is(answer);
    }
    // The answer to HEAD has no body: whatever follows is the next answer.
    let mut connection = gate.connect_and_send(Request::bare("HEAD", "/getPoints").key(gate.secret("bot"))).await;
    let answer = connection.answer_to_head().await;
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")), "{answer:?}");
    if connection.try_send(gate.request("getPoints", "bot", "memberID=7").bytes()).await.is_ok()
        && let Some(next) = connection.answer_or_close().await
    {
        next.is("3");
    }
    gate.reloaded_with("error_status = \"http\"", "error_status = \"ok\"\nkey_command = \"/keys new\"").await;
    for (request, status, line) in rows(&gate) {
        let answer = gate.send(&request).await;
        let line = line.replace("/apikey create", "/keys new");
        assert_eq!((answer.status, &answer.body), (200, &line), "{status}: {request:?}");
        answer.is_a_refusal();
    }
    gate.origin().next("getPoints", Act::say(500, "03 | Is X still on guild?"));
    let line = "03 | Error while retrieving guild using this API key. Is Night's Watch still on guild?";
    gate.get_points("bot", "8").await.is_refused(200, line);
    gate.get_points("slow", "7").await.is("3");
    let answer = gate.get_points("slow", "7").await;
    answer.is_a_refusal();
    assert_eq!((answer.status, answer.code()), (200, Some(12)), "{answer:#?}");
}
