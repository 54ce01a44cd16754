//! Contract section 1, "Upstream": what an HTTP origin is sent, and what of its answers is usable.

use crate::support::*;

const MIB: usize = 1 << 20;

fn gate() -> Builder {
    TestGateway::before_http().key("bot").points("7", 3)
}

#[tokio::test]
async fn the_origin_is_sent_the_operation_the_key_and_nothing_else_of_the_callers() {
    let gate = gate().set("server.base_path", r#""/in""#).upstream_path("/out/v2").start().await;
    let request = Request::post("/in/getPoints?secret=query", "memberID=7&canary=body")
        .key(gate.secret("bot"))
        .header("Cookie", "canary=cookie")
        .header("User-Agent", "canary-agent")
        .header("X-Canary", "canary")
        .header("X-Forwarded-For", "192.0.2.99")
        .header("X-Request-Id", "canary-id")
        .header("Accept-Encoding", "canary-encoding");
    let answer = gate.send(&request).await;
    answer.is("3");
    let seen = &gate.origin().seen()[0];
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/out/v2/getPoints"));
    assert_eq!(seen.body, "memberID=7");
    assert_eq!(seen.header("authorization"), Some(gate.secret("bot")));
    assert_eq!(seen.header("content-type"), Some("application/x-www-form-urlencoded"));
    assert_eq!(seen.header("x-request-id"), answer.header("x-request-id"));
    let sent = format!("{seen:?}").replace("canary-id", ""); // a caller's own request id may be taken over
    for callers in ["canary", "secret=query", "192.0.2.99", "guildgate.test"] {
        assert!(!sent.contains(callers), "{callers} reached the origin: {sent}");
    }
}

#[tokio::test]
async fn a_usable_answer_is_passed_on_whatever_its_content_type_and_the_connection_is_kept() {
    let gate = gate().start().await;
    for member in 1..=20 {
        gate.get_points("bot", &member.to_string()).await.is(if member == 7 { "3" } else { "0" });
    }
    let connections: std::collections::HashSet<usize> = gate.origin().seen().iter().map(|s| s.connection).collect();
    assert_eq!(gate.origin().seen().len(), 20);
    assert_eq!(connections.len(), 1, "one caller at a time needs one connection");
    let long = format!("{{{}}}", "a".repeat(MIB - 2));
    let usable = [
        ("getPoints", 200, "Content-Type: text/html\r\n", "1250", "1250"),
        ("getPoints", 201, "", "-3\n", "-3"),
        ("getPoints", 200, "X-Powered-By: x\r\nSet-Cookie: a=b\r\nServer: y\r\n", "3\r\n", "3"),
        ("getWarns", 299, "Content-Type: application/json\r\n", "{x=★}", "{x=★}"),
        ("getReviews", 200, "", &long, &long),
        ("setPoints", 200, "", "done\n", "done"),
    ];
    for (i, (operation, status, headers, said, passed_on)) in usable.into_iter().enumerate() {
        gate.origin().next(operation, Act::Say(status, headers, said.as_bytes().to_vec()));
        let body = format!("memberID=10{i}&amount=5");
        gate.send(&gate.request(operation, "bot", &body)).await.is(passed_on);
    }
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n12\r\n2\r\n50\r\n0\r\n\r\n";
    gate.origin().next("getPoints", Act::Raw(chunked.to_vec()));
    gate.get_points("bot", "201").await.is("1250");
    // One that is longer than it said does not become the next one.
    gate.origin().next(
        "getPoints",
        Act::Raw(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n4HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n666".to_vec(),
        ),
    );
    let first = gate.get_points("bot", "301").await;
    assert!(first.body == "4" || first.body == NO_ANSWER, "{first:?}");
    for member in 302..306 {
        gate.get_points("bot", &member.to_string()).await.is("0");
    }
}

#[tokio::test]
async fn a_line_of_the_spec_counts_at_any_status_and_429_and_503_are_21() {
    let gate = gate().start().await;
    let lines = [
        (200, "02 | wrong", 401, INCORRECT_KEY),
        (500, "02 | Incorrect API key!\n", 401, INCORRECT_KEY),
        (200, "03 | gone", 403, "03 | Error while retrieving guild using this API key. Is Guildgate still on guild?"),
        (418, "04 | x", 400, "04 | Param 'memberID' is not provided!"),
        (301, "05 | y", 400, "05 | Param 'memberID' should contain only integers!"),
        (503, "05 | y", 400, "05 | Param 'memberID' should contain only integers!"),
    ];
    for (i, (status, said, passed_on, line)) in lines.into_iter().enumerate() {
        for operation in ["getPoints", "setPoints", "getWarns"] {
            gate.origin().next(operation, Act::say(status, said));
            let request = gate.request(operation, "bot", &format!("memberID={i}&amount=5"));
            gate.send(&request).await.is_refused(passed_on, line);
        }
    }
    for (i, status) in [429, 503].into_iter().enumerate() {
        for operation in ["getPoints", "setPoints"] {
            gate.origin().next(operation, Act::Say(status, "Retry-After: 77\r\n", b"later".to_vec()));
            let answer = gate.send(&gate.request(operation, "bot", &format!("memberID=10{i}&amount=5"))).await;
            assert_eq!(answer.is_unavailable(), 77);
        }
    }
    let endless = format!("Retry-After: {}\r\n", "9".repeat(4000));
    for (headers, kept) in [
        ("Retry-After: 86400\r\n", 86_400),
        ("Retry-After: 86401\r\n", 86_400),
        ("Retry-After: 18446744073709551615\r\n", 86_400),
        ("Retry-After: 18446744073709551616\r\n", 86_400),
        ("Retry-After: 99999999999999999999999999\r\n", 86_400),
        (&endless, 86_400),
        ("Retry-After: Fri, 31 Dec 9999 23:59:59 GMT\r\n", 86_400),
        ("Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n", 1),
        ("Retry-After: 0077\r\n", 77),
        ("Retry-After: +77\r\n", 1),
        ("Retry-After: -77\r\n", 1),
        ("Retry-After: 77.5\r\n", 1),
        ("Retry-After: 77 s\r\n", 1),
        ("Retry-After: 77, 78\r\n", 1),
        ("Retry-After: soon\r\n", 1),
        ("Retry-After:\r\n", 1),
        ("", 1),
    ] {
        // The scripted origin borrows its answer for ever.
        let headers: &'static str = headers.to_owned().leak();
        gate.origin().next("getPoints", Act::Say(503, headers, b"later".to_vec()));
        let answer = gate.get_points("bot", "9").await;
        assert_eq!(answer.is_unavailable(), kept, "{:.60}", headers.trim());
    }
    let mut gate = gate;
    gate.origin_mut().refuse().await;
    gate.get_points("bot", "7").await.is_unavailable();
    gate.set_points("bot", "7", 5).await.is_unavailable();
}

#[tokio::test]
async fn what_is_no_whole_and_usable_answer_is_20() {
    let gate = gate().set("origin.retries", "0").start().await;
    let long = "1".repeat(MIB + 1);
    let useless: [(&str, u16, &[u8]); 16] = [
        ("getPoints", 200, b"<html>"),
        ("getPoints", 200, b""),
        ("getPoints", 200, b"-"),
        ("getPoints", 200, b"1\n\n"),
        ("getPoints", 200, b"1 "),
        ("getPoints", 200, b"\xff"),
        ("getPoints", 200, long.as_bytes()),
        ("getPoints", 200, b"01 | No api key provided!"),
        ("getPoints", 500, b"1250"),
        ("getPoints", 302, b"1250"),
        ("getPoints", 404, b"404 page not found"),
        ("getWarns", 200, b"[]"),
        ("getWarns", 200, b"{a\tb}"),
        ("getReviews", 200, b"{"),
        ("setPoints", 200, b"\n"),
        ("setPoints", 200, b"set\nit"),
    ];
    for (i, (operation, status, said)) in useless.into_iter().enumerate() {
        gate.origin().next(operation, Act::Say(status, "", said.to_vec()));
        let answer = gate.send(&gate.request(operation, "bot", &format!("memberID={i}&amount=5"))).await;
        assert_eq!(
            answer.body,
            NO_ANSWER,
            "{operation} {status} {:?}",
            String::from_utf8_lossy(&said[..said.len().min(40)])
        );
        answer.is_refused(502, NO_ANSWER);
    }
    let raw: [&[u8]; 6] = [
        b"garbage\r\n\r\n",
        b"\x00\x01\x02",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n1250",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n1250",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n1250\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n1250\r\n0\r\n\r\n",
    ];
    for (i, bytes) in raw.into_iter().enumerate() {
        gate.origin().next("getPoints", Act::Raw(bytes.to_vec()));
        let answer = gate.get_points("bot", &format!("10{i}")).await;
        assert_eq!(answer.body, NO_ANSWER, "{:?}", String::from_utf8_lossy(bytes));
    }
    // Bytes that such an upstream leaves on its connection are no other request's answer.
    for member in 1000..1010 {
        gate.get_points("bot", &member.to_string()).await.is("0");
    }
    for (i, cut) in [Cut::BeforeHeader, Cut::MidHeader, Cut::AfterHeader, Cut::MidBody].into_iter().enumerate() {
        gate.origin().next("getPoints", Act::Cut(cut));
        gate.get_points("bot", &format!("20{i}")).await.is_refused(502, NO_ANSWER);
        gate.origin().next("setPoints", Act::Cut(cut));
        gate.set_points("bot", &i.to_string(), 5).await.is_refused(502, NO_ANSWER);
    }
}

#[tokio::test]
async fn an_origin_that_takes_no_connection_in_time_is_21() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = socket.listen(0).unwrap();
    let address = full.local_addr().unwrap();
    let _waits = tokio::net::TcpStream::connect(address).await.unwrap();
    // Whichever deadline is met, nothing was sent.
    for (connect_timeout, timeout) in [(r#""200ms""#, r#""10s""#), (r#""10s""#, r#""200ms""#)] {
        let gate = TestGateway::before_http().key("bot").upstreams([format!("http://{address}")]);
        let gate = gate.set("origin.connect_timeout", connect_timeout).set("origin.timeout", timeout).start().await;
        gate.get_points("bot", "7").await.is_unavailable();
        gate.set_points("bot", "7", 5).await.is_unavailable();
    }
}

#[tokio::test]
async fn an_origin_that_stalls_or_whose_answer_never_ends_is_22() {
    let gate = gate().set("origin.timeout", r#""300ms""#).start().await;
    let line = "22 | The service took too long to answer. Try again later.";
    gate.origin().next("getPoints", Act::Stall);
    gate.get_points("bot", "7").await.is_refused(504, line);
    gate.origin().next("setPoints", Act::Stall);
    gate.set_points("bot", "7", 5).await.is_refused(504, line);
    // The late answer to an abandoned request is not the answer to another one.
    gate.get_points("bot", "8").await.is("0");
    // A deadline for the whole answer: this origin would meet a deadline for each read for ever.
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", mute.local_addr().unwrap());
    let drip = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = mute.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n").await;
        while stream.write_all(b"1").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await; // as slow as it may be
        }
    });
    let slow = self::gate().set("origin.timeout", r#""300ms""#).upstreams([upstream]).start().await;
    slow.get_points("bot", "7").await.is_refused(504, line);
    drip.abort();
}
