//! `limits suggest`: prints how often each key asked (p50, p90, p99 and peak per second) and a `[limits]` section that
//! would have refused none of the record. Requests that were refused count as asked for. The section itself is computed
//! and verified in `proposal`; this module counts and prints, and changes nothing.

use std::io::{self, Write};
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use super::LogArgs;
use super::proposal::{self, Proposal};
use super::record::{Passing, Read, Record};
use super::source::Source;
use super::stretches::{Histogram, Stretches, Worst};
use super::table::{Moment, ROWS, columns, s};
use crate::cli::error::CommandError;

/// `guildgate limits suggest …`
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct SuggestArgs {
    #[command(flatten)]
    pub(super) log: LogArgs,
    /// Prints one JSON array: a key each, all of them, and no section
    #[arg(long, conflicts_with = "toml")]
    pub(super) json: bool,
    /// Prints the section of limits alone, to be written to a file
    #[arg(long)]
    pub(super) toml: bool,
}

/// How often one key asked.
#[derive(Clone, Debug, Default)]
struct Asked {
    tier: Option<Arc<str>>,
    requests: u64,
    by_second: Stretches,
    seconds: Histogram,
    by_minute: Stretches,
    worst: Worst,
}

/// A line of the list. Requests a second are over the seconds in which the key asked at all.
#[derive(Debug, Serialize)]
struct Row<'s> {
    key: &'s str,
    /// What people call it, as far as the store tells.
    name: Option<&'s str>,
    /// As it is listed; `None`: the default one.
    tier: Option<&'s str>,
    requests: u64,
    p50: u32,
    p90: u32,
    p99: u32,
    peak: u32,
    worst_minute: Moment,
    worst_minute_requests: u32,
}

impl SuggestArgs {
    pub(super) fn run(self, source: &Source, out: &mut dyn Write) -> Result<(), CommandError> {
        let record = Record::open(&source.files)?;
        let (mut asked, mut demand) = (Vec::new(), proposal::Demand::default());
        let read = record.pass(&mut |passing| {
            if passing.key == asked.len() {
                asked.push(Asked::default());
            }
            asked[passing.key].count(passing);
            demand.count(passing);
        })?;
        read.say_notices();
        asked.iter_mut().for_each(Asked::finish);
        let rows = rows(source, &read, &asked);
        let strangers = read.strangers();
        if self.json || self.toml {
            // What is printed stands alone on stdout. Where stderr is gone there is nobody to tell.
            let _ = io::stderr().write_all(strangers.as_deref().unwrap_or_default().as_bytes());
        }
        if self.json {
            serde_json::to_writer(&mut *out, &rows)?;
            return Ok(writeln!(out)?);
        }
        if read.decisions == 0 {
            return Err(CommandError::new("there is nothing to suggest from; let the server record for a while"));
        }
        let proposal = Proposal::for_record(&record, demand)?;
        if !self.toml {
            let strangers = strangers.unwrap_or_default();
            let what = "Requests a second, over the seconds in which the key asked:";
            writeln!(out, "{read}.\n{strangers}{what}\n\n{}", table(&rows))?;
        }
        write!(out, "# Suggested from {read}.\n{}", proposal.toml())?;
        Ok(out.flush()?)
    }
}

impl Asked {
    fn count(&mut self, passing: Passing<'_>) {
        if self.tier != passing.decision.tier {
            self.tier.clone_from(&passing.decision.tier);
        }
        self.requests += 1;
        let (seconds, worst) = (&mut self.seconds, &mut self.worst);
        self.by_second.add(passing.unix_ms.div_euclid(1000), |_, count| seconds.see(count));
        self.by_minute.add(passing.unix_ms.div_euclid(60_000), |minute, count| worst.see(minute, count));
    }

    fn finish(&mut self) {
        let (seconds, worst) = (&mut self.seconds, &mut self.worst);
        std::mem::take(&mut self.by_second).finish(|_, count| seconds.see(count));
        std::mem::take(&mut self.by_minute).finish(|minute, count| worst.see(minute, count));
    }
}

/// Every key, those with the highest peak first.
fn rows<'s>(source: &'s Source, read: &'s Read, asked: &'s [Asked]) -> Vec<Row<'s>> {
    let row = |(key, asked): (&'s Arc<str>, &'s Asked)| Row {
        key,
        name: source.name(key),
        tier: asked.tier.as_deref(),
        requests: asked.requests,
        p50: asked.seconds.percentile(50),
        p90: asked.seconds.percentile(90),
        p99: asked.seconds.percentile(99),
        peak: asked.seconds.peak(),
        worst_minute: Moment::of_minute(asked.worst.stretch),
        worst_minute_requests: asked.worst.count,
    };
    let mut rows: Vec<Row<'_>> = read.keys.iter().zip(asked).map(row).collect();
    rows.sort_by(|a, b| (b.peak, b.requests).cmp(&(a.peak, a.requests)).then_with(|| a.key.cmp(b.key)));
    rows
}

fn table(rows: &[Row<'_>]) -> String {
    let head = ["KEY", "NAME", "TIER", "REQUESTS", "P50", "P90", "P99", "PEAK", "WORST MINUTE"];
    let cells = rows.iter().take(ROWS).map(|row| {
        [
            row.key.to_owned(),
            row.name.unwrap_or("-").to_owned(),
            row.tier.unwrap_or("-").to_owned(),
            row.requests.to_string(),
            row.p50.to_string(),
            row.p90.to_string(),
            row.p99.to_string(),
            row.peak.to_string(),
            format!("{} ({})", row.worst_minute, row.worst_minute_requests),
        ]
    });
    let mut text = columns(head, 3, cells);
    if rows.len() > ROWS {
        let more = rows.len() - ROWS;
        text += &format!("… and {more} more key{}: --json prints all of them\n", s(more as u64));
    }
    text
}
