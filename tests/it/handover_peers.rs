//! `server.handover` with another process that the test plays: one that lies, stalls, leaves or comes too late harms
//! nobody's callers, and at no time do two servers each take themselves for the only one.

use std::os::fd::AsFd;

use guildgate::process::handover::{HandoverListener, PeerConnection};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::*;

/// The version of the messages.
const VERSION: u32 = 4;

fn gate(kind: Kind) -> Builder {
    TestGateway::on(kind).key("bot").points("7", 3).points("8", 3).set("server.handover", r#""handover.sock""#)
}

fn send(peer: &PeerConnection, message: Value) {
    peer.send(message.to_string().as_bytes(), &[]).unwrap();
}

/// The next message; `None`: the other process has closed the connection.
async fn receive(peer: &PeerConnection) -> Option<Value> {
    let received = timeout(PATIENCE, peer.receive()).await.expect("neither a message nor an end");
    let (message, _sockets) = received.ok()??;
    Some(serde_json::from_slice(&message).unwrap())
}

/// Connects to a running server, as a successor does.
async fn connect(gate: &TestGateway, version: u32, schema: i64) -> PeerConnection {
    let path = gate.world().path("handover.sock");
    eventually(PATIENCE, "its socket", || async { path.exists() }).await;
    let peer = PeerConnection::connect(&path).unwrap().expect("nobody listens");
    send(&peer, json!({"say": "hello", "version": version, "schema": schema, "later": true}));
    peer
}

/// The same, up to the sockets.
async fn connect_for_sockets(gate: &TestGateway, schema: i64) -> PeerConnection {
    let peer = connect(gate, VERSION, schema).await;
    assert_eq!(receive(&peer).await.unwrap(), json!({"say": "sockets", "names": ["127.0.0.1:0"]}));
    peer
}

/// The same, up to the moment from which it may accept.
async fn connect_until_it_may_accept(gate: &TestGateway, schema: i64) -> PeerConnection {
    let peer = connect_for_sockets(gate, schema).await;
    send(&peer, json!({"say": "ready"}));
    assert_eq!(receive(&peer).await.unwrap(), json!({"say": "yours"}));
    peer
}

async fn refusal(peer: PeerConnection) -> String {
    loop {
        match receive(&peer).await {
            Some(said) if said["say"] == "refused" => return said["why"].as_str().unwrap().to_owned(),
            Some(_) => {}
            None => panic!("it closed the connection without a message"),
        }
    }
}

async fn goes_on(gate: &TestGateway, kept: &mut Connection, times: usize) {
    let said = || gate.stderr().matches("goes on as before").count() >= times;
    eventually(PATIENCE, "it goes on", || async { said() }).await;
    let answer = kept.ask(&gate.request("getPoints", "bot", "memberID=7")).await;
    assert!(!answer.is("3").closes());
    gate.get_points("bot", "7").await.is("3").is_hit();
}

/// A predecessor that the test plays.
struct PlayedPredecessor {
    gate: (World, std::collections::HashMap<String, String>),
    _origin: Option<ScriptedOrigin>,
    handover: HandoverListener,
    listener: std::net::TcpListener,
}

impl PlayedPredecessor {
    async fn new(kind: Kind) -> PlayedPredecessor {
        let gate = gate(kind).set("cache.points.ttl", r#""1s""#);
        let gate = if kind == Kind::Http { gate.set("origin.timeout", r#""1s""#) } else { gate };
        let (world, origin, secrets) = gate.prepare().await;
        let mut handover = HandoverListener::prepare(&world.path("handover.sock")).unwrap();
        handover.publish().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        PlayedPredecessor { gate: (world, secrets), _origin: origin, handover, listener }
    }

    /// Starts a server, which asks to take over for a store of this schema.
    async fn accept(&self) -> ((Process, PeerConnection), i64) {
        let next = self.gate.0.serve(&[]);
        let peer = timeout(PATIENCE, self.handover.accept()).await.expect("nobody asks").unwrap();
        let hello = receive(&peer).await.unwrap();
        assert_eq!((&hello["say"], &hello["version"]), (&json!("hello"), &json!(VERSION)));
        ((next, peer), hello["schema"].as_i64().unwrap())
    }

    /// Starts a server and gives it the socket.
    async fn give_socket(&self) -> (Process, PeerConnection) {
        let ((next, peer), _) = self.accept().await;
        let sockets = json!({"say": "sockets", "names": ["127.0.0.1:0"]}).to_string();
        peer.send(sockets.as_bytes(), &[self.listener.as_fd()]).unwrap();
        (next, peer)
    }

    /// The same, up to the moment from which it may accept.
    async fn give_way(&self) -> (Process, PeerConnection) {
        let (next, peer) = self.give_socket().await;
        assert_eq!(receive(&peer).await.unwrap(), json!({"say": "ready"}));
        send(&peer, json!({"say": "yours"}));
        (next, peer)
    }

    /// The same, up to the moment from which it serves.
    async fn give_place(&self) -> (Process, PeerConnection) {
        let (mut next, peer) = self.give_way().await;
        assert_eq!(receive(&peer).await.unwrap(), json!({"say": "accepting"}));
        next.ready().await;
        (next, peer)
    }

    /// Listens again, after a server took its place.
    fn is_there_again(&mut self) {
        self.handover = HandoverListener::prepare(&self.gate.0.path("handover.sock")).unwrap();
        self.handover.publish().unwrap();
    }

    async fn get(&self, member: &str) -> Answer {
        let mut connection = Connection::to(self.listener.local_addr().unwrap()).await;
        connection.ask(&Request::post("/getPoints", format!("memberID={member}")).key(&self.gate.1["bot"])).await
    }

    async fn is_kept(&self, member: &str) {
        let is_kept = async || self.get(member).await.is("3").was_hit();
        eventually(PATIENCE, "the answer is kept", is_kept).await;
    }
}

#[tokio::test]
async fn one_that_lies_is_sent_away_and_nothing_is_kept_until_the_old_one_is_done_and_its_writes_are_settled() {
    let mut played = PlayedPredecessor::new(Kind::Http).await;
    let ((mut killed, _peer), schema) = played.accept().await;
    killed.kill_hard();
    a_new_one_that_lies_stalls_or_leaves_before_it_accepts_is_sent_away(schema).await;
    let (mut next, peer) = played.give_place().await;
    for _ in 0..3 {
        played.get("7").await.is("3").is_miss();
    }
    send(&peer, json!({"say": "done", "unsettled_for": {"secs": 1, "nanos": 0}}));
    next.has_said("answers no more requests").await;
    for _ in 0..2 {
        played.get("7").await.is("3").is_miss();
    }
    played.is_kept("7").await;
    next.kill_hard();
    played.is_there_again();
    // One that ends without a word of its writes.
    for accepts in [false, true] {
        let (mut next, peer) = if accepts { played.give_place().await } else { played.give_way().await };
        drop(peer);
        next.has_said("without a word of its writes").await;
        for _ in 0..3 {
            played.get("7").await.is("3").is_miss();
        }
        played.is_kept("7").await;
        next.kill_hard();
        played.is_there_again();
    }
}

/// `schema`: that of the store which a server of this version writes.
async fn a_new_one_that_lies_stalls_or_leaves_before_it_accepts_is_sent_away(schema: i64) {
    let gate = gate(Kind::Builtin).start().await;
    let mut kept = gate.connect().await;
    // Of another version, or for another store.
    let why = refusal(connect(&gate, VERSION + 1, schema).await).await;
    assert!(why.contains(&format!("version {VERSION}")) && why.contains("stop it"), "{why}");
    goes_on(&gate, &mut kept, 1).await;
    let why = refusal(connect(&gate, VERSION, schema + 1).await).await;
    assert!(why.contains(&format!("schema {schema}")) && why.contains("stop it"), "{why}");
    goes_on(&gate, &mut kept, 2).await;
    // Out of turn, or nonsense.
    for (times, lie) in [json!({"say": "accepting"}), json!("x"), json!({"say": "yield"})].into_iter().enumerate() {
        let peer = connect_for_sockets(&gate, schema).await;
        send(&peer, lie);
        refusal(peer).await;
        goes_on(&gate, &mut kept, times + 3).await;
    }
    // Gone with the sockets, and when it may accept.
    drop(connect_for_sockets(&gate, schema).await);
    goes_on(&gate, &mut kept, 6).await;
    let peer = connect_until_it_may_accept(&gate, schema).await;
    let get = gate.request("getPoints", "bot", "memberID=7");
    for _ in 0..2 {
        kept.ask(&get).await.is("3").is_miss(); // another one may serve
    }
    drop(peer);
    goes_on(&gate, &mut kept, 7).await;
}
