//! Which record is read, and what its keys are called: by the configuration in force.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::LogArgs;
use crate::cli::{Failure, runtime};
use crate::config::{self, Config, Keys};
use crate::model::KeyId;
use crate::store::{AnyStore, Directory, IfMissing, StoreState};

/// What `limits plan` and `limits suggest` work on.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) files: Vec<PathBuf>,
    pub(super) names: HashMap<KeyId, String>,
}

impl Source {
    /// The record that `log` names, or else the configuration at `named`. The names are for people alone: where they
    /// cannot be had, that is said, and keys go by their ids.
    pub(super) fn find(log: &LogArgs, named: Option<&Path>) -> Result<Self, Failure> {
        let config = match config::load(named) {
            Ok(loaded) => loaded.config,
            Err(faults) if log.files.is_empty() => return Err(faults.into()),
            Err(faults) => {
                say_nameless(&faults.to_string());
                return Ok(Source { files: log.files.clone(), names: HashMap::new() });
            }
        };
        let files = match &config.log.decisions {
            _ if !log.files.is_empty() => log.files.clone(),
            Some(decisions) => vec![decisions.path.clone()],
            None => {
                return Err(Failure::Unusable(
                    "no record is named: name one with --log FILE, or set log.decisions, with which a server writes one"
                        .to_owned(),
                ));
            }
        };
        let names = names(&config).unwrap_or_else(|why| {
            say_nameless(&why);
            HashMap::new()
        });
        Ok(Source { files, names })
    }

    pub(super) fn name(&self, key: &str) -> Option<&str> {
        self.names.get(key).map(String::as_str)
    }
}

/// The names of the keys in the store. Keys of a file, and those that an origin knows, have none but their ids. A
/// store that is not there, or is an older version's, is left as it is.
fn names(config: &Config) -> Result<HashMap<KeyId, String>, String> {
    if !matches!(config.keys, Keys::Store) {
        return Ok(HashMap::new());
    }
    let at = &config.origin.store;
    runtime().map_err(|e| e.to_string())?.block_on(async {
        match AnyStore::state(at).await.map_err(|e| e.to_string())? {
            StoreState::Missing => return Ok(HashMap::new()),
            StoreState::Older => {
                return Err(format!("{at} is of an older version; the next server brings it up to date"));
            }
            StoreState::Current => {}
        }
        let store = AnyStore::open(at, IfMissing::Refuse).await.map_err(|e| e.to_string())?;
        let keys = store.keys().await.map_err(|e| e.to_string())?;
        Ok(keys.into_iter().filter(|key| !key.name.is_empty()).map(|key| (key.id, key.name)).collect())
    })
}

fn say_nameless(why: &str) {
    // Where stderr is gone there is nobody to tell.
    let _ = writeln!(io::stderr(), "keys are shown by their ids alone, since their names cannot be read: {why}");
}
