//! What each key asked lately and how close it is to its limits, as this process counted it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Api, GET, row};
use crate::admin::extract::{Nothing, PageLimit};
use crate::admin::problem::Problem;
use crate::config::Rate;
use crate::gateway::KeyUsage;
use crate::limits::{ActivityCounts, Level};
use crate::model::Limit;

pub(super) fn add(api: Api) -> Api {
    let list = ("listUsage", "Lists the keys that were used on the last day, those with the most requests first.");
    api.route((GET, "/api/usage", &[200]), list, async |at, (), of: ListParams, ()| {
        let mut used = at.gateway.used_keys();
        used.sort_by_cached_key(|(requests, key)| (Reverse(*requests), key.id.clone()));
        let keys = used.len();
        let shown = used.into_iter().take(of.limit.get());
        let items = shown.map(|(_, key)| UsageRow::new(&at.gateway.usage(key))).collect();
        row(Usage { items, keys })
    })
    .route(
        (GET, "/api/keys/{id}/usage", &[200]),
        ("getUsage", "Shows the use of one key."),
        async |at, id: String, Nothing {}, ()| {
            let usage = at.gateway.usage_of(|of| **of == *id);
            let none = || Problem::not_found(format!("no key {id} is in force"));
            row(usage.first().map(UsageRow::new).ok_or_else(none)?)
        },
    )
}

/// The use of one key.
#[derive(Debug, Serialize, ToSchema)]
struct UsageRow {
    id: String,
    guild: String,
    tier: String,
    minute: CountsRow,
    hour: CountsRow,
    day: CountsRow,
    /// By the names of the tier's rates: `rate`, and `write_rate` if the tier has it.
    rates: BTreeMap<&'static str, LevelRow>,
    /// null: the tier has no `daily`.
    daily: Option<UsedRow>,
    in_flight: UsedRow,
}

/// Requests in one window of time, which reaches back by its name or up to a sixth less (the day: an hour less).
#[derive(Debug, Serialize, ToSchema)]
struct CountsRow {
    requests: u32,
    /// Requests over each limit, by its name.
    over: BTreeMap<&'static str, u32>,
    /// Refused for another reason that lies with the caller.
    refused: u32,
    /// Not answered by the service (20, 21, 22).
    failed: u32,
}

/// How full a bucket is now.
#[derive(Debug, Serialize, ToSchema)]
struct LevelRow {
    burst: u64,
    /// Requests that would be admitted now.
    remaining: u64,
}

/// How much is used now, and how much there may be; null: any number.
#[derive(Debug, Serialize, ToSchema)]
struct UsedRow {
    used: u64,
    max: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Usage {
    items: Vec<UsageRow>,
    /// How many keys were used on the last day.
    keys: usize,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    #[param(inline)]
    #[serde(default)]
    limit: PageLimit,
}

impl From<ActivityCounts> for CountsRow {
    fn from(counts: ActivityCounts) -> Self {
        let over = Limit::ALL.map(|limit| (limit.name(), counts.over_limit[limit.index()])).into();
        CountsRow { requests: counts.requests, over, refused: counts.refused, failed: counts.failed }
    }
}

impl UsageRow {
    fn new(usage: &KeyUsage) -> Self {
        let KeyUsage { key, recent, levels } = usage;
        let tier = key.policy.tier();
        let level = |(limit, at): (Limit, Option<(Level, Rate)>)| {
            let (level, rate) = at?;
            Some((limit.name(), LevelRow { burst: rate.burst.get().into(), remaining: level.remaining }))
        };
        UsageRow {
            id: key.id.to_string(),
            guild: key.guild.to_string(),
            tier: tier.name.clone(),
            minute: recent.minute.into(),
            hour: recent.hour.into(),
            day: recent.day.into(),
            rates: Limit::RATES.into_iter().zip(levels.rates).filter_map(level).collect(),
            daily: levels.daily.map(|(used, max)| UsedRow { used, max: Some(max) }),
            in_flight: UsedRow { used: levels.in_flight.0.into(), max: levels.in_flight.1.map(u64::from) },
        }
    }
}
