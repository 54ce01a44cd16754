//! Contract section 1, "Framing": what the header of a request must not be.

use crate::support::*;

async fn gate() -> TestGateway {
    TestGateway::builder().key("bot").points("7", 3).start().await
}

/// A connection that is new, and one that has answered before.
async fn connections(gate: &TestGateway) -> [(&'static str, Connection); 2] {
    let (first, mut reused) = (gate.connect().await, gate.connect().await);
    reused.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    [("first", first), ("reused", reused)]
}

/// Sends these bytes, in which `KEY` stands for the key, on a first and on a reused connection, and
/// asserts 16 and the connection's end. In all of them path, key and body are good: it is the
/// framing that is refused.
async fn is_malformed(gate: &TestGateway, what: &str, bytes: &str) {
    for (nth, mut connection) in connections(gate).await {
        connection.send(bytes.replace("KEY", gate.secret("bot"))).await;
        let answer = connection.answer_or_close().await;
        let answer = answer.unwrap_or_else(|| panic!("{what}, {nth}: closed without an answer"));
        assert_eq!(answer.body, MALFORMED, "{what}, {nth}: {answer:#?}");
        assert!(answer.is_refused(400, MALFORMED).closes(), "{what}, {nth}: {answer:#?}");
        connection.is_closed().await;
    }
}

async fn is_three(gate: &TestGateway, what: &str, bytes: &str) {
    for (nth, mut connection) in connections(gate).await {
        connection.send(bytes.replace("KEY", gate.secret("bot"))).await;
        let answer = connection.answer_or_close().await;
        let answer = answer.unwrap_or_else(|| panic!("{what}, {nth}: closed without an answer"));
        assert_eq!((answer.status, &*answer.body), (200, "3"), "{what}, {nth}: {answer:#?}");
    }
}

/// A good request but for the header fields added to it; its body is left to them too.
fn with(fields: &str, body: &str) -> String {
    format!("POST /getPoints HTTP/1.1\r\nHost: h\r\nAuthorization: KEY\r\n{fields}\r\n{body}")
}

const LENGTH: &str = "Content-Length: 10\r\n";
const BODY: &str = "memberID=7";
const CHUNKS: &str = "a\r\nmemberID=7\r\n0\r\n\r\n";

#[tokio::test]
async fn a_good_request_is_answered() {
    let gate = gate().await;
    is_three(&gate, "length", &with(LENGTH, BODY)).await;
    is_three(&gate, "chunked", &with("Transfer-Encoding: chunked\r\n", CHUNKS)).await;
    is_three(&gate, "chunked in another case", &with("transfer-encoding:  Chunked \r\n", CHUNKS)).await;
}

#[tokio::test]
async fn a_length_and_a_transfer_encoding_together_are_refused() {
    let gate = gate().await;
    for (length, encoding) in [("10", "chunked"), ("0", "chunked"), ("21", "chunked"), ("10", "identity")] {
        let fields = [format!("Content-Length: {length}\r\n"), format!("Transfer-Encoding: {encoding}\r\n")];
        is_malformed(&gate, "CL, then TE", &with(&fields.concat(), CHUNKS)).await;
        is_malformed(&gate, "TE, then CL", &with(&[&*fields[1], &*fields[0]].concat(), CHUNKS)).await;
    }
}

#[tokio::test]
async fn a_repeated_or_non_digit_length_is_refused() {
    let gate = gate().await;
    for value in ["10, 10", "+10", "-10", "0x0a", "10 10", "1e1", "10,", "ten", "\"10\"", "10;", "１０"] {
        is_malformed(&gate, value, &with(&format!("Content-Length: {value}\r\n"), BODY)).await;
    }
    is_malformed(&gate, "empty", &with("Content-Length:\r\n", BODY)).await;
    is_malformed(&gate, "twice", &with(&LENGTH.repeat(2), BODY)).await;
    let differing = "Content-Length: 10\r\nContent-Length: 3\r\n";
    is_malformed(&gate, "two lengths", &with(differing, BODY)).await;
    is_malformed(&gate, "two lengths, another case", &with("content-length: 3\r\nContent-Length: 10\r\n", BODY)).await;
}

#[tokio::test]
async fn any_transfer_encoding_but_chunked_is_refused() {
    let gate = gate().await;
    for value in [
        "gzip",
        "gzip, chunked",
        "chunked, gzip",
        "chunked, chunked",
        "identity",
        "xchunked",
        "chunked;q=1",
        "\"chunked\"",
        "chunked,",
        ", chunked",
        "",
        "\u{b}chunked",
    ] {
        is_malformed(&gate, value, &with(&format!("Transfer-Encoding: {value}\r\n"), CHUNKS)).await;
    }
    is_malformed(&gate, "twice", &with(&"Transfer-Encoding: chunked\r\n".repeat(2), CHUNKS)).await;
}

#[tokio::test]
async fn transfer_encoding_on_http_1_0_is_refused() {
    let gate = gate().await;
    let request = with("Transfer-Encoding: chunked\r\n", CHUNKS).replace("HTTP/1.1", "HTTP/1.0");
    is_malformed(&gate, "TE on 1.0", &request).await;
}

#[tokio::test]
async fn http_1_1_has_exactly_one_host() {
    let gate = gate().await;
    is_malformed(&gate, "none", &with(LENGTH, BODY).replace("Host: h\r\n", "")).await;
    is_malformed(&gate, "two", &with(&format!("Host: h\r\n{LENGTH}"), BODY)).await;
    is_malformed(&gate, "two that differ", &with(&format!("hOST: other\r\n{LENGTH}"), BODY)).await;
    for host in ["a b", "u@x", "a/b", "a:b", "[::1", "\u{e9}"] {
        let named = with(LENGTH, BODY).replace("Host: h\r\n", &format!("Host: {host}\r\n"));
        is_malformed(&gate, host, &named).await;
        is_malformed(&gate, host, &named.replace("HTTP/1.1", "HTTP/1.0")).await;
    }
    for host in ["", "h:80", "[::1]:80", "\t h "] {
        is_three(&gate, host, &with(LENGTH, BODY).replace("Host: h\r\n", &format!("Host: {host}\r\n"))).await;
    }
    let old = with(LENGTH, BODY).replace("Host: h\r\n", "").replace("HTTP/1.1", "HTTP/1.0");
    is_three(&gate, "HTTP/1.0 needs none", &old).await;
}

#[tokio::test]
async fn two_keys_are_refused() {
    let gate = gate().await;
    is_malformed(&gate, "another", &with(&format!("Authorization: other\r\n{LENGTH}"), BODY)).await;
    is_malformed(&gate, "the same", &with(&format!("authorization: KEY\r\n{LENGTH}"), BODY)).await;
    let first_empty =
        format!("POST /getPoints HTTP/1.1\r\nHost: h\r\nAuthorization:\r\nAuthorization: KEY\r\n{LENGTH}\r\n{BODY}");
    is_malformed(&gate, "an empty one and a good one", &first_empty).await;
}

#[tokio::test]
async fn bare_line_ends_and_nul_are_refused() {
    let gate = gate().await;
    let good = with(LENGTH, BODY);
    is_malformed(&gate, "LF everywhere", &good.replace("\r\n", "\n")).await;
    is_malformed(&gate, "LF after the request line", &good.replacen("\r\n", "\n", 1)).await;
    is_malformed(&gate, "LF after a field", &good.replace("Host: h\r\n", "Host: h\n")).await;
    is_malformed(&gate, "LF at the end", &good.replace("10\r\n\r\n", "10\r\n\n")).await;
    is_malformed(&gate, "CR in a value", &with(&format!("X-A: a\rb\r\n{LENGTH}"), BODY)).await;
    is_malformed(&gate, "CR before CRLF", &with(&format!("X-A: a\r\r\n{LENGTH}"), BODY)).await;
    is_malformed(&gate, "NUL in a value", &with(&format!("X-A: a\0b\r\n{LENGTH}"), BODY)).await;
    is_malformed(&gate, "NUL in a name", &with(&format!("X\0A: a\r\n{LENGTH}"), BODY)).await;
    is_malformed(&gate, "NUL in the target", &good.replace("/getPoints", "/getPoints\0")).await;
    is_malformed(&gate, "NUL in the key", &good.replace("KEY", "KEY\0")).await;
}

#[tokio::test]
async fn folded_fields_and_bad_names_are_refused() {
    let gate = gate().await;
    for (what, field) in [
        ("obs-fold by space", "X-A: a\r\n b\r\n"),
        ("obs-fold by tab", "X-A: a\r\n\tb\r\n"),
        ("a space before the colon", "X-A : a\r\n"),
        ("a tab before the colon", "X-A\t: a\r\n"),
        ("a space within the name", "X A: a\r\n"),
        ("no name", ": a\r\n"),
        ("no colon", "X-A\r\n"),
        ("a bracket in the name", "X(A): a\r\n"),
        ("a name that is not ASCII", "X-Ä: a\r\n"),
    ] {
        is_malformed(&gate, what, &with(&format!("{field}{LENGTH}"), BODY)).await;
        is_malformed(&gate, what, &with(&format!("{LENGTH}{field}"), BODY)).await;
    }
    let space_before_length = with("Content-Length : 10\r\n", BODY);
    is_malformed(&gate, "a space before a length's colon", &space_before_length).await;
    let first = format!("POST /getPoints HTTP/1.1\r\n Host: h\r\nHost: h\r\nAuthorization: KEY\r\n{LENGTH}\r\n{BODY}");
    is_malformed(&gate, "a space before the first field", &first).await;
}

#[tokio::test]
async fn a_bad_request_line_is_refused() {
    let gate = gate().await;
    let good = with(LENGTH, BODY);
    for line in [
        "POST /getPoints",
        "POST /getPoints HTTP/1.2",
        "POST /getPoints HTTP/2.0",
        "POST /getPoints http/1.1",
        "POST  /getPoints HTTP/1.1",
        "POST /get Points HTTP/1.1",
        "POST /getPoints HTTP/1.1 ",
        " POST /getPoints HTTP/1.1",
        "POST\t/getPoints\tHTTP/1.1",
        "P(ST /getPoints HTTP/1.1",
        "HELO there",
    ] {
        is_malformed(&gate, line, &good.replacen("POST /getPoints HTTP/1.1", line, 1)).await;
    }
}

#[tokio::test]
async fn a_hundred_fields_are_read_and_one_more_is_refused() {
    let gate = gate().await;
    let fields = |n: usize| {
        let more: String = (3..n).map(|i| format!("X-{i}: {i}\r\n")).collect();
        with(&(more + LENGTH), BODY) // Host, Authorization and Content-Length make up the rest
    };
    is_three(&gate, "100 fields", &fields(100)).await;
    is_malformed(&gate, "101 fields", &fields(101)).await;
}

#[tokio::test]
async fn a_header_over_its_bound_is_refused() {
    let gate = gate().await;
    let long = |n: usize| with(&format!("X-Long: {}\r\n{LENGTH}", "x".repeat(n)), BODY);
    is_three(&gate, "15 KiB", &long(15 * 1024)).await;
    is_malformed(&gate, "17 KiB", &long(17 * 1024)).await;
    let target = with(LENGTH, BODY).replace("/getPoints", &format!("/getPoints?{}", "x".repeat(17 * 1024)));
    is_malformed(&gate, "a long target", &target).await;
    // A header that never ends is refused once it is over the bound, not read for ever.
    let endless = format!("POST /getPoints HTTP/1.1\r\nHost: h\r\nX-Long: {}", "x".repeat(20 * 1024));
    is_malformed(&gate, "an endless header", &endless).await;
}

#[tokio::test]
async fn an_absolute_target_must_name_the_host() {
    let gate = gate().await;
    let absolute = |target: &str, host: &str| {
        format!("POST {target} HTTP/1.1\r\nHost: {host}\r\nAuthorization: KEY\r\n{LENGTH}\r\n{BODY}")
    };
    is_three(&gate, "the same", &absolute("http://gate.test/getPoints", "gate.test")).await;
    is_three(&gate, "the same with a port", &absolute("http://gate.test:81/getPoints", "gate.test:81")).await;
    for (target, host) in [
        ("http://evil.test/getPoints", "gate.test"),
        ("http://gate.test:82/getPoints", "gate.test:81"),
        ("http://user@gate.test/getPoints", "gate.test"),
        ("http:///getPoints", "gate.test"),
        ("http://gate.test.evil/getPoints", "gate.test"),
    ] {
        is_malformed(&gate, target, &absolute(target, host)).await;
    }
}

#[tokio::test]
async fn what_is_not_http_at_all_is_turned_away() {
    let gate = gate().await;
    let tls = b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\r\n\r\n".to_vec();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let noise: Vec<u8> =
        (0..2000).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8).chain(*b"\r\n\r\n").collect();
    for bytes in [tls, preface, noise] {
        let mut connection = gate.connect_and_send(bytes).await;
        connection.finish_sending().await;
        if let Some(answer) = connection.answer_or_close().await {
            answer.is_refused(400, MALFORMED);
            connection.is_closed().await;
        }
    }
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn what_cannot_begin_a_request_is_16_at_once() {
    // Whoever waited for more would answer 17, and in a minute.
    let gate = TestGateway::builder().key("bot").points("7", 3).set("server.header_timeout", r#""60s""#).start().await;
    let hello = [&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03][..], &[7; 500]].concat();
    for bytes in [
        &hello[..],
        &hello[..1],
        b"\x00",
        b"\xff\xfe\x00junk",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"EHLO mail.example\r\n",
        b"GET / HTTQ",
        b"GET /\x01",
        b"POST /\xff",
        b"{\"memberID\":7}",
        b" POST / HTTP/1.1\r\n",
        b"POST / HTTP/1.1\r\nX Y",
        b"POST getPoints HTTP/1.1\r\n",
        b"POST ftp://a/ HTTP/1.1\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n",
    ] {
        for (nth, mut connection) in connections(&gate).await {
            connection.send(bytes).await;
            let answer = connection.answer_or_close().await.unwrap_or_else(|| panic!("{nth}: no answer to {bytes:?}"));
            assert!(answer.is_refused(400, MALFORMED).closes(), "{nth}, {bytes:?}: {answer:#?}");
            connection.is_closed().await;
        }
    }
}
