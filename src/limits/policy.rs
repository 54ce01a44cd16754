//! A tier in force: the limiters of its rates, how many requests were over each limit, and the values of the `RateLimit`
//! header fields. [`Budget::decide`](super::Budget::decide) is the decision.

use std::fmt::Write;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::budget::BucketLevels;
use super::rate::{Level, Limiter};
use crate::clock::seconds_up;
use crate::config::{Rate, Tier};
use crate::model::{Limit, PerRate};

/// A tier in force, with its counters and the parts of its headers that never change.
#[derive(Debug)]
pub struct Policy {
    tier: Arc<Tier>,
    pub(super) rates: PerRate<Option<Limiter>>,
    pub(super) candidate: Option<Limiter>,
    header: String,
    over_limit: Arc<OverLimitCounters>,
}

/// How many requests of a tier were over each limit. They go on over a reload while the tier keeps its name.
#[derive(Debug, Default)]
pub struct OverLimitCounters {
    /// By [`Limit::index`].
    pub over: [AtomicU64; Limit::ALL.len()],
    pub over_candidate: AtomicU64,
}

impl OverLimitCounters {
    /// Counts a decision.
    pub(super) fn count(&self, over: Option<Limit>, over_candidate: bool) {
        if let Some(limit) = over {
            self.over[limit.index()].fetch_add(1, Ordering::Relaxed);
        }
        if over_candidate {
            self.over_candidate.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Policy {
    pub fn new(tier: Arc<Tier>) -> Self {
        Self::counting(tier, Arc::default())
    }

    /// A tier that goes on with the counters that the tier of that name had before.
    pub fn counting(tier: Arc<Tier>, over_limit: Arc<OverLimitCounters>) -> Self {
        let items = Limit::RATES.iter().zip(tier.rates());
        let items = items.filter_map(|(limit, rate)| Some(item(&tier.name, limit.suffix(), rate?)));
        let daily = tier.daily.map(|daily| format!("\"{}-daily\";q={daily};w=86400", tier.name));
        let header = items.chain(daily).collect::<Vec<_>>().join(", ");
        let limiter = |rate: Option<Rate>| rate.map(Limiter::new);
        Policy { rates: tier.rates().map(limiter), candidate: limiter(tier.candidate), tier, header, over_limit }
    }

    pub fn tier(&self) -> &Arc<Tier> {
        &self.tier
    }

    pub fn over_limit(&self) -> &Arc<OverLimitCounters> {
        &self.over_limit
    }

    /// The value of `RateLimit-Policy` (contract section 1, "Headers on answers").
    pub fn header(&self) -> &str {
        &self.header
    }

    /// Writes the value of `RateLimit`: the requests that would be admitted now, and the seconds until one more is.
    pub fn write_rate_limit(&self, levels: &BucketLevels, out: &mut Vec<u8>) {
        let mut digits = itoa::Buffer::new();
        let mut one = |out: &mut Vec<u8>, suffix: &[u8], level: Level| {
            out.push(b'"');
            out.extend_from_slice(self.tier.name.as_bytes());
            out.extend_from_slice(suffix);
            out.extend_from_slice(b"\";r=");
            out.extend_from_slice(digits.format(level.remaining).as_bytes());
            out.extend_from_slice(b";t=");
            out.extend_from_slice(digits.format(seconds_up(level.next)).as_bytes());
        };
        let rates = Limit::RATES.iter().zip(levels.rates).map(|(limit, level)| (limit.suffix(), level));
        let mut separator: &[u8] = b"";
        for (suffix, level) in rates.chain([("-daily", levels.daily)]) {
            if let Some(level) = level {
                out.extend_from_slice(mem::replace(&mut separator, b", "));
                one(out, suffix.as_bytes(), level);
            }
        }
    }
}

impl BucketLevels {
    /// The time until no bucket is empty: a caller that waits for one bucket only would come back too soon for another.
    pub(super) fn wait(&self) -> Duration {
        let levels = self.rates.into_iter().chain([self.daily]).flatten();
        levels.filter(|level| level.remaining == 0).map(|level| level.next).max().unwrap_or_default()
    }
}

/// `"name";q=BURST;w=WINDOW`, the window being burst / rate in seconds, rounded up.
fn item(name: &str, suffix: &str, rate: Rate) -> String {
    let burst = rate.burst.get();
    // The period was rounded up to a whole nanosecond, which must not add a second to the window of the burst.
    let rounding = u128::from(burst) - 1;
    let window = (u128::from(rate.period_ns) * u128::from(burst) - rounding).div_ceil(1_000_000_000);
    let mut out = String::new();
    let _ = write!(out, "\"{name}{suffix}\";q={burst};w={window}");
    out
}
