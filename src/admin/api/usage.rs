//! What each key asked lately and how close it is to its limits, as this process counted it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::admin::extract::{Ids, PageLimit, Params};
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::config::Rate;
use crate::gateway::KeyUsage;
use crate::limits::{ActivityCounts, Level};
use crate::model::Limit;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show))
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

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    #[param(inline)]
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

/// Lists the keys that were used on the last day, those with the most requests first.
#[utoipa::path(get, path = "/api/usage", operation_id = "listUsage", params(ListParams),
    responses((status = 200, body = Usage)))]
async fn list(State(shared): State<Arc<Shared>>, Params(params): Params<ListParams>) -> Result<Json<Usage>, Problem> {
    let limit = params.limit.get();
    let list = async move |shared: Arc<Shared>| {
        let mut used = shared.gateway.used_keys();
        used.sort_by_cached_key(|(requests, key)| (Reverse(*requests), key.id.clone()));
        let keys = used.len();
        let items = used.into_iter().take(limit).map(|(_, key)| UsageRow::new(&shared.gateway.usage(key))).collect();
        Ok(Json(Usage { items, keys }))
    };
    shared.over_all_keys(list).await
}

/// Shows the use of one key.
#[utoipa::path(get, path = "/api/keys/{id}/usage", operation_id = "getUsage", responses((status = 200, body = UsageRow)))]
async fn show(State(shared): State<Arc<Shared>>, Ids(id): Ids<String>) -> Result<Json<UsageRow>, Problem> {
    let usage = shared.gateway.usage_of(|of| **of == *id);
    let usage = usage.first().ok_or_else(|| Problem::not_found(format!("no key {id} is in force")))?;
    Ok(Json(UsageRow::new(usage)))
}
