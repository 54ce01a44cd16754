//! Guarantee 6 and contract section 3, the last paragraph: reloads under full load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sys::signal::Signal;

use crate::support::*;

/// How often the file is reloaded; `scripts/reloads` does so for longer.
fn times() -> usize {
    std::env::var("GUILDGATE_RELOADS").map_or(30, |times| times.parse().unwrap())
}

/// Asks for the same member until told to stop; every answer must be the right one.
async fn load(gate: &TestGateway, stop: Arc<AtomicBool>, answered: Arc<AtomicU64>) -> tokio::task::JoinHandle<()> {
    let mut connection = gate.connect().await;
    let request = gate.request("getPoints", "bot", "memberID=7");
    tokio::spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            connection.ask(&request).await.is("3");
            answered.fetch_add(1, Ordering::Relaxed);
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reloads_under_load_fail_no_request_refill_no_bucket_and_take_no_memory() {
    let mut gate = TestGateway::builder()
        .key("bot")
        .key_of_tier("slow", "slow")
        .points("7", 3)
        .set("limits.tiers.slow.rate", r#""1/h""#)
        .set("limits.tiers.slow.burst", "2")
        .set("log.access", r#""""#)
        .start()
        .await;
    let two = gate.world().text("gateway.toml");
    let five = gate.world().edited("gateway.toml", "burst = 2\n", "burst = 5\n");
    for _ in 0..2 {
        gate.get_points("slow", "7").await.is("3");
    }
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut callers = Vec::new();
    for _ in 0..3 {
        callers.push(load(&gate, Arc::clone(&stop), Arc::clone(&answered)).await);
    }
    let mut slow = gate.connect().await;
    let request = gate.request("getPoints", "slow", "memberID=7");
    let mut resident = Vec::new();
    let times = times();
    for n in 0..times {
        let (config, policy) = if n % 2 == 0 { (&five, "\"slow\";q=5;") } else { (&two, "\"slow\";q=2;") };
        gate.world().write("gateway.toml", config);
        gate.process().signal(Signal::SIGHUP);
        // Refused before, during and after each reload, and held to the new tier from the first answer on that says so.
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let answer = slow.ask(&request).await;
            answer.is_too_many();
            if answer.header("ratelimit-policy").unwrap().starts_with(policy) {
                break;
            }
            assert!(std::time::Instant::now() < end, "reload {n} is not in force");
        }
        if n % 10 == 9 {
            resident.push(gate.resident_kib());
        }
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(answered.load(Ordering::Relaxed) > times as u64, "there was no load to speak of");
    assert!(resident[resident.len() - 1] < resident[0] + 8 * 1024, "resident KiB after every ten: {resident:?}");
    assert!(!gate.stderr().contains("rejected"), "{}", gate.stderr());
}
