//! Contract section 4, `/metrics` and the use of each key: what callers did is counted there, in both formats, the alert
//! rules and the Grafana board name metrics that exist, and docs/admin.md has them all.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::*;

/// The value of the sample with this name and these labels.
fn value(text: &str, sample: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{sample} is not in\n{text}")).parse().unwrap()
}

fn promtool(args: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool (Debian's package prometheus)");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    // `check metrics` says what is wrong with names and help on stderr, and exits with 0 or 3.
    assert!(output.status.success() && output.stderr.is_empty(), "promtool {args:?}: {said}\n{input}");
}

/// What callers did is counted by operation, outcome and use of the cache.
async fn what_callers_did_is_counted(gate: &TestGateway) {
    gate.get_points("bot", "7").await.is("3").is_miss();
    gate.get_points("bot", "7").await.is("3").is_hit();
    gate.set_points("bot", "7", 5).await;
    gate.get_points("slow", "7").await.is("5");
    gate.get_points("slow", "7").await.is_too_many();
    gate.send(&Request::post("/getPoints", "memberID=7").key("nobody")).await.is_refused(401, INCORRECT_KEY);
    let admin = gate.admin().await;
    let text = admin.with_token("").get("/metrics").await.text;
    for (sample, count) in [
        (r#"guildgate_requests_total{operation="getPoints",code="ok",cache="miss"}"#, 2.0),
        (r#"guildgate_requests_total{operation="getPoints",code="ok",cache="hit"}"#, 1.0),
        (r#"guildgate_requests_total{operation="setPoints",code="ok",cache="method"}"#, 1.0),
        (r#"guildgate_requests_total{operation="getPoints",code="12",cache="none"}"#, 1.0),
        (r#"guildgate_requests_total{operation="getPoints",code="02",cache="none"}"#, 1.0),
        (r#"guildgate_request_duration_seconds_count{path="hit"}"#, 1.0),
        (r#"guildgate_over_limit_total{tier="slow",limit="rate"}"#, 1.0),
        (r#"guildgate_over_limit_total{tier="standard",limit="rate"}"#, 0.0),
        ("guildgate_keys", 2.0),
        ("guildgate_cache_entries", 1.0),
        ("guildgate_origin_in_flight", 0.0),
        (r#"guildgate_config_reloads_total{result="accepted"}"#, 0.0),
    ] {
        assert_eq!(value(&text, sample), count, "{sample} in\n{text}");
    }
    let answers = text.lines().find(|line| line.starts_with("guildgate_upstream_duration_seconds_count{upstream="));
    assert!(answers.unwrap().ends_with(" 3"), "two reads and a write: {answers:?}");
    assert!(!text.contains("nobody") && !text.contains("gg_"), "{text}");
}

/// All words in a text that look like a metric.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("guildgate_") || word.starts_with("process_")).map(str::to_owned).collect()
}

#[tokio::test]
async fn what_callers_did_is_counted_as_openmetrics_and_rules_board_and_page_name_what_is_there() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring");
    let rules = folder.join("alerts.yml");
    promtool(&["check", "rules", rules.to_str().unwrap()], "");
    let (mut there, mut families) = (BTreeSet::new(), BTreeSet::new());
    for (is_http, gate) in [(true, TestGateway::before_http()), (false, TestGateway::builder())] {
        let gate = gate.key("bot").key_of_tier("slow", "slow").points("7", 3).tls().admin();
        let gate = gate.set("limits.tiers.slow.rate", r#""1/h""#).set("limits.tiers.slow.burst", "1").start().await;
        if is_http {
            what_callers_did_is_counted(&gate).await;
        }
        let open = gate.admin().await.send("GET", "/metrics", &[("accept", "text/plain")], "").await;
        assert_eq!(open.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
        let text = open.text;
        assert!(text.ends_with("# EOF\n"), "{text}");
        let days = (value(&text, "guildgate_certificate_expires_timestamp_seconds") - unix_now() as f64) / 86_400.0;
        assert!(days > 1.0, "{days}");
        there.extend(metrics_in(&text));
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            families.insert(format!("{name}{suffix}"));
        }
    }
    let redis = RedisDatabase::new().await;
    let gate = TestGateway::before_http().set("cluster.redis", &format!("{:?}", redis.url())).admin().start().await;
    there.extend(metrics_in(&gate.admin().await.get("/metrics").await.text));
    let page = include_str!("../../docs/admin.md").lines().filter(|line| line.starts_with("| `"));
    assert_eq!(metrics_in(&page.collect::<String>()), families);
    for name in ["alerts.yml", "grafana.json"] {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        let named = metrics_in(&text);
        assert!(named.len() > 5, "{named:?}");
        let unknown: Vec<_> = named.difference(&there).collect();
        assert!(unknown.is_empty(), "{name} names {unknown:?}, and there is {there:?}");
    }
    let board = std::fs::read_to_string(folder.join("grafana.json")).unwrap();
    assert!(serde_json::from_str::<Value>(&board).unwrap()["panels"].as_array().unwrap().len() > 10);
}

#[tokio::test]
async fn the_use_of_each_key_is_shown_with_what_is_left_of_its_limits() {
    for gate in [
        TestGateway::builder(),
        TestGateway::before_http(),
        TestGateway::before_http().set("keys.source", r#""origin""#),
    ] {
        let gate = gate.key("bot").key("idle").points("7", 3).admin();
        let gate =
            gate.set("limits.tiers.standard.rate", r#""1/h""#).set("limits.tiers.standard.burst", "3").start().await;
        for _ in 0..3 {
            gate.get_points("bot", "7").await.is("3");
        }
        gate.get_points("bot", "7").await.is_too_many();
        let admin = gate.admin().await;
        let usage = admin.get("/api/usage").await.is(200);
        assert_eq!((&usage["keys"], usage["items"].as_array().unwrap().len()), (&1.into(), 1), "{usage}");
        let used = &usage["items"][0];
        for window in ["minute", "hour", "day"] {
            assert_eq!((&used[window]["requests"], &used[window]["over"]["rate"]), (&4.into(), &1.into()), "{usage}");
        }
        assert_eq!(
            (&used["rates"]["rate"]["burst"], &used["rates"]["rate"]["remaining"]),
            (&3.into(), &0.into()),
            "{usage}"
        );
        assert_eq!(used["in_flight"]["used"], 0, "{usage}");
        let id = used["id"].as_str().unwrap();
        assert_eq!(admin.get(&format!("/api/keys/{id}/usage")).await.is(200)["day"]["requests"], 4);
        admin.get("/api/keys/none/usage").await.is_problem(404, "no key none is in force");
    }
}
