//! `guildgate check`: prints the configuration in force, or every fault in it. It looks at files, addresses and the
//! store in the same way as `serve`, so that what ends `serve` with exit code 2 ends `check` with it too. It makes no
//! store and brings none up to date, since an older server may be running on it.

use std::io::Write;

use super::error::CommandError;
use super::{Failure, files, runtime};
use crate::config::{self, Keys, Loaded, SettingFault};
use crate::gateway::KeySource;
use crate::store::{AnyStore, IfMissing, Standing};

/// Prints what is in force, and which keys name a tier that is not there. A store that does not
/// exist yet is not made.
pub(super) fn run(loaded: &Loaded, out: &mut dyn Write) -> Result<(), Failure> {
    let limits = &loaded.config.limits;
    let at = &loaded.config.origin.store;
    let runtime = runtime()?;
    let files = files::look(loaded).map_err(Failure::Unusable)?;
    files::may_listen(loaded).map_err(Failure::Unusable)?;
    // What ends `serve` for its store is a fault of the setting that names it.
    let unusable = |why: String| {
        let why = if limits.counts_days() { format!("a tier's `daily` needs the store: {why}") } else { why };
        Failure::Unusable(loaded.faults(&[SettingFault::new("origin.store", why)]).to_string())
    };
    // Looking must not bring it up to date: an older server may be running on it.
    let standing =
        if loaded.config.needs_store() { runtime.block_on(AnyStore::look(at)) } else { Ok(Standing::Missing) };
    let standing = standing.map_err(|e| unusable(e.to_string()))?;
    let listed = match &loaded.config.keys {
        Keys::Store if standing == Standing::Usable => {
            let store = runtime.block_on(AnyStore::open(at, IfMissing::Refuse)).map_err(|e| unusable(e.to_string()))?;
            runtime.block_on(KeySource::Store(store.into()).list()).map_err(unusable)?.keys
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
