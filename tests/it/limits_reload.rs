//! Guarantee 6 and contract section 3, the last paragraph: reloads under full load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

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

/// The burst that is lowered to one and raised again, and how many come back in a second meanwhile.
const BURST: usize = 40;
const RATE: usize = 5;

/// A way in which a key's limits become other ones.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// The numbers of its tier change.
    Reload,
    /// It gets another tier.
    KeySet,
}

/// A gate whose standard tier has this rate and burst, with the key that is tried and one that shows what is in force.
fn limited(builder: Builder) -> Builder {
    let builder = builder.key("bot").key("watch").points("7", 3);
    let (rate, burst) = (format!("\"{RATE}/s\""), BURST.to_string());
    builder.set("limits.tiers.standard.rate", &rate).set("limits.tiers.standard.burst", &burst)
}

/// Everywhere that keys may be known.
fn everywhere() -> [(&'static str, Builder); 5] {
    [
        ("builtin, keys in the store", TestGateway::builder()),
        ("builtin, keys in a file", TestGateway::builder().keys_in_file()),
        ("http, keys in the store", TestGateway::before_http().keys_in_store()),
        ("http, keys in a file", TestGateway::before_http().keys_in_file()),
        ("http, keys at the origin", TestGateway::before_http().keys_at_the_origin()),
    ]
}

/// How many of N requests are let in, one after the other.
async fn let_in(connection: &mut Connection, request: &Request, times: usize) -> usize {
    let mut count = 0;
    for _ in 0..times {
        count += usize::from(connection.ask(request).await.code() != Some(12));
    }
    count
}

/// Gives everybody this burst, and waits until the answers say so.
async fn change(gate: &mut TestGateway, by: By, burst: usize) {
    match by {
        By::Reload => {
            let numbers: Vec<String> = [1, BURST].iter().map(|burst| format!("burst = {burst}\n")).collect();
            let (from, to) = if burst == 1 { (&numbers[1], &numbers[0]) } else { (&numbers[0], &numbers[1]) };
            gate.reload_with(from, to);
        }
        By::KeySet => {
            let tier = if burst == 1 { "small" } else { "standard" };
            for key in ["bot", "watch"] {
                gate.run(&["key", "set", &gate.key_id(key), "--tier", tier]).done();
            }
        }
    }
    let q = format!(";q={burst};");
    eventually(PATIENCE, &format!("a burst of {burst} in force"), || async {
        gate.get_points("watch", "7").await.header("ratelimit-policy").unwrap().contains(&q)
    })
    .await;
}

/// Waits until a bucket of one is full again: for two requests of another key, under the same limits.
async fn is_full_with_one(gate: &TestGateway, others: &Request) {
    let (mut connection, mut twice, end) = (gate.connect().await, 0, Instant::now() + PATIENCE);
    while twice < 2 {
        twice += let_in(&mut connection, others, 1).await;
        assert!(Instant::now() < end, "nothing comes back under a burst of one");
    }
}

/// Uses up a burst of 40, waits with one of 1, and asks again under 40: no more are let in than the largest burst and
/// what came back meanwhile.
async fn lowered_and_raised(what: &str, mut gate: TestGateway, by: By, request: Request, others: Request) {
    // The first of all proves its key where only the origin can.
    gate.get_points("watch", "7").await.is("3");
    let (mut connection, begun) = (gate.connect().await, Instant::now());
    let mut all = let_in(&mut connection, &request, 2 * BURST).await;
    assert!(all >= BURST, "{what}: {all} of the first burst");
    change(&mut gate, by, 1).await;
    let end = begun + PATIENCE;
    let mut once = 0;
    while once == 0 {
        once = let_in(&mut connection, &request, 1).await;
        assert!(Instant::now() < end, "{what}: nothing comes back under a burst of 1");
    }
    is_full_with_one(&gate, &others).await;
    change(&mut gate, by, BURST).await;
    all += once + let_in(&mut connection, &request, 2 * BURST).await;
    let most = BURST + 1 + RATE * begun.elapsed().as_millis() as usize / 1000;
    assert!(all <= most, "{what}: {all} were let in, and {most} may be");
}

#[tokio::test]
async fn a_burst_that_is_lowered_and_raised_again_is_no_second_one_for_a_key() {
    for (what, builder) in everywhere() {
        let gate = limited(builder).start().await;
        let [request, others] = ["bot", "watch"].map(|key| gate.request("getPoints", key, "memberID=7"));
        lowered_and_raised(what, gate, By::Reload, request, others).await;
    }
}

#[tokio::test]
async fn a_key_that_gets_a_smaller_tier_and_its_own_again_has_no_second_burst() {
    for (what, builder) in everywhere().into_iter().filter(|(what, _)| what.ends_with("in the store")) {
        let small =
            builder.set("limits.tiers.small.rate", &format!("\"{RATE}/s\"")).set("limits.tiers.small.burst", "1");
        let gate = limited(small).start().await;
        let [request, others] = ["bot", "watch"].map(|key| gate.request("getPoints", key, "memberID=7"));
        lowered_and_raised(what, gate, By::KeySet, request, others).await;
    }
}
