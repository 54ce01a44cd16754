//! Contract section 3, `[origin]`, and section 5, guarantees 3, 5 and 8: one service at several upstreams.

use tokio::net::TcpListener;

use crate::support::*;

pub const TOOK_TOO_LONG: &str = "22 | The service took too long to answer. Try again later.";

async fn origins<const N: usize>() -> [ScriptedOrigin; N] {
    let mut started = Vec::new();
    for _ in 0..N {
        started.push(ScriptedOrigin::start(0).await);
    }
    started.try_into().ok().unwrap()
}

/// A gateway with these as its upstreams.
fn before<'o>(origins: impl IntoIterator<Item = &'o ScriptedOrigin>) -> Builder {
    let urls: Vec<String> = origins.into_iter().map(ScriptedOrigin::url).collect();
    TestGateway::before_http().key("bot").upstreams(urls)
}

/// How many setPoints reached any of them, whole or not.
fn writes(origins: &[ScriptedOrigin]) -> usize {
    origins.iter().map(|origin| origin.asked("setPoints")).sum()
}

#[tokio::test]
async fn several_upstreams_take_turns_each_at_its_own_path_under_its_own_host_on_one_connection() {
    let [a, b, c] = origins().await;
    let named = format!("http://localhost:{}", c.port());
    let urls = [format!("{}/one", a.url()), format!("{}/two/deep/", b.url()), named.clone()];
    let gate = TestGateway::before_http().key("bot").upstreams(urls).start_here().await;
    for member in 0..30 {
        gate.get_points("bot", &member.to_string()).await.is("0");
    }
    let paths = ["/one/getPoints", "/two/deep/getPoints", "/getPoints"];
    for ((origin, path), url) in [&a, &b, &c].into_iter().zip(paths).zip([a.url(), b.url(), named]) {
        assert_eq!(origin.seen().len(), 10);
        for seen in origin.seen() {
            let at = (seen.connection, &*seen.path, seen.header("host"));
            assert_eq!(at, (0, path, Some(&url["http://".len()..])));
        }
    }
}

#[tokio::test]
async fn an_ipv6_address_is_asked() {
    let Ok(listener) = TcpListener::bind("[::1]:0").await else {
        let addresses = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        assert!(!addresses.contains("00000000000000000000000000000001"), "there is IPv6: {addresses}");
        return;
    };
    let origin = ScriptedOrigin::start_on(listener, 0, None);
    let gate = before([&origin]).start_here().await;
    gate.get_points("bot", "7").await.is("0");
    assert_eq!(origin.seen()[0].header("host"), Some(&*format!("[::1]:{}", origin.port())));
}

#[tokio::test]
async fn a_name_without_an_address_is_21_alone_and_harms_no_other_upstream() {
    let nowhere = "http://nowhere.invalid:3000".to_owned();
    let alone = TestGateway::before_http().key("bot").upstreams([nowhere.clone()]).start().await;
    alone.get_points("bot", "7").await.is_unavailable();
    alone.set_points("bot", "7", 5).await.is_unavailable();
    let [origin] = origins().await;
    let gate = before([&origin]).upstreams([nowhere]).start().await;
    for member in 0..5 {
        gate.get_points("bot", &member.to_string()).await.is("0");
    }
    gate.has_said("nowhere.invalid").await;
}

#[tokio::test]
async fn a_read_goes_on_after_first_byte_timeout_and_a_write_does_not() {
    let [stalled, good] = origins().await;
    stalled.always(Act::Stall);
    let gate = before([&stalled, &good])
        .set("origin.first_byte_timeout", r#""100ms""#)
        .set("origin.timeout", r#""10s""#)
        .start_here()
        .await;
    let mut refused = 0;
    for member in 0..6 {
        let answer = gate.set_points("bot", &member.to_string(), 5).await;
        let times = stalled.asked_about("setPoints", &member.to_string());
        match answer.status {
            200 => assert_eq!(times, 0),
            _ => {
                answer.is_refused(504, TOOK_TOO_LONG);
                assert_eq!((times, good.asked_about("setPoints", &member.to_string())), (1, 0));
                refused += 1;
            }
        }
    }
    assert!((1..=3).contains(&refused), "{refused}");
    for member in 10..16 {
        gate.get_points("bot", &member.to_string()).await.is("0");
    }
}

#[tokio::test]
async fn guarantee_5_wherever_connections_break_setpoints_reaches_one_upstream_at_most() {
    for at in [Break::AtAccept, Break::BeforeBody, Break::MidBody, Break::AfterBody] {
        let origins = origins::<3>().await;
        for origin in &origins {
            (0..3).for_each(|_| origin.break_next(at));
        }
        let gate = before(&origins).set("origin.retries", "3").start_here().await;
        let answer = gate.set_points("bot", "7", 5).await;
        let expected = if at == Break::AtAccept { 0 } else { 1 };
        // One that breaks at once may do so before it could be sent anything, which is 21.
        assert!(answer.code() == Some(20) || expected == 0 && answer.code() == Some(21), "{at:?}: {answer:#?}");
        assert_eq!(writes(&origins), expected, "{at:?}: {answer:#?}");
    }
}

#[tokio::test]
async fn guarantee_5_an_answer_that_breaks_off_or_stalls_is_not_asked_for_elsewhere() {
    let cuts = [Cut::BeforeHeader, Cut::MidHeader, Cut::AfterHeader, Cut::MidBody].map(Act::Cut);
    for act in cuts.into_iter().chain([Act::Stall, Act::say(500, "<html>"), Act::say(503, "later")]) {
        let origins = origins::<2>().await;
        for origin in &origins {
            origin.always(act.clone());
        }
        let gate = before(&origins).set("origin.retries", "3").set("origin.timeout", r#""300ms""#).start_here().await;
        let answer = gate.set_points("bot", "7", 5).await;
        assert!(matches!(answer.code(), Some(20..=22)), "{act:?}: {answer:#?}");
        assert_eq!(writes(&origins), 1, "{act:?}");
    }
}

#[tokio::test]
async fn guarantee_5_a_write_that_an_upstream_refused_to_take_goes_to_another_once() {
    let [mut dead, good] = origins().await;
    dead.refuse().await;
    let gate = before([&dead, &good]).start_here().await;
    for member in 0..10 {
        gate.set_points("bot", &member.to_string(), 5).await.is("Successfully set 'Ada' points to '5'");
        assert_eq!(good.asked_about("setPoints", &member.to_string()), 1);
    }
}

#[tokio::test]
async fn guarantee_8_an_upstream_that_stalls_keeps_one_caller_and_the_others_do_not_wait() {
    let [stalled, good] = origins().await;
    stalled.always(Act::Stall);
    let gate = before([&stalled, &good]).set("origin.timeout", r#""60s""#).start_here().await;
    let mut waiting = Vec::new();
    for member in 0..2 {
        waiting.push(gate.connect_and_send(gate.request("getPoints", "bot", &format!("memberID={member}"))).await);
        eventually(PATIENCE, "one is asked", || async {
            stalled.asked("getPoints") + good.asked("getPoints") > member
        })
        .await;
    }
    waiting[1].answer().await.is("0"); // the stalled one has the first turn
    // Each of these is answered before the next is sent, so the upstream with nothing in flight is chosen.
    for member in 10..40 {
        gate.get_points("bot", &member.to_string()).await.is("0");
    }
    assert_eq!((stalled.asked("getPoints"), good.asked("getPoints")), (1, 31));
}

#[tokio::test]
async fn guarantee_8_max_in_flight_counts_all_upstreams_together() {
    let origins = origins::<2>().await;
    let hold = Gate::shut();
    for origin in &origins {
        origin.always(Act::HoldAll(hold.clone()));
    }
    let gate = before(&origins).key("other").set("origin.max_in_flight", "2").set("origin.queue_timeout", r#""0s""#);
    let gate = gate.start_here().await;
    let mut held = [gate.connect().await, gate.connect().await];
    for ((i, key), connection) in ["bot", "other"].into_iter().enumerate().zip(&mut held) {
        connection.send(gate.request("getPoints", key, &format!("memberID={i}")).bytes()).await;
    }
    for origin in &origins {
        origin.has_been_asked("getPoints", 1).await;
    }
    gate.get_points("bot", "7").await.is_unavailable();
    hold.open();
    for connection in &mut held {
        connection.answer().await.is("0");
    }
    gate.get_points("bot", "7").await.is("0");
}

#[tokio::test]
async fn guarantee_8_an_upstream_that_stalls_takes_neither_the_threads_nor_the_memory() {
    const MEMBERS: usize = 64;
    const READERS: usize = 32; // of each member
    let [origin] = origins().await;
    let gate = before([&origin])
        // One key holds a fifth of them.
        .set("origin.max_in_flight", &(5 * MEMBERS).to_string())
        .set("origin.queue_timeout", r#""0s""#)
        .set("origin.timeout", r#""60s""#)
        .set("cache.points.ttl", r#""1h""#)
        .set("server.max_connections_per_address", "0")
        .start()
        .await;
    origin.put_points("7000", 3);
    gate.get_points("bot", "7000").await.is("3").is_miss();
    let hold = Gate::shut();
    origin.always(Act::HoldAll(hold.clone()));
    let before = gate.resident_kib();
    let mut waiting = Vec::new();
    for _ in 0..READERS {
        for member in 0..MEMBERS {
            waiting.push(gate.connect_and_send(gate.request("getPoints", "bot", &format!("memberID={member}"))).await);
        }
    }
    eventually(PATIENCE, "each member is asked for", || async { origin.asked("getPoints") == 1 + MEMBERS }).await;
    // Requests that need no origin are answered while two thousand wait, on kept and on new connections.
    let mut kept = gate.connect().await;
    for _ in 0..200 {
        kept.ask(&gate.request("getPoints", "bot", "memberID=7000")).await.is("3").is_hit();
        gate.get_points("bot", "7000").await.is("3").is_hit();
    }
    // One request more than may be in flight is refused at once, and none waits for a place.
    for member in 8000..8010 {
        gate.get_points("bot", &member.to_string()).await.is_unavailable();
        kept.ask(&gate.request("setPoints", "bot", &format!("memberID={member}&amount=1"))).await.is_unavailable();
    }
    let grown = gate.resident_kib().saturating_sub(before);
    assert!(grown < 64 * waiting.len() as u64, "{grown} KiB for {} that wait", waiting.len());
    assert_eq!(origin.asked("getPoints"), 1 + MEMBERS, "followers ask nothing");
    assert_eq!(origin.asked("setPoints"), 0);
    hold.open();
    for connection in &mut waiting {
        connection.answer().await.is("0");
    }
    assert_eq!(origin.asked("getPoints"), 1 + MEMBERS);
}

#[tokio::test]
async fn a_reload_keeps_the_connections_of_who_stays_and_the_requests_of_who_goes() {
    let [stays, goes, comes] = origins().await;
    let gate = before([&stays, &goes]).start_here().await;
    for member in 0..2 {
        gate.get_points("bot", &member.to_string()).await.is("0");
    }
    let hold = Gate::shut();
    for origin in [&stays, &goes] {
        origin.next("getPoints", Act::HoldAnswer(hold.clone()));
    }
    let mut held = Vec::new();
    for member in 2..4 {
        held.push(gate.connect_and_send(gate.request("getPoints", "bot", &format!("memberID={member}"))).await);
    }
    for origin in [&stays, &goes] {
        origin.has_been_asked("getPoints", 2).await;
    }
    gate.reloaded_with(&goes.url(), &comes.url()).await;
    comes.put_points("100", 1);
    stays.put_points("100", 1);
    gate.get_points("bot", "100").await.is("1");
    hold.open();
    for connection in &mut held {
        connection.answer().await.is("0");
    }
    for member in 101..105 {
        gate.get_points("bot", &member.to_string()).await.is("0");
    }
    assert_eq!(goes.asked("getPoints"), 2, "it is asked no more");
    assert!(comes.asked("getPoints") >= 2);
    assert!(stays.seen().iter().all(|seen| seen.connection == 0), "{:#?}", stays.seen());
}
