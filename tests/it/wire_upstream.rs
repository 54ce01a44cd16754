//! Contract section 1, "Upstream": what an HTTP origin is sent, and what of its answers is usable.

use crate::support::*;

const MIB: usize = 1 << 20;

fn gate() -> Builder {
    TestGateway::before_http().key("bot").points("7", 3)
}

#[tokio::test]
async fn the_origin_is_sent_the_operation_the_key_and_nothing_else_of_the_callers() {
    let gate = gate().keys_in_store().set("server.base_path", r#""/in""#).upstream_path("/out/v2").start_here().await;
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
async fn each_kind_of_answer_is_passed_on_or_has_its_own_refusal() {
    let gate = gate().set("origin.retries", "0").set("origin.timeout", r#""1s""#);
    let mut gate = gate.set("answers.service_name", r#""Guildgate""#).start_here().await;
    let (long, too_long) = (format!("{{{}}}", "a".repeat(MIB - 2)), "1".repeat(MIB + 1));
    let departed = "03 | Error while retrieving guild using this API key. Is Guildgate still on guild?";
    let too_slow = "22 | The service took too long to answer. Try again later.";
    let away = "21 | The service is not available. Try again later.";
    let say = |status, headers, text: &str| Act::Say(status, headers, text.as_bytes().to_vec());
    // `src/wire/origin_answer.rs` has each form of an answer; here each kind goes the whole way.
    for (i, (operation, act, status, text)) in [
        ("getPoints", say(200, "Content-Type: text/html\r\nSet-Cookie: a=b\r\n", "1250\n"), 200, "1250"),
        ("getWarns", say(299, "Content-Type: application/json\r\n", "{x=★}"), 200, "{x=★}"),
        ("getReviews", say(200, "", &long), 200, &long),
        ("setPoints", say(201, "", "done\n"), 200, "done"),
        ("getPoints", say(500, "", "02 | Incorrect API key!\n"), 401, INCORRECT_KEY),
        ("setPoints", say(200, "", "03 | gone"), 403, departed),
        ("getWarns", say(503, "", "05 | y"), 400, "05 | Param 'memberID' should contain only integers!"),
        ("getPoints", say(200, "", &too_long), 502, NO_ANSWER),
        ("getPoints", say(200, "", "01 | No api key provided!"), 502, NO_ANSWER),
        ("getPoints", say(302, "", "1250"), 502, NO_ANSWER),
        ("getWarns", say(200, "", "[]"), 502, NO_ANSWER),
        ("setPoints", say(200, "", "set\nit"), 502, NO_ANSWER),
        // `origin/http/connection/tests.rs` has the forms of an answer on its connection.
        ("getPoints", Act::Raw(b"HTTP/1.1 200 OK\r\n\r\n1250".to_vec()), 200, "1250"),
        ("getPoints", Act::Raw(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()), 502, NO_ANSWER),
        ("getPoints", Act::Cut(Cut::BeforeHeader), 502, NO_ANSWER),
        ("getPoints", Act::Cut(Cut::MidBody), 502, NO_ANSWER),
        ("setPoints", Act::Cut(Cut::AfterHeader), 502, NO_ANSWER),
        // An origin that agrees to an upgrade that it was not asked for (CVE-2026-2833).
        ("getPoints", Act::Raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n666".to_vec()), 502, NO_ANSWER),
        ("getPoints", say(503, "", "later"), 503, away),
        ("getPoints", Act::Stall, 504, too_slow),
        ("setPoints", Act::Stall, 504, too_slow),
    ]
    .into_iter()
    .enumerate()
    {
        gate.origin().next(operation, act.clone());
        let answer = gate.send(&gate.request(operation, "bot", &format!("memberID={i}&amount=5"))).await;
        assert!(
            (answer.status, &*answer.body) == (status, text),
            "{operation}, {:.80}: {answer:#.400?}",
            format!("{act:?}")
        );
    }
    // The late answer to an abandoned request is not the answer to another one.
    gate.get_points("bot", "99").await.is("0");
    for (status, operation) in [(429, "getPoints"), (503, "setPoints")] {
        gate.origin().next(operation, say(status, "Retry-After: 77\r\n", "later"));
        let answer = gate.send(&gate.request(operation, "bot", "memberID=98&amount=5")).await;
        assert_eq!(answer.is_unavailable(), 77);
    }
    gate.origin_mut().refuse().await;
    gate.get_points("bot", "97").await.is_unavailable();
    gate.set_points("bot", "97", 5).await.is_unavailable();
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
        let gate =
            gate.set("origin.connect_timeout", connect_timeout).set("origin.timeout", timeout).start_here().await;
        gate.get_points("bot", "7").await.is_unavailable();
        gate.set_points("bot", "7", 5).await.is_unavailable();
    }
}

#[tokio::test]
async fn an_answer_that_begins_and_never_ends_is_22() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", mute.local_addr().unwrap());
    let gate = TestGateway::before_http().key("bot").upstreams([url]).set("origin.timeout", r#""300ms""#);
    let gate = gate.start_here().await;
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
