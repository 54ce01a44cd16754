//! `limits plan`: replays a decision record against another configuration and prints which keys it would refuse, how
//! often and when. A request counts as newly refused only if the record says that it was accepted. Exit code 3 means
//! that there is at least one such request, unless the new configuration is in shadow mode.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::LogArgs;
use super::input::Input;
use super::intervals::BusiestInterval;
use super::record::{RecordFiles, RecordedDecision};
use super::replay::Replay;
use super::table::{Column, table, was};
use crate::cli::Failure;
use crate::cli::error::CommandError;
use crate::cli::output::{counted, ignore_broken_pipe, print_to_stderr};
use crate::config::{self, Limits};
use crate::limits::LimitOutcome;
use crate::model::date_of;

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

/// The requests of one key under the new configuration.
#[derive(Debug, Default, Serialize)]
struct Row {
    key: String,
    /// Its name in the store.
    name: Option<String>,
    /// Its tier under the new configuration.
    tier: String,
    requests: u64,
    /// Refused when they were recorded.
    refused_then: u64,
    would_be_refused: u64,
    newly_refused: u64,
    over_candidate: u64,
    /// The first that would be refused.
    first: Option<String>,
    /// The minute in which most would be refused, and how many.
    worst_minute: Option<String>,
    worst_minute_refused: u32,
    #[serde(skip)]
    refused_by_minute: BusiestInterval,
}

impl PlanArgs {
    pub(super) fn run(self, input: &Input, out: &mut dyn Write) -> Result<(), Failure> {
        let limits = config::load(Some(&self.new))?.config.limits;
        let record = RecordFiles::open(&input.files)?;
        let new = self.new.display();

        let (mut replay, mut rows) = (Replay::new(&limits), Vec::new());
        let read = record.for_each(&mut |recorded| {
            let outcome = replay.decide(recorded);
            if recorded.key == rows.len() {
                rows.push(Row::new(recorded, input));
            }
            rows[recorded.key].count(recorded, &outcome, &limits);
        })?;
        read.print_notices();
        let newly = rows.iter().map(|row| row.newly_refused).sum::<u64>();
        let summary = summary(&limits, &rows);
        finish(&mut rows, limits.shadow);

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

impl Row {
    fn new(recorded: RecordedDecision<'_>, input: &Input) -> Self {
        let key = &recorded.decision.key;
        Row { key: key.to_string(), name: input.names.get(key).cloned(), ..Row::default() }
    }

    fn count(&mut self, recorded: RecordedDecision<'_>, outcome: &LimitOutcome, limits: &Limits) {
        let decision = recorded.decision;
        let tier = &limits.tier(decision.tier.as_deref()).name;
        if self.tier != *tier {
            self.tier.clone_from(tier);
        }
        self.requests += 1;
        self.refused_then += u64::from(decision.refused);
        self.over_candidate += u64::from(outcome.over_candidate);
        if outcome.over.is_some() {
            let unix = recorded.unix_ms.div_euclid(1000);
            self.would_be_refused += 1;
            self.newly_refused += u64::from(!decision.refused);
            self.first.get_or_insert_with(|| date_of(unix));
            self.refused_by_minute.add(unix.div_euclid(60), 1);
        }
    }
}

/// Removes the keys of which no request would be refused or is over a candidate limit, and sorts those that lose most
/// to the front. In shadow mode nothing is refused.
fn finish(rows: &mut Vec<Row>, shadow: bool) {
    for row in &mut *rows {
        let BusiestInterval { interval: minute, count, .. } = row.refused_by_minute;
        if shadow {
            (row.would_be_refused, row.newly_refused, row.first) = (0, 0, None);
        } else if count > 0 {
            (row.worst_minute, row.worst_minute_refused) = (Some(date_of(minute * 60)), count);
        }
    }
    rows.retain(|row| row.would_be_refused > 0 || row.over_candidate > 0);
    rows.sort_by(|a, b| {
        let most = |row: &Row| (row.newly_refused, row.would_be_refused, row.over_candidate);
        most(b).cmp(&most(a)).then_with(|| a.key.cmp(&b.key))
    });
}

fn rows_as_text(rows: &[Row]) -> String {
    let columns: [Column<Row>; 10] = [
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
    table(rows, &columns)
}

/// What the new configuration would do, in one or two lines.
fn summary(limits: &Limits, rows: &[Row]) -> String {
    let total = |of: fn(&Row) -> u64| {
        (rows.iter().map(of).sum::<u64>(), counted(rows.iter().filter(|row| of(row) > 0).count() as u64, "key"))
    };
    let ((over, _), (newly, keys)) = (total(|row| row.would_be_refused), total(|row| row.newly_refused));
    let requests = counted(over, "request");
    let mut text = match (over, newly) {
        _ if limits.shadow => {
            format!("limits.shadow is true: nothing would be refused. {requests} would be over the limits.")
        }
        (0, _) => "Nothing would be refused.".to_owned(),
        (_, 0) => format!("{requests} would be refused, all of which were refused then too."),
        _ => format!("{requests} would be refused; {newly} of them {} accepted then, of {keys}.", was(newly)),
    };
    if limits.tiers.iter().any(|tier| tier.candidate.is_some()) {
        let (over, keys) = total(|row| row.over_candidate);
        let requests = counted(over, "request");
        text += &format!("\n{requests} of {keys} would be over a candidate limit, which refuses nothing.");
    }
    text
}
