//! Contract section 3, `[origin] health`: an upstream that fails gets no requests while another is up, and comes back.

use crate::support::*;
use crate::upstreams::TOOK_TOO_LONG;

async fn pair() -> [ScriptedOrigin; 2] {
    [ScriptedOrigin::start(0).await, ScriptedOrigin::start(0).await]
}

/// A gateway with these as its upstreams.
fn before<'o>(origins: impl IntoIterator<Item = &'o ScriptedOrigin>) -> Builder {
    let urls: Vec<String> = origins.into_iter().map(ScriptedOrigin::url).collect();
    TestGateway::before_http().key("bot").upstreams(urls)
}

fn checked(builder: Builder) -> Builder {
    builder.set("origin.health", r#"{ path = "/up", interval = "50ms", fall = 3, rise = 2 }"#)
}

/// Whether this upstream is up, and how many requests it did not answer.
fn state_of(gate: &TestGateway, origin: &ScriptedOrigin) -> (bool, u64) {
    let all = gate.gateway().state().origin.upstreams();
    let found =
        all.iter().find(|upstream| origin.url().contains(&upstream.name) || upstream.name.contains(&origin.url()));
    found.map(|upstream| (upstream.is_up, upstream.failures)).unwrap_or_else(|| panic!("{all:?}"))
}

/// Waits until it is up, or out.
async fn is(gate: &TestGateway, origin: &ScriptedOrigin, up: bool) {
    eventually(PATIENCE, &format!("{} is up: {up}", origin.url()), || async { state_of(gate, origin).0 == up }).await;
}

/// Reads one member after the other from this one on, each answered, until this is so. Returns how many it were.
async fn reads_until(gate: &TestGateway, first: u32, is_so: impl Fn() -> bool) -> usize {
    let mut count = 0;
    eventually(PATIENCE, "an upstream is tried again", async || {
        reads_are_answered(gate, first + count..first + count + 1).await;
        count += 1;
        is_so()
    })
    .await;
    count as usize
}

async fn reads_are_answered(gate: &TestGateway, members: std::ops::Range<u32>) {
    for member in members {
        gate.get_points("bot", &member.to_string()).await.is("0");
    }
}

#[tokio::test]
async fn a_dead_upstream_costs_no_read_is_put_out_and_comes_back_by_itself() {
    let [mut dead, good] = pair().await;
    dead.refuse().await;
    let (gate, dead_url) = (before([&dead, &good]).start().await, dead.url());
    reads_are_answered(&gate, 0..20).await;
    let told = |what: &str| gate.stderr().lines().filter(|l| l.contains(what) && l.contains(&dead_url)).count();
    eventually(PATIENCE, "it is out", async || told("an upstream is out") == 1).await;
    let failed = || gate.stderr().lines().filter(|line| line.contains("request to upstream failed")).count();
    eventually(PATIENCE, "three requests failed", async || failed() >= 3).await;
    assert_eq!(failed(), 3, "no more once it is out");
    dead.come_back();
    let reads = reads_until(&gate, 20, || dead.asked("getPoints") > 0).await;
    eventually(PATIENCE, "it is back", async || told("an upstream is back") == 1).await;
    assert_eq!(told("an upstream is out"), 1);
    reads_are_answered(&gate, 10_000..10_010).await;
    assert_eq!(dead.asked("getPoints") + good.asked("getPoints"), reads + 30);
    assert!(dead.asked("getPoints") >= 4, "{}", dead.asked("getPoints"));
}

#[tokio::test]
async fn an_upstream_that_answers_nothing_in_time_is_put_out() {
    let [stalled, good] = pair().await;
    stalled.always(Act::Stall);
    let gate = before([&stalled, &good]).set("origin.timeout", r#""200ms""#).start_here().await;
    let mut late = 0;
    for member in 0..30 {
        late += usize::from(gate.get_points("bot", &member.to_string()).await.code() == Some(22));
    }
    assert_eq!((late, stalled.asked("getPoints"), good.asked("getPoints")), (3, 3, 27));
    is(&gate, &stalled, false).await;
}

#[tokio::test]
async fn one_that_had_little_of_the_time_is_not_blamed_when_origin_timeout_ends() {
    let [first, second] = pair().await;
    let gate = before([&first, &second]);
    let gate = gate.set("origin.first_byte_timeout", r#""1900ms""#).set("origin.timeout", r#""2s""#).start_here().await;
    for origin in [&first, &second] {
        origin.always(Act::Stall);
    }
    gate.get_points("bot", "7").await.is_refused(504, TOOK_TOO_LONG);
    assert_eq!((first.asked("getPoints"), second.asked("getPoints")), (1, 1));
    assert_eq!(state_of(&gate, &first).1 + state_of(&gate, &second).1, 1);
}

#[tokio::test]
async fn an_answer_of_an_error_puts_nobody_out() {
    let [failing, good] = pair().await;
    failing.always(Act::say(500, "<html>"));
    let gate = before([&failing, &good]).start_here().await;
    for member in 0..20 {
        gate.get_points("bot", &member.to_string()).await;
    }
    assert_eq!((failing.asked("getPoints"), good.asked("getPoints")), (10, 10));
    assert!(state_of(&gate, &failing).0);
}

#[tokio::test]
async fn where_none_is_up_all_are_asked_and_whichever_comes_back_is_found_at_once() {
    let mut origins = pair().await;
    for origin in &mut origins {
        origin.refuse().await;
    }
    let gate = before(&origins).start_here().await;
    for member in 0..10 {
        gate.get_points("bot", &member.to_string()).await.is_unavailable();
    }
    for origin in &origins {
        is(&gate, origin, false).await;
    }
    for (turn, origin) in origins.iter_mut().enumerate() {
        origin.come_back();
        let first = 100 * turn as u32;
        reads_are_answered(&gate, 100 + first..110 + first).await;
        assert_eq!(origin.asked("getPoints"), 10);
        origin.refuse().await;
        gate.get_points("bot", &(99_000 + turn).to_string()).await.is_unavailable();
    }
}

#[tokio::test]
async fn one_that_takes_connections_and_answers_nothing_gets_one_request_each_time_it_is_tried_again() {
    let [mute, good] = pair().await;
    mute.always(Act::Cut(Cut::BeforeHeader));
    let gate = before([&mute, &good]).start_here().await;
    reads_are_answered(&gate, 0..20).await;
    assert_eq!(mute.asked("getPoints"), 3);
    reads_until(&gate, 100, || mute.asked("getPoints") > 3).await;
    reads_are_answered(&gate, 10_000..10_020).await;
    assert_eq!(mute.asked("getPoints"), 4);
    is(&gate, &mute, false).await;
}

#[tokio::test]
async fn failing_checks_put_one_out_without_a_request_and_passing_ones_bring_it_back() {
    let [sick, good] = pair().await;
    sick.always(Act::say(500, "not yet"));
    let gate = checked(before([&sick, &good])).start_here().await;
    is(&gate, &sick, false).await;
    let checks = sick.asked("up");
    assert!(checks >= 3, "{checks}");
    let check = sick.seen().into_iter().find(|seen| seen.operation() == "up").unwrap();
    assert_eq!((check.method.as_str(), check.path.as_str(), check.body.as_str()), ("GET", "/up", ""));
    assert_eq!(check.header("host"), Some(&sick.url()["http://".len()..]));
    assert_eq!(check.header("authorization"), None);
    reads_are_answered(&gate, 0..20).await;
    assert_eq!((sick.asked("getPoints"), good.asked("getPoints")), (0, 20));
    sick.always(Act::Normal); // it has no such path, and 404 is an answer
    is(&gate, &sick, true).await;
    reads_are_answered(&gate, 100..110).await;
    assert!(sick.asked("getPoints") >= 4, "{}", sick.asked("getPoints"));
    assert_eq!(state_of(&gate, &good), (true, 0));
}

#[tokio::test]
async fn a_check_that_is_never_answered_fails_and_holds_up_no_other() {
    let [stalled, good] = pair().await;
    stalled.always(Act::Stall);
    let gate = checked(before([&stalled, &good])).set("origin.timeout", r#""100ms""#).start_here().await;
    is(&gate, &stalled, false).await;
    good.has_been_asked("up", 5).await;
    reads_are_answered(&gate, 0..10).await;
    assert_eq!(state_of(&gate, &good), (true, 0));
}
