//! Trying other limits: which keys of the recorded decisions would be refused, how often and when, by the code of
//! `limits plan`; and the lines for `gateway.toml`.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use maud::{Markup, html};
use rustix::process::setpriority_process;
use serde::Deserialize;
use tokio::sync::oneshot;
use toml::{Table, Value};

use super::keys::stored;
use super::layout::Heading::{Number, Text};
use super::{Pages, Visit, in_path, layout};
use crate::admin::extract::Params;
use crate::admin::problem::{Problem, ReloadFault};
use crate::admin::shared::Shared;
use crate::config::{Limits, Tier, load_str};
use crate::limits::OverLimitCounters;
use crate::model::{KeyId, Limit};
use crate::planning::{Plan, PlannedKey, ReadError, RecordFiles};

/// How long a replay may take. `limits plan` has no such bound.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Keys that are shown; the summary is of all.
const MAX_ROWS: usize = 100;

/// The lowest priority, so that a replay takes no time from callers' requests.
const LOWEST_PRIORITY: i32 = 19;

pub(super) fn routes() -> Router<Arc<Pages>> {
    Router::new().route("/tuning", get(show))
}

#[derive(Debug, Deserialize)]
struct Query {
    tier: Option<String>,
    rate: Option<String>,
    burst: Option<String>,
}

async fn show(Extension(visit): Extension<Visit>, Params(query): Params<Query>) -> Result<Response, Problem> {
    let state = visit.shared().gateway.state().clone();
    let limits = &state.config.limits;
    let tier = limits.tier(query.tier.as_deref()).clone();
    let in_force = limits_in_force(visit.shared());
    let tiers = in_force.get("tiers");
    let rate = query.rate.as_deref();
    let rate = rate.unwrap_or_else(|| typed_rate(tiers.and_then(|tiers| tiers.get(&tier.name)))).trim();
    let burst = query.burst.clone().unwrap_or_else(|| tier.main.burst.to_string());
    let outcome = match (&query.rate, &query.burst) {
        (None, None) => Ok(html! {}),
        _ => tried(&visit, &tier.name, rate, burst.trim()).await,
    };
    let status = outcome.as_ref().map_or_else(Problem::status, |_| StatusCode::OK);
    let content = html! {
        p { "Choose a tier, and see what another rate and burst would have done to the recorded requests. Nothing is changed." }
        (tier_links(limits, &tier.name))
        form.card method="get" action="/tuning" {
            input type="hidden" name="tier" value=(tier.name);
            (layout::text_field("rate", "Rate", rate, "Requests of a key over time, such as 20/s or 600/m."))
            (layout::text_field("burst", "Burst", &burst, "Requests at once."))
            button.primary { "Try" }
        }
        @match &outcome {
            Ok(outcome) => (outcome),
            Err(problem) => { div.alert role="alert" { (problem.detail) (layout::faults(&problem.faults)) } },
        }
        (now(&visit, limits, tiers))
    };
    Ok((status, layout::page(&visit, "Tuning", "/tuning", content)).into_response())
}

/// `limits` as the configuration has it.
fn limits_in_force(shared: &Shared) -> Table {
    let config = shared.process.config.read();
    config.loaded.in_force.get("limits").and_then(Value::as_table).cloned().unwrap_or_default()
}

/// The rate of a tier, or of its candidate, as the configuration has it.
fn typed_rate(limit: Option<&Value>) -> &str {
    limit.and_then(|limit| limit.get("rate")?.as_str()).unwrap_or_default()
}

fn tier_links(limits: &Limits, current: &str) -> Markup {
    html! {
        nav aria-label="Tiers" {
            ul {
                @for tier in &limits.tiers {
                    li {
                        a href=(format!("/tuning?tier={}", in_path(&tier.name)))
                            aria-current=[(tier.name == current).then_some("true")] { (tier.name) }
                    }
                }
            }
        }
    }
}

/// What the limits would have done.
async fn tried(visit: &Visit, tier: &str, rate: &str, burst: &str) -> Result<Markup, Problem> {
    let shared = visit.shared();
    let (limits, lines) = trial(shared, tier, rate, burst)?;
    let names = async move |shared: Arc<Shared>| {
        Ok(stored(&shared).await?.0.into_iter().map(|key| (key.id, key.name)).collect())
    };
    let names = visit.pages.shared.over_all_keys(names).await?;
    let plan = replay(shared, limits, names).await?;
    let rows = html! { @for key in plan.keys.iter().take(MAX_ROWS) { (row(key)) } };
    Ok(html! {
        h2 { "What it would have done" }
        p role="status" { (plan.summary) }
        p.hint { (plan.read) }
        @for warning in plan.read.warnings() { p.hint { (warning) } }
        @if !plan.keys.is_empty() {
            (layout::table("Keys that would be refused, or are over a candidate limit", &[Text("Key"), Text("Name"),
                Text("Tier"), Number("Requests"), Number("Refused then"), Number("Would be"), Number("Newly"),
                Text("First"), Text("Worst minute")], rows))
        }
        h2 #lines { "Lines for gateway.toml" }
        p.hint { "They are the whole tier, and replace its section if the file has one." }
        pre tabindex="0" role="region" aria-labelledby="lines" { code { (lines) } }
    })
}

fn row(key: &PlannedKey) -> Markup {
    html! {
        tr {
            th scope="row" { a href=(format!("/keys/{}", in_path(&key.key))) { (key.key) } }
            td.name { (key.name.as_deref().unwrap_or_default()) }
            td { (key.tier) }
            td.number { (key.requests) }
            td.number { (key.refused_then) }
            td.number { (key.would_be_refused) }
            td.number { (key.newly_refused) }
            td.nowrap { (key.first.as_deref().unwrap_or("–")) }
            td.nowrap {
                @match &key.worst_minute { Some(minute) => { (minute) " (" (key.worst_minute_refused) ")" }, None => { "–" } }
            }
        }
    }
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

/// Decides the recorded requests again, on a thread of its own.
async fn replay(shared: &Shared, limits: Limits, names: HashMap<KeyId, String>) -> Result<Plan, Problem> {
    let decisions = shared.gateway.state().config.log.decisions.clone();
    let decisions = decisions.ok_or_else(|| {
        Problem::conflict(
            "No decisions are recorded. Set log.decisions, restart, and come back when there was traffic.",
        )
    })?;
    let one = shared.replays.clone().try_lock_owned();
    let one = one.map_err(|_| Problem::unavailable("Another trial is under way; try again.", 5))?;
    let (answer, answered) = oneshot::channel();
    let work = move || {
        let _ = setpriority_process(None, LOWEST_PRIORITY); // of this thread alone (setpriority(2), "C library/kernel differences")
        let deadline = Instant::now() + TIMEOUT;
        let plan = RecordFiles::open(&[decisions]).and_then(|record| {
            let mut progress =
                |_, _| if Instant::now() > deadline { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            Plan::new(&limits, &record, &names, &mut progress)
        });
        drop(one);
        let _ = answer.send(plan); // the caller may have gone
    };
    let failed = || Problem::unavailable("The record could not be replayed; see the process log.", 5);
    std::thread::Builder::new().name("replay".into()).spawn(work).map_err(|_| failed())?;
    answered.await.map_err(|_| failed())?.map_err(|error| match error {
        ReadError::Ended => {
            Problem::unavailable("The record is too long to replay here; use `guildgate limits plan`.", 60)
        }
        error => Problem::conflict(error.to_string()),
    })
}

/// The tiers in force, with how often each limit was exceeded.
fn now(visit: &Visit, limits: &Limits, in_force: Option<&Value>) -> Markup {
    let counts: HashMap<String, Arc<OverLimitCounters>> = visit.shared().gateway.over_limits().into_iter().collect();
    let in_force = |tier: &Tier| in_force?.get(&tier.name);
    let none = Arc::default();
    let counts = |tier: &Tier| counts.get(&tier.name).unwrap_or(&none);
    let over = |tier: &Tier, limit: Limit| counts(tier).over[limit.index()].load(Ordering::Relaxed);
    let rows = html! {
        @for tier in &limits.tiers {
            tr {
                th scope="row" { (tier.name) }
                td.nowrap { (typed_rate(in_force(tier))) ", " (tier.main.burst) " at once" }
                @for limit in Limit::ALL { td.number { (over(tier, limit)) } }
                td.nowrap {
                    @match tier.candidate {
                        Some(rate) => {
                            (typed_rate(in_force(tier).and_then(|tier| tier.get("candidate")))) ", " (rate.burst) " at once"
                        },
                        None => "–",
                    }
                }
                td.number { (counts(tier).over_candidate.load(Ordering::Relaxed)) }
            }
        }
    };
    let over = Limit::ALL.map(|limit| Number(limit.name()));
    let headings = [Text("Tier"), Text("Rate")].into_iter().chain(over).chain([Text("Candidate"), Number("candidate")]);
    html! {
        h2 { "In force" }
        (layout::table("Tiers, and requests over each limit since the start", &headings.collect::<Vec<_>>(), rows))
    }
}
