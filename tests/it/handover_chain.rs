//! `server.handover` among three servers: the first drains with a write under way, the second has taken over from it,
//! and the third takes over from the second (guarantee 2).

use std::os::fd::AsFd;
use std::time::Duration;

use guildgate::process::handover::{HandoverListener, PeerConnection};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::*;

/// How long a process is watched that must not end. One that ends in error takes a few milliseconds.
const WATCHED: Duration = Duration::from_millis(500);

/// A `server.drain_timeout` that is over long before the write under way is answered.
const SHORT_DRAIN: &str = r#""100ms""#;

/// The first server with a write under way, which the origin does once `write` opens, and the second, which has taken
/// over from it: `gate`'s process.
struct Chain {
    gate: TestGateway,
    first: Process,
    caller: Connection,
    write: Gate,
}

impl Chain {
    async fn new() -> Chain {
        Chain::with_second(|config| config).await
    }

    /// `change` makes the second server's configuration from the first one's.
    async fn with_second(change: impl FnOnce(String) -> String) -> Chain {
        let mut gate = TestGateway::before_http()
            .key("bot")
            .points("7", 3)
            .set("server.handover", r#""handover.sock""#)
            .set("server.drain_timeout", r#""60s""#)
            .set("cache.points.ttl", r#""1h""#)
            .start()
            .await;
        let (mut caller, write) = (gate.connect().await, Gate::shut());
        caller.ask(&gate.request("getPoints", "bot", "memberID=7")).await.is("3");
        gate.origin().next("setPoints", Act::HoldAll(write.clone()));
        caller.send(gate.request("setPoints", "bot", "memberID=7&amount=4").bytes()).await;
        gate.origin().has_been_asked("setPoints", 1).await;
        let config = gate.world().text("gateway.toml");
        let second = gate.world().write("second.toml", change(config));
        let second = Process::start(&mut gate.world().command(&["serve", "--config", second.to_str().unwrap()]));
        let first = gate.replace_by(second).await;
        Chain { gate, first, caller, write }
    }

    async fn is_not_kept(&self, points: &str) {
        for _ in 0..3 {
            self.gate.get_points("bot", "7").await.is(points).is_miss();
        }
    }

    /// A read that the origin answers once the gate opens, with the value from before the write.
    async fn slow_read(&self) -> (Connection, Gate) {
        let (mut reader, hold) = (self.gate.connect().await, Gate::shut());
        let asked = self.gate.origin().asked("getPoints");
        self.gate.origin().next("getPoints", Act::HoldAnswer(hold.clone()));
        reader.send(self.gate.request("getPoints", "bot", "memberID=7").bytes()).await;
        self.gate.origin().has_been_asked("getPoints", asked + 1).await;
        (reader, hold)
    }

    /// Lets the origin do the write. From its answer on, every read gives what was written, while a read from before it
    /// is still under way and after that one's answer.
    async fn write_is_seen(&mut self) {
        let (mut reader, hold) = self.slow_read().await;
        self.write.open();
        self.caller.answer().await.is("Successfully set 'Ada' points to '4'");
        self.gate.get_points("bot", "7").await.is("4");
        hold.open();
        reader.answer().await.is("3");
        for _ in 0..3 {
            self.gate.get_points("bot", "7").await.is("4");
        }
    }

    async fn is_kept(&self, points: &str) {
        let is_hit = || async { self.gate.get_points("bot", "7").await.is(points).was_hit() };
        eventually(PATIENCE, "a hit", is_hit).await;
    }

    /// Puts itself between the second server and the next one, and passes their messages on. The second server is sent
    /// `signal` when it has said "go"; what it says afterwards is passed on once `rest` opens, and never if it was
    /// killed.
    fn interrupt_at_go(&self, signal: Signal, rest: Gate) -> JoinHandle<()> {
        let (path, moved) = (self.gate.world().path("handover.sock"), self.gate.world().path("moved.sock"));
        std::fs::rename(&path, &moved).unwrap();
        let mut listener = HandoverListener::prepare(&path).unwrap();
        listener.publish().unwrap();
        tokio::spawn(async move {
            let mut next = listener.accept().await.unwrap();
            let mut second = PeerConnection::connect(&moved).await.unwrap().unwrap();
            let mut is_held = false;
            loop {
                let (frame, is_of_second) = tokio::select! {
                    frame = next.receive() => (frame, false),
                    frame = second.receive(), if !is_held => (frame, true),
                    () = rest.passed(), if is_held => {
                        is_held = false;
                        continue;
                    }
                };
                let Ok(Some((message, socket))) = frame else { return };
                let is_go = is_of_second && serde_json::from_slice::<Value>(&message).unwrap()["say"] == "go";
                if is_go {
                    kill(Pid::from_raw(second.pid()), signal).unwrap();
                }
                let to = if is_of_second { &next } else { &second };
                let passed = to.send(&message, socket.as_ref().map(AsFd::as_fd)).await;
                if passed.is_err() || is_go && signal == Signal::SIGKILL {
                    return;
                }
                is_held |= is_go;
            }
        })
    }
}

#[tokio::test]
async fn guarantee_2_the_third_keeps_nothing_amid_a_write_of_the_first() {
    let mut chain = Chain::new().await;
    let mut second = chain.gate.replace().await;
    chain.is_not_kept("3").await;
    chain.write_is_seen().await;
    chain.is_kept("4").await;
    drop(chain.caller);
    assert_eq!((chain.first.exit().await, second.exit().await), (Some(0), Some(0)));
}

#[tokio::test]
async fn guarantee_2_the_third_waits_for_a_write_of_the_first_when_it_is_stopped() {
    let mut chain = Chain::new().await;
    let mut second = chain.gate.replace().await;
    let mut idle = chain.gate.connect().await;
    idle.ask(&chain.gate.request("getPoints", "bot", "memberID=7")).await.is("3");
    chain.gate.process().signal(Signal::SIGTERM);
    idle.is_closed().await;
    // It has no connection left, but another server that starts now would know nothing of the write.
    assert!(timeout(WATCHED, chain.gate.process().exit()).await.is_err(), "{}", chain.gate.stderr());
    assert!(!second.has_ended() && !chain.first.has_ended());
    chain.write.open();
    chain.caller.answer().await.is("Successfully set 'Ada' points to '4'");
    drop(chain.caller);
    for process in [&mut chain.first, &mut second, chain.gate.process()] {
        assert_eq!(process.exit().await, Some(0), "{}", process.stderr());
    }
}

#[tokio::test]
async fn guarantee_2_a_write_outlives_the_second_whose_drain_timeout_is_shorter_than_the_firsts() {
    for is_reload in [false, true] {
        let shorter = |config: String| config.replace(r#""60s""#, SHORT_DRAIN);
        let mut chain = match is_reload {
            false => Chain::with_second(shorter).await,
            true => Chain::new().await,
        };
        if is_reload {
            for name in ["gateway.toml", "second.toml"] {
                let config = chain.gate.world().text(name);
                chain.gate.world().write(name, shorter(config));
            }
            for process in [&chain.first, chain.gate.process()] {
                process.signal(Signal::SIGHUP);
                process.has_said("configuration reloaded").await;
            }
        }
        let mut second = chain.gate.replace().await;
        // The first one waits for as long as its own `drain_timeout` was when it handed over, and the second for it.
        assert!(timeout(WATCHED, chain.first.exit()).await.is_err(), "{}", chain.first.stderr());
        assert!(!second.has_ended(), "{}", second.stderr());
        chain.is_not_kept("3").await;
        chain.write_is_seen().await;
        drop(chain.caller);
        for process in [&mut chain.first, &mut second] {
            assert_eq!(process.exit().await, Some(0), "{}", process.stderr());
        }
    }
}

#[tokio::test]
async fn guarantee_2_where_the_second_is_killed_before_it_has_reported_the_write_the_third_keeps_nothing() {
    let mut chain = Chain::new().await;
    let passing_on = chain.interrupt_at_go(Signal::SIGKILL, Gate::shut());
    let third = chain.gate.world().serve(&[]);
    let mut second = chain.gate.replace_by(third).await;
    passing_on.await.unwrap();
    assert_eq!(second.exit().await, None, "it was not killed");
    assert!(chain.gate.stderr().contains("the predecessor has ended"), "{}", chain.gate.stderr());
    chain.is_not_kept("3").await;
    chain.write_is_seen().await;
    drop(chain.caller);
    assert_eq!(chain.first.exit().await, Some(0), "{}", chain.first.stderr());
}

#[tokio::test]
async fn guarantee_2_where_the_second_stands_still_before_it_has_reported_the_write_the_third_keeps_nothing() {
    let mut chain = Chain::new().await;
    let rest = Gate::shut();
    let _passing_on = chain.interrupt_at_go(Signal::SIGSTOP, rest.clone());
    let mut third = chain.gate.world().serve(&[]);
    assert_eq!(third.ready().await, chain.gate.address());
    chain.is_not_kept("3").await;
    chain.gate.set_points("bot", "7", 9).await.is_unavailable();
    assert_eq!(chain.gate.origin().asked("setPoints"), 1);
    chain.write_is_seen().await;
    chain.gate.process().signal(Signal::SIGCONT);
    rest.open();
    let mut second = chain.gate.replace_by(third).await;
    chain.is_kept("4").await;
    chain.gate.set_points("bot", "7", 5).await.is("Successfully set 'Ada' points to '5'");
    chain.is_kept("5").await;
    drop(chain.caller);
    assert_eq!((chain.first.exit().await, second.exit().await), (Some(0), Some(0)));
}
