//! `[limits]` and `[cache]` as they are typed.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::{HumanDuration, HumanRate, HumanSize};

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
#[serde(default, deny_unknown_fields)]
pub struct CacheFile {
    /// Memory for answers.
    pub max_size: HumanSize,
    /// Answers to getPoints.
    pub points: PointsFile,
    /// Answers to getWarns; never served past the first expiry they hold.
    pub warns: WarnsFile,
    /// Answers to getReviews.
    pub reviews: ReviewsFile,
}

impl Default for CacheFile {
    fn default() -> Self {
        CacheFile {
            max_size: HumanSize(64 << 20),
            points: PointsFile::default(),
            warns: WarnsFile::default(),
            reviews: ReviewsFile::default(),
        }
    }
}

// The three sections of `[cache]` differ in two defaults; serde has no const generics that would carry them.
macro_rules! freshness_file {
    ($name:ident, $section:literal, ttl: $ttl:literal, stale_if_error: $stale_if_error:literal) => {
        #[doc = concat!("`[cache.", $section, "]`")]
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            /// How long an answer is fresh; "0s": it is never fresh.
            pub ttl: HumanDuration,
            /// After that: how long it may still be served while a new one is fetched.
            pub stale_while_revalidate: HumanDuration,
            /// After that: how long it may still be served while the origin fails.
            pub stale_if_error: HumanDuration,
        }

        impl Default for $name {
            fn default() -> Self {
                $name {
                    ttl: HumanDuration::secs($ttl),
                    stale_while_revalidate: HumanDuration::secs(0),
                    stale_if_error: HumanDuration::secs($stale_if_error),
                }
            }
        }

        impl $name {
            /// In the order of the fields.
            pub(in crate::config) fn durations(&self) -> [HumanDuration; 3] {
                [self.ttl, self.stale_while_revalidate, self.stale_if_error]
            }
        }
    };
}

freshness_file!(PointsFile, "points", ttl: 30, stale_if_error: 600);
freshness_file!(WarnsFile, "warns", ttl: 60, stale_if_error: 0);
freshness_file!(ReviewsFile, "reviews", ttl: 300, stale_if_error: 0);

/// The rates of the defaults, none of which is 0.
fn per_second(count: u64) -> HumanRate {
    HumanRate::per_second(NonZeroU64::new(count).unwrap_or(NonZeroU64::MIN))
}

/// The bursts of the defaults, none of which is 0.
fn burst(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
}
