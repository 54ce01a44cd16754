//! Contract section 1 over HTTP/2: the same answers by the same rules.

use nix::sys::signal::Signal;

use crate::support::*;

fn gate() -> Builder {
    TestGateway::before_http().tls().key("bot").read_key("reader").points("7", 3)
}

/// An answer's fields without those that differ from one answer to the next, or are HTTP/1.1's own.
fn comparable(answer: &Answer) -> Vec<(String, String)> {
    let own = ["connection", "date", "x-request-id", "age", "ratelimit", "cache-status"];
    let mut fields: Vec<_> = answer.headers.iter().map(|(n, v)| (n.to_ascii_lowercase(), v.clone())).collect();
    fields.retain(|(name, _)| !own.contains(&name.as_str()));
    fields.sort();
    fields
}

#[tokio::test]
async fn every_answer_is_the_one_that_http_1_1_gets() {
    let gate = gate().start_here().await;
    let post = |path: &str, key: &str, body: &str| Request::post(path, body).key(key);
    let (bot, reader) = (gate.secret("bot"), gate.secret("reader"));
    let requests = [
        post("/getPoints", bot, "memberID=7"),
        post("/getPoints?memberID=8", bot, "memberID=007"),
        post("/setPoints", bot, "memberID=7&amount=5"),
        post("/getWarns", bot, "memberID=7"),
        post("/getReviews", bot, "memberID=7"),
        Request::post("/getPoints", "memberID=7"),
        post("/getPoints", "nobody", "memberID=7"),
        post("/getPoints", bot, ""),
        post("/getPoints", bot, "memberID=x"),
        post("/setPoints", bot, "memberID=7"),
        post("/setPoints", bot, "memberID=7&amount=x"),
        post("/getPoints", bot, "memberID=7&memberID=7"),
        post("/nothing", bot, "memberID=7"),
        Request::bare("GET", "/getPoints").key(bot),
        Request::bare("PUT", "/getPoints").key(bot).body("x"),
        post("/getPoints", bot, "memberID=7").without("Content-Type").header("Content-Type", "text/html"),
        post("/getPoints", bot, "memberID=7").header("Content-Encoding", "gzip"),
        post("/getPoints", bot, &"x".repeat(5000)),
        post("/setPoints", reader, "memberID=7&amount=5"),
        Request::bare("GET", "/healthz"),
    ];
    let mut two = gate.http2().await;
    for request in &requests {
        let (one, two) = (gate.send(request).await, two.ask(request).await);
        assert_eq!((one.status, &one.body), (two.status, &two.body), "{request:?}");
        assert_eq!(comparable(&one), comparable(&two), "{request:?}");
        let present = |a: &Answer| ["x-request-id", "ratelimit", "cache-status"].map(|n| a.header(n).is_some());
        assert_eq!(present(&one), present(&two), "{request:?}");
    }
    gate.get_points("bot", "7").await.is("5");
    two.ask(&requests[0]).await.is("5").is_hit();
    two.end().await.unwrap();
}

#[tokio::test]
async fn a_hundred_streams_are_answered_each_with_its_own() {
    let mut gate = gate();
    for member in 1..=100 {
        gate = gate.points(&member.to_string(), member * 10);
    }
    let gate = gate.start_here().await;
    let mut client = gate.http2().await;
    for _ in ["misses", "hits"] {
        let mut asked = Vec::new();
        for member in 1..=100 {
            asked.push(client.send(&gate.request("getPoints", "bot", &format!("memberID={member}"))).await);
        }
        for (member, asked) in (1..=100).zip(asked) {
            asked.answer().await.is(&(member * 10).to_string());
        }
    }
}

#[tokio::test]
async fn head_has_no_body_and_says_how_long_it_would_be() {
    let gate = gate().start_here().await;
    let mut client = gate.http2().await;
    let health = client.ask(&Request::bare("HEAD", "/healthz")).await;
    assert_eq!((health.status, health.body.as_str(), health.header("content-length")), (200, "", Some("2")));
    let refused = client.ask(&Request::bare("HEAD", "/getPoints")).await;
    assert_eq!((refused.status, refused.body.as_str(), refused.header("allow")), (405, "", Some("POST")));
}

#[tokio::test]
async fn a_long_answer_comes_whole() {
    let text = "x".repeat(500);
    let gate = (1..=400).fold(gate(), |gate, id| gate.review("7", id, "Bo", 5, &text)).start_here().await;
    let request = gate.request("getReviews", "bot", "memberID=7");
    let mut client = gate.http2().await;
    let (one, two) = (gate.send(&request).await, client.ask(&request).await);
    assert!(two.body.len() > 200_000, "{}", two.body.len());
    assert!(one.body == two.body, "they differ");
}

#[tokio::test]
async fn the_access_log_tells_of_each_stream() {
    let gate = gate().set("log.access", r#""access.log""#).set("log.format", r#""json""#).start().await;
    let mut client = gate.http2().await;
    client.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    client.ask(&Request::post("/getWarns", "memberID=7")).await.is_refused(401, NO_KEY);
    let id = "\"bot\"";
    gate.has_logged("access.log", "the first", |l| l.contains("getPoints") && l.contains(id) && l.contains("miss"))
        .await;
    gate.has_logged("access.log", "the second", |l| l.contains("getWarns") && l.contains("\"code\":1")).await;
    let (secret, log) = (gate.secret("bot"), gate.world().read("access.log"));
    assert!(!String::from_utf8(log).unwrap().contains(secret));
}

#[tokio::test]
async fn a_stop_says_goaway_and_finishes_what_is_under_way() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut gate = TestGateway::before_http()
            .tls()
            .key("bot")
            .points("7", 3)
            .set("server.drain_timeout", r#""30s""#)
            .start()
            .await;
        let hold = Gate::shut();
        gate.origin().next("setPoints", Act::HoldAll(hold.clone()));
        let (mut busy, mut idle) = (gate.http2().await, gate.http2().await);
        idle.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
        let under_way = busy.send(&gate.request("setPoints", "bot", "memberID=7&amount=5")).await;
        gate.origin().has_been_asked("setPoints", 1).await;
        gate.process().signal(signal);
        idle.is_ended().await.expect("a GOAWAY without fault");
        hold.open();
        under_way.answer().await.is("Successfully set 'Ada' points to '5'");
        busy.is_ended().await.expect("a GOAWAY without fault");
        assert_eq!(gate.process().exit().await, Some(0), "{}", gate.stderr());
    }
}

#[tokio::test]
async fn a_stop_waits_for_a_slow_body_and_cuts_a_stream_that_never_ends() {
    let mut gate = TestGateway::before_http()
        .tls()
        .key("bot")
        .points("7", 3)
        .set("server.drain_timeout", r#""3s""#)
        .set("server.body_timeout", r#""60s""#)
        .set("origin.timeout", r#""60s""#)
        .start()
        .await;
    gate.origin().next("setPoints", Act::HoldAll(Gate::shut()));
    let (mut slow, mut endless) = (gate.http2().await, gate.http2().await);
    let mut dripping = slow.begin(&gate.request("getPoints", "bot", "").without("Content-Length"), true).await;
    dripping.body.send_data("member".into(), false).unwrap();
    let never = endless.send(&gate.request("setPoints", "bot", "memberID=7&amount=5")).await;
    gate.origin().has_been_asked("setPoints", 1).await;
    gate.process().signal(Signal::SIGTERM);
    gate.has_said("stopping").await;
    dripping.body.send_data("ID=7".into(), true).unwrap();
    dripping.answer().await.is("3");
    slow.is_ended().await.expect("a GOAWAY without fault");
    assert!(never.try_answer().await.is_err(), "it was answered");
    assert_eq!(gate.process().exit().await, Some(0), "{}", gate.stderr());
    assert!(gate.stderr().contains("are cut"), "{}", gate.stderr());
}
