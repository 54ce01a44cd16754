//! Contract section 1, "Framing": what the header of a request must not be. Here each clause has an example, on a first and
//! on a reused connection; the tests of `edge/http1/header.rs` and of `wire/framing.rs` have the rest.

use crate::support::*;

async fn gate() -> TestGateway {
    // Whoever waited for more would answer 17, and in a minute.
    TestGateway::before_http().key("bot").points("7", 3).set("server.header_timeout", r#""60s""#).start_here().await
}

/// A connection that is new, and one that has answered before.
async fn connections(gate: &TestGateway) -> [(&'static str, Connection); 2] {
    let (first, mut reused) = (gate.connect().await, gate.connect().await);
    reused.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    [("first", first), ("reused", reused)]
}

/// Sends these bytes on a first and on a reused connection, and asserts 16 and the connection's end.
async fn is_malformed(gate: &TestGateway, bytes: &[u8]) {
    let what = bytes.escape_ascii();
    for (nth, mut connection) in connections(gate).await {
        connection.send(bytes).await;
        let answer = connection.answer_or_close().await;
        let answer = answer.unwrap_or_else(|| panic!("{what}, {nth}: closed without an answer"));
        assert_eq!(answer.body, MALFORMED, "{what}, {nth}: {answer:#?}");
        assert!(answer.is_refused(400, MALFORMED).closes(), "{what}, {nth}: {answer:#?}");
        connection.is_closed().await;
    }
}

const LENGTH: &str = "Content-Length: 10\r\n";
const BODY: &str = "memberID=7";
const CHUNKS: &str = "a\r\nmemberID=7\r\n0\r\n\r\n";

/// A getPoints of member 7 whose framing is left to these fields and this body.
fn with(gate: &TestGateway, fields: &str, body: &str) -> String {
    let key = gate.secret("bot");
    format!("POST /getPoints HTTP/1.1\r\nHost: h\r\nAuthorization: {key}\r\n{fields}\r\n{body}")
}

#[tokio::test]
async fn what_a_header_must_not_be_is_16_and_ends_its_connection() {
    let gate = gate().await;
    let good = with(&gate, LENGTH, BODY);
    let (length, chunked) = (|fields: &str| with(&gate, fields, BODY), |fields: &str| with(&gate, fields, CHUNKS));
    for bytes in [
        chunked(&format!("{LENGTH}Transfer-Encoding: chunked\r\n")),
        length(&LENGTH.repeat(2)),
        good.replace("Host: h\r\n", ""),
        length(&format!("Authorization: other\r\n{LENGTH}")),
        good.replace("\r\n", "\n"),
        length(&format!("X-A: a\r\n b\r\n{LENGTH}")),
        good.replace("/getPoints", "http://evil.test/getPoints"),
        // A header that never ends is refused once it is over the bound, not read for ever.
        format!("POST /getPoints HTTP/1.1\r\nHost: h\r\nX-Long: {}", "x".repeat(20 * 1024)),
    ] {
        is_malformed(&gate, bytes.as_bytes()).await;
    }
    for bytes in [good, chunked("transfer-encoding:  Chunked \r\n")] {
        for (_, mut connection) in connections(&gate).await {
            connection.send(&bytes).await;
            connection.answer().await.is("3");
        }
    }
}

#[tokio::test]
async fn what_cannot_begin_a_request_is_16_at_once() {
    let gate = gate().await;
    let hello = [&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03][..], &[7; 500]].concat();
    for bytes in [&hello[..], &hello[..1], b"SSH-2.0-OpenSSH_9.6\r\n", b"GET / HTTQ", b"{\"memberID\":7}"] {
        is_malformed(&gate, bytes).await;
    }
}
