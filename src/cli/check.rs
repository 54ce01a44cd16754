//! `guildgate check`: prints the configuration in force, or every fault in it. It checks files, addresses and the store
//! in the same way as `serve`, so that both exit with code 2 for the same faults. It neither makes nor migrates a store,
//! because an older server may be running on it.

use std::io::Write;

use super::error::CommandError;
use crate::cluster;
use crate::config::{self, Cluster, Keys, Loaded};
use crate::gateway::KeySource;
use crate::process::preflight;
use crate::store::{IfMissing, Store, StoreState};

/// Prints the configuration in force, and the keys whose tier does not exist.
pub(super) async fn run(loaded: &Loaded, out: &mut dyn Write) -> Result<(), CommandError> {
    let config = &loaded.config;
    let (limits, at) = (&config.limits, &config.origin.store);
    let inputs = preflight::check(loaded)?;
    let warnings = inputs.warnings(config);
    // A store that `serve` cannot use is a fault of the setting that names it.
    let unusable = |why: String| {
        let why = if limits.counts_days() { format!("a tier's `daily` needs the store: {why}") } else { why };
        CommandError::of_setting(loaded, "origin.store", why)
    };
    let state = if config.needs_store() { Store::state(at).await } else { Ok(StoreState::Missing) };
    let state = state.map_err(|e| unusable(e.to_string()))?;
    let keys = match &config.keys {
        Keys::Store if state == StoreState::Current => {
            let store = Store::open(at, IfMissing::Refuse).await.map_err(|e| unusable(e.to_string()))?;
            KeySource::Store(store).list().await.map_err(unusable)?.keys
        }
        Keys::File(_) | Keys::Store | Keys::Origin { .. } => Vec::new(), // those of a file are among the warnings
    };
    let redis = match &config.cluster {
        Some(cluster) => about_redis(loaded, cluster).await?,
        None => String::new(),
    };
    write!(out, "{}{redis}", config::report(loaded))?;
    if state == StoreState::Older {
        writeln!(out, "{at} is of an older version; the next command that opens it brings it up to date")?;
    }
    for warning in warnings {
        writeln!(out, "{warning}")?;
    }
    if matches!(config.keys, Keys::Store) {
        preflight::key_warnings(config, &keys).iter().try_for_each(|warning| writeln!(out, "{warning}"))?;
    }
    Ok(())
}

/// What Redis answers, and what is wrong with it though it can be used.
async fn about_redis(loaded: &Loaded, config: &Cluster) -> Result<String, CommandError> {
    let name = format!("Redis at {}", config.redis);
    let unusable = |why| CommandError::of_setting(loaded, "cluster.redis", format!("{name} cannot be used: {why}"));
    let (info, took) = cluster::check(config).await.map_err(unusable)?;
    // The version is empty if its user may not ask, and of a Redis Cluster.
    let version = if info.version.is_empty() { String::new() } else { format!(" (version {})", info.version) };
    let mut text = format!("{name} answers{version}\n");
    if took > config.timeout {
        let (took, waits) = (took.as_millis(), config.timeout.as_millis());
        let late = format!("it answers after {took} ms, and a request waits {waits} ms for it (cluster.timeout)");
        text += &format!("{name} is as good as away: {late}\n");
    }
    if info.evicts {
        text += &(cluster::evicts_text(config) + "\n");
    }
    Ok(text)
}
