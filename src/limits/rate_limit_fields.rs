//! The values of the header fields `RateLimit-Policy` and `RateLimit` (contract section 1, "Headers on answers").

use std::fmt::Write;
use std::mem;

use super::budget::BucketLevels;
use super::policy::Policy;
use super::rate::Level;
use crate::clock::seconds_up;
use crate::config::{Rate, Tier};
use crate::model::Limit;

/// The value of `RateLimit-Policy`.
pub(super) fn policy_field(tier: &Tier) -> String {
    let items = Limit::RATES.iter().zip(tier.rates());
    let items = items.filter_map(|(limit, rate)| Some(item(&tier.name, limit.suffix(), rate?)));
    let daily = tier.daily.map(|daily| format!("\"{}-daily\";q={daily};w=86400", tier.name));
    items.chain(daily).collect::<Vec<_>>().join(", ")
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

impl Policy {
    /// The value of `RateLimit-Policy` (contract section 1, "Headers on answers").
    pub fn header(&self) -> &str {
        &self.header
    }

    /// Writes the value of `RateLimit`: the requests that would be admitted now, and the seconds until one more is.
    pub fn write_rate_limit(&self, levels: &BucketLevels, out: &mut Vec<u8>) {
        let mut digits = itoa::Buffer::new();
        let mut one = |out: &mut Vec<u8>, suffix: &[u8], level: Level| {
            out.push(b'"');
            out.extend_from_slice(self.tier().name.as_bytes());
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
