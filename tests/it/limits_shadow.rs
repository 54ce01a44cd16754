//! `limits.shadow = true` is an open gate: the log, a metric and every page of the dashboard say so, for as long as it is in
//! force.

use crate::support::*;

const OPEN: &str = "limits.shadow is true: no request is refused for a limit, each is only counted";

#[tokio::test]
async fn shadow_is_told_by_the_log_the_metrics_and_every_page_while_it_is_in_force() {
    let gate = TestGateway::builder().key("bot").admin().set("limits.shadow", "true").start().await;
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
