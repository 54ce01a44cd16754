//! `[server]`'s time-outs over HTTP/2, on first and on later streams: slow peers are shown the door,
//! and hold up nobody. Each deadline under test is short and every other one long; that it ends, how,
//! and that it does not end before its time is what is asserted, not how soon.

use std::time::{Duration, Instant};

use crate::support::frames::*;
use crate::support::*;

const NO_ERROR: u32 = 0;
const CANCEL: u32 = 8;

/// The deadline under test.
const SHORT: Duration = Duration::from_millis(700);

const DRIP: Duration = Duration::from_millis(50);

/// A gateway on which only this time-out is short.
fn gate(short: &str) -> Builder {
    let all = ["header_timeout", "body_timeout", "write_timeout", "idle_timeout"];
    all.iter().fold(TestGateway::before_http().tls().key("bot").points("7", 3), |gate, name| {
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

fn in_time(began: Instant, what: &str) {
    assert!(began.elapsed() >= SHORT, "{what}: ended after {:?}", began.elapsed());
}

#[tokio::test]
async fn a_peer_that_does_not_greet_is_let_go() {
    let gate = gate("header_timeout").start_here().await;
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

/// The first one has the time of a header. A later one takes up its own connection alone, which ends as an idle one does.
#[tokio::test]
async fn a_header_that_drips_or_stops_ends_the_connection_at_its_deadline() {
    for (short, stream) in [("header_timeout", 1), ("idle_timeout", 5)] {
        let gate = gate(short).start_here().await;
        let header = header(&gate, "/getPoints");
        let whole = frame(HEADERS, END_HEADERS, stream, &header);
        for (what, pieces) in [
            ("drips", whole.iter().map(|byte| vec![*byte]).collect()),
            ("stops within a frame", vec![whole[..20].to_vec()]),
            ("stops between frames", vec![frame(HEADERS, 0, stream, &header)]),
        ] {
            let what = format!("{what}, stream {stream}");
            let began = Instant::now();
            let frames = before(&gate, stream).await;
            // What stops is followed by a silence: a piece of nothing is no byte.
            let silence = std::iter::repeat_n(Vec::new(), 10_000);
            let ended = frames.drip(pieces.into_iter().chain(silence), DRIP).await;
            assert_eq!(ended, Ok(Some(NO_ERROR)), "{what}");
            in_time(began, &what);
        }
        gate.get_points("bot", "7").await.is("3");
    }
}

#[tokio::test]
async fn a_body_that_drips_or_stops_is_17_and_its_neighbours_are_answered() {
    let gate = gate("body_timeout").start_here().await;
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
async fn an_idle_connection_is_ended_in_good_order_whatever_it_pings() {
    let gate = gate("idle_timeout").start_here().await;
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
    let gate = gate("write_timeout").start_here().await;
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
async fn a_peer_that_does_not_read_is_let_go() {
    let text = "x".repeat(2000);
    let gate =
        (1..=200).fold(gate("write_timeout"), |gate, id| gate.review("7", id, "Bo", 5, &text)).start_here().await;
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
