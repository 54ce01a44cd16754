use std::io::Write;

use super::error::CommandError;
use super::{Failure, runtime};
use crate::config::{self, Keys, Loaded};
use crate::gateway::KeySource;
use crate::store::SqliteStore;

/// Prints what is in force, and which keys name a tier that is not there. It changes nothing: a
/// store that does not exist yet is not made.
pub(super) fn run(loaded: &Loaded, out: &mut dyn Write) -> Result<(), Failure> {
    let limits = &loaded.config.limits;
    let source = match &loaded.config.keys {
        Keys::File(path) => Some(KeySource::File(path.clone())),
        Keys::Store if loaded.config.origin.store.exists() => {
            let store = SqliteStore::open(&loaded.config.origin.store).map_err(CommandError::from)?;
            Some(KeySource::Store(store.into()))
        }
        Keys::Store => None,
    };
    let listed = match source {
        Some(source) => runtime()?.block_on(source.list()).map_err(Failure::Unusable)?,
        None => Vec::new(),
    };
    write!(out, "{}", config::report(loaded)).map_err(CommandError::from)?;
    for key in listed {
        if let Some(tier) = key.tier.filter(|tier| !limits.tiers.iter().any(|t| t.name == *tier)) {
            let default = &limits.default_tier.name;
            writeln!(out, "key {}: its tier '{tier}' is not in [limits.tiers]; it gets '{default}'", key.id)
                .map_err(CommandError::from)?;
        }
    }
    Ok(())
}
