//! Guarantee 8 over HTTP/2: frames that cost the sender less than they cost the gateway come to an
//! end, and nobody else notices.

use std::time::Duration;

use crate::support::frames::*;
use crate::support::*;

/// Far more of anything than a gateway may bear.
const MANY: u32 = 60_000;

fn gate() -> Builder {
    TestGateway::builder().tls().key("bot").points("7", 3)
}

/// Sends what `make` makes until the gateway takes no more, or all of it where the sockets' buffers take that, and sees
/// the gateway end the connection.
async fn is_ended(gate: &TestGateway, what: &str, mut make: impl FnMut(u32) -> Vec<u8>) {
    let mut frames = gate.frames().await;
    let mut n = 0;
    let mut taken = true;
    while taken && n < MANY {
        let batch: Vec<u8> = (n..n + 50).flat_map(&mut make).collect();
        taken = frames.try_send(batch).await;
        n += 50;
    }
    // The GOAWAY may be lost to a reset, since the gateway no longer read what came.
    assert_ne!(frames.ends().await, Some(0), "{what}: ended as if in good order after {n}");
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn a_hundred_requests_at_once_are_answered_however_small_the_frames_of_their_bodies_are() {
    const AT_ONCE: u32 = 100;
    let gate = gate().start().await;
    let header = header(&gate, "/getPoints");
    for pieces in [2, 5] {
        let mut frames = gate.frames().await;
        let request = |n: u32| {
            let stream = 2 * n + 1;
            let body = b"memberID=7".chunks(10 / pieces);
            let body = body.map(|piece| frame(DATA, 0, stream, piece)).chain([frame(DATA, END_STREAM, stream, &[])]);
            [frame(HEADERS, END_HEADERS, stream, &header), body.collect::<Vec<_>>().concat()].concat()
        };
        frames.send((0..AT_ONCE).flat_map(request).collect::<Vec<u8>>()).await;
        let mut answered = 0;
        while answered < AT_ONCE {
            let frame = frames.next().await.expect("the connection ended");
            assert_ne!(frame.kind, GOAWAY, "in {pieces} pieces, after {answered}: {frame:?}");
            if frame.kind == DATA {
                assert_eq!(frame.payload, b"3");
                answered += 1;
            }
        }
    }
}

#[tokio::test]
async fn a_caller_whose_bodies_begin_with_empty_frames_is_asked_for_another_connection_and_loses_no_request() {
    let gate = gate().start().await;
    let header = header(&gate, "/getPoints");
    let mut frames = gate.frames().await;
    let (mut asked, mut is_asked_to_go) = (0, false);
    while !is_asked_to_go {
        assert!(asked < 100, "the connection is not drained");
        let stream = 2 * asked + 1;
        let body = [frame(DATA, 0, stream, &[]), frame(DATA, END_STREAM, stream, b"memberID=7")].concat();
        frames.send([frame(HEADERS, END_HEADERS, stream, &header), body].concat()).await;
        asked += 1;
        loop {
            let next = frames.next().await.expect("the connection ended");
            match next.kind {
                GOAWAY => {
                    assert_eq!(next.payload[4..], [0; 4], "after {asked}: {next:?}");
                    is_asked_to_go = true;
                }
                PING => frames.send(frame(PING, ACK, 0, &next.payload)).await,
                DATA => {
                    assert_eq!(next.payload, b"3");
                    break;
                }
                _ => {}
            }
        }
    }
    assert!(matches!(frames.ends().await, None | Some(0)), "after {asked}");
}

/// A connection with so many requests that are refused for their key before their bodies come, and whose answers wait for
/// the peer's window.
async fn with_refused_that_wait(gate: &TestGateway, requests: u32) -> Frames {
    let refused =
        block(&[(":method", "POST"), (":scheme", "https"), (":authority", "guildgate.test"), (":path", "/getPoints")]);
    let mut frames = gate.frames().await;
    frames.send(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).await; // no window for any answer
    for n in 0..requests {
        frames.send(frame(HEADERS, END_HEADERS, 2 * n + 1, &refused)).await;
    }
    frames
}

#[tokio::test]
async fn guarantee_8_a_body_that_nobody_waits_for_keeps_no_memory_while_its_answer_waits_for_the_peer() {
    const UNKNOWN: u8 = 0x55;
    let gate = gate().start().await;
    let mut connections = Vec::new();
    let mut after = Vec::new();
    for _ in 0..2 {
        for _ in 0..40 {
            let mut frames = with_refused_that_wait(&gate, 1).await;
            // What follows a byte has the rest of the buffer in which it is read.
            let piece = [frame(DATA, 0, 1, b"m"), frame(UNKNOWN, 0, 0, &[0; 900])].concat();
            for _ in 0..20 {
                frames.send(piece.repeat(20)).await;
            }
            assert!(has_read_all(&mut frames).await, "it is no flood");
            connections.push(frames);
        }
        after.push(gate.resident_kib());
    }
    // In the first ones the allocator takes what it will use, and later some 4 MiB at once. 400 buffers of a connection would be
    // 600 KiB and more.
    assert!(after[1] < after[0] + 40 * 500, "resident KiB after every 40 connections: {after:?}");
}

#[tokio::test]
async fn guarantee_8_trailers_that_nobody_waits_for_keep_no_memory_while_the_answer_waits_for_the_peer() {
    let gate = gate().start().await;
    let names: Vec<String> = (0..1500).map(|n| format!("x{n:04}")).collect();
    let trailers = block(&names.iter().map(|name| (&**name, "")).collect::<Vec<_>>());
    let mut connections = Vec::new();
    let mut after = Vec::new();
    for _ in 0..4 {
        let mut frames = with_refused_that_wait(&gate, 100).await;
        for stream in (1..200).step_by(2) {
            frames.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers)).await;
        }
        assert!(has_read_all(&mut frames).await, "it is no flood");
        connections.push(frames);
        after.push(gate.resident_kib());
    }
    // With the first ones the allocator takes what it will use. The trailers of the three others would be 90 MB.
    assert!(after[3] < after[0] + 60 * 1024, "resident KiB after each connection: {after:?}");
}

#[tokio::test]
async fn the_ends_of_refused_bodies_that_come_seconds_after_their_streams_were_reset_cost_the_others_nothing() {
    const REFUSED: u32 = 90;
    let gate = gate().start().await;
    let refused =
        block(&[(":method", "POST"), (":scheme", "https"), (":authority", "guildgate.test"), (":path", "/getPoints")]);
    let mut frames = gate.frames().await;
    for n in 0..REFUSED {
        frames.send(frame(HEADERS, END_HEADERS, 2 * n + 1, &refused)).await;
    }
    for _ in 0..REFUSED {
        while frames.next().await.unwrap().kind != RST_STREAM {}
    }
    tokio::time::sleep(Duration::from_secs(2)).await; // the caller reads late
    let trailers = block(&[("x-checksum", "1")]);
    let late = (0..REFUSED).map(|n| frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &trailers));
    let good = [
        frame(HEADERS, END_HEADERS, 2 * REFUSED + 1, &header(&gate, "/getPoints")),
        frame(DATA, END_STREAM, 2 * REFUSED + 1, b"memberID=7"),
    ];
    frames.send(late.chain(good).flatten().collect::<Vec<u8>>()).await;
    assert_eq!(frames.outcome(2 * REFUSED + 1).await.as_deref(), Ok("3"));
}

#[tokio::test]
async fn requests_that_are_cancelled_with_their_own_write_cost_the_others_nothing() {
    let gate = gate().start().await;
    let header = header(&gate, "/getPoints");
    let mut frames = gate.frames().await;
    let begin = |n: u32| frame(HEADERS, END_HEADERS, 2 * n + 1, &header);
    let good = (0..60).flat_map(|n| [begin(n), frame(DATA, END_STREAM, 2 * n + 1, b"memberID=7")]);
    let cancelled = (60..100).flat_map(|n| [begin(n), frame(RST_STREAM, 0, 2 * n + 1, &[0, 0, 0, 8])]);
    frames.send(good.chain(cancelled).flatten().collect::<Vec<u8>>()).await;
    for n in 0..60 {
        assert_eq!(frames.outcome(2 * n + 1).await.as_deref(), Ok("3"));
    }
}

#[tokio::test]
async fn a_write_that_is_cancelled_before_it_has_begun_is_not_performed() {
    let gate = gate().start().await;
    let mut frames = gate.frames().await;
    let write = [
        frame(HEADERS, END_HEADERS, 1, &header(&gate, "/setPoints")),
        frame(DATA, END_STREAM, 1, b"memberID=7&amount=99"),
        frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]),
        frame(HEADERS, END_HEADERS, 3, &header(&gate, "/getPoints")),
        frame(DATA, END_STREAM, 3, b"memberID=7"),
    ];
    frames.send(write.concat()).await;
    assert_eq!(frames.outcome(3).await.as_deref(), Ok("3"));
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn pings_settings_and_priorities_without_end_are_ended() {
    let gate = gate().start().await;
    is_ended(&gate, "PING", |_| frame(PING, 0, 0, &[7; 8])).await;
    is_ended(&gate, "acknowledged PINGs", |_| frame(PING, ACK, 0, &[7; 8])).await;
    is_ended(&gate, "SETTINGS", |_| frame(SETTINGS, 0, 0, &[])).await;
    is_ended(&gate, "PRIORITY", |_| frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 7])).await;
    is_ended(&gate, "WINDOW_UPDATE", |_| frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])).await;
    is_ended(&gate, "unknown frames", |_| frame(0x99, 0, 0, &[])).await;
}

#[tokio::test]
async fn streams_opened_and_reset_without_end_are_ended() {
    // CVE-2023-44487.
    let gate = gate().start().await;
    let header = header(&gate, "/getPoints");
    is_ended(&gate, "rapid reset", |n| {
        let stream = 2 * n + 1;
        [frame(HEADERS, END_HEADERS, stream, &header), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
    })
    .await;
}

#[tokio::test]
async fn streams_that_make_the_gateway_reset_them_are_ended() {
    // CVE-2025-8671: the peer resets nothing; it has it done.
    let gate = gate().start().await;
    let header = header(&gate, "/getPoints");
    is_ended(&gate, "a window of nothing", |n| {
        let stream = 2 * n + 1;
        [frame(HEADERS, END_HEADERS, stream, &header), frame(WINDOW_UPDATE, 0, stream, &[0; 4])].concat()
    })
    .await;
    is_ended(&gate, "a window beyond all bounds", |n| {
        let stream = 2 * n + 1;
        let update = frame(WINDOW_UPDATE, 0, stream, &[0x7f, 0xff, 0xff, 0xff]);
        [frame(HEADERS, END_HEADERS, stream, &header), update].concat()
    })
    .await;
    let malformed = block(&[(":method", "POST"), ("connection", "close")]);
    is_ended(&gate, "malformed requests", |n| frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &malformed)).await;
}

#[tokio::test]
async fn malformed_requests_without_end_are_ended_though_each_is_answered() {
    const ENHANCE_YOUR_CALM: u32 = 11;
    let gate = gate().start().await;
    let two_keys = [header(&gate, "/getPoints"), block(&[("authorization", "x")])].concat();
    let mut frames = gate.frames().await;
    frames.send(frame(WINDOW_UPDATE, 0, 0, &[0, 0x10, 0, 0])).await; // room for every answer
    let (mut refused, mut code) = (0, None);
    'flood: for batch in 0..200 {
        let streams = (0..50).map(|n| 2 * (50 * batch + n) + 1);
        let bytes: Vec<u8> = streams.flat_map(|s| frame(HEADERS, END_HEADERS | END_STREAM, s, &two_keys)).collect();
        if !frames.try_send(bytes).await {
            break;
        }
        let mut answered = 0;
        while answered < 50 {
            let Some(next) = frames.next().await else { break 'flood };
            match next.kind {
                DATA => assert_eq!(next.payload, MALFORMED.as_bytes()),
                GOAWAY => code = Some(u32::from_be_bytes(next.payload[4..8].try_into().unwrap())),
                _ => {}
            }
            answered += u32::from(next.kind == DATA);
        }
        refused += answered;
    }
    assert!(refused >= 500, "so few are no flood: {refused}");
    assert_eq!(code, Some(ENHANCE_YOUR_CALM), "after {refused}");
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn streams_over_the_limit_without_end_are_ended() {
    let gate = gate().start().await;
    let header = header(&gate, "/getPoints");
    is_ended(&gate, "streams", |n| frame(HEADERS, END_HEADERS, 2 * n + 1, &header)).await;
}

#[tokio::test]
async fn bodies_of_nothing_without_end_are_ended() {
    let gate = gate().start().await;
    let header = header(&gate, "/getPoints");
    is_ended(&gate, "empty DATA", |n| {
        if n == 0 { frame(HEADERS, END_HEADERS, 1, &header) } else { frame(DATA, 0, 1, &[]) }
    })
    .await;
}

#[tokio::test]
async fn a_header_that_goes_on_without_end_is_ended() {
    let gate = gate().start().await;
    let header = header(&gate, "/getPoints");
    for (what, piece) in [("empty", vec![]), ("one field", block(&[("x", "y")]))] {
        is_ended(
            &gate,
            what,
            |n| {
                if n == 0 { frame(HEADERS, 0, 1, &header) } else { frame(CONTINUATION, 0, 1, &piece) }
            },
        )
        .await;
    }
}

#[tokio::test]
async fn a_field_that_is_told_once_and_used_a_thousand_times_is_no_bomb() {
    let gate = gate().start().await;
    let header = header(&gate, "/getPoints");
    // Put into the table once (4,000 bytes), then named by one byte each: 16,000 times.
    let bomb = [&header[..], &[0x40, 1, b'x', 127], &[0xa1, 0x1e], &[b'y'; 4000], &vec![0xbe; 16_000 - 4500]].concat();
    let mut frames = gate.frames().await;
    let before = gate.resident_kib();
    frames.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb)).await;
    assert_ne!(frames.ends().await, Some(0));
    assert!(gate.resident_kib() < before + 8 * 1024, "KiB before: {before}, after: {}", gate.resident_kib());
    gate.get_points("bot", "7").await.is("3");
}

/// Waits until the gateway has read what it was sent so far; `false` where it has ended the connection.
async fn has_read_all(frames: &mut Frames) -> bool {
    if !frames.try_send(frame(PING, 0, 0, b"are you?")).await {
        return false;
    }
    while let Some(next) = frames.next().await {
        if (next.kind, next.flags) == (PING, ACK) {
            return true;
        }
    }
    false
}

/// What is reset is gone from the crate's count of streams, and its request goes on behind it.
async fn a_hundred_and_no_more_reach_the_origin(reset: impl Fn(u32) -> Vec<u8>) {
    // Of which one key has a fifth.
    let gate = TestGateway::before_http().tls().key("bot").set("origin.max_in_flight", "1000").start().await;
    gate.origin().always(Act::Stall);
    let header = header(&gate, "/getPoints");
    let mut frames = gate.frames().await;
    for n in 0..300_u32 {
        let (stream, body) = (2 * n + 1, format!("memberID={}", n + 1));
        let asked = [frame(HEADERS, END_HEADERS, stream, &header), frame(DATA, END_STREAM, stream, body.as_bytes())];
        if !frames.try_send(asked.concat()).await {
            break;
        }
        // Each is looked at before it is reset; as many as may be under way are.
        if !has_read_all(&mut frames).await {
            break;
        }
        if n < 100 {
            gate.origin().has_been_asked("getPoints", n as usize + 1).await;
        }
        if !frames.try_send(reset(stream)).await {
            break;
        }
    }
    assert_eq!(gate.origin().asked("getPoints"), 100);
    gate.origin().always(Act::Normal);
    let mut other = gate.http2().await;
    other.ask(&gate.request("getPoints", "bot", "memberID=7777")).await.is("0");
}

#[tokio::test]
async fn a_peer_has_at_most_a_hundred_requests_under_way_even_if_it_resets_them() {
    // CVE-2023-44487, with an origin that counts.
    a_hundred_and_no_more_reach_the_origin(|stream| frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])).await;
}

#[tokio::test]
async fn a_peer_has_at_most_a_hundred_requests_under_way_even_if_it_has_them_reset() {
    // CVE-2025-8671, with an origin that counts.
    let beyond_all_bounds = [0x7f, 0xff, 0xff, 0xff];
    a_hundred_and_no_more_reach_the_origin(|stream| frame(WINDOW_UPDATE, 0, stream, &beyond_all_bounds)).await;
}

#[tokio::test]
async fn an_honest_caller_is_never_taken_for_a_flood() {
    let gate = gate().start().await;
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
}
