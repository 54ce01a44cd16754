//! Writes to the log, once a minute, how many requests of each tier were over which limit, and how many were over the
//! limit for addresses. It reads counters and changes none. What was told last is kept by the caller, so that the last,
//! shorter minute is told at the end as well.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Gateway;
use crate::limits::Tallied;
use crate::model::Limit;

/// How often the log tells how many requests were over a limit. A line a tier at most, and none
/// where nothing was.
const EVERY: Duration = Duration::from_secs(60);

/// What the log was told last, of each tier and of strangers.
#[derive(Debug, Default)]
pub struct Told {
    tiers: HashMap<String, Tallied>,
    strangers: u64,
}

impl Gateway {
    /// Tells the log once a minute, for ever, how many requests of which tier were over which
    /// limit, the one that is being tried out among them.
    pub async fn tell_limits(self: Arc<Self>, told: Arc<parking_lot::Mutex<Told>>) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.tell_limits_now(&mut told.lock());
        }
    }

    /// Tells the log what was over a limit since it was told last.
    pub fn tell_limits_now(&self, told: &mut Told) {
        let state = self.state();
        let words = if state.config.limits.shadow { "; in shadow, none was refused for it" } else { "" };
        let strangers = state.strangers.over();
        if strangers != told.strangers {
            let over = strangers.saturating_sub(told.strangers);
            tracing::info!(strangers = over, "requests over a limit{words}");
            told.strangers = strangers;
        }
        for policy in state.book.policies() {
            let (tier, now) = (policy.tier().name.as_str(), policy.tally().read());
            let before = told.tiers.insert(tier.to_owned(), now).unwrap_or_default();
            if now == before {
                continue;
            }
            let over = |limit: Limit| now.over[limit.index()].saturating_sub(before.over[limit.index()]);
            tracing::info!(
                tier,
                rate = over(Limit::Rate),
                write_rate = over(Limit::WriteRate),
                daily = over(Limit::Daily),
                in_flight = over(Limit::InFlight),
                candidate = now.over_candidate.saturating_sub(before.over_candidate),
                "requests over a limit{words}"
            );
        }
    }
}
