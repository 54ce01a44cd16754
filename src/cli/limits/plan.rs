//! `limits plan`: replays a decision record against another configuration and prints which keys it would refuse, how
//! often and when. A request counts as newly refused only if the record says that it was accepted. Exit code 3 means
//! that there is at least one such request, unless the new configuration is in shadow mode.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;

use super::LogArgs;
use super::input::Input;
use crate::cli::error::CommandError;
use crate::cli::output::{ignore_broken_pipe, print_to_stderr, table};
use crate::config;
use crate::model::{counted, was};
use crate::planning::Plan;

/// `guildgate limits plan …`
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct PlanArgs {
    /// The configuration to try, such as new.toml
    #[arg(value_name = "NEW")]
    pub(super) new: PathBuf,
    #[command(flatten)]
    pub(super) log: LogArgs,
    /// Prints one JSON array with an object for each key
    #[arg(long)]
    pub(super) json: bool,
}

/// What is printed of a key.
const FIELDS: [&str; 11] = [
    "key",
    "name",
    "tier",
    "requests",
    "refused_then",
    "would_be_refused",
    "newly_refused",
    "first",
    "worst_minute",
    "worst_minute_refused",
    "over_candidate",
];

impl PlanArgs {
    pub(super) fn run(&self, input: &Input, out: &mut dyn Write) -> Result<(), CommandError> {
        let limits = config::load(Some(&self.new))?.config.limits;
        let (record, new) = (input.open()?, self.new.display());
        let read_whole = &mut |_, _| ControlFlow::Continue(());
        let Plan { keys, read, newly_refused: newly, summary } = Plan::new(&limits, &record, &input.names, read_whole)?;
        read.warnings().iter().for_each(print_to_stderr);

        let title = format!("{new} against {read}.\n");
        let summary = format!("{summary}\n{}", read.strangers().unwrap_or_default());
        let text = if self.json {
            print_to_stderr(format!("{title}{}", summary.trim_end())); // so that stdout holds only the JSON
            serde_json::to_string(&keys)? + "\n"
        } else if keys.is_empty() {
            title + &summary
        } else {
            format!("{title}\n{}\n{summary}", table(&keys, &FIELDS)?)
        };
        ignore_broken_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;

        if read.decisions == 0 {
            return Err(CommandError::new("there is nothing to plan with; let the server record for a while"));
        }
        if newly == 0 || limits.shadow {
            return Ok(());
        }
        let requests = counted(newly, "request");
        Err(CommandError::WouldRefuse(format!(
            "{new} would refuse {requests} that {} accepted; raise its limits, or put it in force knowing whom it meets",
            was(newly)
        )))
    }
}
