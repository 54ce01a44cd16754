//! `limits plan` and `limits suggest`: what recorded traffic says about limits.

mod plan; // limits plan
mod proposal; // a [limits] section that would have refused nothing
mod record; // the files of a record as one stream
mod replay; // a stream against limits
mod source; // which record, and what its keys are called
mod stretches; // counts by the second, the minute, the day
mod suggest; // limits suggest
mod table; // columns for a person

#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::Failure;
use plan::PlanArgs;
use source::Source;
use suggest::SuggestArgs;

/// `guildgate limits …`
#[derive(Clone, Debug, Subcommand)]
pub(super) enum LimitsCommand {
    /// Replays recorded traffic against another configuration: who would be refused, how often, when
    ///
    /// The record is what `log.decisions` wrote. Every decision is made again by the code that
    /// makes it live, under the tiers of NEW: each key under the tier it was listed with, or the
    /// default one where NEW has no such tier. Budgets are full where the record and each run of
    /// the server begin; what was used of the day, and how many requests were under way, are taken
    /// from the record. Exit 3: a request that was accepted would now be refused.
    /// Strangers' requests are counted, but not replayed: the record holds no address.
    Plan(PlanArgs),
    /// Prints how often each key asked, and limits that would have refused none of it
    ///
    /// The record is what `log.decisions` wrote, requests that were refused included. p50, p90,
    /// p99 and peak are requests a second, over the seconds in which the key asked at all. The
    /// limits have been replayed against the record when they are printed.
    Suggest(SuggestArgs),
}

/// Which record is read.
#[derive(Clone, Debug, Args)]
struct LogArgs {
    /// The record: this file, and the older half beside it (FILE.1) if there is one; without it
    /// the file that log.decisions names. Given more than once: these files exactly, in order of
    /// time
    #[arg(long = "log", value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl LimitsCommand {
    /// Does it, by the configuration at `named`; what is asked for goes to `out`.
    pub(super) fn run(self, named: Option<&Path>, out: &mut dyn Write) -> Result<(), Failure> {
        let log = match &self {
            LimitsCommand::Plan(args) => &args.log,
            LimitsCommand::Suggest(args) => &args.log,
        };
        let source = Source::find(log, named)?;
        self.run_on(&source, out)
    }

    fn run_on(self, source: &Source, out: &mut dyn Write) -> Result<(), Failure> {
        match self {
            LimitsCommand::Plan(args) => args.run(source, out),
            LimitsCommand::Suggest(args) => Ok(args.run(source, out)?),
        }
    }
}
