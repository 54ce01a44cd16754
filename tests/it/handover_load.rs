//! `server.handover` under load: servers follow each other, not one request fails, and no answer is older than it may be.
//! `scripts/handovers` does so for longer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::guarantee_2_histories::histories_at;
use crate::support::*;

/// How often the server is replaced in each test.
fn times() -> usize {
    std::env::var("GUILDGATE_HANDOVERS").map_or(2, |times| times.parse().unwrap())
}

/// Asks over HTTP/2, several streams at once. A stream that the last GOAWAY leaves out was not
/// looked at, and is sent again, as every client does.
async fn streams(crowd: Arc<Crowd>, address: SocketAddr, tls: Arc<TlsClient>, ask: Request) {
    while crowd.goes_on() {
        let mut client = Http2::over(tls.connect(address).await.unwrap()).await;
        let mut is_told = false;
        while crowd.goes_on() && !is_told {
            let mut under_way = Vec::new();
            for _ in 0..4 {
                match client.try_send(&ask).await {
                    Ok(asked) => under_way.push(asked),
                    Err(error) => is_told = is_goodbye(&error),
                }
            }
            for asked in under_way {
                match asked.try_answer().await {
                    Ok(answer) => {
                        answer.is("3");
                        crowd.answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => is_told = is_goodbye(&error),
                }
            }
        }
        crowd.told.fetch_add(usize::from(is_told), Ordering::Relaxed);
    }
}

/// Nothing but this may end a stream.
fn is_goodbye(error: &h2::Error) -> bool {
    assert!(error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR), "{error:?}");
    true
}

/// Replaces the server while the crowd asks; each before it has to end well.
async fn replace_again_and_again(gate: &mut TestGateway, crowd: &Crowd) {
    for _ in 0..times() {
        crowd.answers(100).await;
        let mut before = gate.replace().await;
        crowd.answers(100).await;
        assert_eq!(before.exit().await, Some(0), "{}", before.stderr());
        assert!(!before.stderr().contains("are cut"), "{}", before.stderr());
    }
    crowd.end();
}

fn gate(kind: Kind) -> Builder {
    TestGateway::on(kind).key("bot").points("7", 3).set("server.handover", r#""handover.sock""#)
}

#[tokio::test]
async fn no_request_fails_while_servers_follow_each_other() {
    let mut gate = gate(Kind::Builtin).tls().start().await;
    let (crowd, address) = (Arc::new(Crowd::default()), gate.address());
    let ask = gate.request("getPoints", "bot", "memberID=7");
    let certificate = gate.world().text("cert.pem");
    let tls = Arc::new(TlsClient::new(&[&certificate], &["h2"]));
    let caller = Caller {
        crowd: crowd.clone(),
        address,
        tls: Some(Arc::new(TlsClient::new(&[&certificate], &["http/1.1"]))),
        ask: ask.clone(),
        answer: "3",
        rest: Duration::ZERO,
    };
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(tokio::spawn(streams(crowd.clone(), address, tls.clone(), ask.clone())));
        tasks.push(tokio::spawn(caller.clone().reconnects()));
    }
    for rest in [0, 10, 40].map(Duration::from_millis) {
        tasks.push(tokio::spawn(Caller { rest, ..caller.clone() }.keeps()));
    }
    replace_again_and_again(&mut gate, &crowd).await;
    Crowd::all(tasks).await;
    let told = crowd.told.load(Ordering::Relaxed);
    assert!(told >= times(), "connections were kept, or ended without a word: {told}");
}

#[tokio::test]
async fn guarantee_2_each_acknowledged_write_is_there_once_and_histories_are_linearizable_while_servers_follow() {
    let mut gate = gate(Kind::Http).start().await;
    each_write_that_was_acknowledged_is_there_once(&mut gate).await;
    gate.origin().always(Act::Jitter(6));
    let (crowd, address) = (Arc::new(Crowd::default()), gate.address());
    let (asks, secrets) = (crowd.clone(), vec![gate.secret("bot").to_owned()]);
    // On a thread of its own: to judge a history takes a while, in which the origin has to answer.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let histories = runtime.spawn(async move {
        let mut hits = 0;
        for seed in 0.. {
            if !asks.goes_on() {
                break;
            }
            hits += histories_at(address, secrets.clone(), seed, 100 * (seed as usize + 1)).await;
            asks.answered.fetch_add(1, Ordering::Relaxed);
        }
        hits
    });
    for _ in 0..times() {
        crowd.answers(2).await;
        let mut before = gate.replace().await;
        assert_eq!(before.exit().await, Some(0), "{}", before.stderr());
        gate.has_said("answers no more requests").await;
    }
    crowd.answers(2).await; // from memory again
    crowd.end();
    assert!(histories.await.unwrap() > 0, "nothing was answered from memory: this tells nothing about it");
    runtime.shutdown_background();
}

/// Each writer has a member of its own, counts up, and reads back what it wrote over a connection
/// that may lead to another server than the one that it wrote to.
async fn each_write_that_was_acknowledged_is_there_once(gate: &mut TestGateway) {
    let (crowd, address) = (Arc::new(Crowd::default()), gate.address());
    let counts: Vec<Arc<AtomicI64>> = (0..4).map(|_| Arc::default()).collect();
    let mut tasks = Vec::new();
    for (member, count) in counts.iter().enumerate() {
        let (crowd, count, key) = (crowd.clone(), count.clone(), gate.secret("bot").to_owned());
        tasks.push(tokio::spawn(async move {
            let post = |path: &str, body: String| Request::post(path, body).key(&key);
            let mut connection = Connection::to(address).await;
            while crowd.goes_on() {
                let amount = count.load(Ordering::Relaxed) + 1;
                let set = post("/setPoints", format!("memberID={member}&amount={amount}"));
                let answer = connection.ask(&set).await;
                assert_eq!(answer.status, 200, "{answer:#?}");
                count.store(amount, Ordering::Relaxed);
                let get = post("/getPoints", format!("memberID={member}"));
                Connection::to(address).await.ask(&get).await.is(&amount.to_string());
                crowd.answered.fetch_add(2, Ordering::Relaxed);
                if answer.closes() {
                    crowd.told.fetch_add(1, Ordering::Relaxed);
                    connection = Connection::to(address).await;
                }
            }
        }));
    }
    replace_again_and_again(gate, &crowd).await;
    Crowd::all(tasks).await;
    assert!(crowd.told.load(Ordering::Relaxed) >= times());
    for (member, count) in counts.iter().enumerate() {
        let (member, count) = (member.to_string(), count.load(Ordering::Relaxed));
        gate.get_points("bot", &member).await.is(&count.to_string());
        assert_eq!(gate.origin().asked_about("setPoints", &member), usize::try_from(count).unwrap());
    }
}
