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
async fn a_usable_answer_is_passed_on_whatever_its_content_type() {
    let gate = gate().start().await;
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
        let body = format!("memberID={i}&amount=5");
        gate.send(&gate.request(operation, "bot", &body)).await.is(passed_on);
    }
}

#[tokio::test]
async fn a_line_of_the_spec_counts_at_any_status() {
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
}

#[tokio::test]
async fn what_is_no_answer_is_20() {
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
}

#[tokio::test]
async fn an_origin_that_cuts_is_20() {
    let gate = gate().set("origin.retries", "0").start().await;
    for (i, cut) in [Cut::BeforeHeader, Cut::MidHeader, Cut::AfterHeader, Cut::MidBody].into_iter().enumerate() {
        gate.origin().next("getPoints", Act::Cut(cut));
        gate.get_points("bot", &i.to_string()).await.is_refused(502, NO_ANSWER);
        gate.origin().next("setPoints", Act::Cut(cut));
        gate.set_points("bot", &i.to_string(), 5).await.is_refused(502, NO_ANSWER);
    }
}

#[tokio::test]
async fn an_overloaded_origin_is_21_and_its_retry_after_is_kept() {
    let gate = gate().start().await;
    for (i, status) in [429, 503].into_iter().enumerate() {
        for operation in ["getPoints", "setPoints"] {
            gate.origin().next(operation, Act::Say(status, "Retry-After: 77\r\n", b"later".to_vec()));
            let answer = gate.send(&gate.request(operation, "bot", &format!("memberID={i}&amount=5"))).await;
            assert_eq!(answer.is_unavailable(), 77);
        }
    }
    gate.origin().next("getPoints", Act::say(503, "later"));
    gate.get_points("bot", "9").await.is_unavailable();
}

#[tokio::test]
async fn an_origin_that_refuses_connections_is_21() {
    let mut gate = gate().start().await;
    gate.origin_mut().refuse().await;
    gate.get_points("bot", "7").await.is_unavailable();
    gate.set_points("bot", "7", 5).await.is_unavailable();
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
async fn an_origin_that_stalls_is_22() {
    let gate = gate().set("origin.timeout", r#""300ms""#).start().await;
    let line = "22 | The service took too long to answer. Try again later.";
    gate.origin().next("getPoints", Act::Stall);
    gate.get_points("bot", "7").await.is_refused(504, line);
    gate.origin().next("setPoints", Act::Stall);
    gate.set_points("bot", "7", 5).await.is_refused(504, line);
    // The late answer to an abandoned request is not the answer to another one.
    gate.get_points("bot", "8").await.is("0");
}

#[tokio::test]
async fn keys_in_the_store_work_before_an_http_origin() {
    let gate = gate().keys_in_store().start().await;
    gate.get_points("bot", "7").await.is("3");
    gate.set_points("bot", "7", 9).await.is("Successfully set 'Ada' points to '9'");
    assert_eq!(gate.origin().points("7"), 9);
    assert_eq!(gate.origin().seen()[0].header("authorization"), Some(gate.secret("bot")));
}

#[tokio::test]
async fn an_answer_that_begins_and_never_ends_is_22() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", mute.local_addr().unwrap());
    let gate = TestGateway::before_http().key("bot").upstreams([url]).set("origin.timeout", r#""300ms""#);
    let gate = gate.start().await;
    // A deadline for the whole answer: this origin would meet a deadline for each read for ever.
    let drip = async {
        let (mut stream, _) = mute.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n").await;
        while stream.write_all(b"1").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let (answer, ()) = tokio::join!(gate.get_points("bot", "7"), drip);
    answer.is_refused(504, "22 | The service took too long to answer. Try again later.");
}
