//! `limits suggest`: prints how many requests each key sent (p50, p90, p99 and peak per second), as comments of a `[limits]`
//! section that would have refused none of the record. Requests that were refused are counted too. `suggested_limits`
//! computes and verifies the section; this module counts and prints.

use std::cmp::Reverse;
use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use super::LogArgs;
use super::input::Input;
use crate::cli::error::CommandError;
use crate::cli::output::{print_to_stderr, table};
use crate::model::{KeyId, date_of};
use crate::planning::{KeyRequests, RecordSummary, count_requests, suggested_limits};

/// `guildgate limits suggest …`
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct SuggestArgs {
    #[command(flatten)]
    pub(super) log: LogArgs,
    /// Prints one JSON array with an object for each key, and no limits
    #[arg(long)]
    pub(super) json: bool,
}

const FIELDS: [&str; 10] =
    ["key", "name", "tier", "requests", "p50", "p90", "p99", "peak", "worst_minute", "worst_minute_requests"];

impl SuggestArgs {
    pub(super) fn run(&self, input: &Input, out: &mut dyn Write) -> Result<(), CommandError> {
        let record = input.open()?;
        let (read, keys) = count_requests(&record)?;
        read.warnings().iter().for_each(print_to_stderr);
        let rows = rows(input, &read, &keys);
        let strangers = read.strangers().unwrap_or_default();
        if self.json {
            if !strangers.is_empty() {
                print_to_stderr(strangers.trim_end()); // so that stdout holds only the JSON
            }
            return Ok(writeln!(out, "{}", serde_json::to_string(&rows)?)?);
        }
        if read.decisions == 0 {
            return Err(CommandError::new("there is nothing to suggest from; let the server record for a while"));
        }
        let toml = suggested_limits(&keys, &record).map_err(CommandError::new)?;
        let title = "Requests a second, over the seconds in which the key asked:";
        let about = format!("{read}.\n{strangers}{title}\n\n{}", table(&rows, &FIELDS)?);
        about.lines().try_for_each(|line| writeln!(out, "# {line}"))?;
        Ok(write!(out, "\n{toml}")?)
    }
}

/// All keys, those with the highest peak first. Requests per second are over the seconds in which a key sent any.
fn rows(input: &Input, read: &RecordSummary, keys: &[KeyRequests]) -> Vec<Value> {
    let mut keys: Vec<_> = read.keys.iter().zip(keys).collect();
    keys.sort_by_key(|(key, requests)| (Reverse((requests.per_second.peak(), requests.requests)), *key));
    let row = |(key, KeyRequests { tier, requests, per_second, minutes, .. }): (&KeyId, &KeyRequests)| {
        json!({
            "key": key,
            "name": input.names.get(key),
            "tier": tier,
            "requests": requests,
            "p50": per_second.percentile(50),
            "p90": per_second.percentile(90),
            "p99": per_second.percentile(99),
            "peak": per_second.peak(),
            "worst_minute": date_of(minutes.interval * 60),
            "worst_minute_requests": minutes.count,
        })
    };
    keys.into_iter().map(row).collect()
}
