//! Guarantee 8 over HTTP/2: what costs the sender less than the gateway comes to an end. Meanwhile others are answered,
//! and neither memory nor the log grows with it.

use crate::support::frames::*;
use crate::support::*;

/// More of anything than the bounds allow.
const MANY_BYTES: usize = 4 * 1024 * 1024;

const MAX_GROWN_KIB: u64 = 64 * 1024;

const MAX_LOGGED: usize = 16 * 1024;

fn gate() -> Builder {
    TestGateway::builder().tls().key("bot").points("7", 3)
}

/// The frames of a flood, by their number.
type Make = Box<dyn Fn(u32) -> Vec<u8>>;

/// Frames that belong to streams: those of each request, and `more` for its stream.
fn streams(header: &[u8], flags: u8, more: impl Fn(u32) -> Vec<u8> + 'static) -> Make {
    let header = header.to_vec();
    Box::new(move |n| [frame(HEADERS, flags, 2 * n + 1, &header), more(2 * n + 1)].concat())
}

/// One request, and then a frame without end.
fn after_one(header: &[u8], flags: u8, more: Vec<u8>) -> Make {
    let first = frame(HEADERS, flags, 1, header);
    Box::new(move |n| if n == 0 { first.clone() } else { more.clone() })
}

fn without_end(more: Vec<u8>) -> Make {
    Box::new(move |_| more.clone())
}

fn floods(gate: &TestGateway) -> Vec<(&'static str, Make)> {
    let header = header(gate, "/getPoints");
    let two_keys = [&header[..], &block(&[("authorization", "x")])].concat();
    let forbidden = block(&[(":method", "POST"), ("connection", "close")]);
    // Put into the table once (4,000 bytes), then named by one byte each.
    let bomb = [&header[..], &[0x40, 1, b'x', 127, 0xa1, 0x1e], &[b'y'; 4000], &[0xbe; 11_000]].concat();
    let whole = END_HEADERS | END_STREAM;
    vec![
        ("PING", without_end(frame(PING, 0, 0, &[7; 8]))),
        ("acknowledged PINGs", without_end(frame(PING, ACK, 0, &[7; 8]))),
        ("SETTINGS", without_end(frame(SETTINGS, 0, 0, &[]))),
        ("PRIORITY", without_end(frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 7]))),
        ("WINDOW_UPDATE", without_end(frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]))),
        ("unknown frames", without_end(frame(0x99, 0, 0, &[]))),
        ("empty DATA", after_one(&header, END_HEADERS, frame(DATA, 0, 1, &[]))),
        ("DATA of a byte", after_one(&header, END_HEADERS, frame(DATA, 0, 1, b"x"))),
        ("empty CONTINUATION", after_one(&header, 0, frame(CONTINUATION, 0, 1, &[]))),
        ("a header without end", after_one(&header, 0, frame(CONTINUATION, 0, 1, &block(&[("x", &"y".repeat(9000))])))),
        ("a header that is a bomb", streams(&bomb, whole, |_| Vec::new())),
        // CVE-2023-44487 and CVE-2025-8671.
        ("rapid reset", streams(&header, END_HEADERS, |stream| frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]))),
        ("made to reset", streams(&header, END_HEADERS, |stream| frame(WINDOW_UPDATE, 0, stream, &[0; 4]))),
        ("streams over the limit", streams(&header, END_HEADERS, |_| Vec::new())),
        ("zero windows", streams(&header, END_HEADERS, |stream| frame(DATA, END_STREAM, stream, b"memberID=7"))),
        ("malformed requests", streams(&two_keys, whole, |_| Vec::new())),
        ("forbidden fields", streams(&forbidden, whole, |_| Vec::new())),
    ]
}

#[tokio::test]
async fn guarantee_8_a_flood_ends_and_costs_the_others_nothing() {
    // A peer that takes none of what answers its flood is let go sooner.
    let gate = gate().set("server.write_timeout", r#""1s""#).set("log.access", r#""""#).start().await;
    let mut other = gate.http2().await;
    let request = gate.request("getPoints", "bot", "memberID=7");
    other.ask(&request).await.is("3");
    let (kib, logged) = (gate.resident_kib(), gate.stderr().len());
    for (what, make) in floods(&gate) {
        let mut frames = Frames::over(gate.tls(&["h2"]).await);
        // No window for any answer.
        frames.greet(&[0, 4, 0, 0, 0, 0]).await;
        let flood = async {
            let (mut n, mut sent) = (0, 0);
            while sent < MANY_BYTES {
                let batch: Vec<u8> = (n..n + 50).flat_map(&make).collect();
                (n, sent) = (n + 50, sent + batch.len());
                if !frames.try_send(batch).await {
                    break;
                }
            }
            // The GOAWAY may be lost to a reset, since the gateway no longer read what came.
            assert_ne!(frames.ends().await, Some(0), "{what}: ended as if in good order after {n}");
        };
        let others = async {
            for _ in 0..20 {
                other.ask(&request).await.is("3");
            }
        };
        tokio::join!(flood, others);
        let grown = gate.resident_kib().saturating_sub(kib);
        assert!(grown < MAX_GROWN_KIB, "{what}: {grown} KiB more");
    }
    let logged = gate.stderr().len() - logged;
    assert!(logged < MAX_LOGGED, "{logged} bytes in the log: {}", gate.stderr());
}

/// Their header, what comes of their bodies, and their trailers are not kept until the peer takes the answer.
#[tokio::test]
async fn guarantee_8_refused_requests_whose_answers_wait_for_the_peer_keep_no_memory() {
    const UNKNOWN: u8 = 0x55;
    let gate = gate().start().await;
    let names: Vec<String> = (0..700).map(|n| format!("x{n:04}")).collect();
    let many = names.iter().map(|name| (&**name, "")).collect::<Vec<_>>();
    let refused =
        block(&[(":method", "POST"), (":scheme", "https"), (":authority", "guildgate.test"), (":path", "/getPoints")]);
    let (header, trailers) = ([&refused[..], &block(&many)].concat(), block(&many));
    // What follows a byte has the rest of the buffer in which it is read.
    let piece = |stream| [frame(DATA, 0, stream, b"m"), frame(UNKNOWN, 0, 0, &[0; 900])].concat();
    let (mut connections, mut kib) = (Vec::new(), 0);
    for n in 0..8 {
        // With the first ones the allocator takes what it will use.
        if n == 2 {
            kib = gate.resident_kib();
        }
        let mut frames = Frames::over(gate.tls(&["h2"]).await);
        frames.greet(&[0, 4, 0, 0, 0, 0]).await;
        for stream in (1..200).step_by(2) {
            let header = if stream % 4 == 1 { &refused } else { &header };
            frames.send([frame(HEADERS, END_HEADERS, stream, header), piece(stream).repeat(2)].concat()).await;
            frames.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers)).await;
        }
        frames.send(frame(PING, 0, 0, b"are you?")).await;
        while let Some(next) = frames.next().await
            && (next.kind, next.flags) != (PING, ACK)
        {}
        connections.push(frames);
    }
    let grown = gate.resident_kib().saturating_sub(kib);
    // The trailers alone would be 50 MB.
    assert!(grown < 32 * 1024, "{grown} KiB more");
}

#[tokio::test]
async fn an_honest_caller_is_never_taken_for_a_flood() {
    let gate = gate().start_here().await;
    let mut client = gate.http2().await;
    let request = gate.request("getPoints", "bot", "memberID=7");
    for _ in 0..100 {
        let mut asked = Vec::new();
        for _ in 0..50 {
            asked.push(client.send(&request).await);
        }
        for asked in asked {
            asked.answer().await.is("3");
        }
    }
    client.end().await.unwrap();
    // As widely used clients send them: a hundred at once, each with its body in pieces.
    let (mut frames, header) = (gate.frames().await, header(&gate, "/getPoints"));
    let request = |n: u32| {
        let pieces = b"memberID=7".chunks(2).map(|piece| frame(DATA, 0, 2 * n + 1, piece)).collect::<Vec<_>>().concat();
        [frame(HEADERS, END_HEADERS, 2 * n + 1, &header), pieces, frame(DATA, END_STREAM, 2 * n + 1, &[])].concat()
    };
    frames.send((0..100).flat_map(request).collect::<Vec<u8>>()).await;
    for n in 0..100 {
        assert_eq!(frames.outcome(2 * n + 1).await.as_deref(), Ok("3"));
    }
}
