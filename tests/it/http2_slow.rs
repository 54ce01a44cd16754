//! `[server]`'s time-outs over HTTP/2: slow peers are shown the door, and hold up nobody. The
//! deadlines are short here; that they end at all is what is asserted, not how soon.

use std::time::Duration;

use crate::support::frames::*;
use crate::support::*;

const ENHANCE_YOUR_CALM: u32 = 11;

fn gate() -> Builder {
    TestGateway::builder().tls().key("bot").points("7", 3)
}

#[tokio::test]
async fn a_peer_that_does_not_greet_is_let_go() {
    let gate = gate().set("server.header_timeout", r#""300ms""#).start().await;
    for start in [&b""[..], &PREFACE[..10], PREFACE] {
        let mut frames = Frames::over(gate.tls(&["h2"]).await);
        frames.send(start).await;
        frames.ends().await;
    }
    // Greeted, and nothing asked: the first request has the time that the first header has.
    assert_eq!(gate.frames().await.ends().await, Some(0));
}

#[tokio::test]
async fn a_slow_header_ends_however_it_drips() {
    let gate = gate().set("server.header_timeout", r#""300ms""#).start().await;
    let header = header(&gate, "/getPoints");
    let body = frame(DATA, END_STREAM, 1, b"memberID=7");
    let good = [frame(HEADERS, END_HEADERS, 1, &header), body].concat();
    let whole = frame(HEADERS, END_HEADERS, 1, &header);
    let within_a_frame: Vec<_> = whole.iter().map(|byte| vec![*byte]).collect();
    let mut by_continuation = vec![frame(CONTINUATION, 0, 1, &[]); 40];
    by_continuation[0] = frame(HEADERS, 0, 1, &header);
    for (what, pieces) in [("within a frame", within_a_frame), ("by CONTINUATION", by_continuation)] {
        let mut frames = gate.frames().await;
        let dripping = async {
            // Slow enough that it is ended before the pieces are.
            for piece in pieces {
                if !frames.try_send(piece).await {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(100)).await; // the drip, not a wait
            }
            false
        };
        assert!(tokio::time::timeout(PATIENCE, dripping).await.unwrap(), "{what}: read to its end");
        gate.get_points("bot", "7").await.is("3");
    }
    // One that stops is told why.
    let mut frames = gate.frames().await;
    frames.send(good).await;
    assert_eq!(frames.outcome(1).await, Ok("3".to_owned()));
    frames.send(&frame(HEADERS, END_HEADERS, 3, &[0; 100])[..50]).await;
    assert_eq!(frames.ends().await, Some(ENHANCE_YOUR_CALM));
}

#[tokio::test]
async fn a_body_that_stops_or_drips_is_17_and_its_neighbours_are_answered() {
    let gate = gate().set("server.body_timeout", r#""300ms""#).start().await;
    let mut client = gate.http2().await;
    let stops = client.begin(&gate.request("setPoints", "bot", "memberID=7&amount=9"), true).await;
    let mut drips = client.begin(&gate.request("setPoints", "bot", &"x".repeat(4000)), true).await;
    let driver = tokio::spawn(async move {
        while drips.body.send_data("x".into(), false).is_ok() {
            tokio::time::sleep(Duration::from_millis(30)).await; // the drip, not a wait
        }
        drips.answer.await
    });
    client.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    stops.answer().await.is_refused(408, TOO_SLOW);
    let dripped = tokio::time::timeout(PATIENCE, driver).await.expect("a slow body was read without end").unwrap();
    assert_eq!(dripped.unwrap().status(), 408);
    client.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
}

#[tokio::test]
async fn an_idle_connection_is_ended_in_good_order_whatever_it_pings() {
    let gate = gate().set("server.idle_timeout", r#""500ms""#).start().await;
    let mut frames = gate.frames().await;
    let bytes =
        [frame(HEADERS, END_HEADERS, 1, &header(&gate, "/getPoints")), frame(DATA, END_STREAM, 1, b"memberID=7")];
    frames.send(bytes.concat()).await;
    assert_eq!(frames.outcome(1).await, Ok("3".to_owned()));
    let pinging = async {
        while frames.try_send(frame(PING, 0, 0, &[7; 8])).await {
            tokio::time::sleep(Duration::from_millis(50)).await; // the pings, not a wait
        }
    };
    tokio::time::timeout(PATIENCE, pinging).await.expect("pings kept it");
    let mut client = gate.http2().await;
    client.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    client.is_ended().await.expect("a GOAWAY without fault");
}

#[tokio::test]
async fn an_answer_for_which_there_is_no_window_is_dropped_in_time() {
    let gate = gate().set("server.write_timeout", r#""300ms""#).start().await;
    let mut frames = Frames::over(gate.tls(&["h2"]).await);
    // SETTINGS_INITIAL_WINDOW_SIZE: 0.
    frames.greet(&[0, 4, 0, 0, 0, 0]).await;
    let ask = |stream| {
        let header = frame(HEADERS, END_HEADERS, stream, &header(&gate, "/getPoints"));
        [header, frame(DATA, END_STREAM, stream, b"memberID=7")].concat()
    };
    frames.send(ask(1)).await;
    assert_eq!(frames.next_on(1).await.kind, HEADERS);
    assert_eq!(frames.next_on(1).await.kind, RST_STREAM);
    // Its neighbour, which gives a window, is answered.
    frames.send([ask(3), frame(WINDOW_UPDATE, 0, 3, &[0, 0, 1, 0])].concat()).await;
    assert_eq!(frames.outcome(3).await, Ok("3".to_owned()));
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_let_go() {
    let text = "x".repeat(2000);
    let gate = gate().set("server.write_timeout", r#""300ms""#);
    let gate = (1..=200).fold(gate, |gate, id| gate.review("7", id, "Bo", 5, &text)).start().await;
    let mut frames = Frames::over(gate.tls(&["h2"]).await);
    // Windows as wide as they get: only the socket is full.
    frames.greet(&[0, 4, 0x7f, 0xff, 0xff, 0xff]).await;
    frames.send(frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0])).await;
    let header = header(&gate, "/getReviews");
    // 40 MB of answers, which no socket holds, on no more streams than it may have.
    for n in 0..100 {
        let stream = 2 * n + 1;
        let ask = [frame(HEADERS, END_HEADERS, stream, &header), frame(DATA, END_STREAM, stream, b"memberID=7")];
        frames.send(ask.concat()).await;
    }
    let kept = async {
        while frames.try_send(frame(PING, 0, 0, &[7; 8])).await {
            tokio::time::sleep(Duration::from_millis(50)).await; // the pings, not a wait
        }
    };
    tokio::time::timeout(PATIENCE, kept).await.expect("a peer that reads nothing was kept");
    gate.get_points("bot", "7").await.is("3");
}
