//! Contract section 1, "Framing": the same header is judged alike in HTTP/1.1 and in HTTP/2, on a
//! first and on a later request of a connection.

use crate::support::frames::*;
use crate::support::*;

/// What a header says, whichever version it is written in.
#[derive(Clone)]
struct Said {
    method: &'static str,
    /// HTTP/1.1 writes it into an absolute target.
    scheme: Option<&'static str>,
    /// The target's; HTTP/1.1 without a scheme writes it as `Host`.
    authority: &'static str,
    path: String,
    fields: Vec<(String, String)>,
}

const BODY: &str = "memberID=7";

const THREE: &str = "3";
const UNKNOWN: &str = "10 | Unknown operation!";
const METHOD: &str = "11 | Method should be POST!";
const ENCODED: &str = "13 | Body should be application/x-www-form-urlencoded!";

/// A getPoints that is answered.
fn good(gate: &TestGateway) -> Said {
    Said { method: "POST", scheme: None, authority: "gate.test", path: "/getPoints".into(), fields: Vec::new() }
        .with("authorization", gate.secret("bot"))
        .with("content-length", "10")
}

impl Said {
    fn with(mut self, name: &str, value: &str) -> Said {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With as many fields in all as said, `Host` (or the authority, which is the same) among them.
    fn of_fields(self, n: usize) -> Said {
        (self.fields.len() + 1..n).fold(self, |said, i| said.with(&format!("x-{i}"), "y"))
    }

    /// With a header that HTTP/1.1 writes in as many bytes as said.
    fn of_bytes(self, n: usize) -> Said {
        let without = self.clone().with("x-long", "").http_1().len();
        self.with("x-long", &"y".repeat(n - without))
    }

    fn http_1(&self) -> String {
        let Said { method, scheme, authority, path, fields } = self;
        let mut text = match scheme {
            Some(scheme) => format!("{method} {scheme}://{authority}{path} HTTP/1.1\r\n"),
            None if *method == "CONNECT" => format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n"),
            None => format!("{method} {path} HTTP/1.1\r\nhost: {authority}\r\n"),
        };
        for (name, value) in fields {
            text += &format!("{name}: {value}\r\n");
        }
        text + "\r\n"
    }

    /// As header blocks of at most a frame each.
    fn http_2(&self, stream: u32) -> Vec<u8> {
        let mut all = vec![(":method", self.method)];
        if self.method != "CONNECT" {
            all.extend([(":scheme", self.scheme.unwrap_or("https")), (":path", &self.path)]);
        }
        all.push((":authority", self.authority));
        all.extend(self.fields.iter().map(|(name, value)| (&**name, &**value)));
        let block = block(&all);
        let last = block.len().div_ceil(16_000) - 1;
        let frames = block.chunks(16_000).enumerate().map(|(i, piece)| {
            frame(if i == 0 { HEADERS } else { CONTINUATION }, if i == last { END_HEADERS } else { 0 }, stream, piece)
        });
        frames.flatten().collect()
    }
}

/// Asserts that both versions answer this line, first and later.
async fn is_alike(gate: &TestGateway, what: &str, said: &Said, line: &str) {
    for later in [false, true] {
        let what = format!("{what}, later: {later}");
        let mut connection = gate.connect().await;
        if later {
            connection.ask(&gate.request("getPoints", "bot", BODY)).await.is(THREE);
        }
        connection.send(said.http_1() + BODY).await;
        let answer = connection.answer_or_close().await.unwrap_or_else(|| panic!("{what}: closed without an answer"));
        assert_eq!(answer.body, line, "{what}, HTTP/1.1: {answer:#?}");
        if line == MALFORMED {
            connection.is_closed().await;
        }

        let mut frames = gate.frames().await;
        let stream = if later { 3 } else { 1 };
        if later {
            frames.send([good(gate).http_2(1), frame(DATA, END_STREAM, 1, BODY.as_bytes())].concat()).await;
            assert_eq!(frames.outcome(1).await, Ok(THREE.to_owned()));
        }
        frames.send([said.http_2(stream), frame(DATA, END_STREAM, stream, BODY.as_bytes())].concat()).await;
        assert_eq!(frames.outcome(stream).await, Ok(line.to_owned()), "{what}, HTTP/2");
        // A stream is what was refused: the connection goes on.
        let next = stream + 2;
        frames.send([good(gate).http_2(next), frame(DATA, END_STREAM, next, BODY.as_bytes())].concat()).await;
        assert_eq!(frames.outcome(next).await, Ok(THREE.to_owned()), "{what}, HTTP/2");
    }
}

async fn gate() -> TestGateway {
    TestGateway::before_http().tls().key("bot").points("7", 3).start_here().await
}

#[tokio::test]
async fn a_header_is_let_in_up_to_the_same_byte_and_the_same_field() {
    let gate = gate().await;
    let good = good(&gate);
    is_alike(&gate, "100 fields", &good.clone().of_fields(100), THREE).await;
    is_alike(&gate, "101 fields", &good.clone().of_fields(101), MALFORMED).await;
    is_alike(&gate, "max_header", &good.clone().of_bytes(16 * 1024), THREE).await;
    is_alike(&gate, "a byte more", &good.clone().of_bytes(16 * 1024 + 1), MALFORMED).await;
    is_alike(&gate, "twice max_header", &good.clone().of_bytes(32 * 1024), MALFORMED).await;
    is_alike(&gate, "four times max_header", &good.clone().of_bytes(64 * 1024), MALFORMED).await;
    let long = Said { path: format!("/getPoints?{}", "x".repeat(17 * 1024)), ..good };
    is_alike(&gate, "a long target", &long, MALFORMED).await;
}

#[tokio::test]
async fn one_key_one_host_one_target() {
    let gate = gate().await;
    let good = good(&gate);
    let absolute = |scheme, authority| Said { scheme: Some(scheme), authority, ..good.clone() };
    for (what, said, line) in [
        ("a good one", good.clone(), THREE),
        ("two keys", good.clone().with("authorization", "x"), MALFORMED),
        ("the same key twice", good.clone().with("authorization", gate.secret("bot")), MALFORMED),
        ("a repeated length", good.clone().with("content-length", "10"), MALFORMED),
        ("an encoded body", good.clone().with("content-encoding", "gzip"), ENCODED),
        ("an absolute target", absolute("https", "gate.test").with("host", "gate.test"), THREE),
        ("and in another case", absolute("HTTP", "gate.test").with("host", "Gate.Test"), THREE),
        ("another host", absolute("https", "gate.test").with("host", "other.test"), MALFORMED),
        ("another port", absolute("https", "gate.test:82").with("host", "gate.test:81"), MALFORMED),
        ("two hosts", absolute("https", "gate.test").with("host", "gate.test").with("host", "gate.test"), MALFORMED),
        ("a user", absolute("https", "u@gate.test").with("host", "gate.test"), MALFORMED),
        ("a user before the host", Said { authority: "u@gate.test", ..good.clone() }, MALFORMED),
        ("another scheme", absolute("ftp", "gate.test").with("host", "gate.test"), MALFORMED),
        ("no operation", Said { path: "/nothing".into(), ..good.clone() }, UNKNOWN),
        ("a target of everything", Said { path: "*".into(), method: "OPTIONS", ..good.clone() }, UNKNOWN),
        ("no path", Said { path: "?getPoints".into(), ..good.clone() }, MALFORMED),
        ("another method", Said { method: "PUT", ..good.clone() }, METHOD),
        ("a tunnel", Said { method: "CONNECT", authority: "gate.test:443", ..good.clone() }, MALFORMED),
    ] {
        is_alike(&gate, what, &said, line).await;
    }
}

#[tokio::test]
async fn an_upgrade_is_ignored_where_it_can_be_asked_for() {
    let gate = gate().await;
    // HTTP/2 knows no such field: there it is malformed, whatever it asks for.
    let upgrade = good(&gate).with("upgrade", "websocket");
    let mut connection = gate.connect().await;
    for _ in ["first", "later"] {
        // What is behind it is a request like any other (CVE-2026-2833: it was passed through).
        let behind = Request::post("/setPoints", "memberID=7&amount=666").bytes();
        let asked = upgrade.clone().with("connection", "upgrade").http_1() + BODY;
        connection.send([asked.as_bytes(), &behind].concat()).await;
        connection.answer().await.is(THREE);
        connection.answer().await.is_refused(401, NO_KEY);
    }
    let mut frames = gate.frames().await;
    for stream in [1, 3] {
        frames.send([upgrade.http_2(stream), frame(DATA, END_STREAM, stream, BODY.as_bytes())].concat()).await;
        assert_eq!(frames.outcome(stream).await, Err(1), "PROTOCOL_ERROR");
    }
}
