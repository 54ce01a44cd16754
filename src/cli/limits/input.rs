//! Which decision record is read, and the names of its keys, from the configuration in force.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::LogArgs;
use crate::cli::error::CommandError;
use crate::cli::output::print_to_stderr;
use crate::cli::{Failure, runtime, store_as_it_is};
use crate::config::{self, Config, Keys};
use crate::model::KeyId;
use crate::planning::RecordFiles;

/// How long a record without any decision is waited for: a server writes each one within a second after it was made.
const RECORDED_WITHIN: Duration = Duration::from_secs(2);

/// How often the record is looked at meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The input of `limits plan` and `limits suggest`.
#[derive(Debug, Default)]
pub(super) struct Input {
    pub(super) files: Vec<PathBuf>,
    /// It is the record that the configuration names, which a server may be writing.
    pub(super) is_written: bool,
    pub(super) names: HashMap<KeyId, String>,
}

impl Input {
    /// The record that `log` names, or the one that the configuration names. Names are only shown to people: if they
    /// cannot be read, a line on stderr says so, and keys are shown by their ids.
    pub(super) fn find(log: &LogArgs, config_path: Option<&Path>) -> Result<Self, Failure> {
        let (files, is_written) = (log.files.clone(), log.files.is_empty());
        let config = match config::load(config_path) {
            Ok(loaded) => loaded.config,
            Err(faults) if is_written => return Err(faults.into()),
            Err(faults) => return Ok(Input { files, is_written, names: without_names(&faults.to_string()) }),
        };
        let names = names(&config).unwrap_or_else(|why| without_names(&why.message));
        match &config.log.decisions {
            _ if !is_written => Ok(Input { files, is_written, names }),
            Some(decisions) => Ok(Input { files: vec![decisions.clone()], is_written, names }),
            None => Err(Failure::Unusable(
                "no record is named: name one with --log FILE, or set log.decisions, with which a server writes one"
                    .to_owned(),
            )),
        }
    }

    /// Opens the record. If a server may have made its first decisions just now, they are waited for.
    pub(super) fn open(&self) -> Result<RecordFiles, CommandError> {
        let until = Instant::now() + RECORDED_WITHIN;
        loop {
            let record = RecordFiles::open(&self.files)?;
            if !self.is_written || !record.is_empty() || Instant::now() >= until {
                return Ok(record);
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}

/// The names of the keys in the store. Keys of a key file or of an origin have only ids.
fn names(config: &Config) -> Result<HashMap<KeyId, String>, CommandError> {
    if config.keys != Keys::Store {
        return Ok(HashMap::new());
    }
    let keys = runtime()?
        .block_on(async { Ok::<_, CommandError>(store_as_it_is(&config.origin.store).await?.keys().await?) })?;
    Ok(keys.into_iter().filter(|key| !key.name.is_empty()).map(|key| (key.id, key.name)).collect())
}

fn without_names(why: &str) -> HashMap<KeyId, String> {
    print_to_stderr(format!("keys are shown by their ids alone, since their names cannot be read: {why}"));
    HashMap::new()
}
