//! Contract section 1, 16 and 17, and `[server]`'s time-outs: slow clients are shown the door. The
//! deadlines are short here; that they end at all is what is asserted, not how soon.

use std::time::Duration;

use crate::support::*;

fn gate() -> Builder {
    TestGateway::builder().key("bot").points("7", 3)
}

/// Sends a header that never ends, a byte at a time: no single wait is long, only the whole.
async fn drips_until_shown_out(connection: &mut Connection, start: &str) {
    let dripping = async {
        connection.send(start).await;
        while connection.try_send("x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    // The wait for the failing write is bounded; a gateway that reads on for ever fails here.
    tokio::time::timeout(PATIENCE, dripping).await.expect("a slow header was read without end");
    if let Some(answer) = connection.answer_if_any().await {
        answer.is_refused(408, TOO_SLOW);
        connection.is_closed().await;
    }
}

const SLOW_HEADER: &str = "POST /getPoints HTTP/1.1\r\nHost: h\r\nX-Slow: ";

#[tokio::test]
async fn a_slow_header_ends_on_a_first_connection() {
    let gate = gate().set("server.header_timeout", r#""300ms""#).start().await;
    let mut connection = gate.connect().await;
    drips_until_shown_out(&mut connection, SLOW_HEADER).await;
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn a_slow_header_ends_on_a_reused_connection() {
    let gate = gate().set("server.header_timeout", r#""300ms""#).start().await;
    let mut connection = gate.connect().await;
    connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    drips_until_shown_out(&mut connection, SLOW_HEADER).await;
}

#[tokio::test]
async fn a_header_that_stops_is_answered_17_or_closed() {
    let gate = gate().set("server.header_timeout", r#""300ms""#).start().await;
    for reused in [false, true] {
        let mut connection = gate.connect().await;
        if reused {
            connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
        }
        connection.send(SLOW_HEADER).await;
        if let Some(answer) = connection.answer_or_close().await {
            answer.is_refused(408, TOO_SLOW);
            connection.is_closed().await;
        }
    }
}

#[tokio::test]
async fn a_header_within_its_time_is_read_however_it_comes() {
    let gate = gate().start().await;
    let mut connection = gate.connect().await;
    for byte in gate.request("getPoints", "bot", "memberID=7").bytes() {
        connection.send([byte]).await;
    }
    connection.answer().await.is("3");
}

#[tokio::test]
async fn a_body_that_stops_is_17() {
    let gate = gate().set("server.body_timeout", r#""300ms""#).start().await;
    for (fields, body) in
        [("Content-Length: 22\r\n", "memberID=7&amount=10"), ("Transfer-Encoding: chunked\r\n", "16\r\nmemberID=7")]
    {
        let mut connection = gate.connect().await;
        let key = gate.secret("bot");
        connection
            .send(format!("POST /setPoints HTTP/1.1\r\nHost: h\r\nAuthorization: {key}\r\n{fields}\r\n{body}"))
            .await;
        connection.answer().await.is_refused(408, TOO_SLOW);
        connection.is_closed().await;
    }
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn a_body_that_drips_is_17() {
    let gate = gate().set("server.body_timeout", r#""300ms""#).start().await;
    let mut connection = gate.connect().await;
    connection.send(gate.request("getPoints", "bot", &"x".repeat(4000)).head()).await;
    let dripping = async {
        while connection.try_send("x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    tokio::time::timeout(PATIENCE, dripping).await.expect("a slow body was read without end");
    if let Some(answer) = connection.answer_if_any().await {
        answer.is_refused(408, TOO_SLOW);
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_without_a_word() {
    let gate = gate().set("server.idle_timeout", r#""300ms""#).start().await;
    let mut connection = gate.connect().await;
    connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    connection.is_closed().await;
}

#[tokio::test]
async fn a_connection_that_never_says_anything_is_closed() {
    let gate = gate().set("server.idle_timeout", r#""300ms""#).set("server.header_timeout", r#""300ms""#).start().await;
    let mut connection = gate.connect().await;
    if let Some(answer) = connection.answer_or_close().await {
        answer.is_refused(408, TOO_SLOW);
        connection.is_closed().await;
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_is_let_go() {
    let text = "x".repeat(8000);
    let gate = gate().set("server.write_timeout", r#""300ms""#).review("7", 1, "Bo", 5, &text).start().await;
    let mut connection = gate.connect().await;
    let request = gate.request("getReviews", "bot", "memberID=7").bytes();
    // Pipelines without reading until the gateway, which cannot write, gives up.
    let ended = loop {
        if let Err(e) = connection.try_send(&request).await {
            break e;
        }
    };
    assert_ne!(ended.kind(), std::io::ErrorKind::TimedOut, "a client that reads nothing was kept");
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn empty_lines_do_not_keep_an_idle_connection() {
    let gate = TestGateway::builder().key("bot").set("server.idle_timeout", r#""300ms""#).start().await;
    let mut connection = gate.connect().await;
    connection.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("0");
    let end = std::time::Instant::now() + PATIENCE;
    while connection.try_send("\r\n").await.is_ok() {
        assert!(std::time::Instant::now() < end, "still kept after {PATIENCE:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await; // the drip, not a wait
    }
}
