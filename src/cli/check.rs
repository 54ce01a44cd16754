use std::io::Write;

use super::error::CommandError;
use super::{Failure, files, runtime};
use crate::config::{self, Keys, Loaded};
use crate::gateway::KeySource;
use crate::store::{AnyStore, IfMissing, Standing};

/// Prints what is in force, and which keys name a tier that is not there. A store that does not
/// exist yet is not made.
pub(super) fn run(loaded: &Loaded, out: &mut dyn Write) -> Result<(), Failure> {
    let limits = &loaded.config.limits;
    let at = &loaded.config.origin.store;
    let runtime = runtime()?;
    let files = files::look(loaded).map_err(Failure::Unusable)?;
    // Looking must not bring it up to date: an older server may be running on it.
    let standing =
        if loaded.config.needs_store() { runtime.block_on(AnyStore::look(at)) } else { Ok(Standing::Missing) };
    let standing = standing.map_err(|e| match limits.counts_days() {
        true => Failure::Unusable(format!("a tier's `daily` needs the store: {e}")),
        false => CommandError::from(e).into(),
    })?;
    let listed = match &loaded.config.keys {
        Keys::Store if standing == Standing::Usable => {
            let store = runtime.block_on(AnyStore::open(at, IfMissing::Refuse)).map_err(CommandError::from)?;
            runtime.block_on(KeySource::Store(store.into()).list()).map_err(Failure::Unusable)?
        }
        Keys::File(_) | Keys::Store | Keys::Origin { .. } => files.keys.unwrap_or_default(),
    };
    write!(out, "{}", config::report(loaded)).map_err(CommandError::from)?;
    if standing == Standing::Older {
        writeln!(out, "{at} is of an older version; the next command that opens it brings it up to date")
            .map_err(CommandError::from)?;
    }
    if let Some(notice) = files.certificate.and_then(|certificate| certificate.notice) {
        writeln!(out, "{notice}").map_err(CommandError::from)?;
    }
    for key in listed {
        if let Some(tier) = key.tier.filter(|tier| !limits.tiers.iter().any(|t| *t.name == **tier)) {
            let default = &limits.default_tier.name;
            writeln!(out, "key {}: its tier '{tier}' is not in [limits.tiers]; it gets '{default}'", key.id)
                .map_err(CommandError::from)?;
        }
    }
    Ok(())
}
