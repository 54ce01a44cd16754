//! `guildgate limits`: plans and suggests limits from recorded traffic, and gives a key its day back.

mod input; // which decision record, and the names of its keys
mod plan; // limits plan
mod suggest; // limits suggest

#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::error::CommandError;
use super::open_store;
use crate::config::{self, Keys};
use crate::keys::read_key_file;
use crate::store::IfMissing;
use input::Input;
use plan::PlanArgs;
use suggest::SuggestArgs;

/// `guildgate limits …`
#[derive(Clone, Debug, Subcommand)]
pub(super) enum LimitsCommand {
    /// Replays recorded traffic against another configuration: who would be refused, how often, when
    ///
    /// The record is what `log.decisions` wrote. Each request is decided again by the server's own
    /// code under the tiers of NEW: each key under the tier that it had, or the default tier if NEW
    /// has no such tier. Budgets are full at the beginning of the record and of each run of the
    /// server; what was used of the day, and how many requests were in flight, are taken from the
    /// record. Exit 3: a request that was accepted would now be refused. Exit 1: nothing is recorded.
    /// Requests of strangers are counted, but not replayed: the record holds no address.
    Plan(PlanArgs),
    /// Prints how many requests each key sent, and limits that would have refused none of them
    ///
    /// The record is what `log.decisions` wrote, including requests that were refused. p50, p90,
    /// p99 and peak are requests a second, over the seconds in which the key sent any. The
    /// limits are replayed against the record before they are printed.
    Suggest(SuggestArgs),
    /// Gives a key its whole day back (`daily`); a running server follows within a second
    Reset {
        /// The key's id, as `key list` prints it or the key file has it; one that only the origin
        /// knows is found within a second of its first request
        id: String,
    },
}

/// Which record is read.
#[derive(Clone, Debug, Args)]
struct LogArgs {
    /// The record: this file, and the older file beside it (FILE.1) if there is one; without it
    /// the file that log.decisions names. Given more than once: these files exactly, in order of
    /// time
    #[arg(long = "log", value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl LimitsCommand {
    pub(super) async fn run(self, config_path: Option<&Path>, out: &mut dyn Write) -> Result<(), CommandError> {
        match self {
            LimitsCommand::Plan(args) => args.run(&Input::find(&args.log, config_path).await?, out),
            LimitsCommand::Suggest(args) => args.run(&Input::find(&args.log, config_path).await?, out),
            LimitsCommand::Reset { id } => {
                let loaded = config::load(config_path)?;
                loaded.config.must_have_store().map_err(CommandError::new)?;
                let is_listed = match &loaded.config.keys {
                    Keys::File(path) => read_key_file(path).is_ok_and(|keys| keys.iter().any(|key| *key.id == *id)),
                    Keys::Store | Keys::Origin { .. } => false,
                };
                Ok(open_store(&loaded, IfMissing::Refuse).await?.reset_day(&id, is_listed).await?)
            }
        }
    }
}
