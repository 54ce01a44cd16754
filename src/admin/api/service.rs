//! The service as a whole: its status, the configuration and limits in force, the cache, and reloads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::{Answer, Api, GET, POST, row};
use crate::admin::extract::Nothing;
use crate::admin::problem::Problem;
use crate::admin::shared::{ConfigInForce, Reload, ReloadOutcome, ReloadRequest, Shared};
use crate::config::{Rate, Tier};
use crate::model::{GuildId, Limit, MemberId};

/// How long a reload is waited for: while a file is being written, it is not read. The largest key file takes 2 to 3 s.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn add(api: Api) -> Api {
    let cluster =
        "Shows the nodes that share one Redis, how far they hear each other, and whether their configurations differ.";
    let purge_of = "Empties the cache of the answers to a guild's keys, of those about a member, of those that are both, or of all.";
    let reloads = "Loads gateway.toml, the key file and the TLS pair again, each as a whole or not at all.";
    api.route((GET, "/api/status", &[200]), ("getStatus", "Shows the process and whether it is ready."), status)
        .route((GET, "/api/config", &[200]), ("getConfig", "Shows the configuration in force."), config)
        .route((GET, "/api/cluster", &[200]), ("getCluster", cluster), async |at, (), Nothing {}, ()| {
            let none = || Problem::conflict("this node shares nothing with others: cluster.redis is not set");
            row(at.cluster_status().ok_or_else(none)?)
        })
        .route((GET, "/api/limits", &[200]), ("getLimits", "Shows the limits in force."), limits)
        .route((POST, "/api/cache/purge", &[204]), ("purgeCache", purge_of), purge)
        .route((POST, "/api/reload", &[200]), ("reload", reloads), reload)
}

/// The process and what it works with.
#[derive(Debug, Serialize, ToSchema)]
struct Status {
    version: &'static str,
    uptime_s: u64,
    pid: u32,
    /// Of the configuration in force, as in the access log.
    config_hash: String,
    ready: bool,
    /// Why it is not ready.
    reasons: Vec<&'static str>,
    /// Where the store is, without a password; null: there is none.
    store: Option<String>,
    /// Why the store cannot be written to; reads may go on. null: it can.
    store_write_fault: Option<String>,
}

/// The configuration in force.
#[derive(Debug, Serialize, ToSchema)]
struct Config {
    /// As `guildgate check` prints it, without secrets.
    toml: String,
    /// As in the access log.
    hash: String,
    /// The file that it came from; null: the defaults.
    path: Option<String>,
    /// What the operator should know and need not change.
    warnings: Vec<String>,
    /// The settings of the text that take effect after a restart.
    after_restart: Vec<String>,
    /// The last 20 reloads of any file since the start, the latest first.
    reloads: Vec<Reload>,
}

/// The limits in force.
#[derive(Debug, Serialize, ToSchema)]
struct Limits {
    default_tier: String,
    /// Requests over a limit are counted and reported, and none is refused.
    shadow: bool,
    /// Of each address, for requests without a valid key.
    strangers: RateRow,
    tiers: Vec<TierRow>,
}

#[derive(Debug, Serialize, ToSchema)]
struct TierRow {
    name: String,
    /// By their names: `rate`, and `write_rate` if there is one, which counts setPoints in addition.
    rates: BTreeMap<&'static str, RateRow>,
    /// Requests in a UTC day.
    daily: Option<u64>,
    /// Requests in flight at once.
    in_flight: Option<u32>,
    /// Counted only; it refuses nothing.
    candidate: Option<RateRow>,
}

/// A rate and its burst.
#[derive(Debug, Serialize, ToSchema)]
struct RateRow {
    per_second: f64,
    burst: u32,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Purge {
    /// Only answers to this guild's keys.
    guild: Option<GuildId>,
    /// Only answers about this member.
    member: Option<MemberId>,
}

impl From<Rate> for RateRow {
    fn from(rate: Rate) -> Self {
        RateRow { per_second: rate.per_second().parse().unwrap_or_default(), burst: rate.burst.get() }
    }
}

impl TierRow {
    fn new(tier: &Tier) -> Self {
        let rates = Limit::RATES.into_iter().zip(tier.rates());
        TierRow {
            name: tier.name.clone(),
            rates: rates.filter_map(|(limit, rate)| Some((limit.name(), rate?.into()))).collect(),
            daily: tier.daily,
            in_flight: tier.in_flight,
            candidate: tier.candidate.map(RateRow::from),
        }
    }
}

async fn status(shared: Arc<Shared>, (): (), _: Nothing, (): ()) -> Result<Answer<Status>, Problem> {
    let reasons = shared.faults();
    row(Status {
        version: env!("CARGO_PKG_VERSION"),
        uptime_s: shared.process.started.elapsed().as_secs(),
        pid: std::process::id(),
        config_hash: shared.process.config.read().loaded.config.hash.to_string(),
        ready: reasons.is_empty(),
        reasons,
        store: shared.store.as_ref().map(|store| store.location().to_owned()),
        store_write_fault: shared.store.as_ref().and_then(|store| store.write_fault()),
    })
}

async fn config(shared: Arc<Shared>, (): (), _: Nothing, (): ()) -> Result<Answer<Config>, Problem> {
    let ConfigInForce { loaded, after_restart } = shared.process.config.read().clone();
    row(Config {
        toml: loaded.toml(),
        hash: loaded.config.hash.to_string(),
        path: loaded.path.as_ref().map(|path| path.display().to_string()),
        warnings: loaded.warnings.iter().map(ToString::to_string).collect(),
        after_restart,
        reloads: shared.process.reloads.last(),
    })
}

async fn limits(shared: Arc<Shared>, (): (), _: Nothing, (): ()) -> Result<Answer<Limits>, Problem> {
    let state = shared.gateway.state();
    let limits = &state.config.limits;
    row(Limits {
        default_tier: limits.default_tier.name.clone(),
        shadow: limits.shadow,
        strangers: limits.strangers.into(),
        tiers: limits.tiers.iter().map(|tier| TierRow::new(tier)).collect(),
    })
}

async fn purge(shared: Arc<Shared>, (): (), _: Nothing, purge: Option<Purge>) -> Result<Answer<()>, Problem> {
    let Purge { guild, member } = purge.unwrap_or_default();
    row(shared.gateway.purge(guild.as_ref(), member).map_err(|error| Problem::conflict(error.to_string()))?)
}

async fn reload(shared: Arc<Shared>, (): (), _: Nothing, (): ()) -> Result<Answer<ReloadOutcome>, Problem> {
    let Some(requests) = &shared.reload else {
        return Err(Problem::conflict("a demo has nothing to reload: its configuration is its own"));
    };
    let (answer, answered) = oneshot::channel();
    let busy = "other reloads are under way";
    requests.try_send(ReloadRequest(answer)).map_err(|_| Problem::unavailable(busy, 1))?;
    let late =
        "a file keeps changing, or its disk or a name's look-up does not answer; what stands still is loaded by itself";
    let answered = timeout(RELOAD_TIMEOUT, answered).await.map_err(|_| Problem::unavailable(late, 1))?;
    let outcome = answered.map_err(|_| Problem::unavailable("the process is ending", 1))?;
    if outcome.faults.is_empty() {
        return row(outcome);
    }
    let ReloadOutcome { changed, rejected, faults, .. } = outcome;
    let changed =
        if changed.is_empty() { "nothing was changed".to_owned() } else { format!("changed: {}", changed.join(", ")) };
    let verb = if rejected.len() == 1 { "was" } else { "were" };
    let detail = format!("{} {verb} rejected as a whole; {changed}", rejected.join(" and "));
    Err(Problem::with_faults(&detail, faults))
}
