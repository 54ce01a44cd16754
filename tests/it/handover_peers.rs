//! `server.handover` with a peer that stalls, lies, leaves or comes too late: nobody's callers are
//! harmed by it, and at no time do two servers each take themselves for the only one.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use guildgate::process::handover::{HandoverListener, PeerConnection};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::*;

fn gate() -> Builder {
    TestGateway::builder().key("bot").points("7", 3).set("server.handover", r#""handover.sock""#)
}

async fn send(peer: &PeerConnection, message: Value) {
    peer.send(message.to_string().as_bytes(), None).await.unwrap();
}

/// The next message; `None`: the other process has closed the connection.
async fn receive(peer: &mut PeerConnection) -> Option<Value> {
    let received = tokio::time::timeout(PATIENCE, peer.receive()).await.expect("neither a message nor an end");
    let (payload, _socket) = received.ok()??;
    Some(serde_json::from_slice(&payload).unwrap())
}

/// Connects to a running server, as a successor would.
async fn connect(gate: &TestGateway) -> PeerConnection {
    let path = gate.world().path("handover.sock");
    eventually(PATIENCE, "its socket", || async { path.exists() }).await;
    let peer = PeerConnection::connect(&path).await.unwrap().expect("nobody listens");
    send(&peer, json!({"say": "hello", "version": 1})).await;
    peer
}

/// The same, up to the message that all sockets were sent.
async fn connect_for_sockets(gate: &TestGateway) -> PeerConnection {
    let mut peer = connect(gate).await;
    let socket = receive(&mut peer).await.unwrap();
    assert_eq!(socket, json!({"say": "socket", "asked": "127.0.0.1:0"}));
    assert_eq!(receive(&mut peer).await.unwrap(), json!({"say": "whole", "sockets": 1}));
    peer
}

async fn goes_on(gate: &TestGateway, kept: &mut Connection, times: usize) {
    let said = || gate.stderr().matches("goes on as before").count() >= times;
    eventually(PATIENCE, "it goes on", || async { said() }).await;
    let answer = kept.ask(&gate.request("getPoints", "bot", "memberID=7")).await;
    assert!(!answer.is("3").closes());
    gate.get_points("bot", "7").await.is("3").is_hit();
}

#[tokio::test]
async fn a_new_one_that_lies_or_leaves_is_sent_away() {
    let gate = gate().start().await;
    let mut kept = gate.connect().await;
    let refused = async |mut peer: PeerConnection| loop {
        match receive(&mut peer).await {
            Some(said) if said["say"] == "refused" => return said["why"].as_str().unwrap().to_owned(),
            Some(_) => {}
            None => panic!("it closed the connection without a message"),
        }
    };
    // Of another version.
    let path = gate.world().path("handover.sock");
    eventually(PATIENCE, "its socket", || async { path.exists() }).await;
    let peer = PeerConnection::connect(&path).await.unwrap().unwrap();
    send(&peer, json!({"say": "hello", "version": 7})).await;
    assert!(refused(peer).await.contains("version"));
    goes_on(&gate, &mut kept, 1).await;
    // Out of turn, nonsense, or a word that nobody knows.
    for (times, lie) in [json!({"say": "taken"}), json!("x"), json!({"say": "yield"})].into_iter().enumerate() {
        let peer = connect_for_sockets(&gate).await;
        send(&peer, lie).await;
        refused(peer).await;
        goes_on(&gate, &mut kept, times + 2).await;
    }
    // Gone at once, without the sockets, with them, and after the word to go.
    drop(PeerConnection::connect(&path).await.unwrap().unwrap());
    goes_on(&gate, &mut kept, 5).await;
    drop(connect(&gate).await);
    goes_on(&gate, &mut kept, 6).await;
    drop(connect_for_sockets(&gate).await);
    goes_on(&gate, &mut kept, 7).await;
    let mut peer = connect_for_sockets(&gate).await;
    send(&peer, json!({"say": "ready"})).await;
    assert_eq!(receive(&mut peer).await.unwrap(), json!({"say": "go"}));
    // While another one may serve, nothing is answered from memory.
    let get = gate.request("getPoints", "bot", "memberID=7");
    kept.ask(&get).await.is("3").is_miss();
    kept.ask(&get).await.is("3").is_miss();
    drop(peer);
    goes_on(&gate, &mut kept, 8).await;
}

#[tokio::test]
async fn a_new_one_that_stalls_after_the_word_to_go_is_told_that_it_is_too_late() {
    let gate = gate().start().await;
    let mut kept = gate.connect().await;
    kept.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    let mut peer = connect_for_sockets(&gate).await;
    send(&peer, json!({"say": "ready"})).await;
    assert_eq!(receive(&mut peer).await.unwrap(), json!({"say": "go"}));
    goes_on(&gate, &mut kept, 1).await; // after 5 s
    let _ = peer.send(json!({"say": "taken"}).to_string().as_bytes(), None).await; // it has hung up
    assert_eq!(receive(&mut peer).await.unwrap()["say"], "refused");
    goes_on(&gate, &mut kept, 1).await;
}

/// A predecessor that the test plays.
struct PlayedPredecessor {
    gate: (World, std::collections::HashMap<String, String>),
    origin: Option<ScriptedOrigin>,
    handover: HandoverListener,
    listener: std::net::TcpListener,
}

impl PlayedPredecessor {
    async fn new() -> PlayedPredecessor {
        PlayedPredecessor::of(gate()).await
    }

    async fn of(gate: Builder) -> PlayedPredecessor {
        let (world, origin, secrets) = gate.prepare().await;
        let mut handover = HandoverListener::prepare(&world.path("handover.sock")).unwrap();
        handover.publish().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        PlayedPredecessor { gate: (world, secrets), origin, handover, listener }
    }

    /// Starts a server and gives it the socket. It is ready.
    async fn give(&self) -> (Process, PeerConnection) {
        let (next, mut peer) = self.give_socket().await;
        assert_eq!(receive(&mut peer).await.unwrap(), json!({"say": "ready"}));
        (next, peer)
    }

    /// Starts a server and gives it the socket.
    async fn give_socket(&self) -> (Process, PeerConnection) {
        let next = self.gate.0.serve(&[]);
        let mut peer = tokio::time::timeout(PATIENCE, self.handover.accept()).await.expect("nobody asks").unwrap();
        assert_eq!(receive(&mut peer).await.unwrap(), json!({"say": "hello", "version": 1}));
        let socket = json!({"say": "socket", "asked": "127.0.0.1:0"}).to_string();
        peer.send(socket.as_bytes(), Some(self.listener.as_fd())).await.unwrap();
        send(&peer, json!({"say": "whole", "sockets": 1})).await;
        (next, peer)
    }

    async fn connect(&self) -> Connection {
        Connection::to(self.listener.local_addr().unwrap()).await
    }

    async fn is_served(&self) -> bool {
        let key = &self.gate.1["bot"];
        let mut connection = self.connect().await;
        connection.ask(&Request::post("/getPoints", "memberID=7").key(key)).await.status == 200
    }
}

#[tokio::test]
async fn one_that_is_refused_ends_with_the_reason() {
    let played = PlayedPredecessor::new().await;
    let (mut next, peer) = played.give().await;
    assert!(!next.stderr().contains("ready: "), "it accepts before it was told to");
    send(&peer, json!({"say": "refused", "why": "on second thoughts"})).await;
    assert_eq!(next.exit().await, Some(1));
    assert!(next.stderr().contains("on second thoughts") && !next.stderr().contains("ready: "), "{}", next.stderr());
    // After it began to accept: it finishes what it has, and leaves the rest to the other one.
    let (mut next, mut peer) = played.give().await;
    send(&peer, json!({"say": "go"})).await;
    assert_eq!(receive(&mut peer).await.unwrap(), json!({"say": "taken"}));
    assert!(played.is_served().await);
    send(&peer, json!({"say": "refused", "why": "too late"})).await;
    assert_eq!(next.exit().await, Some(1));
    assert!(next.stderr().contains("too late"), "{}", next.stderr());
    assert!(
        PeerConnection::connect(&played.gate.0.path("handover.sock")).await.unwrap().is_some(),
        "the place was taken"
    );
}

#[tokio::test]
async fn one_that_was_refused_before_it_sends_its_next_message_does_not_serve_together_with_its_predecessor() {
    let played = PlayedPredecessor::new().await;
    for before in [vec![], vec![json!({"say": "go"})]] {
        let (mut next, peer) = match before.is_empty() {
            true => played.give_socket().await, // refused before it is ready
            false => played.give().await,       // refused before it accepts
        };
        for message in before {
            send(&peer, message).await;
        }
        send(&peer, json!({"say": "refused", "why": "too late"})).await;
        drop(peer);
        assert_eq!(next.exit().await, Some(1), "{}", next.stderr());
        let log = next.stderr();
        assert!(log.contains("too late") && !log.contains("has ended"), "{log}");
    }
    assert!(
        PeerConnection::connect(&played.gate.0.path("handover.sock")).await.unwrap().is_some(),
        "the place was taken"
    );
}

#[tokio::test]
async fn one_that_is_stopped_before_it_may_go_takes_nothing() {
    let played = PlayedPredecessor::new().await;
    let (mut next, mut peer) = played.give().await;
    next.signal(Signal::SIGTERM);
    assert_eq!(next.exit().await, Some(0), "{}", next.stderr());
    assert_eq!(receive(&mut peer).await, None);
    assert!(!next.stderr().contains("ready: "), "{}", next.stderr());
}

#[tokio::test]
async fn one_whose_predecessor_stalls_takes_nothing_and_one_whose_predecessor_dies_serves() {
    let mut played = PlayedPredecessor::new().await;
    let (mut next, _peer) = played.give().await;
    assert_eq!(next.exit().await, Some(1)); // after 5 s without the word to go
    assert!(next.stderr().contains("did not hand over"), "{}", next.stderr());
    for word in [None, Some("go")] {
        let (mut next, peer) = played.give().await;
        if let Some(word) = word {
            send(&peer, json!({"say": word})).await;
        }
        drop(peer);
        assert_eq!(next.ready().await, played.listener.local_addr().unwrap());
        assert!(played.is_served().await);
        let path = played.gate.0.path("handover.sock");
        let place = || async {
            PeerConnection::connect(&path).await.unwrap().is_some_and(|peer| peer.pid() == next.id() as i32)
        };
        eventually(PATIENCE, "the place is its own", place).await;
        next.kill_hard();
        played.handover = HandoverListener::prepare(&path).unwrap();
        played.handover.publish().unwrap();
    }
}

#[tokio::test]
async fn one_whose_predecessor_dies_before_it_has_sent_its_sockets_opens_its_own() {
    let played = PlayedPredecessor::new().await;
    let mut next = played.gate.0.serve(&[]);
    let peer = tokio::time::timeout(PATIENCE, played.handover.accept()).await.expect("nobody asks").unwrap();
    let socket = json!({"say": "socket", "asked": "127.0.0.1:0"}).to_string();
    peer.send(socket.as_bytes(), Some(played.listener.as_fd())).await.unwrap();
    drop(peer);
    let address = next.ready().await;
    assert_ne!(address, played.listener.local_addr().unwrap());
    assert!(next.stderr().contains("has ended before it handed over"), "{}", next.stderr());
    let read = Request::post("/getPoints", "memberID=7").key(&played.gate.1["bot"]);
    assert_eq!(Connection::to(address).await.ask(&read).await.status, 200);
}

#[tokio::test]
async fn no_write_begins_at_the_new_one_as_long_as_the_old_one_may_take_everything_back() {
    let played = PlayedPredecessor::new().await;
    let key = played.gate.1["bot"].clone();
    let set = |amount: i64| Request::post("/setPoints", format!("memberID=7&amount={amount}")).key(&key);
    let get = Request::post("/getPoints", "memberID=7").key(&key);
    for (word, amount, after) in [("refused", 4, "3"), ("yours", 5, "5")] {
        let (mut next, mut peer) = played.give().await;
        send(&peer, json!({"say": "go"})).await;
        assert_eq!(receive(&mut peer).await.unwrap(), json!({"say": "taken"}));
        let (mut writes, mut reads) = (Connection::to(next.ready().await).await, played.connect().await);
        writes.send(set(amount).bytes()).await;
        reads.ask(&get).await.is("3");
        send(&peer, json!({"say": word, "why": "too late"})).await;
        let answer = writes.answer().await;
        assert_eq!(answer.code(), (word == "refused").then_some(21), "{answer:#?}");
        reads.ask(&get).await.is(after);
        drop((reads, writes, peer));
        next.signal(Signal::SIGTERM);
        next.exit().await;
    }
}

#[tokio::test]
async fn guarantee_2_until_the_hand_over_is_committed_no_answer_is_kept_or_shared() {
    let gate = TestGateway::before_http().key("bot").points("7", 3).set("server.handover", r#""handover.sock""#);
    let played = PlayedPredecessor::of(gate).await;
    let origin = played.origin.as_ref().unwrap();
    let (mut next, mut peer) = played.give().await;
    send(&peer, json!({"say": "go"})).await;
    assert_eq!(receive(&mut peer).await.unwrap(), json!({"say": "taken"}));
    next.ready().await;
    let get = Request::post("/getPoints", "memberID=7").key(&played.gate.1["bot"]);
    let (mut first, mut second) = (played.connect().await, played.connect().await);
    // The old one may have told its callers of a write that it has not reported yet.
    for _ in 0..3 {
        first.ask(&get).await.is("3").is_miss();
    }
    let hold = Gate::shut();
    origin.next("getPoints", Act::HoldAnswer(hold.clone()));
    first.send(get.bytes()).await;
    origin.has_been_asked("getPoints", 4).await;
    origin.put_points("7", 4);
    second.ask(&get).await.is("4").is_miss();
    send(&peer, json!({"say": "yours"})).await;
    next.has_said("took over").await;
    hold.open();
    first.answer().await.is("3");
    second.ask(&get).await.is("4").is_miss();
    second.ask(&get).await.is("4").is_hit();
}

#[tokio::test]
async fn a_write_that_began_before_and_one_that_nobody_ends_are_held() {
    let played = PlayedPredecessor::new().await;
    let (mut next, mut peer) = played.give().await;
    send(&peer, json!({"say": "go"})).await;
    assert_eq!(receive(&mut peer).await.unwrap(), json!({"say": "taken"}));
    send(&peer, json!({"say": "yours"})).await;
    let address = next.ready().await;
    let get = Request::post("/getPoints", "memberID=7").key(&played.gate.1["bot"]);
    let mut caller = Connection::to(address).await;
    let told = |write: u64, over: bool| json!({"say": "heard", "write": write, "over": over});
    caller.ask(&get).await.is("3");
    caller.ask(&get).await.is("3").is_hit();
    // One that had begun before anybody could be told.
    send(&peer, json!({"say": "over", "write": 1, "member": 7, "settled": true})).await;
    let mut heard = [receive(&mut peer).await.unwrap(), receive(&mut peer).await.unwrap()];
    heard.sort_by_key(|heard| heard["over"].as_bool());
    assert_eq!(heard, [told(1, false), told(1, true)]);
    caller.ask(&get).await.is("3").is_miss();
    caller.ask(&get).await.is("3").is_hit();
    // One that is under way: nothing is a hit until it is over.
    send(&peer, json!({"say": "begun", "write": 2, "member": 7})).await;
    assert_eq!(receive(&mut peer).await.unwrap(), told(2, false));
    caller.ask(&get).await.is("3").is_miss();
    send(&peer, json!({"say": "over", "write": 2, "member": 7, "settled": true})).await;
    assert_eq!(receive(&mut peer).await.unwrap(), told(2, true));
    caller.ask(&get).await.is("3").is_miss();
    caller.ask(&get).await.is("3").is_hit();
    // One whose process dies: nobody knows, so nothing is kept for a while.
    send(&peer, json!({"say": "begun", "write": 3, "member": 7})).await;
    assert_eq!(receive(&mut peer).await.unwrap(), told(3, false));
    drop(peer);
    next.has_said("has ended").await;
    for _ in 0..3 {
        caller.ask(&get).await.is("3").is_miss();
    }
}

#[tokio::test]
async fn a_write_of_which_no_more_is_heard_is_held_for_as_long_as_it_may_take_however_short_the_ttl() {
    let ttl = Duration::from_millis(500);
    let played = PlayedPredecessor::of(gate().set("cache.points.ttl", r#""500ms""#)).await;
    let (mut next, mut peer) = played.give().await;
    send(&peer, json!({"say": "go"})).await;
    assert_eq!(receive(&mut peer).await.unwrap(), json!({"say": "taken"}));
    send(&peer, json!({"say": "yours"})).await;
    let mut caller = Connection::to(next.ready().await).await;
    send(&peer, json!({"say": "begun", "write": 1, "member": 7})).await;
    assert_eq!(receive(&mut peer).await.unwrap(), json!({"say": "heard", "write": 1, "over": false}));
    // The one that told of it is gone; it may have been told of it by another one, which goes on.
    drop(peer);
    next.has_said("has ended").await;
    let get = Request::post("/getPoints", "memberID=7").key(&played.gate.1["bot"]);
    let began = Instant::now();
    while began.elapsed() < 3 * ttl {
        caller.ask(&get).await.is("3").is_miss();
    }
}
