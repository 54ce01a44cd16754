//! `[server]`'s time-outs over HTTP/2, on first and on later streams: slow peers are shown the door,
//! and hold up nobody. Each deadline under test is short and every other one long; that it ends, how,
//! and that it does not end before its time is what is asserted, not how soon.

use std::time::{Duration, Instant};

use crate::support::frames::*;
use crate::support::*;

const NO_ERROR: u32 = 0;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

/// The deadline under test.
const SHORT: Duration = Duration::from_millis(700);

const DRIP: Duration = Duration::from_millis(50);

/// A gateway on which only this time-out is short.
fn gate(short: &str) -> Builder {
    let all = ["header_timeout", "body_timeout", "write_timeout", "idle_timeout"];
    all.iter().fold(TestGateway::builder().tls().key("bot").points("7", 3), |gate, name| {
        gate.set(&format!("server.{name}"), if *name == short { r#""700ms""# } else { r#""60s""# })
    })
}

fn ask(gate: &TestGateway, stream: u32) -> Vec<u8> {
    let header = frame(HEADERS, END_HEADERS, stream, &header(gate, "/getPoints"));
    [header, frame(DATA, END_STREAM, stream, b"memberID=7")].concat()
}

/// A greeted connection on which `stream` is the next one: 1, or a later one.
async fn before(gate: &TestGateway, stream: u32) -> Frames {
    let mut frames = gate.frames().await;
    for earlier in (1..stream).step_by(2) {
        frames.send(ask(gate, earlier)).await;
        assert_eq!(frames.outcome(earlier).await, Ok("3".to_owned()));
    }
    frames
}

#[tokio::test]
async fn a_header_that_began_in_time_is_not_cut_by_the_idle_time() {
    let gate = gate("idle_timeout").start().await;
    let mut frames = gate.frames().await;
    let next = ask(&gate, 3);
    frames.send([&ask(&gate, 1)[..], &next[..30]].concat()).await;
    assert_eq!(frames.outcome(1).await, Ok("3".to_owned()));
    tokio::time::sleep(2 * SHORT).await; // longer than it may idle
    frames.send(&next[30..]).await;
    assert_eq!(frames.outcome(3).await, Ok("3".to_owned()));
}

fn in_time(began: Instant, what: &str) {
    assert!(began.elapsed() >= SHORT, "{what}: ended after {:?}", began.elapsed());
}

#[tokio::test]
async fn a_peer_that_does_not_greet_is_let_go() {
    let gate = gate("header_timeout").start().await;
    for start in [&b""[..], &PREFACE[..10], PREFACE] {
        let began = Instant::now();
        let mut frames = Frames::over(gate.tls(&["h2"]).await);
        frames.send(start).await;
        frames.ends().await;
        in_time(began, "no greeting");
    }
    // Greeted, and nothing asked: the first request has the time that the first header has.
    let began = Instant::now();
    assert_eq!(gate.frames().await.ends().await, Some(NO_ERROR));
    in_time(began, "no request");
}

#[tokio::test]
async fn a_header_that_drips_or_stops_ends_the_connection_at_its_deadline() {
    let gate = gate("header_timeout").start().await;
    let header = header(&gate, "/getPoints");
    for stream in [1, 3, 9] {
        let whole = frame(HEADERS, END_HEADERS, stream, &header);
        let by_byte: Vec<_> = whole.iter().map(|byte| vec![*byte]).collect();
        let continued = frame(CONTINUATION, END_HEADERS, stream, &[0; 1000]);
        let mut by_continuation = vec![frame(HEADERS, 0, stream, &header)];
        by_continuation.extend(continued.iter().map(|byte| vec![*byte]));
        for (what, pieces) in [
            ("within a frame", by_byte),
            ("by CONTINUATION", by_continuation),
            ("stops within a frame", vec![whole[..20].to_vec()]),
            ("stops between frames", vec![frame(HEADERS, 0, stream, &header)]),
        ] {
            let what = format!("{what}, stream {stream}");
            // A first header's time begins at accept, a later one's at its first byte.
            let before_accept = Instant::now();
            let frames = before(&gate, stream).await;
            let began = if stream == 1 { before_accept } else { Instant::now() };
            // What stops is followed by a silence: a piece of nothing is no byte.
            let silence = std::iter::repeat_n(Vec::new(), 10_000);
            let ended = frames.drip(pieces.into_iter().chain(silence), DRIP).await;
            assert_eq!(ended, Ok(Some(ENHANCE_YOUR_CALM)), "{what}");
            in_time(began, &what);
        }
        gate.get_points("bot", "7").await.is("3");
    }
}

#[tokio::test]
async fn a_body_that_drips_or_stops_is_17_and_its_neighbours_are_answered() {
    let gate = gate("body_timeout").start().await;
    let mut client = gate.http2().await;
    for nth in ["first", "later"] {
        let began = Instant::now();
        let stops = client.begin(&gate.request("setPoints", "bot", "memberID=7&amount=9"), true).await;
        let mut drips = client.begin(&gate.request("setPoints", "bot", &"x".repeat(4000)), true).await;
        let driver = tokio::spawn(async move {
            while drips.body.send_data("x".into(), false).is_ok() {
                tokio::time::sleep(DRIP).await; // the drip, not a wait
            }
            drips.answer.await
        });
        client.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
        stops.answer().await.is_refused(408, TOO_SLOW);
        in_time(began, nth);
        let dripped = tokio::time::timeout(PATIENCE, driver).await.expect("a slow body was read without end").unwrap();
        assert_eq!(dripped.unwrap().status(), 408, "{nth}");
        client.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    }
}

#[tokio::test]
async fn a_frame_of_a_body_that_does_not_end_is_17_and_then_the_connections_end() {
    let gate = gate("body_timeout").start().await;
    for stream in [1, 5] {
        let mut frames = before(&gate, stream).await;
        let began = Instant::now();
        frames.send(frame(HEADERS, END_HEADERS, stream, &header(&gate, "/setPoints"))).await;
        frames.send(&frame(DATA, END_STREAM, stream, &[b'x'; 100])[..50]).await;
        // What the frame still owes is counted, so nothing can follow on this connection.
        assert_eq!(frames.ends().await, Some(ENHANCE_YOUR_CALM));
        in_time(began, "a frame of a body");
    }
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn an_idle_connection_is_ended_in_good_order_whatever_it_pings() {
    let gate = gate("idle_timeout").start().await;
    for asked in [1, 4] {
        let began = Instant::now();
        let frames = before(&gate, 2 * asked + 1).await;
        let pings = std::iter::repeat_n(frame(PING, 0, 0, &[7; 8]), 10_000);
        assert_eq!(frames.drip(pings, DRIP).await, Ok(Some(NO_ERROR)));
        in_time(began, "pings");
    }
    let mut client = gate.http2().await;
    client.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    client.is_ended().await.expect("a GOAWAY without fault");
}

#[tokio::test]
async fn an_answer_for_which_there_is_no_window_is_dropped_in_time() {
    let gate = gate("write_timeout").start().await;
    let mut frames = Frames::over(gate.tls(&["h2"]).await);
    // SETTINGS_INITIAL_WINDOW_SIZE: 0.
    frames.greet(&[0, 4, 0, 0, 0, 0]).await;
    for stream in [1, 5] {
        let began = Instant::now();
        frames.send(ask(&gate, stream)).await;
        assert_eq!(frames.next_on(stream).await.kind, HEADERS);
        assert_eq!(frames.outcome(stream).await, Err(CANCEL));
        in_time(began, "no window");
        // Its neighbour, which gives a window, is answered.
        frames.send([ask(&gate, stream + 2), frame(WINDOW_UPDATE, 0, stream + 2, &[0, 0, 1, 0])].concat()).await;
        assert_eq!(frames.outcome(stream + 2).await, Ok("3".to_owned()));
    }
}

#[tokio::test]
async fn answers_whose_caller_takes_one_after_the_other_wait_for_each_other() {
    let gate = gate("write_timeout").start().await;
    let mut frames = Frames::over(gate.tls(&["h2"]).await);
    frames.greet(&[0, 4, 0, 0, 0, 0]).await;
    let streams = [1, 3, 5, 7];
    frames.send(streams.map(|stream| ask(&gate, stream)).concat()).await;
    for stream in streams {
        tokio::time::sleep(Duration::from_millis(500)).await; // the caller's slowness, not a wait
        frames.send(frame(WINDOW_UPDATE, 0, stream, &[0, 0, 1, 0])).await;
        assert_eq!(frames.outcome(stream).await, Ok("3".to_owned()));
    }
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_let_go() {
    let text = "x".repeat(2000);
    let gate = (1..=200).fold(gate("write_timeout"), |gate, id| gate.review("7", id, "Bo", 5, &text)).start().await;
    for reused in [false, true] {
        let mut frames = Frames::over(gate.tls(&["h2"]).await);
        // Windows as wide as they get: only the socket is full.
        frames.greet(&[0, 4, 0x7f, 0xff, 0xff, 0xff]).await;
        frames.send(frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0])).await;
        if reused {
            frames.send(ask(&gate, 1)).await;
            assert_eq!(frames.outcome(1).await, Ok("3".to_owned()));
        }
        let began = Instant::now();
        let header = header(&gate, "/getReviews");
        // 40 MB of answers, which no socket holds, on no more streams than it may have.
        for n in 1..=100 {
            let stream = 2 * n + 1;
            let ask = [frame(HEADERS, END_HEADERS, stream, &header), frame(DATA, END_STREAM, stream, b"memberID=7")];
            frames.send(ask.concat()).await;
        }
        let kept = async {
            while frames.try_send(frame(PING, 0, 0, &[7; 8])).await {
                tokio::time::sleep(DRIP).await; // the pings, not a wait
            }
        };
        tokio::time::timeout(PATIENCE, kept).await.expect("a peer that reads nothing was kept");
        in_time(began, "a peer that reads nothing");
        gate.get_points("bot", "7").await.is("3");
    }
}

#[tokio::test]
async fn a_caller_that_tells_of_each_piece_it_took_has_long_answers_whole() {
    let gate = gate("").long_reviews("7").start().await;
    let header = header(&gate, "/getReviews");
    let mut peer = gate.frames().await;
    // Told of the connection, and of the stream, when it is so much, as widely used clients do.
    let least = 4096;
    let mut of_connection = 0;
    for stream in (1..80).step_by(2) {
        let head = frame(HEADERS, END_HEADERS, stream, &header);
        peer.send([head, frame(DATA, END_STREAM, stream, b"memberID=7")].concat()).await;
        let (mut taken, mut of_stream) = (0, 0);
        loop {
            let piece = peer.next_on(stream).await;
            if piece.kind != DATA {
                continue;
            }
            let length = u32::try_from(piece.payload.len()).unwrap();
            taken += length;
            of_connection += length;
            of_stream += length;
            for (id, unacknowledged) in [(0, &mut of_connection), (stream, &mut of_stream)] {
                if *unacknowledged >= least {
                    peer.send(frame(WINDOW_UPDATE, 0, id, &std::mem::take(unacknowledged).to_be_bytes())).await;
                }
            }
            if piece.flags & END_STREAM != 0 {
                break;
            }
        }
        assert!(taken > 800_000, "{taken}");
    }
}
