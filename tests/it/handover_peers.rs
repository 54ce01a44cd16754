//! `server.handover` with a peer that stalls, lies, leaves or comes too late: nobody's callers are
//! harmed by it, and at no time do two servers each take themselves for the only one.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use guildgate::edge::{Door, Talk};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::*;

fn gate() -> Builder {
    TestGateway::builder().key("bot").points("7", 3).set("server.handover", r#""handover.sock""#)
}

async fn say(talk: &Talk, words: Value) {
    talk.say(words.to_string().as_bytes(), None).await.unwrap();
}

/// The next thing that is said; `None`: the other end has hung up.
async fn hear(talk: &mut Talk) -> Option<Value> {
    let heard = tokio::time::timeout(PATIENCE, talk.hear()).await.expect("neither a word nor an end");
    let (words, _socket) = heard.ok()??;
    Some(serde_json::from_slice(&words).unwrap())
}

/// Asks a running server for its place, as a new one would.
async fn ask(gate: &TestGateway) -> Talk {
    let path = gate.world().path("handover.sock");
    eventually(PATIENCE, "its socket", || async { path.exists() }).await;
    let talk = Talk::to(&path).await.unwrap().expect("nobody is there");
    say(&talk, json!({"say": "hello", "version": 1})).await;
    talk
}

/// The same, up to the word that all sockets have come.
async fn ask_for_all(gate: &TestGateway) -> Talk {
    let mut talk = ask(gate).await;
    let socket = hear(&mut talk).await.unwrap();
    assert_eq!(socket, json!({"say": "socket", "asked": "127.0.0.1:0"}));
    assert_eq!(hear(&mut talk).await.unwrap(), json!({"say": "whole", "sockets": 1}));
    talk
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
    let refused = async |mut talk: Talk| loop {
        match hear(&mut talk).await {
            Some(said) if said["say"] == "refused" => return said["why"].as_str().unwrap().to_owned(),
            Some(_) => {}
            None => panic!("it hung up without a word"),
        }
    };
    // Of another version.
    let path = gate.world().path("handover.sock");
    eventually(PATIENCE, "its socket", || async { path.exists() }).await;
    let talk = Talk::to(&path).await.unwrap().unwrap();
    say(&talk, json!({"say": "hello", "version": 7})).await;
    assert!(refused(talk).await.contains("version"));
    goes_on(&gate, &mut kept, 1).await;
    // Out of turn, nonsense, or a word that nobody knows.
    for (times, lie) in [json!({"say": "taken"}), json!("x"), json!({"say": "yield"})].into_iter().enumerate() {
        let talk = ask_for_all(&gate).await;
        say(&talk, lie).await;
        refused(talk).await;
        goes_on(&gate, &mut kept, times + 2).await;
    }
    // Gone at once, without the sockets, with them, and after the word to go.
    drop(Talk::to(&path).await.unwrap().unwrap());
    goes_on(&gate, &mut kept, 5).await;
    drop(ask(&gate).await);
    goes_on(&gate, &mut kept, 6).await;
    drop(ask_for_all(&gate).await);
    goes_on(&gate, &mut kept, 7).await;
    let mut talk = ask_for_all(&gate).await;
    say(&talk, json!({"say": "ready"})).await;
    assert_eq!(hear(&mut talk).await.unwrap(), json!({"say": "go"}));
    // While another one may serve, nothing is answered from memory.
    let get = gate.request("getPoints", "bot", "memberID=7");
    kept.ask(&get).await.is("3").is_miss();
    kept.ask(&get).await.is("3").is_miss();
    drop(talk);
    goes_on(&gate, &mut kept, 8).await;
}

#[tokio::test]
async fn a_new_one_that_stalls_after_the_word_to_go_is_told_that_it_is_too_late() {
    let gate = gate().start().await;
    let mut kept = gate.connect().await;
    kept.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    let mut talk = ask_for_all(&gate).await;
    say(&talk, json!({"say": "ready"})).await;
    assert_eq!(hear(&mut talk).await.unwrap(), json!({"say": "go"}));
    goes_on(&gate, &mut kept, 1).await; // after 5 s
    let _ = talk.say(json!({"say": "taken"}).to_string().as_bytes(), None).await; // it has hung up
    assert_eq!(hear(&mut talk).await.unwrap()["say"], "refused");
    goes_on(&gate, &mut kept, 1).await;
}

/// A server that is to be replaced, played by hand.
struct Played {
    gate: (World, std::collections::HashMap<String, String>),
    door: Door,
    listener: std::net::TcpListener,
}

impl Played {
    async fn new() -> Played {
        Played::of(gate()).await
    }

    async fn of(gate: Builder) -> Played {
        let (world, _, secrets) = gate.prepare().await;
        let mut door = Door::prepare(&world.path("handover.sock")).unwrap();
        door.put_in_place().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        Played { gate: (world, secrets), door, listener }
    }

    /// Starts a server and gives it the socket.
    async fn give(&self) -> (Process, Talk) {
        let next = self.gate.0.serve(&[]);
        let mut talk = tokio::time::timeout(PATIENCE, self.door.next()).await.expect("nobody asks").unwrap();
        assert_eq!(hear(&mut talk).await.unwrap(), json!({"say": "hello", "version": 1}));
        let socket = json!({"say": "socket", "asked": "127.0.0.1:0"}).to_string();
        talk.say(socket.as_bytes(), Some(self.listener.as_fd())).await.unwrap();
        say(&talk, json!({"say": "whole", "sockets": 1})).await;
        assert_eq!(hear(&mut talk).await.unwrap(), json!({"say": "ready"}));
        (next, talk)
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
    let played = Played::new().await;
    let (mut next, talk) = played.give().await;
    assert!(!next.stderr().contains("ready: "), "it accepts before it was told to");
    say(&talk, json!({"say": "refused", "why": "on second thoughts"})).await;
    assert_eq!(next.exit().await, Some(1));
    assert!(next.stderr().contains("on second thoughts") && !next.stderr().contains("ready: "), "{}", next.stderr());
    // After it began to accept: it finishes what it has, and leaves the rest to the other one.
    let (mut next, mut talk) = played.give().await;
    say(&talk, json!({"say": "go"})).await;
    assert_eq!(hear(&mut talk).await.unwrap(), json!({"say": "taken"}));
    assert!(played.is_served().await);
    say(&talk, json!({"say": "refused", "why": "too late"})).await;
    assert_eq!(next.exit().await, Some(1));
    assert!(next.stderr().contains("too late"), "{}", next.stderr());
    assert!(Talk::to(&played.gate.0.path("handover.sock")).await.unwrap().is_some(), "the place was taken");
}

#[tokio::test]
async fn one_that_is_stopped_before_it_may_go_takes_nothing() {
    let played = Played::new().await;
    let (mut next, mut talk) = played.give().await;
    next.signal(Signal::SIGTERM);
    assert_eq!(next.exit().await, Some(0), "{}", next.stderr());
    assert_eq!(hear(&mut talk).await, None);
    assert!(!next.stderr().contains("ready: "), "{}", next.stderr());
}

#[tokio::test]
async fn one_whose_predecessor_stalls_takes_nothing_and_one_whose_predecessor_dies_serves() {
    let mut played = Played::new().await;
    let (mut next, _talk) = played.give().await;
    assert_eq!(next.exit().await, Some(1)); // after 5 s without the word to go
    assert!(next.stderr().contains("did not hand over"), "{}", next.stderr());
    for word in [None, Some("go")] {
        let (mut next, talk) = played.give().await;
        if let Some(word) = word {
            say(&talk, json!({"say": word})).await;
        }
        drop(talk);
        assert_eq!(next.ready().await, played.listener.local_addr().unwrap());
        assert!(played.is_served().await);
        let path = played.gate.0.path("handover.sock");
        let place = || async { Talk::to(&path).await.unwrap().is_some_and(|talk| talk.peer() == next.id() as i32) };
        eventually(PATIENCE, "the place is its own", place).await;
        next.kill_hard();
        played.door = Door::prepare(&path).unwrap();
        played.door.put_in_place().unwrap();
    }
}

#[tokio::test]
async fn no_write_begins_at_the_new_one_as_long_as_the_old_one_may_take_everything_back() {
    let played = Played::new().await;
    let key = played.gate.1["bot"].clone();
    let set = |amount: i64| Request::post("/setPoints", format!("memberID=7&amount={amount}")).key(&key);
    let get = Request::post("/getPoints", "memberID=7").key(&key);
    for (word, amount, after) in [("refused", 4, "3"), ("yours", 5, "5")] {
        let (mut next, mut talk) = played.give().await;
        say(&talk, json!({"say": "go"})).await;
        assert_eq!(hear(&mut talk).await.unwrap(), json!({"say": "taken"}));
        let (mut writes, mut reads) = (Connection::to(next.ready().await).await, played.connect().await);
        writes.send(set(amount).bytes()).await;
        reads.ask(&get).await.is("3");
        say(&talk, json!({"say": word, "why": "too late"})).await;
        let answer = writes.answer().await;
        assert_eq!(answer.code(), (word == "refused").then_some(21), "{answer:#?}");
        reads.ask(&get).await.is(after);
        drop((reads, writes, talk));
        next.signal(Signal::SIGTERM);
        next.exit().await;
    }
}

#[tokio::test]
async fn a_write_that_began_before_and_one_that_nobody_ends_are_held() {
    let played = Played::new().await;
    let (mut next, mut talk) = played.give().await;
    say(&talk, json!({"say": "go"})).await;
    assert_eq!(hear(&mut talk).await.unwrap(), json!({"say": "taken"}));
    say(&talk, json!({"say": "yours"})).await;
    let address = next.ready().await;
    let get = Request::post("/getPoints", "memberID=7").key(&played.gate.1["bot"]);
    let mut caller = Connection::to(address).await;
    let told = |write: u64, over: bool| json!({"say": "heard", "write": write, "over": over});
    caller.ask(&get).await.is("3");
    caller.ask(&get).await.is("3").is_hit();
    // One that had begun before anybody could be told.
    say(&talk, json!({"say": "over", "write": 1, "member": 7, "settled": true})).await;
    let mut heard = [hear(&mut talk).await.unwrap(), hear(&mut talk).await.unwrap()];
    heard.sort_by_key(|heard| heard["over"].as_bool());
    assert_eq!(heard, [told(1, false), told(1, true)]);
    caller.ask(&get).await.is("3").is_miss();
    caller.ask(&get).await.is("3").is_hit();
    // One that is under way: nothing is a hit until it is over.
    say(&talk, json!({"say": "begun", "write": 2, "member": 7})).await;
    assert_eq!(hear(&mut talk).await.unwrap(), told(2, false));
    caller.ask(&get).await.is("3").is_miss();
    say(&talk, json!({"say": "over", "write": 2, "member": 7, "settled": true})).await;
    assert_eq!(hear(&mut talk).await.unwrap(), told(2, true));
    caller.ask(&get).await.is("3").is_miss();
    caller.ask(&get).await.is("3").is_hit();
    // One whose process dies: nobody knows, so nothing is kept for a while.
    say(&talk, json!({"say": "begun", "write": 3, "member": 7})).await;
    assert_eq!(hear(&mut talk).await.unwrap(), told(3, false));
    drop(talk);
    eventually(PATIENCE, "it sees the end", || async { next.stderr().contains("has ended") }).await;
    for _ in 0..3 {
        caller.ask(&get).await.is("3").is_miss();
    }
}

#[tokio::test]
async fn a_write_of_which_no_more_is_heard_is_held_for_as_long_as_it_may_take_however_short_the_ttl() {
    let ttl = Duration::from_millis(500);
    let played = Played::of(gate().set("cache.points.ttl", r#""500ms""#)).await;
    let (mut next, mut talk) = played.give().await;
    say(&talk, json!({"say": "go"})).await;
    assert_eq!(hear(&mut talk).await.unwrap(), json!({"say": "taken"}));
    say(&talk, json!({"say": "yours"})).await;
    let mut caller = Connection::to(next.ready().await).await;
    say(&talk, json!({"say": "begun", "write": 1, "member": 7})).await;
    assert_eq!(hear(&mut talk).await.unwrap(), json!({"say": "heard", "write": 1, "over": false}));
    // The one that told of it is gone; it may have been told of it by another one, which goes on.
    drop(talk);
    eventually(PATIENCE, "it sees the end", || async { next.stderr().contains("has ended") }).await;
    let get = Request::post("/getPoints", "memberID=7").key(&played.gate.1["bot"]);
    let began = Instant::now();
    while began.elapsed() < 3 * ttl {
        caller.ask(&get).await.is("3").is_miss();
    }
}
