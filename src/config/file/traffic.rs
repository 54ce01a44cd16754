//! `[limits]` and `[cache]` as they are typed.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::leaf::{HumanDuration, HumanRate, HumanSize};
use crate::config::usable::{Freshness, cached_reads};
use crate::wire::{Answer, Operation};

/// Requests at once. More is no limit in practice.
const MAX_BURST: u32 = 1_000_000_000;

/// Requests in a day. The count of a day has 40 bits.
const MAX_DAILY: u64 = 1_000_000_000_000;

/// Requests of one key in flight. More connections than this are never open.
const MAX_IN_FLIGHT: u32 = 1_000_000;

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsFile {
    /// The tier of a key that names none, or one that does not exist.
    pub default_tier: String,
    /// Count and report, refuse nothing.
    pub shadow: bool,
    /// The tiers by name. Where there are none, `standard` is 20/s with 40 at once, writes 5/s with 10 at once.
    pub tiers: BTreeMap<String, TierFile>,
    /// Per client address (IPv6: /64): requests that end in 01 or 02.
    pub strangers: StrangersFile,
}

impl Default for LimitsFile {
    fn default() -> Self {
        LimitsFile {
            default_tier: "standard".to_owned(),
            shadow: false,
            tiers: BTreeMap::new(),
            strangers: StrangersFile::default(),
        }
    }
}

/// `[limits.tiers.NAME]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TierFile {
    /// Requests over time, such as "20/s" or "600/m".
    pub rate: HumanRate,
    /// Requests at once.
    #[schemars(range(min = 1, max = MAX_BURST))]
    pub burst: NonZeroU32,
    /// setPoints over time, counted in addition; where it is not given, there is no separate limit.
    #[schemars(with = "HumanRate")]
    pub write_rate: Option<HumanRate>,
    /// setPoints at once.
    #[schemars(range(min = 1, max = MAX_BURST))]
    pub write_burst: NonZeroU32,
    /// Requests in a UTC day, kept across restarts.
    #[schemars(with = "u64", range(min = 1, max = MAX_DAILY))]
    pub daily: Option<u64>,
    /// Requests of one key in flight at once.
    #[schemars(with = "u64", range(min = 1, max = MAX_IN_FLIGHT))]
    pub in_flight: Option<u32>,
    /// A limit to try out: it is counted in addition to the real one and refuses nothing.
    #[schemars(with = "CandidateFile")]
    pub candidate: Option<CandidateFile>,
}

impl Default for TierFile {
    fn default() -> Self {
        TierFile {
            rate: per_second(20),
            burst: burst(40),
            write_rate: None,
            write_burst: burst(10),
            daily: None,
            in_flight: None,
            candidate: None,
        }
    }
}

impl TierFile {
    /// The tier `standard` of a file without tiers. It has a write limit; in a tier that is typed, a missing
    /// `write_rate` means no write limit.
    pub fn standard() -> Self {
        TierFile { write_rate: Some(per_second(5)), ..TierFile::default() }
    }
}

/// `limits.tiers.NAME.candidate`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CandidateFile {
    /// Requests over time.
    pub rate: HumanRate,
    /// Requests at once.
    #[schemars(range(min = 1, max = MAX_BURST))]
    pub burst: NonZeroU32,
}

impl Default for CandidateFile {
    fn default() -> Self {
        CandidateFile { rate: per_second(20), burst: burst(40) }
    }
}

/// `[limits.strangers]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StrangersFile {
    /// Requests without a valid key over time.
    pub rate: HumanRate,
    /// Requests without a valid key at once.
    #[schemars(range(min = 1, max = MAX_BURST))]
    pub burst: NonZeroU32,
}

impl Default for StrangersFile {
    fn default() -> Self {
        StrangersFile { rate: per_second(1), burst: burst(30) }
    }
}

/// `[cache]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub struct CacheFile {
    /// Memory for answers.
    pub max_size: HumanSize,
    /// By section. What is in force of them is in `Cache`.
    #[serde(flatten, skip_serializing)]
    #[schemars(schema_with = "sections")]
    pub reads: BTreeMap<String, FreshnessFile>,
}

impl Default for CacheFile {
    fn default() -> Self {
        CacheFile { max_size: HumanSize(64 << 20), reads: BTreeMap::new() }
    }
}

/// The sections of the reads, with the defaults of each.
fn sections(generator: &mut SchemaGenerator) -> Schema {
    let section = |(operation, name, default): (Operation, &'static str, Freshness)| {
        let mut section = FreshnessFile::json_schema(generator);
        let expires = match operation.row().answer {
            Answer::Map { expires: true } => "; never served past the first expiry they hold",
            _ => "",
        };
        section.insert("description".to_owned(), format!("Answers to {}{expires}.", operation.name()).into());
        let defaults = serde_json::to_value(FreshnessFile::from(default)).unwrap_or_default();
        for (name, setting) in section.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
            setting["default"] = defaults[name].clone();
        }
        (name.to_owned(), section.to_value())
    };
    json_schema!({ "type": "object", "properties": Map::from_iter(cached_reads().map(section)) })
}

/// `[cache.NAME]`
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FreshnessFile {
    /// How long an answer is fresh; "0s": it is never fresh.
    #[schemars(with = "HumanDuration")]
    pub ttl: Option<HumanDuration>,
    /// After that: how long it may still be served while a new one is fetched.
    #[schemars(with = "HumanDuration")]
    pub stale_while_revalidate: Option<HumanDuration>,
    /// After that: how long it may still be served while the origin fails.
    #[schemars(with = "HumanDuration")]
    pub stale_if_error: Option<HumanDuration>,
}

impl From<Freshness> for FreshnessFile {
    fn from(freshness: Freshness) -> Self {
        let typed = |duration| Some(HumanDuration(duration));
        FreshnessFile {
            ttl: typed(freshness.ttl),
            stale_while_revalidate: typed(freshness.stale_while_revalidate),
            stale_if_error: typed(freshness.stale_if_error),
        }
    }
}

/// The rates of the defaults, none of which is 0.
fn per_second(count: u64) -> HumanRate {
    HumanRate::per_second(NonZeroU64::new(count).unwrap_or(NonZeroU64::MIN))
}

/// The bursts of the defaults, none of which is 0.
fn burst(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
}
