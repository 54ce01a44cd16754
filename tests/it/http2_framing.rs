//! Contract section 1, "Framing", as far as only HTTP/2 has it: what RFC 9113 calls malformed has its stream reset, and
//! neither performs anything nor harms its neighbours. What is 16 in both versions is in `framing_alike`; frames that break the
//! rules of a connection, and each way to be malformed, are the `h2` crate's, and h2spec's.

use crate::support::frames::*;
use crate::support::*;

const PROTOCOL_ERROR: u32 = 1;

fn gate() -> Builder {
    TestGateway::before_http().tls().key("bot").points("7", 3)
}

/// Pseudo-fields and key of a setPoints that would leave a trace.
fn fields<'f>(secret: &'f str, more: &[(&'f str, &'f str)]) -> Vec<(&'f str, &'f str)> {
    let start = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "guildgate.test"),
        (":path", "/setPoints"),
        ("authorization", secret),
    ];
    [&start[..], more].concat()
}

const BODY: &[u8] = b"memberID=7&amount=666";

/// Sends a request on a stream, header block and body each in one frame.
async fn request(frames: &mut Frames, stream: u32, fields: &[(&str, &str)], body: &[u8]) {
    let header = frame(HEADERS, END_HEADERS, stream, &block(fields));
    frames.send([header, frame(DATA, END_STREAM, stream, body)].concat()).await;
}

/// A greeted connection on which `stream` is the next one: the first, or a later one.
async fn before(gate: &TestGateway, stream: u32) -> Frames {
    let mut frames = gate.frames().await;
    for earlier in (1..stream).step_by(2) {
        goes_on(gate, &mut frames, earlier, "nothing").await;
    }
    frames
}

/// A good request on the same connection is answered, and member 7 is as before.
async fn goes_on(gate: &TestGateway, frames: &mut Frames, stream: u32, what: &str) {
    let mut good = fields(gate.secret("bot"), &[]);
    good[3] = (":path", "/getPoints");
    request(frames, stream, &good, b"memberID=7").await;
    assert_eq!(frames.outcome(stream).await, Ok("3".to_owned()), "after {what}");
}

#[tokio::test]
async fn what_is_malformed_has_its_stream_reset_and_performs_nothing() {
    let gate = gate().start_here().await;
    let secret = gate.secret("bot");
    let with = |more: &[(&'static str, &'static str)]| fields(secret, more);
    let without = |name: &str| fields(secret, &[]).into_iter().filter(|(n, _)| *n != name).collect::<Vec<_>>();
    let cases = [
        ("upper case", with(&[("X-Upper", "y")])),
        ("connection", with(&[("connection", "close")])),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")])),
        ("te", with(&[("te", "gzip")])),
        ("no path", without(":path")),
        ("a pseudo-field behind a field", with(&[(":path", "/setPoints")])),
        ("a status", [vec![(":status", "200")], fields(secret, &[])].concat()),
        ("a NUL in a value", with(&[("x", "a\0b")])),
        ("an extended CONNECT", [vec![(":protocol", "websocket")], fields(secret, &[])].concat()),
        ("two lengths that differ", with(&[("content-length", "20"), ("content-length", "21")])),
        ("a length too short", with(&[("content-length", "20")])),
        ("a length too long", with(&[("content-length", "22")])),
        ("no number for a length", with(&[("content-length", "+21")])),
    ];
    for (what, fields) in cases {
        for stream in [1, 5] {
            let what = format!("{what}, stream {stream}");
            let mut frames = before(&gate, stream).await;
            request(&mut frames, stream, &fields, BODY).await;
            // A name that HPACK cannot hold is the whole connection's fault; the rest is the stream's.
            let mut ended = None;
            while let Some(next) = frames.next().await {
                let settled = (next.kind == RST_STREAM || next.kind == HEADERS) && next.stream == stream;
                if settled || next.kind == GOAWAY {
                    ended = Some(next);
                    break;
                }
            }
            let ended = ended.unwrap_or_else(|| panic!("{what}: closed without a word"));
            match ended.kind {
                RST_STREAM => {
                    assert_eq!(ended.payload, PROTOCOL_ERROR.to_be_bytes(), "{what}");
                    goes_on(&gate, &mut frames, stream + 2, &what).await;
                }
                // Lengths are judged here where the crate leaves them to us.
                HEADERS => {
                    assert_eq!(frames.outcome(stream).await, Ok(MALFORMED.to_owned()), "{what}");
                    goes_on(&gate, &mut frames, stream + 2, &what).await;
                }
                _ => {}
            }
            gate.get_points("bot", "7").await.is("3");
        }
    }
    let mut frames = gate.frames().await;
    let trailers = fields(secret, &[("te", "trailers"), ("content-length", "21")]);
    request(&mut frames, 1, &trailers, BODY).await;
    assert_eq!(frames.outcome(1).await.unwrap(), "Successfully set 'Ada' points to '666'");
}

#[tokio::test]
async fn trailers_are_read_past_and_malformed_ones_perform_nothing() {
    let gate = gate().start_here().await;
    let begin = |more: &[(&str, &str)]| {
        let header = frame(HEADERS, END_HEADERS, 1, &block(&fields(gate.secret("bot"), more)));
        [header, frame(DATA, 0, 1, BODY)]
    };
    let end = |fields: &[(&str, &str)]| frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(fields));
    for (what, begin, end) in [
        ("a connection's field", begin(&[]), end(&[("connection", "close")])),
        ("a body that is too short", begin(&[("content-length", "22")]), end(&[("x", "y")])),
    ] {
        let mut frames = gate.frames().await;
        frames.send([begin.concat(), end].concat()).await;
        let outcome = frames.outcome(1).await;
        assert!([Ok(MALFORMED.to_owned()), Err(PROTOCOL_ERROR)].contains(&outcome), "{what}: {outcome:?}");
        gate.get_points("bot", "7").await.is("3");
    }
    // Two keys or lengths in trailers are no part of the header.
    let mut frames = gate.frames().await;
    let trailers = end(&[("authorization", "x"), ("content-length", "5"), ("host", "other.test")]);
    frames.send([begin(&[]).concat(), trailers].concat()).await;
    assert_eq!(frames.outcome(1).await.unwrap(), "Successfully set 'Ada' points to '666'");
}

/// A request without its body that is refused by its header.
fn refused_early(gate: &TestGateway, stream: u32) -> Vec<u8> {
    let refused = [&fields(gate.secret("bot"), &[])[..3], &[(":path", "/nothing")]].concat();
    frame(HEADERS, END_HEADERS, stream, &block(&refused))
}

/// As curl does: it loses the answer if the stream is reset before it has sent its body.
#[tokio::test]
async fn what_is_answered_early_may_still_send_its_body() {
    let gate = gate().start_here().await;
    let mut frames = gate.frames().await;
    frames.send(refused_early(&gate, 1)).await;
    let mut text = String::new();
    while text.is_empty() {
        let next = frames.next().await.expect("the connection ended");
        if next.kind == DATA {
            text += std::str::from_utf8(&next.payload).unwrap();
        }
    }
    assert_eq!(text, "10 | Unknown operation!");
    let request = frame(HEADERS, END_HEADERS, 3, &header(&gate, "/getPoints"));
    let (late, body) = (frame(DATA, END_STREAM, 1, b"memberID=7"), frame(DATA, END_STREAM, 3, b"memberID=7"));
    frames.send([late, request, body].concat()).await;
    loop {
        let next = frames.next().await.expect("the connection ended");
        assert!(next.kind != RST_STREAM, "stream {} was reset", next.stream);
        if next.kind == DATA && next.stream == 3 {
            assert_eq!(next.payload, b"3");
            return;
        }
    }
}

#[tokio::test]
async fn an_upload_that_was_refused_and_goes_on_as_the_windows_allow_costs_its_neighbours_nothing() {
    let gate = gate().start_here().await;
    let mut frames = gate.frames().await;
    frames.send(frame(HEADERS, END_HEADERS, 1, &header(&gate, "/getPoints"))).await;
    frames.send(refused_early(&gate, 3)).await;
    // Of the connection, and of the stream.
    let (mut windows, mut sent, piece) = ([65_535, 16 * 1024], 0, [b'x'; 8000]);
    loop {
        while windows.iter().all(|window| *window >= piece.len()) {
            frames.send(frame(DATA, 0, 3, &piece)).await;
            windows = windows.map(|window| window - piece.len());
            sent += piece.len();
        }
        let next = frames.next().await.expect("the connection ended");
        match next.kind {
            WINDOW_UPDATE if [0, 3].contains(&next.stream) => {
                windows[next.stream.min(1) as usize] += u32::from_be_bytes(next.payload.try_into().unwrap()) as usize;
            }
            RST_STREAM if next.stream == 3 => {
                assert_eq!(next.payload, 0_u32.to_be_bytes(), "no more of it is wanted (RFC 9113, 8.1)");
                break;
            }
            kind => assert_ne!(kind, GOAWAY),
        }
    }
    assert!(sent < 200_000, "{sent} bytes were taken");
    frames.send(frame(DATA, END_STREAM, 1, b"memberID=7")).await;
    assert_eq!(frames.outcome(1).await, Ok("3".to_owned()));
}

#[tokio::test]
async fn a_body_over_its_bound_is_14_however_it_says_its_length() {
    let gate = gate().start_here().await;
    let mut frames = gate.frames().await;
    let body = vec![b'x'; 5000];
    request(&mut frames, 1, &fields(gate.secret("bot"), &[("content-length", "5000")]), &body).await;
    assert_eq!(frames.outcome(1).await, Ok(TOO_LARGE.to_owned()));
    request(&mut frames, 3, &fields(gate.secret("bot"), &[]), &body).await;
    assert_eq!(frames.outcome(3).await, Ok(TOO_LARGE.to_owned()));
    goes_on(&gate, &mut frames, 5, "too large a body").await;
}

#[tokio::test]
async fn a_body_that_ends_short_performs_nothing() {
    let gate = gate().start_here().await;
    let whole = fields(gate.secret("bot"), &[]);
    let mut frames = gate.frames().await;
    frames.send(frame(HEADERS, END_HEADERS, 1, &block(&whole))).await;
    frames.send(frame(DATA, 0, 1, BODY)).await;
    frames.send(frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes())).await;
    goes_on(&gate, &mut frames, 3, "a reset").await;
    frames.send(frame(HEADERS, END_HEADERS, 5, &block(&whole))).await;
    frames.send(frame(DATA, 0, 5, BODY)).await;
    drop(frames); // the connection ends within the body
    let mut frames = gate.frames().await;
    goes_on(&gate, &mut frames, 1, "a lost connection").await;
}

#[tokio::test]
async fn http_2_is_not_spoken_without_tls() {
    let gate = TestGateway::before_http().key("bot").start_here().await;
    let mut connection = gate.connect_and_send([PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await;
    connection.answer().await.is_refused(400, MALFORMED);
    connection.is_closed().await;
}
