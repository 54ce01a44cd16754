//! `server.handover`: one server takes another's place, and callers do not notice.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::frames::{ACK, Frames, GOAWAY, PING, frame};
use crate::support::*;

fn gate(kind: Kind) -> Builder {
    TestGateway::on(kind).key("bot").points("7", 3).set("server.handover", r#""handover.sock""#)
}

/// Starts another server on this world, under a configuration of its own.
fn other(gate: &TestGateway, config: &str) -> Process {
    let path = gate.world().write("other.toml", config);
    Process::start(&mut gate.world().command(&["serve", "--config", path.to_str().unwrap()]))
}

#[tokio::test]
async fn an_idle_connection_is_told_in_its_next_answer_and_a_key_that_is_taken_out_stops_at_both() {
    let mut gate = gate(Kind::Builtin).keys_in_file().set("server.drain_timeout", r#""60s""#).start().await;
    let ask = gate.request("getPoints", "bot", "memberID=7");
    let (mut used, mut silent, mut pipelining) = (gate.connect().await, gate.connect().await, gate.connect().await);
    let mut check = gate.connect().await;
    check.ask(&Request::bare("GET", "/healthz")).await.is("ok");
    used.ask(&ask).await.is("3");
    pipelining.ask(&ask).await.is("3");
    let mut kept = Vec::new();
    for _ in 0..100 {
        let mut connection = gate.connect().await;
        connection.ask(&ask).await.is("3");
        kept.push(connection);
    }
    gate.get_points("bot", "7").await.is("3"); // accepted after them
    let mut before = gate.replace().await;
    before.has_said("handed over").await;
    assert!(check.ask(&Request::bare("GET", "/healthz")).await.is("ok").closes());
    assert!(used.ask(&ask).await.is("3").closes());
    used.is_closed().await;
    assert!(silent.ask(&ask).await.is("3").closes(), "it had asked for nothing yet");
    // What was sent before the answer said so is answered too.
    pipelining.send(ask.bytes().repeat(3)).await;
    let answers = [pipelining.answer().await, pipelining.answer().await, pipelining.answer().await];
    assert_eq!(answers.each_ref().map(|a| (a.is("3").status, a.closes())), [(200, false), (200, false), (200, true)]);
    // Both read the key file. Each answer of the one that drains is its connection's last.
    gate.world().write("keys.toml", "# nobody\n");
    eventually(PATIENCE, "the new one has read the file", || async { gate.send(&ask).await.status == 401 }).await;
    loop {
        let mut connection = kept.pop().expect("the one that drains lets the key in for ever");
        let answer = connection.ask(&ask).await;
        assert!(answer.closes());
        if answer.status == 401 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await; // 100 of them: 5 s for what takes one at most
    }
    drop(kept);
    assert_eq!(before.exit().await, Some(0), "{}", before.stderr()); // waits for 15 s, not for 60
}

#[tokio::test]
async fn what_one_writes_the_other_reads_at_once_and_nothing_is_kept_that_a_write_under_way_may_change() {
    let gate = gate(Kind::Http).set("server.drain_timeout", r#""60s""#).set("origin.timeout", r#""30s""#);
    let mut gate = gate.set("cache.points.ttl", r#""1h""#).start().await;
    let get = gate.request("getPoints", "bot", "memberID=7");
    let mut kept = [gate.connect().await, gate.connect().await];
    for connection in &mut kept {
        connection.ask(&get).await.is("3"); // and is in memory there
    }
    let mut before = gate.replace().await;
    let [mut first, mut second] = kept;
    gate.get_points("bot", "7").await.is("3").is_miss();
    // By the one before, and by the new one. Neither has anything in memory.
    assert_eq!(first.ask(&gate.request("setPoints", "bot", "memberID=7&amount=4")).await.status, 200);
    gate.get_points("bot", "7").await.is("4").is_miss();
    gate.set_points("bot", "7", 5).await;
    second.ask(&get).await.is("5").is_miss();
    gate.get_points("bot", "7").await.is("5").is_miss();
    assert_eq!(before.exit().await, Some(0), "{}", before.stderr());
    gate.has_said("answers no more requests").await;
    gate.get_points("bot", "7").await.is("5").is_miss();
    gate.get_points("bot", "7").await.is("5").is_hit();
    // A caller that takes no answer does not keep the next one from its memory.
    gate.origin().next("getWarns", Act::say(200, &format!("{{{}}}", "x".repeat(900_000))));
    let slow = gate.connect_and_send(gate.request("getWarns", "bot", "memberID=7").bytes().repeat(8)).await;
    gate.origin().has_been_asked("getWarns", 1).await;
    let mut old = gate.replace().await;
    gate.has_said("answers no more requests").await;
    assert!(!old.has_ended());
    gate.get_points("bot", "7").await.is("5");
    gate.get_points("bot", "7").await.is("5").is_hit();
    drop(slow);
    assert_eq!(old.exit().await, Some(0), "{}", old.stderr());
    until_a_write_at_the_old_one_has_ended_nothing_is_kept(&mut gate).await;
    a_write_whose_outcome_nobody_knows_is_known_to_those_that_take_over_after_its_end(&mut gate).await;
}

async fn until_a_write_at_the_old_one_has_ended_nothing_is_kept(gate: &mut TestGateway) {
    let asked = gate.origin().asked_about("setPoints", "7");
    let (mut writes, begun) = (gate.connect().await, Gate::shut());
    gate.origin().next("setPoints", Act::HoldAll(begun.clone()));
    writes.send(gate.request("setPoints", "bot", "memberID=7&amount=200").bytes()).await;
    gate.origin().has_been_asked("setPoints", asked + 1).await;
    let mut old = gate.replace().await;
    for _ in 0..3 {
        gate.get_points("bot", "7").await.is("5").is_miss();
    }
    drop(writes); // its caller is gone
    gate.get_points("bot", "7").await.is("5");
    gate.get_points("bot", "7").await.is("5").is_miss();
    begun.open();
    gate.has_said("answers no more requests").await;
    gate.get_points("bot", "7").await.is("200");
    gate.get_points("bot", "7").await.is("200").is_hit();
    assert_eq!(old.exit().await, Some(0));
    assert_eq!(gate.origin().asked_about("setPoints", "7"), asked + 1);
}

async fn a_write_whose_outcome_nobody_knows_is_known_to_those_that_take_over_after_its_end(gate: &mut TestGateway) {
    gate.reload_with("timeout = \"30s\"", "timeout = \"2s\"");
    gate.has_said("configuration reloaded").await;
    let begun = Gate::shut();
    gate.origin().next("setPoints", Act::HoldAll(begun.clone()));
    assert_eq!(gate.set_points("bot", "7", 300).await.code(), Some(22));
    for _ in 0..2 {
        assert_eq!(gate.replace().await.exit().await, Some(0));
        gate.has_said("answers no more requests").await;
        for _ in 0..2 {
            gate.get_points("bot", "7").await.is("200").is_miss(); // it may take effect yet
        }
    }
    begun.open();
    eventually(PATIENCE, "it takes effect", async || gate.get_points("bot", "7").await.body == "300").await;
}

#[tokio::test]
async fn a_new_one_that_cannot_serve_leaves_the_old_one_as_it_was() {
    let mut gate = gate(Kind::Builtin).set("server.drain_delay", r#""60s""#).start().await;
    let ask = gate.request("getPoints", "bot", "memberID=7");
    let mut kept = gate.connect().await;
    kept.ask(&ask).await.is("3");
    // A configuration that is wrong: nothing is even asked for.
    let mut broken = other(&gate, &gate.world().edited("gateway.toml", "handover", "handovr"));
    assert_eq!(broken.exit().await, Some(2), "{}", broken.stderr());
    assert!(!gate.stderr().contains("asks to take over"));
    // One that fails when it has the sockets already.
    gate.world().write("notes.db", "this is no store");
    let mut failing = other(&gate, &format!("{}[origin]\nstore = \"notes.db\"\n", gate.world().text("gateway.toml")));
    assert_eq!(failing.exit().await, Some(1), "{}", failing.stderr());
    gate.has_said("goes on as before").await;
    // One that is killed before it is ready; meanwhile a third one is turned away.
    let folder = std::fs::File::open(gate.world().path("")).unwrap();
    folder.lock().unwrap(); // as a store's opening does, so that the next one waits there
    let mut killed = gate.world().serve(&[]);
    let asks = |gate: &TestGateway, times| gate.stderr().matches("asks to take over").count() == times;
    eventually(PATIENCE, "it asks", || async { asks(&gate, 2) }).await;
    let mut third = gate.world().serve(&[]);
    assert_eq!(third.exit().await, Some(1));
    assert!(third.stderr().contains("did not answer within 5 s"), "{}", third.stderr());
    kept.ask(&ask).await.is("3").is_hit();
    killed.kill_hard();
    eventually(PATIENCE, "it goes on", || async { gate.stderr().matches("goes on as before").count() >= 2 }).await;
    folder.unlock().unwrap();
    assert!(!kept.ask(&ask).await.is("3").closes());
    gate.get_points("bot", "7").await.is("3").is_hit();
    // And it can be replaced all the same, which waits for no `server.drain_delay`, and may come while that passes.
    let mut before = gate.replace().await;
    assert!(kept.ask(&ask).await.is("3").closes());
    assert_eq!(before.exit().await, Some(0));
    const DELAYED: &str = "stopping after server.drain_delay";
    assert!(!before.stderr().contains(DELAYED), "{}", before.stderr());
    gate.process().signal(Signal::SIGTERM);
    gate.has_said(DELAYED).await;
    assert_eq!(gate.send(&Request::bare("GET", "/healthz")).await.status, 503);
    assert_eq!(gate.replace().await.exit().await, Some(0));
    gate.send(&Request::bare("GET", "/healthz")).await.is("ok");
    gate.get_points("bot", "7").await.is("3");
}

#[tokio::test]
async fn whichever_of_the_two_is_stopped_or_dies_amid_it_the_other_serves_at_the_addresses_of_its_configuration() {
    let listen = r#"["127.0.0.1:0", "unix:a.sock", "unix:b.sock"]"#;
    let mut gate = gate(Kind::Builtin).set("server.listen", listen).start().await;
    let folder = std::fs::File::open(gate.world().path("")).unwrap();
    folder.lock().unwrap(); // as a store's opening does, so that the new one waits there
    let mut next = gate.world().serve(&[]);
    gate.has_said("asks to take over").await;
    next.signal(Signal::SIGTERM);
    assert_eq!(next.exit().await, Some(0), "{}", next.stderr());
    gate.has_said("goes on as before").await;
    gate.get_points("bot", "7").await.is("3");
    let ask = gate.request("getPoints", "bot", "memberID=7");
    let mut next = gate.world().serve(&[]);
    let asks = async || gate.stderr().matches("asks to take over").count() == 2;
    eventually(PATIENCE, "it asks", asks).await;
    has_the_listener_of(gate.process(), &next).await;
    gate.process().signal(Signal::SIGTERM);
    assert_eq!(gate.process().exit().await, Some(0), "{}", gate.stderr());
    let mut early = gate.connect_and_send(ask.bytes()).await;
    folder.unlock().unwrap();
    assert_eq!(next.ready().await, gate.address());
    early.answer().await.is("3");
    *gate.process() = next;
    where_the_old_one_dies_amid_it_the_new_one_serves(&mut gate, &folder).await;
    a_unix_socket_and_new_addresses_go_over_as_the_new_configuration_says(&mut gate).await;
    a_socket_that_a_server_left_when_it_was_killed_is_nobody(&mut gate).await;
}

/// Waits until `next` has a socket of the process before it.
async fn has_the_listener_of(before: &Process, next: &Process) {
    let sockets = |process: &Process| -> Vec<PathBuf> {
        process.open_files().filter(|file| file.to_string_lossy().starts_with("socket:")).collect()
    };
    let before = sockets(before);
    let has_one = async || sockets(next).iter().any(|socket| before.contains(socket));
    eventually(PATIENCE, "it has the listener", has_one).await;
}

async fn where_the_old_one_dies_amid_it_the_new_one_serves(gate: &mut TestGateway, folder: &std::fs::File) {
    folder.lock().unwrap();
    let mut next = gate.world().serve(&[]);
    gate.has_said("asks to take over").await;
    let address = gate.address();
    has_the_listener_of(gate.process(), &next).await;
    gate.process().kill_hard();
    // The queue is there, though nobody accepts.
    let mut early = Connection::to(address).await;
    early.send(gate.request("getPoints", "bot", "memberID=7").bytes()).await;
    folder.unlock().unwrap();
    assert_eq!(next.ready().await, address);
    early.answer().await.is("3");
    *gate.process() = next;
}

async fn a_unix_socket_and_new_addresses_go_over_as_the_new_configuration_says(gate: &mut TestGateway) {
    let ask = gate.request("getPoints", "bot", "memberID=7");
    let is_served = async |name: &str, path: &Path| match tokio::net::UnixStream::connect(path).await {
        Ok(socket) => Connection::over(socket).ask(&ask).await.is("3").status == 200,
        Err(e) => {
            assert_eq!(e.kind(), std::io::ErrorKind::ConnectionRefused, "{name}");
            false
        }
    };
    let [a, b, c] = ["a.sock", "b.sock", "c.sock"].map(|name| gate.world().path(name));
    let file = std::fs::symlink_metadata(&a).unwrap();
    let new = gate.world().edited("gateway.toml", "unix:b.sock", "unix:c.sock");
    gate.world().write("gateway.toml", new);
    let mut before = gate.replace().await;
    assert_eq!(before.exit().await, Some(0), "{}", before.stderr());
    for (name, path, expected) in [("a", &a, true), ("b", &b, false), ("c", &c, true)] {
        assert_eq!(is_served(name, path).await, expected, "{name}");
    }
    use std::os::unix::fs::MetadataExt;
    assert_eq!(std::fs::symlink_metadata(&a).unwrap().ino(), file.ino(), "the socket was made again");
    gate.get_points("bot", "7").await.is("3");
}

async fn a_socket_that_a_server_left_when_it_was_killed_is_nobody(gate: &mut TestGateway) {
    eventually(PATIENCE, "its socket", || async { gate.world().path("handover.sock").exists() }).await;
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("3");
    assert_eq!(gate.replace().await.exit().await, Some(0));
}

#[tokio::test]
async fn what_is_written_down_is_whole_after_it_and_the_admin_listener_answers_throughout() {
    let mut gate = gate(Kind::Builtin)
        .set("log.access", r#""access.log""#)
        .set("log.decisions", r#""decisions.log""#)
        .set("limits.tiers.standard.daily", "1000")
        .admin()
        .start()
        .await;
    // Meanwhile the admin listener answers throughout.
    let (admin, crowd) = (gate.admin().await, Arc::new(Crowd::default()));
    let asked = crowd.clone();
    let asks = tokio::spawn(async move {
        while asked.goes_on() {
            admin.get("/api/status").await.is(200);
            asked.answered.fetch_add(1, Ordering::Relaxed);
        }
    });
    let (rounds, each) = (2, 5);
    let mut befores = Vec::new();
    for _ in 0..rounds {
        for _ in 0..each {
            gate.get_points("bot", "7").await.is("3");
        }
        befores.push(gate.replace().await);
        crowd.answers(20).await;
        gate.get_points("bot", "7").await.is("3"); // while those before may still write
    }
    for mut before in befores {
        assert_eq!(before.exit().await, Some(0), "{}", before.stderr());
        assert!(!before.stderr().contains("are lost"), "{}", before.stderr());
        assert!(!before.stderr().contains("could not be written"), "{}", before.stderr());
    }
    gate.has_said("answers no more requests").await;
    crowd.answers(20).await;
    crowd.end();
    Crowd::all(vec![asks]).await;
    assert_eq!(gate.stop().await, Some(0), "{}", gate.stderr());
    let all = rounds * (each + 1);
    let access = gate.world().text("access.log");
    assert_eq!(access.lines().filter(|line| line.contains(" getPoints ")).count(), all, "{access}");
    let said = gate.run(&["limits", "suggest", "--log", "decisions.log", "--json"]).done();
    assert_eq!(said.list()[0]["requests"], all, "{said:#?}");
    // What every one of them counted of the day is in the store.
    gate.world().edit("gateway.toml", "daily = 1000", &format!("daily = {}", all + 1));
    gate.restart_after_kill().await;
    gate.get_points("bot", "7").await.is("3");
    gate.get_points("bot", "7").await.is_too_many();
}

#[tokio::test]
async fn http2_is_told_in_two_steps_and_nothing_sent_in_between_is_lost() {
    let mut gate = gate(Kind::Builtin).tls().set("server.drain_timeout", r#""60s""#).start().await;
    let header = crate::support::frames::header(&gate, "/getPoints");
    let ask = |stream| {
        let head = frame(frames::HEADERS, frames::END_HEADERS, stream, &header);
        [head, frame(frames::DATA, frames::END_STREAM, stream, b"memberID=7")].concat()
    };
    let mut peer: Frames = gate.frames().await;
    peer.send(ask(1)).await;
    assert_eq!(peer.outcome(1).await, Ok("3".to_owned()));
    let mut before = gate.replace().await;
    let (mut last, mut ping) = (None, None);
    while last.is_none() || ping.is_none() {
        let frame = peer.next().await.expect("an end without a word");
        match (frame.kind, frame.flags & ACK) {
            (GOAWAY, _) => last = Some(frame.payload),
            (PING, 0) => ping = Some(frame.payload),
            _ => {}
        }
    }
    // "No new streams, please", and no fault: every stream that is on its way counts.
    assert_eq!(last.unwrap()[..8], [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    peer.send(ask(3)).await;
    assert_eq!(peer.outcome(3).await, Ok("3".to_owned()));
    peer.send(frame(PING, ACK, 0, &ping.unwrap())).await;
    // Now that it has heard: the last one that was answered.
    let said = loop {
        let frame = peer.next().await.expect("an end without a word");
        if frame.kind == GOAWAY {
            break frame.payload;
        }
    };
    assert_eq!(said[..8], [0, 0, 0, 3, 0, 0, 0, 0]);
    assert_eq!(before.exit().await, Some(0), "{}", before.stderr());
}

/// What keeps a service's watchdog calm.
const WATCHDOG: &str = "WATCHDOG=1\n";

#[tokio::test]
async fn the_service_manager_is_told_who_serves() {
    let (world, origin, secrets) = gate(Kind::Builtin).prepare().await;
    assert!(origin.is_none() && secrets.len() == 1);
    let manager = std::os::unix::net::UnixDatagram::bind(world.path("notify.sock")).unwrap();
    // Read all the time: a full queue would hold the sender up.
    let (heard, messages) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        while let Ok(length) = manager.recv(&mut buffer) {
            let _ = heard.send(String::from_utf8_lossy(&buffer[..length]).into_owned()); // the test may have ended
        }
    });
    let told_next = || messages.recv_timeout(PATIENCE).expect("it is told nothing");
    let told = || std::iter::repeat_with(told_next).find(|told| told != WATCHDOG).unwrap();
    let serve = || {
        let mut command = world.command(&["serve"]);
        Process::start(command.env("NOTIFY_SOCKET", world.path("notify.sock")))
    };
    let mut first = serve();
    first.ready().await;
    assert_eq!(told(), "READY=1\n");
    for _ in 0..2 {
        assert_eq!(told_next(), WATCHDOG);
    }
    let mut second = serve();
    second.ready().await;
    assert_eq!(told(), format!("READY=1\nMAINPID={}\n", second.id()));
    assert_eq!(first.exit().await, Some(0));
    messages.try_iter().for_each(drop); // what the first one said
    assert_eq!(told_next(), WATCHDOG, "the process that took over notifies the watchdog as well");
    second.signal(Signal::SIGTERM);
    assert_eq!(second.exit().await, Some(0));
    assert_eq!(told(), "STOPPING=1\n", "the one that handed over is not the service's end");
}
