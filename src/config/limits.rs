//! `[limits]`: the tiers and their rates.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::file::section;
use super::leaf::{HumanRate, NAME_RULE, is_name, shown};
use super::problem::{Faults, bare, instead, nearest};
use crate::model::PerRate;

/// Requests at once. More is no limit in practice.
const MAX_BURST: u32 = 1_000_000_000;

/// Writes at once where only their rate is given.
const WRITE_BURST: u32 = 10;

/// Requests in a day. The count of a day has 40 bits.
const MAX_DAILY: u64 = 1_000_000_000_000;

/// Requests of one key in flight. More connections than this are never open.
const MAX_IN_FLIGHT: u32 = 1_000_000;

/// Longest time that an empty bucket may take to refill. Buckets count it in 64 bits of nanoseconds, which is far more.
const MAX_REFILL_NS: u64 = 365 * 86_400 * 1_000_000_000;

/// The most tiers. Each request's metrics and headers name one.
pub const MAX_TIERS: usize = 1_000;

/// The tier that exists without being written.
const STANDARD: &str = "standard";

section! {
    /// `[limits]`
    pub struct LimitsFile {
        /// The tier of a key that names none, or one that does not exist.
        pub default_tier: String = STANDARD.to_owned(),
        /// Count and report, refuse nothing.
        pub shadow: bool = false,
        /// The tiers by name. Where there are none, `standard` is 20/s with 40 at once, writes 5/s with 10 at once.
        pub tiers: BTreeMap<String, TierFile> = BTreeMap::new(),
        /// Per client address (IPv6: /64): requests that end in 01 or 02.
        pub strangers: StrangersFile = StrangersFile::default(),
    }
}

section! {
    /// `[limits.tiers.NAME]`
    pub struct TierFile {
        /// Requests over time, such as "20/s" or "600/m".
        pub rate: HumanRate = HumanRate::per_second(20),
        /// Requests at once.
        #[schemars(range(min = 1, max = MAX_BURST))]
        pub burst: NonZeroU32 = burst(40),
        /// setPoints over time, counted in addition; where it is not given, there is no separate limit.
        pub write_rate: Option<HumanRate> = None,
        /// setPoints at once.
        #[schemars(range(min = 1, max = MAX_BURST), extend("default" = WRITE_BURST))]
        pub write_burst: Option<NonZeroU32> = None,
        /// Requests in a UTC day, kept across restarts.
        #[schemars(range(min = 1, max = MAX_DAILY))]
        pub daily: Option<u64> = None,
        /// Requests of one key in flight at once.
        #[schemars(range(min = 1, max = MAX_IN_FLIGHT))]
        pub in_flight: Option<u32> = None,
        /// A limit to try out: it is counted in addition to the real one and refuses nothing.
        pub candidate: Option<CandidateFile> = None,
    }
}

section! {
    /// `limits.tiers.NAME.candidate`
    pub struct CandidateFile {
        /// Requests over time.
        pub rate: HumanRate = HumanRate::per_second(20),
        /// Requests at once.
        #[schemars(range(min = 1, max = MAX_BURST))]
        pub burst: NonZeroU32 = burst(40),
    }
}

section! {
    /// `[limits.strangers]`
    pub struct StrangersFile {
        /// Requests without a valid key over time.
        pub rate: HumanRate = HumanRate::per_second(1),
        /// Requests without a valid key at once.
        #[schemars(range(min = 1, max = MAX_BURST))]
        pub burst: NonZeroU32 = burst(30),
    }
}

/// The bursts of the defaults, none of which is 0.
fn burst(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
}

#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    pub default_tier: Arc<Tier>,
    /// All tiers, the default one among them, in order of name.
    pub tiers: Vec<Arc<Tier>>,
    /// Count and report, refuse nothing.
    pub shadow: bool,
    pub strangers: Rate,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    pub name: String,
    pub main: Rate,
    /// setPoints, counted in addition.
    pub write: Option<Rate>,
    /// Requests in a UTC day.
    pub daily: Option<u64>,
    /// Requests in flight at once.
    pub in_flight: Option<u32>,
    /// Counted in addition to `main`; refuses nothing.
    pub candidate: Option<Rate>,
}

/// A GCRA rate: one request each `period`, and `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Nanoseconds per request, rounded up so that no window holds more than the file says; at least 1.
    pub period_ns: u64,
    pub burst: NonZeroU32,
}

impl LimitsFile {
    pub(super) fn check(&mut self, faults: &mut Faults<'_>) -> Limits {
        if self.tiers.len() > MAX_TIERS {
            faults.add("limits.tiers", format!("must be at most {MAX_TIERS} tiers"));
        }
        if !self.tiers.contains_key(&self.default_tier) {
            self.check_missing_default(faults);
            self.tiers.entry(STANDARD.to_owned()).or_insert_with(TierFile::standard);
        }
        let tiers: Vec<_> = self.tiers.iter_mut().map(|(name, tier)| Arc::new(tier.check(faults, name))).collect();
        let default_tier = tiers.iter().find(|tier| tier.name == self.default_tier).cloned();
        let strangers = rate(faults, "limits.strangers.burst", self.strangers.rate, self.strangers.burst);
        // Another default tier stands in only where there is a fault.
        let default_tier = default_tier.unwrap_or_else(|| Arc::new(Tier::new(STANDARD, strangers)));
        Limits { default_tier, tiers, shadow: self.shadow, strangers }
    }

    /// A missing default tier is the built-in `standard`, unless its name is misspelt.
    fn check_missing_default(&self, faults: &mut Faults<'_>) {
        let (path, wanted) = ("limits.default_tier", self.default_tier.as_str());
        let names = self.tiers.keys().map(String::as_str);
        if wanted != STANDARD {
            let all = names.chain(self.tiers.is_empty().then_some(STANDARD));
            faults.add(path, format!("there is no tier {}; {}", shown(wanted), instead(wanted, all)));
        } else if let Some(near) = nearest(STANDARD, names) {
            let message = "did you mean `standard`, the default tier? If not, write [limits.tiers.standard] too";
            faults.add(&format!("limits.tiers.{}", bare(near)), message);
        } else if !self.tiers.is_empty() {
            faults.warn(path, "the file has no tier `standard`: the built-in one is in force for it");
        }
    }
}

impl TierFile {
    /// The tier `standard` of a file without tiers. It has a write limit; in a tier that is typed, a missing
    /// `write_rate` means no write limit.
    pub fn standard() -> Self {
        TierFile { write_rate: Some(HumanRate::per_second(5)), ..TierFile::default() }
    }

    fn check(&mut self, faults: &mut Faults<'_>, name: &str) -> Tier {
        let path = format!("limits.tiers.{}", bare(name));
        if !is_name(name) {
            faults.add(&path, format!("a tier's name is {NAME_RULE}"));
        }
        let write_burst = format!("{path}.write_burst");
        let has_write_rate = self.write_rate.is_some() || faults.has(&format!("{path}.write_rate"));
        if self.write_burst.is_some() && !has_write_rate {
            faults.add(&write_burst, "needs `write_rate`: without it there is no separate limit of writes");
        }
        let candidate = self.candidate.as_ref();
        Tier {
            name: name.to_owned(),
            main: rate(faults, &format!("{path}.burst"), self.rate, self.burst),
            write: self
                .write_rate
                .map(|of| rate(faults, &write_burst, of, *self.write_burst.get_or_insert(burst(WRITE_BURST)))),
            daily: self.daily,
            in_flight: self.in_flight,
            candidate: candidate.map(|of| rate(faults, &format!("{path}.candidate.burst"), of.rate, of.burst)),
        }
    }
}

/// A rate; `path` is that of its burst.
fn rate(faults: &mut Faults<'_>, path: &str, rate: HumanRate, burst: NonZeroU32) -> Rate {
    let period_ns = rate.period_ns();
    if period_ns.checked_mul(burst.get().into()).is_none_or(|refill| refill > MAX_REFILL_NS) {
        faults.add(path, format!("at {rate}, an empty bucket would take more than 365d to refill; lower it"));
    }
    Rate { period_ns, burst }
}

impl Limits {
    /// What is said wherever somebody looks while the limits refuse nothing.
    pub fn shadow_warning(&self) -> Option<&'static str> {
        const OPEN: &str = "limits.shadow is true: no request is refused for a limit, each is only counted; remove it from \
            gateway.toml to refuse them";
        self.shadow.then_some(OPEN)
    }

    /// Whether a tier counts requests by the day, which a store keeps across restarts.
    pub fn counts_days(&self) -> bool {
        self.tiers.iter().any(|tier| tier.daily.is_some())
    }

    /// The tier of this name; the default one where there is none of this name or no name is given.
    pub fn tier(&self, name: Option<&str>) -> &Arc<Tier> {
        let found = name.and_then(|n| self.tiers.iter().find(|t| t.name == n));
        found.unwrap_or(&self.default_tier)
    }
}

impl Tier {
    /// A tier with one limit.
    pub fn new(name: &str, main: Rate) -> Self {
        Tier { name: name.to_owned(), main, write: None, daily: None, in_flight: None, candidate: None }
    }

    /// Its rates, in the order of [`Limit::RATES`](crate::model::Limit::RATES).
    pub fn rates(&self) -> PerRate<Option<Rate>> {
        [Some(self.main), self.write]
    }
}

impl Rate {
    /// Requests a second, after rounding, to ten digits: `20`, `2.999999994`, `0.00001157407407`.
    pub fn per_second(&self) -> String {
        let rate = 1e9 / self.period_ns as f64;
        let decimals = (9.0 - rate.log10().floor()).clamp(0.0, 20.0) as usize;
        let text = format!("{rate:.decimals$}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    }

    /// The most that is let through in `ns` nanoseconds: the burst, and what comes back meanwhile.
    pub fn most_within(&self, ns: u64) -> u64 {
        u64::from(self.burst.get()) + ns / self.period_ns
    }
}
