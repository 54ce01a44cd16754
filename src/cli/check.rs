use std::io::Write;

use super::error::CommandError;
use super::{Failure, runtime};
use crate::config::{self, Keys, Loaded, OriginKind, StoreAt};
use crate::edge::Certificate;
use crate::gateway::KeySource;
use crate::origin::Tls;
use crate::store::{AnyStore, IfMissing, SqliteStore, Standing};

/// Prints what is in force, and which keys name a tier that is not there. A store that does not
/// exist yet is not made.
pub(super) fn run(loaded: &Loaded, out: &mut dyn Write) -> Result<(), Failure> {
    let limits = &loaded.config.limits;
    let at = &loaded.config.origin.store;
    let runtime = runtime()?;
    if let (true, StoreAt::Sqlite(path)) = (limits.counts_days(), at)
        && let Some(obstacle) = SqliteStore::obstacle(path)
    {
        return Err(Failure::Unusable(format!("a tier's `daily` needs the store: {obstacle}")));
    }
    // Looking must not bring it up to date: an older server may be running on it.
    let standing =
        if loaded.config.needs_store() { runtime.block_on(AnyStore::look(at)) } else { Ok(Standing::Missing) };
    let standing = standing.map_err(|e| match limits.counts_days() {
        true => Failure::Unusable(format!("a tier's `daily` needs the store: {e}")),
        false => CommandError::from(e).into(),
    })?;
    if let OriginKind::Http(upstreams) = &loaded.config.origin.kind {
        Tls::load(upstreams).map_err(Failure::Unusable)?;
    }
    let source = match &loaded.config.keys {
        Keys::File(path) => Some(runtime.block_on(KeySource::file(path.clone(), None)).map_err(Failure::Unusable)?),
        Keys::Store if standing == Standing::Usable => {
            let store = runtime.block_on(AnyStore::open(at, IfMissing::Refuse)).map_err(CommandError::from)?;
            Some(KeySource::Store(store.into()))
        }
        Keys::Store | Keys::Origin { .. } => None,
    };
    let certificate = match &loaded.config.server.tls {
        Some(files) => Some(Certificate::load(files).map_err(|e| Failure::Unusable(e.to_string()))?),
        None => None,
    };
    let listed = match source {
        Some(source) => runtime.block_on(source.list()).map_err(Failure::Unusable)?,
        None => Vec::new(),
    };
    write!(out, "{}", config::report(loaded)).map_err(CommandError::from)?;
    if standing == Standing::Older {
        writeln!(out, "{at} is of an older version; the next command that opens it brings it up to date")
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
