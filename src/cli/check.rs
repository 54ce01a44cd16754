//! `guildgate check`: prints the configuration in force, or every fault in it. It checks files, addresses and the store
//! in the same way as `serve`, so that both exit with code 2 for the same faults. It neither makes nor migrates a store,
//! because an older server may be running on it.

use std::io::Write;

use super::{Failure, runtime};
use crate::cluster;
use crate::config::{self, Keys, Loaded, SettingFault};
use crate::gateway::KeySource;
use crate::keys::hide_keys;
use crate::process::preflight;
use crate::store::{IfMissing, Store, StoreState};

/// Prints the configuration in force, and the keys whose tier does not exist.
pub(super) fn run(loaded: &Loaded, out: &mut dyn Write) -> Result<(), Failure> {
    let limits = &loaded.config.limits;
    let at = &loaded.config.origin.store;
    let runtime = runtime()?;
    let inputs = preflight::check(loaded)?;
    let warnings = inputs.warnings(&loaded.config);
    // A store that `serve` cannot use is a fault of the setting that names it.
    let unusable = |why: String| {
        let why = if limits.counts_days() { format!("a tier's `daily` needs the store: {why}") } else { why };
        Failure::Unusable(loaded.faults(&[SettingFault::new("origin.store", why)]).to_string())
    };
    let state = if loaded.config.needs_store() { runtime.block_on(Store::state(at)) } else { Ok(StoreState::Missing) };
    let state = state.map_err(|e| unusable(e.to_string()))?;
    let keys = match &loaded.config.keys {
        Keys::Store if state == StoreState::Current => {
            let store = runtime.block_on(Store::open(at, IfMissing::Refuse)).map_err(|e| unusable(e.to_string()))?;
            runtime.block_on(KeySource::Store(store).list()).map_err(unusable)?.keys
        }
        Keys::File(_) | Keys::Store | Keys::Origin { .. } => inputs.keys.unwrap_or_default(),
    };
    let redis = loaded.config.cluster.as_ref().map(|config| runtime.block_on(cluster::check(config)));
    let redis = redis.transpose().map_err(|fault| {
        let at = loaded.config.cluster.as_ref().map_or_else(String::new, |config| format!(" at {}", config.redis));
        let why = format!("Redis{at} cannot be used: {fault}");
        Failure::Unusable(loaded.faults(&[SettingFault::new("cluster.redis", why)]).to_string())
    })?;
    write!(out, "{}", config::report(loaded))?;
    if let (Some(config), Some((info, took))) = (&loaded.config.cluster, redis) {
        let version = &info.version; // empty if its user may not ask, and of a Redis Cluster
        let version = if version.is_empty() { String::new() } else { format!(" (version {version})") };
        writeln!(out, "Redis at {} answers{version}", config.redis)?;
        if took > config.timeout {
            let (took, waits) = (took.as_millis(), config.timeout.as_millis());
            let text = format!("it answers after {took} ms, and a request waits {waits} ms for it (cluster.timeout)");
            writeln!(out, "Redis at {} is as good as away: {text}", config.redis)?;
        }
        if info.evicts {
            writeln!(out, "{}", cluster::evicts_text(config))?;
        }
    }
    if state == StoreState::Older {
        writeln!(out, "{at} is of an older version; the next command that opens it brings it up to date")?;
    }
    for warning in warnings {
        writeln!(out, "{warning}")?;
    }
    for key in keys {
        if let Some(tier) = key.tier.filter(|tier| !limits.tiers.iter().any(|t| *t.name == **tier)) {
            let default = &limits.default_tier.name;
            let tier = hide_keys(&tier);
            writeln!(out, "key {}: its tier '{tier}' is not in [limits.tiers]; it gets '{default}'", key.id)?;
        }
    }
    Ok(())
}
