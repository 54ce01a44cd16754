use std::io::Write;

use super::error::CommandError;
use super::{Failure, runtime};
use crate::config::{self, Keys, Loaded, OriginKind};
use crate::edge::Certificate;
use crate::gateway::KeySource;
use crate::origin::Tls;
use crate::store::SqliteStore;

/// Prints what is in force, and which keys name a tier that is not there. A store that does not
/// exist yet is not made.
pub(super) fn run(loaded: &Loaded, out: &mut dyn Write) -> Result<(), Failure> {
    let limits = &loaded.config.limits;
    let store = &loaded.config.origin.store;
    if limits.counts_days()
        && let Some(obstacle) = SqliteStore::obstacle(store)
    {
        return Err(Failure::Unusable(format!("a tier's `daily` needs the store: {obstacle}")));
    }
    let there = store.metadata().is_ok_and(|file| file.len() > 0);
    // Looking must not bring it up to date: an older server may be running on it.
    let of_this_version = there && SqliteStore::is_up_to_date(store).map_err(CommandError::from)?;
    if let OriginKind::Http(upstreams) = &loaded.config.origin.kind {
        Tls::load(upstreams).map_err(Failure::Unusable)?;
    }
    let source = match &loaded.config.keys {
        Keys::File(path) => Some(runtime()?.block_on(KeySource::file(path.clone(), None)).map_err(Failure::Unusable)?),
        Keys::Store if of_this_version => {
            Some(KeySource::Store(SqliteStore::open(store).map_err(CommandError::from)?.into()))
        }
        Keys::Store | Keys::Origin { .. } => None,
    };
    let certificate = match &loaded.config.server.tls {
        Some(files) => Some(Certificate::load(files).map_err(|e| Failure::Unusable(e.to_string()))?),
        None => None,
    };
    let listed = match source {
        Some(source) => runtime()?.block_on(source.list()).map_err(Failure::Unusable)?,
        None => Vec::new(),
    };
    write!(out, "{}", config::report(loaded)).map_err(CommandError::from)?;
    if there && !of_this_version {
        let store = store.display();
        writeln!(out, "{store} is of an older version; the next command that opens it brings it up to date")
            .map_err(CommandError::from)?;
    }
    if let Some(notice) = certificate.and_then(|certificate| certificate.notice) {
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
