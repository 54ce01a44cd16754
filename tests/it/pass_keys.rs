//! `[pass]` with keys: the order of refusals is an operation's, an unsafe method drops what is kept of the key's guild, a
//! place is given back with the answer's header, and `pass` is an operation in logs and metrics.

use crate::support::*;

/// A gateway with keys before an origin that answers everything.
fn gate() -> Builder {
    TestGateway::before_http().key("bot").points("7", 3).points("8", 4).set("pass.paths", r#"["/"]"#)
}

fn ask(gate: &TestGateway, method: &str, key: &str) -> Request {
    Request::bare(method, "/page").key(gate.secret(key)).header("Content-Length", "0")
}

const PAGE: &str = "a page";

fn answers_pages(gate: &TestGateway, times: usize) {
    (0..times).for_each(|_| gate.origin().next("page", Act::say(200, PAGE)));
}

#[tokio::test]
async fn the_order_of_refusals_is_an_operations() {
    let gate = gate()
        .read_key("reader")
        .key_of_tier("slow", "free")
        .set("limits.tiers.free.rate", r#""1/m""#)
        .set("limits.tiers.free.burst", "2")
        .set("limits.tiers.free.write_rate", r#""1/m""#)
        .set("limits.tiers.free.write_burst", "1")
        .set("limits.strangers.rate", r#""1/m""#)
        .set("limits.strangers.burst", "2")
        .start()
        .await;
    answers_pages(&gate, 10);
    let answer = gate.send(&ask(&gate, "GET", "bot")).await;
    assert_eq!((answer.body.as_str(), answer.cache_status()), (PAGE, "guildgate; fwd=bypass"));
    // 14 by its length comes before the key, and that is not told to anybody.
    let large = Request::bare("POST", "/page").header("Content-Length", "99999999");
    gate.send(&large).await.is_refused(413, TOO_LARGE);
    gate.send(&Request::bare("GET", "/page")).await.is_refused(401, NO_KEY);
    gate.send(&Request::bare("GET", "/page").key("wrong")).await.is_refused(401, INCORRECT_KEY);
    gate.send(&Request::bare("GET", "/page").key("wrong")).await.is_too_many();
    // A write is charged as one.
    assert_eq!(gate.send(&ask(&gate, "DELETE", "slow")).await.status, 200);
    gate.send(&ask(&gate, "DELETE", "slow")).await.is_too_many();
    assert_eq!(gate.send(&ask(&gate, "OPTIONS", "slow")).await.status, 200);
    gate.send(&ask(&gate, "GET", "slow")).await.is_too_many();
    // Its scope.
    for method in ["GET", "HEAD", "OPTIONS"] {
        let mut caller = gate.connect_and_send(ask(&gate, method, "reader").bytes()).await;
        assert_eq!(caller.answer_to_head().await.status, 200, "{method}");
    }
    let line = "15 | This API key is not allowed to use pass!";
    let answer = gate.send(&ask(&gate, "POST", "reader")).await;
    answer.is_refused(403, line);
    assert_eq!(gate.origin().asked("page"), 6);
}

#[tokio::test]
async fn a_guild_that_the_bot_left_is_03_and_a_full_origin_21() {
    let gate = gate().keys_in_store().set("origin.max_in_flight", "1").set("origin.queue_timeout", r#""0s""#);
    let gate = gate.key_of_guild("other", "1").start().await;
    let hold = Gate::shut();
    gate.origin().next("page", Act::HoldThen(hold.clone(), 200, PAGE.to_owned()));
    let mut first = gate.connect_and_send(ask(&gate, "GET", "bot").bytes()).await;
    gate.origin().has_been_asked("page", 1).await;
    gate.send(&ask(&gate, "GET", "other")).await.is_unavailable();
    gate.send(&gate.request("getPoints", "other", "memberID=7")).await.is_unavailable();
    hold.open();
    assert_eq!(first.answer().await.body, PAGE);
    gate.run(&["guild", "leave", GUILD]).done();
    eventually(PATIENCE, "03", async || gate.send(&ask(&gate, "GET", "bot")).await.code() == Some(3)).await;
}

#[tokio::test]
async fn an_unsafe_method_drops_what_is_kept_of_its_guild_whatever_it_is_answered() {
    for (method, status, drops) in
        [("POST", 200, true), ("PUT", 500, true), ("DELETE", 404, true), ("GET", 200, false), ("OPTIONS", 200, false)]
    {
        let gate = gate().key_of_guild("other", "1").start().await;
        for (key, member) in [("bot", "7"), ("other", "8")] {
            gate.get_points(key, member).await;
            gate.get_points(key, member).await.is_hit();
        }
        let hold = Gate::shut();
        gate.origin().next("page", Act::HoldThen(hold.clone(), status, PAGE.to_owned()));
        let mut caller = gate.connect_and_send(ask(&gate, method, "bot").bytes()).await;
        gate.origin().has_been_asked("page", 1).await;
        gate.get_points("bot", "7").await.is_hit(); // until its answer's header comes
        hold.open();
        assert_eq!(caller.answer().await.status, status);
        assert_eq!(gate.get_points("bot", "7").await.was_hit(), !drops, "{method}");
        gate.get_points("other", "8").await.is_hit();
        gate.get_points("bot", "7").await.is_hit();
        // One that gets no answer may have changed something, too.
        gate.origin().next("page", Act::Cut(Cut::BeforeHeader));
        gate.origin().next("page", Act::Cut(Cut::BeforeHeader)); // GET is asked again
        gate.send(&ask(&gate, method, "bot")).await.is_refused(502, NO_ANSWER);
        assert_eq!(gate.get_points("bot", "7").await.was_hit(), !drops, "{method}");
    }
}

#[tokio::test]
async fn a_learned_key_drops_everything_and_a_strangers_nothing() {
    let gate = gate().key_of_guild("other", "1").keys_at_the_origin().set("pass.key", "false").start().await;
    gate.get_points("bot", "7").await;
    gate.get_points("other", "8").await;
    answers_pages(&gate, 2);
    assert_eq!(gate.send(&Request::post("/page", "").key("nobody's")).await.status, 200);
    gate.get_points("bot", "7").await.is_hit();
    gate.get_points("other", "8").await.is_hit();
    assert_eq!(gate.send(&ask(&gate, "POST", "bot")).await.status, 200);
    gate.get_points("other", "8").await.is_miss();
    gate.get_points("bot", "7").await.is_miss();
}

#[tokio::test]
async fn a_stream_holds_no_place_and_no_hand_over() {
    let origin = HandOrigin::start().await;
    let gate = TestGateway::before_http().upstreams([origin.url()]).key("bot").set("pass.paths", r#"["/"]"#);
    let gate = gate.set("limits.tiers.standard.in_flight", "1").set("origin.max_in_flight", "1");
    let gate = gate.set("server.handover", r#""handover.sock""#).set("server.drain_timeout", r#""60s""#);
    let mut gate = gate.start().await;
    let mut streams = Vec::new();
    for method in ["GET", "POST"] {
        let mut caller = Talk::to(gate.address()).await;
        caller.say(ask(&gate, method, "bot").bytes()).await;
        let mut upstream = origin.accept().await;
        upstream.header().await;
        upstream.say("HTTP/1.1 200 OK\r\n\r\nbegun").await;
        caller.until("begun").await;
        streams.push((caller, upstream));
    }
    let before = gate.replace().await;
    before.has_said("handed over").await;
    gate.has_said("the predecessor answers no more requests").await; // while the streams go on
    for (mut caller, mut upstream) in streams {
        upstream.say("more").await;
        caller.until("more").await;
        drop(upstream);
        caller.until("0\r\n\r\n").await;
    }
    drop(before);
}

#[tokio::test]
async fn it_is_an_operation_in_the_log_in_why_and_in_the_metrics() {
    let gate = gate().admin().set("log.access", r#""access.log""#).set("log.decisions", r#""decisions.gz""#);
    let mut gate = gate.start().await;
    answers_pages(&gate, 2);
    let answer = gate.send(&ask(&gate, "POST", "bot")).await;
    let id = answer.header("x-request-id").unwrap().to_owned();
    gate.has_logged("access.log", "it", |line| line.contains(&id) && line.contains(" pass 200 ")).await;
    let said = gate.run(&["why", &id]).done().stdout;
    assert!(said.contains("pass") && said.contains("no operation"), "{said}");
    gate.has_logged("access.log", "its key", |line| line.contains("key=bot") && line.contains("cache=bypass")).await;
    let metrics = gate.admin().await.get("/metrics").await.text;
    let line = r#"guildgate_requests_total{operation="pass",code="ok",cache="bypass"} 1"#;
    assert!(metrics.contains(line), "{metrics}");
    assert_eq!(gate.stop().await, Some(0));
    let decisions = gate.world().decisions("decisions.gz");
    assert!(decisions.contains("passWrite"), "{decisions}");
}
