//! Contract section 3, `server.tls`: what is spoken, by whom, and who harms whom.

use std::io::Write as _;
use std::process::Stdio;

use futures_util::future::select_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls::version;

use crate::support::*;

fn gate() -> Builder {
    TestGateway::builder().tls().key("bot").points("7", 3)
}

/// Reads to the end, however it ends.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the connection was kept");
    bytes
}

#[tokio::test]
async fn both_versions_are_spoken_and_http_1_1_where_no_protocol_is_asked_for() {
    let gate = gate().start_here().await;
    let certificate = gate.world().text("cert.pem");
    for version in [&version::TLS13, &version::TLS12] {
        for (offered, chosen) in
            [(&["h2", "http/1.1"][..], Some("h2")), (&["http/1.1"][..], Some("http/1.1")), (&[][..], None)]
        {
            let client = TlsClient::speaking(&[version], &[&certificate], offered);
            let stream = client.connect(gate.address()).await.unwrap();
            let session = stream.get_ref().1;
            assert_eq!(session.protocol_version(), Some(version.version));
            assert_eq!(session.alpn_protocol(), chosen.map(str::as_bytes));
            let request = gate.request("getPoints", "bot", "memberID=7");
            if chosen == Some("h2") {
                Http2::over(stream).await.ask(&request).await.is("3");
            } else {
                Connection::over(stream).ask(&request).await.is("3");
            }
        }
        let client = TlsClient::speaking(&[version], &[&certificate], &["spdy/3"]);
        client.connect(gate.address()).await.expect_err("no protocol in common");
    }
}

#[tokio::test]
async fn a_connection_that_has_idled_is_ended_and_not_cut() {
    for (timeout_of, asks) in [("server.idle_timeout", true), ("server.header_timeout", false)] {
        let gate = gate().set(timeout_of, r#""300ms""#).start_here().await;
        for version in [&version::TLS13, &version::TLS12] {
            let certificate = gate.world().text("cert.pem");
            let client = TlsClient::speaking(&[version], &[&certificate], &["http/1.1"]);
            let mut stream = client.connect(gate.address()).await.unwrap();
            if asks {
                stream.write_all(&gate.request("getPoints", "bot", "memberID=7").bytes()).await.unwrap();
            }
            let mut answer = Vec::new();
            let ended = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the connection was kept");
            ended.expect("an end without a close_notify is an error to this client");
            assert_eq!(answer.ends_with(b"\r\n\r\n3"), asks, "{}", String::from_utf8_lossy(&answer));
        }
    }
}

#[tokio::test]
async fn an_outdated_tls_is_refused() {
    let gate = gate().start_here().await;
    // A greeting of TLS 1.1 that offers RSA with AES-CBC.
    let hello = [&[0x03, 0x02][..], &[7; 32], &[0], &[0, 2, 0, 0x2f], &[1, 0], &[0, 0]].concat();
    let length = u8::try_from(hello.len()).unwrap();
    let record = [&[0x16, 0x03, 0x01, 0, length + 4, 1, 0, 0, length][..], &hello].concat();
    let mut stream = TcpStream::connect(gate.address()).await.unwrap();
    stream.write_all(&record).await.unwrap();
    let answer = rest(&mut stream).await;
    assert_eq!(answer.first(), Some(&0x15), "an alert: {answer:?}");
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn a_connection_has_its_place_before_it_shakes_hands_and_plain_http_is_told_to_speak_tls() {
    // More than those that speak plain HTTP, one after the other, and are not quite gone.
    const PLACES: usize = 8;
    let gate =
        gate().set("log.access", r#""access.log""#).set("server.max_connections_per_address", &PLACES.to_string());
    let gate = gate.set("server.header_timeout", r#""60s""#).set("server.drain_timeout", r#""60s""#);
    let mut gate = gate.start().await;
    let ready = format!("ready: https://{}", gate.address());
    assert!(gate.stderr().lines().any(|line| line == ready), "{}", gate.stderr());
    let mut kept = gate.connect().await;
    let whole = gate.request("setPoints", "bot", "memberID=7&amount=9").bytes();
    let long = gate.request("setPoints", "bot", "memberID=7&amount=9").header("X", &"x".repeat(50_000)).bytes();
    for bytes in [&whole[..], &whole[..1], b"GET /healthz HTTP/1.0\r\n\r\n", &long] {
        let mut plain = Connection::to(gate.address()).await;
        let _ = plain.try_send(bytes).await; // it need not be read to its end
        let answer = plain.answer().await;
        assert!(answer.is_refused(400, PLAIN_HTTP).closes(), "{answer:#?}");
        plain.is_closed().await;
    }
    gate.has_logged("access.log", "who spoke plain HTTP", |line| line.contains(" - 400 16 key=-")).await;
    kept.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    // With the one that is kept there are more than have places, though none of them shakes hands.
    let mut silent = Vec::new();
    for _ in 0..PLACES {
        silent.push(TcpStream::connect(gate.address()).await.unwrap());
    }
    let ends = silent.iter_mut().map(|stream| Box::pin(async move { stream.read(&mut [0]).await }));
    let (read, ..) = timeout(PATIENCE, select_all(ends)).await.expect("none is turned away");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    gate.has_said("max_connections_per_address").await;
    assert_eq!(gate.stop().await, Some(0), "a stop waits for no handshake");
    for stream in &mut silent {
        rest(stream).await;
    }
}

#[tokio::test]
async fn what_is_neither_tls_nor_http_is_not_answered_as_http() {
    let gate = gate().start_here().await;
    for bytes in [&b"\x00\xff junk\r\n\r\n"[..], b"\r\n\r\n", b"\x80\x2e\x01\x00\x02"] {
        let mut stream = TcpStream::connect(gate.address()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    }
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn a_handshake_that_stalls_ends_and_holds_up_nobody() {
    let gate = gate().set("server.header_timeout", r#""300ms""#).start_here().await;
    let mut silent = TcpStream::connect(gate.address()).await.unwrap();
    let mut halfway = TcpStream::connect(gate.address()).await.unwrap();
    halfway.write_all(&[0x16, 0x03, 0x01, 0x01, 0x00, 1, 0]).await.unwrap();
    gate.get_points("bot", "7").await.is("3");
    rest(&mut silent).await;
    rest(&mut halfway).await;
    // And one that shakes hands and says no more has no time of its own.
    for alpn in ["http/1.1", "h2"] {
        let mut stream = gate.tls(&[alpn]).await;
        let mut said = Vec::new();
        let _ = timeout(PATIENCE, stream.read_to_end(&mut said)).await.expect("it was kept");
    }
}

#[tokio::test]
async fn who_asks_for_another_handshake_is_cut_off_at_once() {
    let gate = TestGateway::builder().tls().set("server.header_timeout", r#""60s""#).start_here().await;
    let mut client = std::process::Command::new("openssl");
    let client = client.args(["s_client", "-quiet", "-no_ign_eof", "-tls1_2", "-connect", &gate.address().to_string()]);
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    client.stdin.as_mut().unwrap().write_all(b"R\n").unwrap();
    eventually(PATIENCE, "it is cut off", async || client.try_wait().unwrap().is_some()).await;
}
