//! `limits plan`: replays a decision record against another configuration and prints which keys it would refuse, how
//! often and when. A request counts as newly refused only if the record says that it was accepted. Exit code 3 means
//! that there is at least one such request, unless the new configuration is in shadow mode.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::LogArgs;
use super::record::{Passing, Record};
use super::replay::Replay;
use super::source::Source;
use super::stretches::{Stretches, Worst};
use super::table::{Moment, ROWS, columns, s};
use crate::cli::Failure;
use crate::cli::error::{CommandError, unless_enough_read};
use crate::config::{self, Limits};
use crate::limits::LimitOutcome;
use crate::model::KeyId;

/// `guildgate limits plan …`
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct PlanArgs {
    /// The configuration to try, such as new.toml
    #[arg(value_name = "NEW")]
    pub(super) new: PathBuf,
    #[command(flatten)]
    pub(super) log: LogArgs,
    /// Prints one JSON array: a key each, all of them
    #[arg(long)]
    pub(super) json: bool,
}

/// What became of one key's requests.
#[derive(Clone, Debug, Default)]
struct Tried {
    /// The tier it gets under the configuration that is tried.
    tier: String,
    requests: u64,
    /// As it was lived.
    refused: u64,
    /// Over the limits that are tried, and among them those that were let in.
    over: u64,
    newly: u64,
    over_candidate: u64,
    first: Option<i64>,
    by_minute: Stretches,
    worst: Worst,
}

/// A line of the plan.
#[derive(Debug, Serialize)]
struct Row<'p> {
    key: &'p str,
    /// What people call it, as far as the store tells.
    name: Option<&'p str>,
    tier: &'p str,
    requests: u64,
    /// Refused as it was lived.
    refused_then: u64,
    would_be_refused: u64,
    newly_refused: u64,
    over_candidate: u64,
    /// The first that would be refused.
    first: Option<Moment>,
    /// The minute in which most would be refused, and how many.
    worst_minute: Option<Moment>,
    worst_minute_refused: u32,
}

impl PlanArgs {
    pub(super) fn run(self, source: &Source, out: &mut dyn Write) -> Result<(), Failure> {
        let limits = config::load(Some(&self.new))?.config.limits;
        let record = Record::open(&source.files)?;
        let new = self.new.display();

        let (mut replay, mut tried) = (Replay::new(&limits), Vec::new());
        let read = record.pass(&mut |passing| {
            let decided = replay.decide(passing);
            if passing.key == tried.len() {
                tried.push(Tried::default());
            }
            tried[passing.key].count(passing, &decided, &limits);
        })?;
        read.say_notices();
        tried.iter_mut().for_each(Tried::finish);
        let rows = rows(source, &read.keys, &tried, limits.shadow);
        let sum = |of: fn(&Tried) -> u64| tried.iter().map(of).sum::<u64>();
        let keys = |of: fn(&Tried) -> u64| tried.iter().filter(|t| of(t) > 0).count() as u64;
        let summary = summary(&limits, sum(|t| t.over), sum(|t| t.newly), keys(|t| t.newly));
        let candidate = limits.tiers.iter().any(|tier| tier.candidate.is_some()).then(|| {
            let (over, of) = (sum(|t| t.over_candidate), keys(|t| t.over_candidate));
            format!(
                "{over} request{} of {of} key{} would be over a candidate limit, which refuses nothing.",
                s(over),
                s(of)
            )
        });

        let mut words = format!("{new} against {read}.\n");
        if !self.json && !rows.is_empty() {
            words += &format!("\n{}\n", table(&rows));
        }
        words += &format!("{summary}\n");
        words.extend(candidate.map(|line| line + "\n"));
        words.extend(read.strangers());
        let printed = if self.json {
            let array = serde_json::to_string(&rows).map_err(CommandError::from)?;
            // An array stands alone on stdout. Where stderr is gone there is nobody to tell.
            let _ = io::stderr().write_all(words.as_bytes());
            writeln!(out, "{array}")
        } else {
            out.write_all(words.as_bytes())
        };
        unless_enough_read(printed.and_then(|()| out.flush())).map_err(CommandError::from)?;

        match sum(|t| t.newly) {
            newly if newly > 0 && !limits.shadow => Err(Failure::WouldRefuse(format!(
                "{new} would refuse {newly} request{} that {} accepted; raise its limits, or put it in force knowing whom it meets",
                s(newly),
                if newly == 1 { "was" } else { "were" }
            ))),
            _ => Ok(()),
        }
    }
}

impl Tried {
    fn count(&mut self, passing: Passing<'_>, decided: &LimitOutcome, limits: &Limits) {
        let decision = passing.decision;
        let tier = &limits.tier(decision.tier.as_deref()).name;
        if self.tier != *tier {
            self.tier.clone_from(tier);
        }
        self.requests += 1;
        self.refused += u64::from(decision.refused);
        self.over_candidate += u64::from(decided.over_candidate);
        if decided.over.is_some() {
            self.over += 1;
            self.newly += u64::from(!decision.refused);
            self.first.get_or_insert(passing.unix_ms);
            let worst = &mut self.worst;
            self.by_minute.add(passing.unix_ms.div_euclid(60_000), |minute, count| worst.see(minute, count));
        }
    }

    fn finish(&mut self) {
        let worst = &mut self.worst;
        std::mem::take(&mut self.by_minute).finish(|minute, count| worst.see(minute, count));
    }
}

/// The keys of which any request would be refused or is over a candidate limit, those that lose
/// most first. In shadow, limits refuse none.
fn rows<'p>(source: &'p Source, keys: &'p [KeyId], tried: &'p [Tried], shadow: bool) -> Vec<Row<'p>> {
    let mut rows: Vec<Row<'_>> = keys
        .iter()
        .zip(tried)
        .filter(|(_, t)| t.over_candidate > 0 || t.over > 0 && !shadow)
        .map(|(key, t)| Row {
            key,
            name: source.name(key),
            tier: &t.tier,
            requests: t.requests,
            refused_then: t.refused,
            would_be_refused: if shadow { 0 } else { t.over },
            newly_refused: if shadow { 0 } else { t.newly },
            over_candidate: t.over_candidate,
            first: t.first.filter(|_| !shadow).map(Moment),
            worst_minute: (t.worst.count > 0 && !shadow).then(|| Moment::of_minute(t.worst.stretch)),
            worst_minute_refused: if shadow { 0 } else { t.worst.count },
        })
        .collect();
    rows.sort_by(|a, b| {
        let most = |row: &Row<'_>| (row.newly_refused, row.would_be_refused, row.over_candidate);
        most(b).cmp(&most(a)).then_with(|| a.key.cmp(b.key))
    });
    rows
}

fn table(rows: &[Row<'_>]) -> String {
    let head = [
        "KEY",
        "NAME",
        "TIER",
        "REQUESTS",
        "REFUSED THEN",
        "WOULD BE",
        "NEWLY",
        "FIRST",
        "WORST MINUTE",
        "OVER CANDIDATE",
    ];
    let cells = rows.iter().take(ROWS).map(|row| {
        let or_dash = |moment: Option<Moment>| moment.map_or_else(|| "-".to_owned(), |m| m.to_string());
        let worst = match row.worst_minute {
            Some(minute) => format!("{minute} ({})", row.worst_minute_refused),
            None => "-".to_owned(),
        };
        [
            row.key.to_owned(),
            row.name.unwrap_or("-").to_owned(),
            row.tier.to_owned(),
            row.requests.to_string(),
            row.refused_then.to_string(),
            row.would_be_refused.to_string(),
            row.newly_refused.to_string(),
            or_dash(row.first),
            worst,
            row.over_candidate.to_string(),
        ]
    });
    let mut text = columns(head, 3, cells);
    if rows.len() > ROWS {
        let more = rows.len() - ROWS;
        text += &format!("… and {more} more key{}: --json prints all of them\n", s(more as u64));
    }
    text
}

fn summary(limits: &Limits, over: u64, newly: u64, keys: u64) -> String {
    let requests = format!("{over} request{}", s(over));
    if limits.shadow {
        return format!("limits.shadow is true: nothing would be refused. {requests} would be over the limits.");
    }
    let of = format!("of {keys} key{}", s(keys));
    let was = if newly == 1 { "was" } else { "were" };
    match (over, newly) {
        (0, _) => "Nothing would be refused.".to_owned(),
        (_, 0) => format!("{requests} would be refused, all of which were refused then too."),
        _ => format!("{requests} would be refused; {newly} of them {was} accepted then, {of}."),
    }
}
