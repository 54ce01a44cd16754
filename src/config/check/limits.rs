//! Checks `[limits]` and `[cache]`: the tiers and their rates.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::Checker;
use crate::config::file::{CacheFile, LimitsFile, TierFile};
use crate::config::leaf::{HumanDuration, HumanRate, shown};
use crate::config::places::bare;
use crate::config::problem::{instead, nearest};
use crate::config::usable::{Cache, Freshness, Limits, Rate, Tier, cached_reads};
use crate::wire::Operation;

/// Longest time that an empty bucket may take to refill. Buckets count it in 64 bits of nanoseconds, which is far more.
const MAX_REFILL_NS: u64 = 365 * 86_400 * 1_000_000_000;

/// The most tiers. Each request's metrics and headers name one.
pub const MAX_TIERS: usize = 1_000;

/// Longest name of a tier, which is in a header of every answer.
const MAX_TIER_NAME: usize = 64;

/// The most memory for answers: more than any machine has.
const MAX_CACHE: u64 = 1 << 50;

/// Whether a tier can have this name.
pub fn is_tier_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=MAX_TIER_NAME).contains(&name.len()) && name.bytes().all(plain)
}

/// The tier that exists without being written.
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
            strangers: self.rate("limits.strangers.burst", strangers.rate, strangers.burst),
        }
    }

    /// A missing default tier is the built-in `standard`, unless its name is misspelt.
    fn missing_default(&mut self, file: &LimitsFile) {
        let (path, wanted) = ("limits.default_tier", file.default_tier.as_str());
        let names = file.tiers.keys().map(String::as_str);
        let tier = format!("limits.tiers.{}", bare(wanted));
        if self.problems.iter().any(|p| ["limits", "limits.tiers", &tier].contains(&p.path.as_str())) {
            return; // it is written, and was left out for a fault of its own
        }
        if wanted != STANDARD {
            let all = names.chain(file.tiers.is_empty().then_some(STANDARD));
            self.fault(path, format!("there is no tier {}; {}", shown(wanted), instead(wanted, all)));
        } else if let Some(near) = nearest(STANDARD, names) {
            let message = "did you mean `standard`, the default tier? If not, write [limits.tiers.standard] too";
            self.fault(&format!("limits.tiers.{}", bare(near)), message);
        } else if !file.tiers.is_empty() {
            self.warning(path, "the file has no tier `standard`: the built-in one is in force for it");
        }
    }

    fn tier(&mut self, name: &str, file: &TierFile) -> Tier {
        let path = format!("limits.tiers.{}", bare(name));
        if !is_tier_name(name) {
            let message = format!("a tier's name is 1 to {MAX_TIER_NAME} letters, digits, `-`, `_` and `.`");
            self.fault(&path, message);
        }
        let main = self.rate(&format!("{path}.burst"), file.rate, file.burst);
        let write = match file.write_rate {
            Some(rate) => Some(self.rate(&format!("{path}.write_burst"), rate, file.write_burst)),
            None => {
                let burst = format!("{path}.write_burst");
                if self.places.is_given(&burst) {
                    self.fault(&burst, "needs `write_rate`: without it there is no separate limit of writes");
                }
                None
            }
        };
        let candidate = file
            .candidate
            .as_ref()
            .map(|candidate| self.rate(&format!("{path}.candidate.burst"), candidate.rate, candidate.burst));
        Tier { name: name.to_owned(), main, write, daily: file.daily, in_flight: file.in_flight, candidate }
    }

    /// A rate; `path` is that of its burst.
    fn rate(&mut self, path: &str, rate: HumanRate, burst: NonZeroU32) -> Rate {
        let period_ns = rate.period_ns();
        if period_ns.checked_mul(burst.get().into()).is_none_or(|refill| refill > MAX_REFILL_NS) {
            self.fault(path, format!("at {rate}, an empty bucket would take more than 365d to refill; lower it"));
        }
        Rate { period_ns, burst }
    }

    pub(super) fn cache(&mut self, file: &CacheFile) -> Cache {
        let mut freshness = [Freshness::NONE; Operation::COUNT];
        for (operation, section, default) in cached_reads() {
            let typed = file.reads.get(section).copied().unwrap_or_default();
            let or = |typed: Option<HumanDuration>, default| typed.map_or(default, |typed| typed.0);
            freshness[operation.index()] = Freshness {
                ttl: or(typed.ttl, default.ttl),
                stale_while_revalidate: or(typed.stale_while_revalidate, default.stale_while_revalidate),
                stale_if_error: or(typed.stale_if_error, default.stale_if_error),
            };
        }
        Cache { max_size: self.size("cache.max_size", file.max_size, 0..=MAX_CACHE), freshness }
    }
}
