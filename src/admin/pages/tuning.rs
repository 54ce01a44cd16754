//! Trying other limits: which keys of the recorded decisions would be refused, how often and when, by the code of
//! `limits plan`; and the lines for `gateway.toml`.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Extension;
use maud::{Markup, html};
use tokio::task::spawn_blocking;
use toml::{Table, Value};

use super::keys::stored;
use super::layout::{Form, alert, key_link, page, row, table};
use super::{Answer, Visit, in_path};
use crate::admin::problem::{Problem, ReloadFault};
use crate::admin::shared::Shared;
use crate::config::{Limits, load_str};
use crate::limits::OverLimitCounters;
use crate::model::{KeyId, Limit};
use crate::planning::{Plan, PlannedKey, ReadError, RecordFiles};

/// How long a replay may take. `limits plan` has no such bound.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Keys that are shown; the summary is of all.
const MAX_ROWS: usize = 100;

const COLUMNS: [(&str, &str); 9] = [
    ("Key", ""),
    ("Name", "name"),
    ("Tier", ""),
    ("Requests", "number"),
    ("Refused then", "number"),
    ("Would be", "number"),
    ("Newly", "number"),
    ("First", "nowrap"),
    ("Worst minute", "nowrap"),
];

pub(super) async fn show(Extension(mut visit): Extension<Visit>) -> Answer {
    let state = visit.shared().gateway.state().clone();
    let limits = &state.config.limits;
    let tier = limits.tier(visit.fields.find("tier")).clone();
    let in_force = limits_in_force(visit.shared());
    let tiers = in_force.get("tiers");
    let rate = typed_rate(tiers.and_then(|tiers| tiers.get(&tier.name)));
    let outcome = match (visit.fields.find("rate"), visit.fields.find("burst")) {
        (None, None) => html! {},
        (rate_typed, burst) => {
            let burst = burst.map_or_else(|| tier.main.burst.to_string(), str::to_owned);
            match tried(visit.shared(), &tier.name, rate_typed.unwrap_or(rate), &burst).await {
                Ok(outcome) => outcome,
                Err(problem) => {
                    let why = alert(&problem);
                    visit = visit.refused(problem);
                    why
                }
            }
        }
    };
    let form = Form { visit: &visit, action: "/tuning" };
    let content = html! {
        p { "Choose a tier, and see what another rate and burst would have done to the recorded requests. Nothing is changed." }
        nav aria-label="Tiers" {
            ul.chips {
                @for of in &limits.tiers {
                    @let is_current = of.name == tier.name;
                    li { a href=(format!("tuning?tier={}", in_path(&of.name))) aria-current=[is_current.then_some("true")] { (of.name) } }
                }
            }
        }
        form.inline.panel method="get" action="tuning" {
            input type="hidden" name="tier" value=(tier.name);
            (form.text("rate", "Rate", rate, "Requests of a key over time, such as 20/s or 600/m."))
            (form.text("burst", "Burst", &tier.main.burst.to_string(), "Requests at once."))
            button.primary { "Try" }
        }
        (outcome)
        (now(visit.shared(), limits, tiers))
    };
    Ok(page(&visit, "Tuning", content))
}

/// `limits` as the configuration has it.
pub(super) fn limits_in_force(shared: &Shared) -> Table {
    let config = shared.process.config.read();
    config.loaded.in_force.get("limits").and_then(Value::as_table).cloned().unwrap_or_default()
}

/// The rate of a tier, or of its candidate, as the configuration has it.
fn typed_rate(limit: Option<&Value>) -> &str {
    limit.and_then(|limit| limit.get("rate")?.as_str()).unwrap_or_default()
}

/// What the limits would have done.
async fn tried(shared: &Shared, tier: &str, rate: &str, burst: &str) -> Result<Markup, Problem> {
    let (limits, lines) = trial(shared, tier, rate, burst)?;
    let names = stored(shared).await?.0.into_iter().map(|key| (key.id, key.name)).collect();
    let plan = replay(shared, limits, names).await?;
    let rows = plan.keys.iter().take(MAX_ROWS).map(|key: &PlannedKey| {
        let worst = key.worst_minute.as_ref().map(|minute| format!("{minute} ({})", key.worst_minute_refused));
        row![
            key_link(&key.key),
            key.name.as_deref().unwrap_or_default(),
            key.tier,
            key.requests,
            key.refused_then,
            key.would_be_refused,
            key.newly_refused,
            key.first.as_deref().unwrap_or("–"),
            worst.as_deref().unwrap_or("–"),
        ]
    });
    Ok(html! {
        section.panel {
        h2 { "What it would have done" }
        p role="status" { (plan.summary) }
        p.hint { (plan.read) }
        @for warning in plan.read.warnings() { p.hint { (warning) } }
        (table("Keys that would be refused, or are over a candidate limit", &COLUMNS, rows))
        h2 #lines { "Lines for gateway.toml" }
        p.hint { "They are the whole tier, and replace its section if the file has one." }
        pre { code { (lines) } }
        }
    })
}

/// The limits in force with another rate and burst of `tier`, checked as those of a file, and the lines for `gateway.toml`.
fn trial(shared: &Shared, tier: &str, rate: &str, burst: &str) -> Result<(Limits, String), Problem> {
    let burst = burst.parse().map_or_else(|_| Value::from(burst), Value::Integer);
    let mut limits = limits_in_force(shared);
    let changed = limits.get_mut("tiers").and_then(|tiers| tiers.get_mut(tier)?.as_table_mut());
    let changed = changed.ok_or_else(|| Problem::not_found(format!("there is no tier {tier}")))?;
    changed.insert("rate".to_owned(), rate.into());
    changed.insert("burst".to_owned(), burst);
    // With `write_rate` and all else that the tier has: in a section without `write_rate`, writes have no limit.
    let lines = section(["limits", "tiers", tier], changed.clone());
    let text = section(["limits"], limits);
    let loaded = load_str(&text, Path::new(""), "limits").map_err(|problems| {
        let faults = problems.list.iter().map(|problem| ReloadFault::new(problem.detail())).collect();
        Problem::with_faults("These limits cannot be in force:", faults)
    })?;
    Ok((loaded.config.limits, lines))
}

/// A section of `gateway.toml`.
fn section<const N: usize>(path: [&str; N], content: Table) -> String {
    let whole = path.iter().rev().fold(content, |of, name| Table::from_iter([((*name).to_owned(), of.into())]));
    toml::to_string(&whole).unwrap_or_default() // a table of TOML can be written as TOML
}

/// Decides the recorded requests again, one such piece of work at a time.
async fn replay(shared: &Shared, limits: Limits, names: HashMap<KeyId, String>) -> Result<Plan, Problem> {
    let decisions = shared.gateway.state().config.log.decisions.clone();
    let decisions = decisions.ok_or_else(|| {
        Problem::conflict(
            "No decisions are recorded. Set log.decisions, restart, and come back when there was traffic.",
        )
    })?;
    let one = shared.own.replays.clone().try_lock_owned();
    let one = one.map_err(|_| Problem::unavailable("Another trial is under way; try again.", 5))?;
    let work = move || {
        let _one = one; // until the work has ended, although nobody may wait for it any more
        let deadline = Instant::now() + TIMEOUT;
        let mut progress =
            |_, _| if Instant::now() > deadline { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        Plan::new(&limits, &RecordFiles::open(&[decisions])?, &names, &mut progress)
    };
    let plan = spawn_blocking(work).await;
    let plan = plan.map_err(|_| Problem::unavailable("The record could not be replayed; see the process log.", 5))?;
    plan.map_err(|error| match error {
        ReadError::Ended => {
            Problem::unavailable("The record is too long to replay here; use `guildgate limits plan`.", 60)
        }
        error => Problem::conflict(error.to_string()),
    })
}

/// The tiers in force, with how often each limit was exceeded.
fn now(shared: &Shared, limits: &Limits, in_force: Option<&Value>) -> Markup {
    let counts: HashMap<String, Arc<OverLimitCounters>> = shared.gateway.over_limits().into_iter().collect();
    let rows = limits.tiers.iter().map(|tier| {
        let (typed, counts) = (in_force.and_then(|tiers| tiers.get(&tier.name)), counts.get(&tier.name));
        let candidate = tier.candidate.map_or("–".to_owned(), |rate| {
            format!("{}, {} at once", typed_rate(typed.and_then(|tier| tier.get("candidate"))), rate.burst)
        });
        let mut row = row![tier.name, format!("{}, {} at once", typed_rate(typed), tier.main.burst)];
        let over =
            Limit::ALL.map(|limit| counts.map_or(0, |counts| counts.over[limit.index()].load(Ordering::Relaxed)));
        row.extend(over.map(|n| html! { (n) }));
        row.extend(row![candidate, counts.map_or(0, |counts| counts.over_candidate.load(Ordering::Relaxed))]);
        row
    });
    let mut columns = vec![("Tier", ""), ("Rate", "nowrap")];
    columns.extend(Limit::ALL.map(|limit| (limit.name(), "number")));
    columns.extend([("Candidate", "nowrap"), ("candidate", "number")]);
    html! {
        section.panel {
            h2 { "In force" }
            (table("Tiers, and requests over each limit since the start", &columns, rows))
        }
    }
}
