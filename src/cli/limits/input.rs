//! Which decision record is read, and the names of its keys, from the configuration in force.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::LogArgs;
use crate::cli::error::CommandError;
use crate::cli::output::print_to_stderr;
use crate::cli::{Failure, runtime};
use crate::config::{self, Config, Keys};
use crate::model::KeyId;
use crate::store::{IfMissing, Store, StoreState};

/// The input of `limits plan` and `limits suggest`.
#[derive(Debug, Default)]
pub(super) struct Input {
    pub(super) files: Vec<PathBuf>,
    pub(super) names: HashMap<KeyId, String>,
}

impl Input {
    /// The record that `log` names, or the one that the configuration names. Names are only shown to people: if they
    /// cannot be read, a line on stderr says so, and keys are shown by their ids.
    pub(super) fn find(log: &LogArgs, config_path: Option<&Path>) -> Result<Self, Failure> {
        let config = match config::load(config_path) {
            Ok(loaded) => loaded.config,
            Err(faults) if log.files.is_empty() => return Err(faults.into()),
            Err(faults) => return Ok(Input { files: log.files.clone(), names: without_names(&faults.to_string()) }),
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
        Ok(Input { files, names: names(&config).unwrap_or_else(|why| without_names(&why.message)) })
    }
}

/// The names of the keys in the store. Keys of a key file or of an origin have only ids. A store that does not exist, or
/// is of an older version, is not changed.
fn names(config: &Config) -> Result<HashMap<KeyId, String>, CommandError> {
    if !matches!(config.keys, Keys::Store) {
        return Ok(HashMap::new());
    }
    let at = &config.origin.store;
    runtime()?.block_on(async {
        match Store::state(at).await? {
            StoreState::Missing => return Ok(HashMap::new()),
            StoreState::Older => {
                let why = format!("{at} is of an older version; the next server brings it up to date");
                return Err(CommandError::new(why));
            }
            StoreState::Current => {}
        }
        let keys = Store::open(at, IfMissing::Refuse).await?.keys().await?;
        Ok(keys.into_iter().filter(|key| !key.name.is_empty()).map(|key| (key.id, key.name)).collect())
    })
}

fn without_names(why: &str) -> HashMap<KeyId, String> {
    print_to_stderr(format!("keys are shown by their ids alone, since their names cannot be read: {why}"));
    HashMap::new()
}
