//! A candidate refuses nothing, and `limits.shadow = true` is an open gate: the log, a metric and every page of the dashboard say so, for as long as it is in
//! force.

use crate::support::*;

const OPEN: &str = "limits.shadow is true: no request is refused for a limit, each is only counted";

#[tokio::test]
async fn shadow_is_told_by_the_log_the_metrics_and_every_page_while_it_is_in_force() {
    let gate = TestGateway::builder()
        .key("bot")
        .key_of_tier("slow", "slow")
        .admin()
        .set("limits.shadow", "true")
        .set("limits.tiers.slow.burst", "2")
        .set("limits.tiers.slow.rate", r#""1/h""#)
        .set("limits.tiers.slow.daily", "1")
        .key_of_tier("trial", "trial")
        .set("limits.tiers.trial.candidate", r#"{ rate = "1/h", burst = 2 }"#)
        .set("log.access", r#""access.log""#)
        .set("limits.strangers.burst", "1")
        .set("limits.strangers.rate", r#""1/h""#)
        .start()
        .await;
    let (admin, dashboard) = (gate.admin().await, gate.dashboard().await);
    let warned = || gate.stderr().lines().filter(|line| line.contains("WARN") && line.contains(OPEN)).count();
    let reloads = || gate.stderr().matches("configuration reloaded").count();
    let mut pages = dashboard.pages().await;
    pages.push(format!("/keys/{}", gate.key_id("bot")));
    let is_shown = async |shown: bool| {
        let sample = format!("\nguildgate_limits_shadow {}", u8::from(shown));
        assert!(admin.get("/metrics").await.text.contains(&sample), "{sample}");
        for page in &pages {
            let page = dashboard.get(page).await;
            assert_eq!((page.status, page.text.matches(OPEN).count()), (200, usize::from(shown)), "{page:?}");
        }
    };
    assert_eq!(warned(), 1);
    is_shown(true).await;
    for _ in 0..5 {
        gate.get_points("slow", "7").await.is("0");
        let answer = gate.get_points("trial", "7").await;
        assert!(!answer.is("0").header("ratelimit-policy").unwrap().contains("candidate"), "{answer:#?}");
    }
    gate.has_logged("access.log", "who was over the candidate", |line| line.contains(" over_candidate ")).await;
    for _ in 0..5 {
        gate.send(&Request::post("/getPoints", "memberID=7").key("stranger")).await.is_refused(401, INCORRECT_KEY);
    }
    let counted = gate.admin().await.with_token("").get("/metrics").await.text;
    for sample in [
        "guildgate_over_address_limit_total 4\n",
        "guildgate_over_limit_total{tier=\"slow\",limit=\"daily\"} 4\n",
        "guildgate_over_limit_total{tier=\"trial\",limit=\"candidate\"} 3\n",
        "guildgate_limits_shadow 1",
    ] {
        assert!(counted.contains(sample), "{sample}{counted}");
    }
    for (from, to, in_force) in [
        ("shadow = true", "shadow = true # still", true),
        ("shadow = true # still", "shadow = false", false),
        ("shadow = false", "shadow = true", true),
    ] {
        let before = (reloads(), warned());
        gate.reload_with(from, to);
        eventually(PATIENCE, "the reload", async || reloads() > before.0).await;
        assert_eq!(warned() > before.1, in_force, "{to}");
        is_shown(in_force).await;
    }
}
