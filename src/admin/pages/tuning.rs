//! Trying other limits: which keys of the recorded decisions would be refused, how often and when, by the code of
//! `limits plan`; and the lines for `gateway.toml`.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::response::{IntoResponse, Redirect};
use maud::{Markup, html};
use tokio::task::spawn_blocking;
use toml::{Table, Value};

use super::layout::{Form, cut, key_link, page, row, table};
use super::{Answer, Fields, Visit, in_path};
use crate::admin::problem::{Problem, ReloadFault};
use crate::admin::shared::Shared;
use crate::config::{Limits, load_str};
use crate::limits::OverLimitCounters;
use crate::model::{Limit, counted};
use crate::planning::{OnProgress, Plan, PlannedKey, ReadError, RecordFiles, count_requests, suggested_limits};

/// How long a replay may take. `limits plan` has no such bound.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Keys that are shown; the summary is of all.
const MAX_ROWS: usize = 100;

const NOT_RECORDED: &str = "No decisions are recorded, so nothing can be tried. Set log.decisions, load the files again (on \
    the page Configuration), and come back when there was traffic.";

/// The settings of a tier that are tried: name, label and hint.
const SETTINGS: [(&str, &str, &str); 6] = [
    ("rate", "Rate", "Such as 20/s or 600/m."),
    ("burst", "Burst", "Requests at once."),
    ("write_rate", "Write rate", "setPoints in addition; empty for none."),
    ("write_burst", "Write burst", "setPoints at once."),
    ("daily", "Daily", "In a UTC day; empty for any number."),
    ("in_flight", "In flight", "Under way at once; empty for any number."),
];

const COLUMNS: [(&str, &str); 9] = [
    ("Key", "nowrap"),
    ("Name", ""),
    ("Tier", "nowrap"),
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
    let shown = tiers.and_then(|tiers| tiers.get(&tier.name)?.as_table().cloned()).unwrap_or_default();
    let outcome = if visit.fields.find("suggest").is_some() {
        match suggested(visit.shared(), &tier.name, &shown).await {
            Ok(query) => {
                return Ok(Redirect::to(&format!("/tuning?tier={}{query}", in_path(&tier.name))).into_response());
            }
            Err(problem) => Err(problem),
        }
    } else if SETTINGS.iter().any(|(setting, ..)| visit.fields.find(setting).is_some()) {
        tried(visit.shared(), &tier.name, &visit.fields).await
    } else {
        Ok(html! {})
    };
    let outcome = outcome.unwrap_or_else(|problem| {
        visit = visit.clone().refused(problem);
        html! {}
    });
    let form = Form { visit: &visit, action: "/tuning" };
    let (tier_path, is_recorded) = (in_path(&tier.name), state.config.log.decisions.is_some());
    let content = html! {
        @if !is_recorded && visit.refused.is_none() { p.warn { (NOT_RECORDED) } }
        p { "Choose a tier, and see what other limits would have done to the recorded requests, also where shadow is on. Nothing is changed." }
        nav aria-label="Tiers" {
            ul.chips {
                @for of in &limits.tiers {
                    @let is_current = of.name == tier.name;
                    li { a href=(format!("tuning?tier={}", in_path(&of.name))) aria-current=[is_current.then_some("true")] { (of.name) } }
                }
            }
        }
        (outcome)
        section.panel {
            form.fields method="get" action="tuning" {
                input type="hidden" name="tier" value=(tier.name);
                @for (setting, label, hint) in SETTINGS { (form.text(setting, label, &text_of(shown.get(setting)), hint)) }
                button.primary { "Try" }
            }
            @if is_recorded {
                p { a.button href={ "tuning?suggest=yes&tier=" (tier_path) } { "Use limits that would have refused nothing" } }
            }
        }
        (now(visit.shared(), limits, tiers))
    };
    Ok(page(&visit, "Tuning", content))
}

/// A value as it is typed into a field.
fn text_of(value: Option<&Value>) -> String {
    value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)).unwrap_or_default()
}

/// The query that tries the rates of `limits suggest` for a tier, where the tier has such a rate.
async fn suggested(shared: &Shared, tier: &str, in_force: &Table) -> Result<String, Problem> {
    let toml = on_record(shared, |record, _| {
        let keys = count_requests(record)?.1;
        Ok(suggested_limits(&keys, record))
    });
    let section: Table = toml.await?.map_err(Problem::conflict)?.parse().unwrap_or_default();
    let found = section.get("limits").and_then(|limits| limits.get("tiers")?.get(tier)?.as_table());
    let none = || Problem::conflict(format!("The record has no request of the tier {tier}, so nothing is suggested."));
    let found = found.filter(|found| found.contains_key("rate")).ok_or_else(none)?;
    let settings = SETTINGS.iter().filter(|(setting, ..)| in_force.contains_key(*setting));
    let settings = settings.filter_map(|(setting, ..)| Some((setting, text_of(Some(found.get(*setting)?)))));
    Ok(settings.map(|(setting, value)| format!("&{setting}={}", in_path(&value))).collect())
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
async fn tried(shared: &Shared, tier: &str, fields: &Fields) -> Result<Markup, Problem> {
    let (limits, lines) = trial(shared, tier, fields)?;
    let keys = match shared.keys() {
        Ok(records) => records.store.keys().await?,
        Err(_) => Vec::new(),
    };
    let names = keys.into_iter().map(|key| (key.id, key.name)).collect();
    let plan = on_record(shared, move |record, progress| Plan::new(&limits, record, &names, progress)).await?;
    let of_tier = plan.keys.iter().filter(|key| key.tier == tier);
    let refused = counted(of_tier.map(|key| key.would_be_refused).sum(), "request");
    let rows = plan.keys.iter().take(MAX_ROWS).map(|key: &PlannedKey| {
        let worst = key.worst_minute.as_ref().map(|minute| format!("{minute} ({})", key.worst_minute_refused));
        row![
            key_link(&key.key),
            cut(key.name.as_deref().unwrap_or_default()),
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
        p role="status" { "With these limits, " (refused) " of the tier " (tier) " would be refused." }
        p { "In all tiers: " (plan.summary) }
        p.hint { (plan.read) }
        @for warning in plan.read.warnings() { p.hint { (warning) } }
        (table("Keys that would be refused, or are over a candidate limit", &COLUMNS, rows))
        h2 #lines { "Lines for gateway.toml" }
        p.hint { "They are the whole tier, and replace its section if the file has one." }
        pre { code { (lines) } }
        }
    })
}

/// The limits in force with other settings of `tier`, checked as those of a file, and the lines for `gateway.toml`.
fn trial(shared: &Shared, tier: &str, fields: &Fields) -> Result<(Limits, String), Problem> {
    let mut limits = limits_in_force(shared);
    limits.insert("shadow".to_owned(), false.into()); // what they would refuse is looked for
    let changed = limits.get_mut("tiers").and_then(|tiers| tiers.get_mut(tier)?.as_table_mut());
    let changed = changed.ok_or_else(|| Problem::not_found(format!("there is no tier {tier}")))?;
    for (setting, ..) in SETTINGS {
        match fields.find(setting) {
            None => {}
            Some("") => drop(changed.remove(setting)),
            Some(typed) => {
                let value = typed.parse().map_or_else(|_| Value::from(typed), Value::Integer);
                changed.insert(setting.to_owned(), value);
            }
        }
    }
    // A candidate that became the limit is no candidate any more.
    let is_limit = |candidate: &Value| ["rate", "burst"].iter().all(|name| candidate.get(name) == changed.get(*name));
    if changed.get("candidate").is_some_and(is_limit) {
        changed.remove("candidate");
    }
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

/// Does something with the record, one such piece of work at a time.
async fn on_record<T: Send + 'static>(
    shared: &Shared,
    work: impl FnOnce(&RecordFiles, OnProgress<'_>) -> Result<T, ReadError> + Send + 'static,
) -> Result<T, Problem> {
    let decisions = shared.gateway.state().config.log.decisions.clone();
    let decisions = decisions.ok_or_else(|| Problem::conflict(NOT_RECORDED))?;
    let one = shared.own.replays.clone().try_lock_owned();
    let one = one.map_err(|_| Problem::unavailable("Another trial is under way; try again.", 5))?;
    let work = move || {
        let _one = one; // until the work has ended, although nobody may wait for it any more
        let deadline = Instant::now() + TIMEOUT;
        let mut progress =
            |_, _| if Instant::now() > deadline { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        work(&RecordFiles::open(&[decisions])?, &mut progress)
    };
    let done = spawn_blocking(work).await;
    let done = done.map_err(|_| Problem::unavailable("The record could not be replayed; see the process log.", 5))?;
    done.map_err(|error| match error {
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
