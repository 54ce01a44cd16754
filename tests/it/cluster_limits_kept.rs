//! What Redis keeps of a key, and for how long (contract section 3, `[cluster]`; guarantees 6 and 8).

use super::cluster_limits::{judged_by_the_origin, limited};
use crate::support::*;

#[tokio::test]
async fn what_redis_holds_of_a_key_goes_away_by_itself() {
    let redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let gate = limited(&redis, &url).start().await;
    gate.get_points("slow", "7").await.is("3");
    let seconds = seconds_left(&redis, &format!("guildgate:l:{}", gate.key_id("slow")));
    assert!((30..200).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn guarantee_6_redis_keeps_a_key_until_what_a_node_that_dies_had_spent_has_come_back() {
    /// By the rate.
    const TOKEN_TAKES: f64 = 10.0;
    /// The lease, and for how long a node is remembered.
    const ON_TOP: f64 = 62.0;
    const SLACK: f64 = 5.0;
    let redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let gate = limited(&redis, &url).set("limits.tiers.slow.rate", r#""6/m""#).set("limits.tiers.slow.burst", "100");
    let gate = gate.start().await;
    let name = format!("guildgate:l:{}", gate.key_id("slow"));
    // Whatever the node holds it may have spent when it dies.
    let holds_tokens = async || {
        for answer in futures_util::future::join_all((0..6).map(|_| gate.get_points("slow", "7"))).await {
            answer.is("3");
        }
        let said = redis.ask(&format!("PTTL {name}\r\nHGETALL {name}"));
        let lines: Vec<_> = said.lines().collect();
        let after = |is_field: &dyn Fn(&str) -> bool, at: usize| -> f64 {
            let field = lines.iter().position(|line| is_field(line)).unwrap();
            lines[field + 2].split(' ').nth(at).unwrap().parse().unwrap()
        };
        let left = lines[0].trim_start_matches(':').parse::<f64>().unwrap() / 1e3;
        let level = after(&|line| line == "b:main", 0).max(0.0) / 1e9;
        let held = after(&|line| line.starts_with("h:"), 1);
        assert!(left + SLACK >= level + held * TOKEN_TAKES + ON_TOP, "{left} s are left: {said}");
        held > 0.0
    };
    eventually(PATIENCE, "the node holds tokens", holds_tokens).await;
}

#[tokio::test]
async fn guarantee_6_the_day_of_a_key_is_kept_however_long_its_proof_takes() {
    let redis = Redis::start(&[]).await;
    let gate = TestGateway::before_http().keys_at_the_origin().key("bot").points("7", 3);
    let gate = gate.set("cluster.redis", &format!("{:?}", redis.url())).set("limits.tiers.standard.daily", "2");
    let gate = gate.start().await;
    let hold = Gate::shut();
    gate.origin().next("getPoints", Act::HoldAll(hold.clone()));
    let mut caller = gate.connect_and_send(gate.request("getPoints", "bot", "memberID=7").bytes()).await;
    gate.origin().has_been_asked("getPoints", 1).await;
    let held = || {
        let names = redis.ask("KEYS guildgate:l:*");
        redis
            .ask(&format!("HGETALL {}", names.lines().find(|name| name.starts_with("guildgate")).unwrap_or("-").trim()))
    };
    // The day's count, which is told before the key is proven.
    eventually(PATIENCE, "the request is told", async || held().contains("\r\n1 ")).await;
    assert!(!held().contains("b:kept"), "{}", held());
    hold.open();
    caller.answer().await.is("3");
    eventually(PATIENCE, "its day is kept", async || held().contains("b:kept")).await;
}

#[tokio::test]
async fn what_redis_holds_of_a_key_that_the_origin_refuses_goes_away_a_second_after_its_lease() {
    let redis = Redis::start(&[]).await;
    let gate = TestGateway::before_http().keys_at_the_origin().key("bot").points("7", 3);
    let gate = gate.set("cluster.redis", &format!("{:?}", redis.url())).set("cluster.lease", r#""10s""#).start().await;
    let longest_ttl = || {
        let names = redis.ask("KEYS guildgate:l:*");
        let names = names.lines().map(str::trim).filter(|name| name.starts_with("guildgate"));
        names.map(|name| seconds_left(&redis, name)).max()
    };
    for n in 0..3 {
        let unknown = Request::post("/getPoints", "memberID=7").key(&format!("unknown-{n}"));
        gate.send(&unknown).await.is_refused(401, INCORRECT_KEY);
    }
    let ttl = longest_ttl();
    assert!(ttl.is_some_and(|ttl| ttl <= 12), "{ttl:?}");
    gate.get_points("bot", "7").await.is("3");
    // It holds tokens for the next requests, and gives them back or renews them as a proven key.
    eventually(PATIENCE, "a proven key is kept for longer", async || longest_ttl() > Some(30)).await;
}

#[tokio::test]
async fn guarantee_8_unknown_keys_that_come_while_redis_is_away_leave_nothing_to_tell_it() {
    let mut redis = Redis::start(&[]).await;
    let gate = judged_by_the_origin(&redis).key("bot").start().await;
    let keys = |redis: &Redis| redis.ask("KEYS *:l:*").lines().filter(|line| line.contains(":l:")).count();
    redis.kill_hard();
    gate.has_said("is away").await;
    gate.get_points("bot", "7").await.is("3");
    let mut connection = gate.connect().await;
    for key in 0..300 {
        let request = Request::post("/getPoints", "memberID=7").key(&format!("unknown-{key}"));
        connection.ask(&request).await.is_refused(401, INCORRECT_KEY);
    }
    redis.start_again().await;
    // The first of them is told last.
    eventually(PATIENCE, "the proven key is told", async || keys(&redis) > 0).await;
    assert_eq!(keys(&redis), 1);
}

fn seconds_left(redis: &Redis, name: &str) -> i64 {
    redis.ask(&format!("TTL {name}")).trim_start_matches(':').lines().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn guarantee_6_a_secret_that_is_taken_out_and_listed_again_under_another_id_goes_on_where_it_was() {
    let redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let gate = limited(&redis, &url).keys_in_file().set("limits.tiers.slow.rate", r#""1/m""#).start().await;
    let let_in = async || {
        let mut let_in = 0;
        while gate.get_points("slow", "7").await.status == 200 {
            let_in += 1;
        }
        let_in
    };
    assert_eq!(let_in().await, 10);
    let keys = String::from_utf8(gate.world().read("keys.toml")).unwrap();
    gate.world().remove_key("slow");
    eventually(PATIENCE, "02", || async { gate.get_points("slow", "7").await.code() == Some(2) }).await;
    gate.world().write("keys.toml", keys.replace("id = \"slow\"", "id = \"another\""));
    eventually(PATIENCE, "it is back", || async { gate.get_points("slow", "7").await.code() != Some(2) }).await;
    assert_eq!(let_in().await, 0);
}

#[tokio::test]
async fn guarantee_6_a_key_that_gets_another_id_has_no_second_burst_at_a_node_that_was_not_asked_before() {
    let redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let here = limited(&redis, &url).keys_in_file().set("limits.tiers.slow.rate", r#""1/m""#).start().await;
    let there = here.node(&url).await;
    let let_in = async |gate: &TestGateway| {
        let mut let_in = 0;
        while gate.get_points("slow", "7").await.status == 200 {
            let_in += 1;
        }
        let_in
    };
    assert_eq!(let_in(&here).await, 10);
    for gate in [&here, &there] {
        gate.world().edit("keys.toml", "id = \"slow\"", "id = \"another\"");
        gate.world().remove_key("bot");
        eventually(PATIENCE, "the file is in force", async || gate.get_points("bot", "7").await.code() == Some(2))
            .await;
    }
    let is_told = async || redis.ask("HGETALL guildgate:l:another").contains("b:main");
    eventually(PATIENCE, "what the key used up is told under its new id", is_told).await;
    assert_eq!((let_in(&there).await, let_in(&here).await), (0, 0));
}

#[tokio::test]
async fn guarantee_6_where_all_ids_of_a_key_file_move_by_one_place_what_a_key_used_up_passes_no_further_than_one() {
    let redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let gate = limited(&redis, &url).keys_in_file().set("limits.tiers.slow.rate", r#""1/m""#);
    let gate = (1..5).fold(gate, |gate, n| gate.key_of_tier(&format!("k{n}"), "slow")).start().await;
    let let_in = async |key: &str| {
        let mut let_in = 0;
        while gate.get_points(key, "7").await.status == 200 {
            let_in += 1;
        }
        let_in
    };
    for key in ["k2", "k3", "k4"] {
        gate.get_points(key, "7").await.is("3");
    }
    assert_eq!(let_in("k1").await, 10);
    let mut moved = gate.world().keys_without("bot");
    for n in (1..5).rev() {
        moved = moved.replace(&format!("\"k{n}\""), &format!("\"k{}\"", n + 1));
    }
    gate.world().write("keys.toml", moved);
    eventually(PATIENCE, "the file is in force", async || gate.get_points("bot", "7").await.code() == Some(2)).await;
    let of_each = [let_in("k1").await, let_in("k2").await, let_in("k3").await, let_in("k4").await];
    assert_eq!(of_each, [0, 9, 9, 9]);
}

#[tokio::test]
async fn guarantee_6_what_a_key_uses_up_under_the_id_of_one_that_was_taken_out_is_not_charged_to_that_one_when_it_returns()
 {
    let redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let gate = limited(&redis, &url).keys_in_file().set("limits.tiers.slow.rate", r#""1/m""#);
    let gate = gate.set("limits.tiers.slow.daily", "10").key_of_tier("taken", "slow").start().await;
    for key in ["slow", "taken"] {
        gate.get_points(key, "7").await.is("3");
    }
    let listed = gate.world().text("keys.toml");
    // The key "bot" shows which file is in force.
    gate.world().write("keys.toml", gate.world().keys_without("slow").replace("\"taken\"", "\"slow\""));
    gate.world().write("keys.toml", gate.world().keys_without("bot"));
    eventually(PATIENCE, "it is taken out", async || gate.get_points("bot", "7").await.code() == Some(2)).await;
    gate.get_points("slow", "7").await.is_refused(401, INCORRECT_KEY);
    while gate.get_points("taken", "7").await.status == 200 {}
    let returns = listed.replace("id = \"slow\"", "id = \"third\"").replace("id = \"taken\"", "id = \"slow\"");
    gate.world().write("keys.toml", returns);
    eventually(PATIENCE, "it is back", async || gate.get_points("bot", "7").await.status == 200).await;
    let mut let_in = 0;
    while gate.get_points("slow", "7").await.status == 200 {
        let_in += 1;
    }
    assert_eq!(let_in, 9);
}

#[tokio::test]
async fn what_a_node_could_not_tell_of_a_key_while_redis_was_away_is_charged_once_to_one_that_is_taken_out_and_returns()
{
    let mut redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let gate = limited(&redis, &url).keys_in_file().set("limits.tiers.slow.rate", r#""1/m""#);
    let gate = gate.set("limits.tiers.slow.burst", "30").set("cluster.when_away", r#""local""#);
    let gate = gate.key_of_tier("taken", "slow").start().await;
    for key in ["slow", "taken"] {
        gate.get_points(key, "7").await.is("3");
    }
    redis.kill_hard();
    gate.has_said("Redis at").await;
    for _ in 0..10 {
        gate.get_points("slow", "7").await.is("3");
    }
    let listed = gate.world().text("keys.toml");
    // The key "bot" shows which file is in force.
    gate.world().write("keys.toml", gate.world().keys_without("slow").replace("\"taken\"", "\"slow\""));
    gate.world().write("keys.toml", gate.world().keys_without("bot"));
    eventually(PATIENCE, "it is taken out", async || gate.get_points("bot", "7").await.code() == Some(2)).await;
    redis.start_again().await;
    let is_told = async || redis.ask("HGETALL guildgate:l:slow").contains("b:main");
    eventually(PATIENCE, "Redis is told", is_told).await;
    gate.world().write("keys.toml", listed.replace("id = \"taken\"", "id = \"third\""));
    eventually(PATIENCE, "it is back", async || gate.get_points("bot", "7").await.status == 200).await;
    let mut let_in = 0;
    while gate.get_points("slow", "7").await.status == 200 {
        let_in += 1;
    }
    assert!((18..20).contains(&let_in), "{let_in}");
}

#[tokio::test]
async fn guarantee_6_what_a_dead_node_held_of_a_burst_that_is_lowered_leaves_no_less_than_an_empty_bucket() {
    /// For one request at the lower rate.
    const COMES_BACK_IN: u64 = 24 * 60 * 60 / 40;
    let redis = Redis::start(&[]).await;
    let url = Postgres::shared().database().await;
    let here = limited(&redis, &url).set("limits.tiers.slow.rate", r#""500/s""#);
    let here = here.set("limits.tiers.slow.burst", "1000").set("cluster.lease", r#""8s""#).start().await;
    let there = here.node(&url).await;
    let key = format!("guildgate:l:{}", here.key_id("slow"));
    here.get_points("slow", "7").await.is("3");
    let holds_tokens = async || {
        for answer in futures_util::future::join_all((0..50).map(|_| there.get_points("slow", "7"))).await {
            answer.is("3");
        }
        held(&redis, &key) >= 50
    };
    eventually(PATIENCE, "a node holds more than the lower burst", holds_tokens).await;
    drop(there); // It is killed.
    here.reload_with("burst = 1000\nrate = \"500/s\"", "burst = 40\nrate = \"40/d\"");
    here.has_said("configuration reloaded").await;
    here.get_points("slow", "7").await;
    assert!(held(&redis, &key) >= 50, "the machine was too slow");
    let is_charged = async || {
        let is_refused = here.get_points("slow", "7").await.code() == Some(12);
        is_refused && held(&redis, &key) == 0
    };
    eventually(PATIENCE, "its tokens are charged at the end of their lease", is_charged).await;
    let n = here.get_points("slow", "7").await.is_too_many();
    assert!(n <= COMES_BACK_IN, "{n} s");
}

/// The tokens of a key that the nodes hold of its rate.
fn held(redis: &Redis, key: &str) -> u64 {
    let fields = redis.ask(&format!("HGETALL {key}"));
    let lines: Vec<_> = fields.lines().collect();
    let holders = lines.iter().enumerate().filter(|(_, line)| line.starts_with("h:"));
    holders.map(|(at, _)| lines[at + 2].split(' ').nth(1).unwrap().parse::<u64>().unwrap()).sum()
}
