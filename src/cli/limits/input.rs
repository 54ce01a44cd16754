//! Which decision record is read, and the names of its keys, from the configuration in force.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::LogArgs;
use crate::cli::error::CommandError;
use crate::cli::output::print_to_stderr;
use crate::cli::store_as_it_is;
use crate::config::{self, Config, Keys};
use crate::model::KeyId;
use crate::planning::RecordFiles;

/// The input of `limits plan` and `limits suggest`.
#[derive(Debug, Default)]
pub(super) struct Input {
    pub(super) files: Vec<PathBuf>,
    pub(super) names: HashMap<KeyId, String>,
}

impl Input {
    /// The record that `log` names, or the one that the configuration names. Names are only shown to people: if they
    /// cannot be read, a line on stderr says so, and keys are shown by their ids.
    pub(super) async fn find(log: &LogArgs, config_path: Option<&Path>) -> Result<Self, CommandError> {
        let config = config::load(config_path)?.config;
        let names = names(&config).await;
        let files = if log.files.is_empty() {
            let unnamed =
                "no record is named: name one with --log FILE, or set log.decisions, with which a server writes one";
            let file = config.log.decisions.ok_or_else(|| CommandError::Unusable(unnamed.to_owned()))?;
            vec![file]
        } else {
            log.files.clone()
        };
        let names = names.unwrap_or_else(|why| {
            print_to_stderr(format!("keys are shown by their ids alone, since their names cannot be read: {why}"));
            HashMap::new()
        });
        Ok(Input { files, names })
    }

    pub(super) fn open(&self) -> Result<RecordFiles, CommandError> {
        Ok(RecordFiles::open(&self.files)?)
    }
}

/// The names of the keys in the store. Keys of a key file or of an origin have only ids.
async fn names(config: &Config) -> Result<HashMap<KeyId, String>, CommandError> {
    if config.keys != Keys::Store {
        return Ok(HashMap::new());
    }
    let keys = store_as_it_is(&config.origin.store).await?.keys().await?;
    Ok(keys.into_iter().filter(|key| !key.name.is_empty()).map(|key| (key.id, key.name)).collect())
}
