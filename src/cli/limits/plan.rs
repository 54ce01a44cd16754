//! `limits plan`: replays a decision record against another configuration and prints which keys it would refuse, how
//! often and when. A request counts as newly refused only if the record says that it was accepted. Exit code 3 means
//! that there is at least one such request, unless the new configuration is in shadow mode.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::LogArgs;
use super::input::Input;
use super::progress_bar;
use crate::cli::Failure;
use crate::cli::error::CommandError;
use crate::cli::output::{ignore_broken_pipe, print_to_stderr};
use crate::cli::table::{Column, table};
use crate::config;
use crate::model::{counted, was};
use crate::planning::{Plan, PlannedKey};

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

impl PlanArgs {
    pub(super) fn run(self, input: &Input, out: &mut dyn Write) -> Result<(), Failure> {
        let limits = config::load(Some(&self.new))?.config.limits;
        let record = input.open()?;
        let new = self.new.display();

        let Plan { keys: rows, read, newly_refused: newly, summary } =
            Plan::new(&limits, &record, &input.names, &mut progress_bar()).map_err(CommandError::from)?;
        read.warnings().iter().for_each(print_to_stderr);

        let mut text = format!("{new} against {read}.\n");
        if !self.json && !rows.is_empty() {
            text += &format!("\n{}\n", rows_as_text(&rows));
        }
        text += &format!("{summary}\n{}", read.strangers().unwrap_or_default());
        let printed = if self.json {
            let json = serde_json::to_string(&rows).map_err(CommandError::from)?;
            print_to_stderr(text.trim_end()); // so that stdout holds only the JSON
            writeln!(out, "{json}")
        } else {
            out.write_all(text.as_bytes())
        };
        ignore_broken_pipe(printed.and_then(|()| out.flush()))?;

        if read.decisions == 0 {
            let why = "there is nothing to plan with; let the server record for a while";
            return Err(CommandError::new(why).into());
        }
        if newly == 0 || limits.shadow {
            return Ok(());
        }
        let requests = counted(newly, "request");
        Err(Failure::WouldRefuse(format!(
            "{new} would refuse {requests} that {} accepted; raise its limits, or put it in force knowing whom it meets",
            was(newly)
        )))
    }
}

fn rows_as_text(rows: &[PlannedKey]) -> String {
    let columns: [Column<PlannedKey>; 10] = [
        ("KEY", |row| row.key.clone()),
        ("NAME", |row| row.name.as_deref().unwrap_or("-").to_owned()),
        ("TIER", |row| row.tier.clone()),
        ("REQUESTS", |row| row.requests.to_string()),
        ("REFUSED THEN", |row| row.refused_then.to_string()),
        ("WOULD BE", |row| row.would_be_refused.to_string()),
        ("NEWLY", |row| row.newly_refused.to_string()),
        ("FIRST", |row| row.first.as_deref().unwrap_or("-").to_owned()),
        ("WORST MINUTE", |row| match &row.worst_minute {
            Some(minute) => format!("{minute} ({})", row.worst_minute_refused),
            None => "-".to_owned(),
        }),
        ("OVER CANDIDATE", |row| row.over_candidate.to_string()),
    ];
    table(rows, &columns, "more key")
}
