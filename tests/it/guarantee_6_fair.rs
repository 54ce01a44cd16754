//! Contract section 5, guarantee 6: at most `burst + rate * T`, and nobody pays for a neighbour.

use std::time::{Duration, Instant};

use crate::support::*;

fn limited(rate: &str, burst: &str) -> Builder {
    TestGateway::builder()
        .points("7", 3)
        .set("limits.tiers.slow.rate", &format!("{rate:?}"))
        .set("limits.tiers.slow.burst", burst)
        .key_of_tier("slow", "slow")
        .key("bot")
}

#[tokio::test]
async fn guarantee_6_a_key_is_let_through_at_most_burst_plus_rate_times_t() {
    let gate = limited("20/s", "10").start().await;
    let start = Instant::now();
    let mut callers = Vec::new();
    for _ in 0..4 {
        let mut connection = gate.connect().await;
        let request = gate.request("getPoints", "slow", "memberID=7");
        callers.push(tokio::spawn(async move {
            let (mut let_in, mut refused) = (0.0, 0);
            while start.elapsed() < Duration::from_millis(700) {
                match connection.ask(&request).await {
                    answer if answer.status == 200 => let_in += 1.0,
                    answer => {
                        answer.is_too_many();
                        refused += 1;
                    }
                }
            }
            (let_in, refused)
        }));
    }
    let (mut let_in, mut refused) = (0.0, 0);
    for caller in callers {
        let (more, less) = caller.await.unwrap();
        let_in += more;
        refused += less;
    }
    let most = 10.0 + 20.0 * start.elapsed().as_secs_f64();
    assert!(let_in <= most, "{let_in} were let in, {most} at most");
    assert!(let_in > 10.0 && refused > 0, "{let_in} let in, {refused} refused: the limit was not met");
}

#[tokio::test]
async fn guarantee_6_who_pays_for_what() {
    let mut gate = limited("1/h", "3").key_of_tier("neighbour", "slow");
    gate = gate.set("limits.strangers.rate", r#""1/h""#).set("limits.strangers.burst", "4");
    let units = [("1/s", 1), ("1/m", 60), ("1/h", 3600), ("1/d", 86400)];
    for (tier, (rate, _)) in ["second", "minute", "hour", "day"].into_iter().zip(units) {
        gate = gate.set(&format!("limits.tiers.{tier}.rate"), &format!("{rate:?}")).key_of_tier(tier, tier);
        gate = gate.set(&format!("limits.tiers.{tier}.burst"), "1");
    }
    let gate = gate.start_here().await;
    // A neighbour's traffic costs a key nothing.
    for _ in 0..20 {
        gate.get_points("neighbour", "7").await;
    }
    gate.get_points("neighbour", "7").await.is_too_many();
    // What is refused before the key costs nothing.
    let key = gate.secret("slow");
    for _ in 0..5 {
        assert_eq!(gate.send(&Request::post("/nothing", "").key(key)).await.code(), Some(10));
        assert_eq!(gate.send(&Request::bare("GET", "/getPoints").key(key)).await.code(), Some(11));
        assert_eq!(gate.send(&Request::post("/getPoints", "x".repeat(5000)).key(key)).await.code(), Some(14));
        assert_eq!(gate.send(&Request::post("/getPoints", "").key(key).without("Host")).await.code(), Some(16));
    }
    // A stranger pays by its address, and a good key from there goes on.
    for i in 0..2 {
        let stranger = Request::post("/getPoints", "memberID=7");
        gate.send(&stranger.clone().key(&format!("nobody {i}"))).await.is_refused(401, INCORRECT_KEY);
        gate.send(&stranger).await.is_refused(401, NO_KEY);
    }
    let mistyped = format!("{key}x");
    for stranger in ["nobody", "another", &mistyped, ""] {
        let answer = gate.send(&Request::post("/getPoints", "memberID=7").key(stranger)).await;
        answer.is_too_many();
        assert_eq!(answer.header("ratelimit"), None, "a stranger's budget is nobody's policy");
    }
    for _ in 0..3 {
        gate.get_points("slow", "7").await.is("3");
    }
    gate.get_points("slow", "7").await.is_too_many();
    for _ in 0..50 {
        gate.get_points("bot", "7").await.is("3");
    }
    // A caller that is no trusted proxy cannot choose who pays; behind one each client has a budget of its own.
    let from = |n| {
        Request::post("/getPoints", "memberID=7")
            .key("nobody")
            .header("X-Forwarded-For", &format!("6.6.6.6, 198.51.100.{n}"))
    };
    gate.send(&from(1)).await.is_too_many();
    gate.reloaded_with("[server]\n", "[server]\ntrusted_proxies = [\"127.0.0.0/8\"]\n").await;
    for _ in 0..4 {
        gate.send(&from(1)).await.is_refused(401, INCORRECT_KEY);
    }
    gate.send(&from(1)).await.is_too_many();
    // Another address may share the bucket by chance; not all of these do.
    let mut others = 0;
    for n in 2..6 {
        others += usize::from(gate.send(&from(n)).await.code() == Some(2));
    }
    assert!(others > 0);
    // A rate may be given by second, minute, hour or day.
    for (tier, (rate, n)) in ["second", "minute", "hour", "day"].into_iter().zip(units) {
        gate.get_points(tier, "7").await.is("3");
        let told = gate.get_points(tier, "7").await.is_too_many();
        assert!(told <= n && told + 15 > n, "{rate}: try again in {told} s");
    }
}
