//! `limits suggest`: prints how many requests each key sent (p50, p90, p99 and peak per second) and a `[limits]` section
//! that would have refused none of the record. Requests that were refused are counted too. `suggested_limits` computes
//! and verifies the section; this module counts and prints.

use std::io::Write;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use super::LogArgs;
use super::input::Input;
use super::progress_bar;
use super::suggested_limits::Demand;
use crate::cli::error::CommandError;
use crate::cli::output::print_to_stderr;
use crate::cli::table::{Column, table};
use crate::model::date_of;
use crate::planning::{BusiestInterval, Histogram, IntervalCounter, RecordSummary, RecordedDecision};

/// `guildgate limits suggest …`
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct SuggestArgs {
    #[command(flatten)]
    pub(super) log: LogArgs,
    /// Prints one JSON array with an object for each key, and no limits
    #[arg(long, conflicts_with = "toml")]
    pub(super) json: bool,
    /// Prints only the limits, to be written to a file
    #[arg(long)]
    pub(super) toml: bool,
}

/// The requests of one key.
#[derive(Clone, Debug, Default)]
struct KeyRequests {
    tier: Option<Arc<str>>,
    requests: u64,
    by_second: IntervalCounter,
    per_second: Histogram,
    by_minute: BusiestInterval,
}

/// One line of the output. Requests per second are over the seconds in which the key sent any.
#[derive(Debug, Serialize)]
struct Row<'s> {
    key: &'s str,
    /// Its name in the store.
    name: Option<&'s str>,
    /// Its tier when it was recorded; `None`: the default one.
    tier: Option<&'s str>,
    requests: u64,
    p50: u32,
    p90: u32,
    p99: u32,
    peak: u32,
    worst_minute: String,
    worst_minute_requests: u32,
}

impl SuggestArgs {
    pub(super) fn run(self, input: &Input, out: &mut dyn Write) -> Result<(), CommandError> {
        let record = input.open()?;
        let (mut keys, mut demand) = (Vec::new(), Demand::default());
        let read = record.for_each(&mut progress_bar(), &mut |recorded| {
            if recorded.key == keys.len() {
                keys.push(KeyRequests::default());
            }
            keys[recorded.key].count(recorded);
            demand.count(recorded);
        })?;
        read.warnings().iter().for_each(print_to_stderr);
        let rows = rows(input, &read, &keys);
        let strangers = read.strangers();
        if (self.json || self.toml)
            && let Some(strangers) = &strangers
        {
            print_to_stderr(strangers.trim_end()); // so that stdout holds only the JSON or TOML
        }
        if self.json {
            serde_json::to_writer(&mut *out, &rows)?;
            return Ok(writeln!(out)?);
        }
        if read.decisions == 0 {
            return Err(CommandError::new("there is nothing to suggest from; let the server record for a while"));
        }
        let toml = demand.suggest(&record)?;
        if !self.toml {
            let strangers = strangers.unwrap_or_default();
            let title = "Requests a second, over the seconds in which the key asked:";
            writeln!(out, "{read}.\n{strangers}{title}\n\n{}", rows_as_text(&rows))?;
        }
        write!(out, "# Suggested from {read}.\n{toml}")?;
        Ok(out.flush()?)
    }
}

impl KeyRequests {
    fn count(&mut self, recorded: RecordedDecision<'_>) {
        if self.tier != recorded.decision.tier {
            self.tier.clone_from(&recorded.decision.tier);
        }
        let second = recorded.decision.unix_ms.div_euclid(1000);
        self.requests += 1;
        self.per_second.record(self.by_second.add(second, 1));
        self.by_minute.add(second.div_euclid(60), 1);
    }
}

/// All keys, those with the highest peak first.
fn rows<'s>(input: &'s Input, read: &'s RecordSummary, keys: &'s [KeyRequests]) -> Vec<Row<'s>> {
    let row = |(key, requests): (&'s Arc<str>, &'s KeyRequests)| Row {
        key,
        name: input.names.get(key).map(String::as_str),
        tier: requests.tier.as_deref(),
        requests: requests.requests,
        p50: requests.per_second.percentile(50),
        p90: requests.per_second.percentile(90),
        p99: requests.per_second.percentile(99),
        peak: requests.per_second.peak(),
        worst_minute: date_of(requests.by_minute.interval * 60),
        worst_minute_requests: requests.by_minute.count,
    };
    let mut rows: Vec<Row<'_>> = read.keys.iter().zip(keys).map(row).collect();
    rows.sort_by(|a, b| (b.peak, b.requests).cmp(&(a.peak, a.requests)).then_with(|| a.key.cmp(b.key)));
    rows
}

fn rows_as_text(rows: &[Row<'_>]) -> String {
    let columns: [Column<Row<'_>>; 9] = [
        ("KEY", |row| row.key.to_owned()),
        ("NAME", |row| row.name.unwrap_or("-").to_owned()),
        ("TIER", |row| row.tier.unwrap_or("-").to_owned()),
        ("REQUESTS", |row| row.requests.to_string()),
        ("P50", |row| row.p50.to_string()),
        ("P90", |row| row.p90.to_string()),
        ("P99", |row| row.p99.to_string()),
        ("PEAK", |row| row.peak.to_string()),
        ("WORST MINUTE", |row| format!("{} ({})", row.worst_minute, row.worst_minute_requests)),
    ];
    table(rows, &columns, "more key")
}
