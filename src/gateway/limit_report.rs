//! Writes to the process log, once a minute, how many requests of each tier were over which limit, and how many were
//! over the limit for addresses. It reads counters and changes none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::state::Core;
use crate::limits::OverLimitCounts;
use crate::model::Limit;

/// Interval of the report: at most one line for each tier, and none where no request was over a limit.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Reports requests over a limit.
#[derive(Debug)]
pub struct LimitReport {
    core: Arc<Core>,
    reported: Mutex<Reported>,
}

/// The counts at the last report.
#[derive(Debug, Default)]
struct Reported {
    tiers: HashMap<String, OverLimitCounts>,
    strangers: u64,
}

impl LimitReport {
    pub(super) fn new(core: Arc<Core>) -> Self {
        LimitReport { core, reported: Mutex::default() }
    }

    /// Reports once a minute until the process ends.
    pub async fn run(&self) {
        loop {
            tokio::time::sleep(REPORT_EVERY).await;
            self.report();
        }
    }

    /// Reports what was counted since the last report.
    pub fn report(&self) {
        let mut reported = self.reported.lock();
        let state = self.core.state();
        let suffix = if state.config.limits.shadow { "; in shadow, none was refused for it" } else { "" };
        let strangers = state.strangers.over();
        if strangers != reported.strangers {
            let over = strangers.saturating_sub(reported.strangers);
            tracing::info!(strangers = over, "requests over a limit{suffix}");
            reported.strangers = strangers;
        }
        for policy in state.key_table.policies() {
            let (tier, now) = (policy.tier().name.as_str(), policy.over_limit().read());
            let before = reported.tiers.insert(tier.to_owned(), now).unwrap_or_default();
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
                "requests over a limit{suffix}"
            );
        }
    }
}
