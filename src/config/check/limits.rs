//! `[limits]` and `[cache]`, judged.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::Checker;
use crate::config::file::{CacheFile, LimitsFile, TierFile};
use crate::config::leaf::{HumanDuration, HumanRate, shown};
use crate::config::places::bare;
use crate::config::problem::{instead, nearest};
use crate::config::usable::{Cache, Freshness, Limits, Rate, Tier};

/// Requests at once. More is no limit any more.
const MAX_BURST: u64 = 1_000_000_000;

/// Requests in a day. The count of a day has 40 bits.
const MAX_DAILY: u64 = 1_000_000_000_000;

/// Requests of one key under way. More connections than this are never open.
const MAX_IN_FLIGHT: u64 = 1_000_000;

/// Time after which an empty bucket is full again: buckets count it in 64 bits of nanoseconds, from which this is far.
const MAX_REFILL_NS: u64 = 365 * 86_400 * 1_000_000_000;

/// Tiers: each request's metrics and headers name one.
pub const MAX_TIERS: usize = 1_000;

/// A tier's name stands in a header of every answer.
const MAX_TIER_NAME: usize = 64;

/// Memory for answers: larger than any machine's.
const MAX_CACHE: u64 = 1 << 50;

/// Whether a tier can be called this.
pub fn is_tier_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=MAX_TIER_NAME).contains(&name.len()) && name.bytes().all(plain)
}

/// The tier that is there without being written.
const STANDARD: &str = "standard";

impl Checker<'_> {
    pub(super) fn limits(&mut self, file: &LimitsFile) -> Limits {
        if file.tiers.len() > MAX_TIERS {
            self.fault("limits.tiers", format!("must be at most {MAX_TIERS} tiers"));
        }
        let mut tiers: Vec<Arc<Tier>> = file.tiers.iter().map(|(name, t)| Arc::new(self.tier(name, t))).collect();
        let default_tier = match tiers.iter().find(|t| t.name == file.default_tier) {
            Some(tier) => Arc::clone(tier),
            None => {
                self.missing_default(file);
                let tier = Arc::new(self.tier(STANDARD, &TierFile::standard()));
                tiers.push(Arc::clone(&tier));
                tiers.sort_by(|a, b| a.name.cmp(&b.name));
                tier
            }
        };
        let strangers = &file.strangers;
        Limits {
            default_tier,
            tiers,
            shadow: file.shadow,
            strangers: self.rate("limits.strangers", ("rate", strangers.rate), ("burst", strangers.burst)),
        }
    }

    /// The built-in `standard` stands in for a default tier that is not written, but never for a misspelt one.
    fn missing_default(&mut self, file: &LimitsFile) {
        let (path, wanted) = ("limits.default_tier", file.default_tier.as_str());
        let names = file.tiers.keys().map(String::as_str);
        let tier = format!("limits.tiers.{}", bare(wanted));
        if self.problems.iter().any(|p| ["limits", "limits.tiers", &tier].contains(&p.path.as_str())) {
            return; // it is there, and was cut out for a fault of its own
        }
        if wanted != STANDARD {
            let all = names.chain(file.tiers.is_empty().then_some(STANDARD));
            self.fault(path, format!("there is no tier {}; {}", shown(wanted), instead(wanted, all)));
        } else if let Some(near) = nearest(STANDARD, names) {
            let message = "did you mean `standard`, the default tier? If not, write [limits.tiers.standard] too";
            self.fault(&format!("limits.tiers.{}", bare(near)), message);
        } else if !file.tiers.is_empty() {
            self.notice(path, "the file has no tier `standard`: the built-in one is in force for it");
        }
    }

    fn tier(&mut self, name: &str, file: &TierFile) -> Tier {
        let path = format!("limits.tiers.{}", bare(name));
        if !is_tier_name(name) {
            let message = format!("a tier's name is 1 to {MAX_TIER_NAME} letters, digits, `-`, `_` and `.`");
            self.fault(&path, message);
        }
        let main = self.rate(&path, ("rate", file.rate), ("burst", file.burst));
        let write = match file.write_rate {
            Some(rate) => Some(self.rate(&path, ("write_rate", rate), ("write_burst", file.write_burst))),
            None => {
                let burst = format!("{path}.write_burst");
                if self.places.given(&burst) {
                    self.fault(&burst, "needs `write_rate`: without it there is no separate limit of writes");
                }
                None
            }
        };
        let daily = file.daily.map(|daily| self.whole(&format!("{path}.daily"), daily, 1..=MAX_DAILY));
        let in_flight = file.in_flight.map(|most| self.whole(&format!("{path}.in_flight"), most, 1..=MAX_IN_FLIGHT));
        let in_flight = in_flight.map(|most| u32::try_from(most).unwrap_or(u32::MAX));
        let candidate = file.candidate.as_ref().map(|candidate| {
            let path = format!("{path}.candidate");
            self.rate(&path, ("rate", candidate.rate), ("burst", candidate.burst))
        });
        Tier { name: name.to_owned(), main, write, daily, in_flight, candidate }
    }

    fn rate(&mut self, section: &str, (_, rate): (&str, HumanRate), (name, burst): (&str, u64)) -> Rate {
        let path = format!("{section}.{name}");
        let burst = self.whole(&path, burst, 1..=MAX_BURST);
        let period_ns = rate.period_ns();
        if period_ns.checked_mul(burst).is_none_or(|refill| refill > MAX_REFILL_NS) {
            self.fault(&path, format!("at {rate} so many would take more than 365d to come back; lower it"));
        }
        let burst = u32::try_from(burst).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
        Rate { period_ns, burst }
    }

    pub(super) fn cache(&mut self, file: &CacheFile) -> Cache {
        Cache {
            max_size: self.size("cache.max_size", file.max_size, 0..=MAX_CACHE),
            points: self.freshness("cache.points", file.points.durations()),
            warns: self.freshness("cache.warns", file.warns.durations()),
            reviews: self.freshness("cache.reviews", file.reviews.durations()),
        }
    }

    fn freshness(&mut self, section: &str, typed: [HumanDuration; 3]) -> Freshness {
        let [ttl, stale_while_revalidate, stale_if_error] = typed;
        let mut within = |name: &str, value: HumanDuration| self.duration(&format!("{section}.{name}"), value);
        Freshness {
            ttl: within("ttl", ttl),
            stale_while_revalidate: within("stale_while_revalidate", stale_while_revalidate),
            stale_if_error: within("stale_if_error", stale_if_error),
        }
    }
}
