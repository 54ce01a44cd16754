//! One key: what it is, its use by hour and day, its limits, its last refusals, and what can be done with it.

use axum::Extension;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Redirect};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::keys::{issued, levels, meter, refusals, scope_choice, tier_choice};
use super::layout::{Form, page, row, table, tick};
use super::plot::{self, Line};
use super::tuning::limits_in_force;
use super::{Answer, Visit, in_path};
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::clock::Tick;
use crate::gateway::KeyUsage;
use crate::limits::day_of;
use crate::model::{GuildId, date_of};
use crate::store::{KEPT_DAYS, KeyRecord};
use crate::wire::code_meaning;

/// Refusals that are shown.
const MAX_REFUSALS: usize = 10;

pub(super) async fn show(Extension(visit): Extension<Visit>, Path(id): Path<String>) -> Answer {
    let shared = visit.shared();
    let usage = shared.gateway.usage_of(|of| **of == *id).into_iter().next();
    let live = html! { (live(shared, &id, usage.as_ref()).await) };
    // The script asks for the part alone.
    if visit.fields.find("part").is_some() {
        return Ok(live.into_response());
    }
    let record = match shared.keys() {
        Ok(records) => records.store.key(&id).await,
        Err(_) => Ok(None), // the keys are elsewhere
    };
    let (record, unread) = match record {
        Ok(None) if usage.is_none() => return Err(Problem::not_found(format!("there is no key {id}"))),
        Err(error) if usage.is_none() => return Err(error.into()),
        Err(error) => (None, Some(error)), // what memory has can be shown
        Ok(record) => (record, None),
    };
    let guild = record.as_ref().map(|record| &record.guild).or(usage.as_ref().map(|usage| &usage.key.guild));
    let path = |action: &str| format!("/keys/{}/{action}", in_path(&id));
    let content = html! {
        @if let Some(error) = &unread { p.warn role="status" { "The key cannot be read from the store now: " (error) "." } }
        (facts(shared, record.as_ref(), usage.as_ref(), guild).await)
        div data-refresh={ "keys/" (in_path(&id)) "?part=main" } { (live) }
        @if let Some(record) = &record {
            div.halves {
                (change_form(&Form { visit: &visit, action: &path("change") }, record))
                div.column {
                    @let form = Form { visit: &visit, action: &path("rotate") };
                    (form.post("Rotate", ("primary", "Make another secret"),
                        form.text("overlap", "Overlap", "24h", "How long the present secret still works: 24h, 30d, or 0s.")))
                    (Form { visit: &visit, action: &path("revoke") }.post("Revoke", ("danger", "Revoke the key"), html! {
                        p { "Requests with this key are refused within a second. It cannot be undone." }
                        (tick("confirmed", &format!("Yes, revoke {id}"), true))
                    }))
                }
            }
        }
        div.halves {
            @if usage.as_ref().is_some_and(|usage| usage.levels.daily.is_some()) {
                (Form { visit: &visit, action: &path("reset-day") }.post("The day", ("", "Give the key its whole day back"),
                    html! { p { "The requests of this UTC day no longer count against the limit " code { "daily" } "." } }))
            }
            @if let Some(guild) = guild {
                (Form { visit: &visit, action: &path("purge") }.post("Answers in memory", ("", "Purge the guild's answers"),
                    html! {
                        p { "All keys of guild " (guild) " share its answers. They are asked for again when a caller wants them." }
                        input type="hidden" name="guild" value=(guild);
                    }))
            }
        }
    };
    Ok(page(&visit, &format!("Key {id}"), content))
}

/// What is known of the key. Where the store does not list it, what this process knows.
async fn facts(
    shared: &Shared,
    record: Option<&KeyRecord>,
    usage: Option<&KeyUsage>,
    guild: Option<&GuildId>,
) -> Markup {
    let default = &shared.gateway.state().config.limits.default_tier.name;
    let in_force = usage.map(|usage| usage.key.policy.tier().name.as_str());
    let tier = record.map_or(in_force, |record| Some(record.tier.as_deref().unwrap_or(default)));
    let found = match (shared.guilds(), guild) {
        (Ok(records), Some(guild)) => records.store.guild(guild).await.ok().flatten(),
        _ => None,
    };
    let date = |unix: Option<i64>, none: &str| unix.map_or(none.to_owned(), date_of);
    html! {
        dl.facts.panel {
            @if let Some(record) = record { dt { "Name" } dd { bdi { (record.name) } } }
            @if let Some(id) = guild {
                dt { "Guild" }
                dd {
                    @if let Some(guild) = found {
                        a href={ "guilds/" (in_path(id.as_str())) } { bdi { (guild.name) } } " "
                        @if guild.departed { span.badge.warn { "the bot has left it (03)" } " " }
                    }
                    span.id { (id) }
                }
            }
            dt { "Tier" } dd { (tier.unwrap_or("–")) @if record.is_some_and(|record| record.tier.is_none()) { " (the default tier)" } }
            @if let Some(record) = record {
                dt { "Scope" } dd { (record.scope) }
                dt { "Made" } dd { (date_of(record.created)) }
                dt { "Ends" } dd { (date(record.expires, "never")) }
                dt { "Last use that is stored" } dd { (date(record.last_used, "none")) }
                dt { "The secret before the last rotation ends" } dd { (date(record.previous_ends(), "there is none")) }
            }
        }
    }
}

/// What changes by itself: the charts, the limits now, and the last refusals.
async fn live(shared: &Shared, id: &str, usage: Option<&KeyUsage>) -> Markup {
    let refusals = shared.gateway.observer.last_refusals();
    let of_key = refusals.iter().filter(|outcome| outcome.key.as_deref() == Some(id)).take(MAX_REFUSALS);
    let rows = of_key.map(|outcome| {
        let (code, limit) = (outcome.code.unwrap_or_default(), outcome.over_limit.as_deref().unwrap_or("–"));
        let why = html! { a href={ "refusals?q=" (outcome.id) } { "why" } };
        row![outcome.time(), format!("{code:02} {}", code_meaning(code)), limit, why]
    });
    let columns = [("Time", ""), ("Code", ""), ("Limit", ""), ("Explained", "")];
    html! {
        div.halves {
            @if let Some(usage) = usage { (hours(shared, usage)) }
            (days(shared, id).await)
            @match usage {
                Some(usage) => (use_of(shared, usage)),
                None => section.panel { p { "The key is not in force here yet, or has ended." } },
            }
            section.panel {
                h2 { "Last refusals" }
                (table("Of the last 50 of each code since the start, the latest first", &columns, rows))
            }
        }
    }
}

/// A chart with its table, which has the times at which there was something.
fn chart(id: &str, lines: &[Line], now: i64, hint: &str) -> Markup {
    let points = |(.., points): &Line| points.clone();
    let columns: Vec<_> =
        [("From", "nowrap")].into_iter().chain(lines.iter().map(|(_, name, _)| (*name, "number"))).collect();
    let times = lines.first().map(points).unwrap_or_default();
    let rows = times.iter().enumerate().rev().map(|(at, (time, _))| {
        let values = lines.iter().map(|(.., points)| html! { (points[at].1) });
        [html! { (date_of(now + *time as i64)) }].into_iter().chain(values).collect()
    });
    html! {
        (plot::draw(id, lines, now))
        p.hint { (hint) }
        details { summary { "As a table" } (table("The latest first", &columns, rows)) }
    }
}

/// The last 24 hours as this process counted them.
fn hours(shared: &Shared, usage: &KeyUsage) -> Markup {
    let clock = shared.gateway.clock();
    let hours = usage.key.budget.activity.hours(clock.now());
    let now = clock.unix() - (clock.now().since(Tick(0)).as_secs() % 3600) as i64; // when the newest hour began
    let counts = hours.map(|of| {
        let over = of.over_limit.iter().sum::<u32>();
        [of.requests.saturating_sub(over + of.refused + of.failed), over, of.refused, of.failed]
    });
    let kinds = [(0, "Answered"), (2, "Over a limit (12)"), (1, "Refused otherwise"), (4, "Failed (20 to 22)")];
    let lines = kinds.into_iter().enumerate().map(|(kind, (color, name))| {
        let points = counts.iter().enumerate().rev().map(|(ago, of)| (-3600.0 * ago as f64, of[kind].into()));
        (color, name, points.collect())
    });
    let hint = "As this process counted them since its start; the last hour has only begun.";
    html! {
        section.panel {
            h2 { "Requests by hour, the last 24 hours" }
            (chart("hours", &lines.collect::<Vec<_>>(), now, hint))
        }
    }
}

/// The last 31 days as the store has them.
async fn days(shared: &Shared, id: &str) -> Markup {
    let today = day_of(shared.gateway.clock().unix());
    let found = match &shared.store {
        Some(store) => {
            store.requests_by_day(id, today).await.map_err(|error| format!("They cannot be read now: {error}."))
        }
        None => Err("There is no store that would keep them.".to_owned()),
    };
    let hint = "UTC days, by all processes with this store. They are written once a minute and kept for 31 days.";
    let line = |found: Vec<(i64, u64)>| {
        let of = |day| found.iter().find(|(of, _)| *of == day).map_or(0, |(_, requests)| *requests);
        (0, "Requests", (1 - KEPT_DAYS..=0).map(|ago| (86_400.0 * ago as f64, of(today + ago) as f64)).collect())
    };
    html! {
        section.panel {
            h2 { "Requests by day, the last 31 days" }
            @match found {
                Ok(found) => (chart("days", &[line(found)], today * 86_400, hint)),
                Err(why) => p.warn { (why) },
            }
        }
    }
}

fn use_of(shared: &Shared, usage: &KeyUsage) -> Markup {
    let recent = &usage.recent;
    let windows = [("Minute", &recent.minute), ("Hour", &recent.hour), ("Day", &recent.day)];
    let in_force = limits_in_force(shared);
    let tier = in_force.get("tiers").and_then(|tiers| tiers.get(&usage.key.policy.tier().name));
    let rate = |name| tier.and_then(|tier| tier.get(name)?.as_str()).unwrap_or("–");
    let limits = levels(usage).into_iter().map(|(name, used)| row![name, rate(name), meter(name, used)]);
    let requests = windows.map(|(name, counts)| row![name, counts.requests, refusals(counts)]);
    html! {
        section.panel {
            h2 { "Limits now" }
            (table("The limits of the tier, and how much is used up", &[("Limit", ""), ("Rate", ""), ("Used", "")], limits))
            (table("Requests since the start, of the last minute, hour and day",
                &[("Last", ""), ("Requests", "number"), ("Refused", "")], requests))
        }
    }
}

fn change_form(form: &Form<'_>, record: &KeyRecord) -> Markup {
    let (tier, ends) = (record.tier.as_deref().unwrap_or_default(), record.expires.map_or("never".to_owned(), date_of));
    let shown = [("name", &*record.name), ("tier", tier), ("scope", record.scope.name()), ("expires", &ends)];
    form.post(
        "Change",
        ("primary", "Change the key"),
        html! {
            (form.text("name", "Name", &record.name, ""))
            (tier_choice(form, tier))
            (scope_choice(form, record.scope.name()))
            (form.text("expires", "Ends", &ends, "Such as never, 90d or 2030-12-24."))
            @for (name, shown) in shown {
                @let before = format!("{name}-before");
                input type="hidden" name=(before) value=(form.value(&before, shown));
            }
        },
    )
}

/// Does with a key what one of its forms says.
pub(super) async fn act(Extension(visit): Extension<Visit>, Path((id, action)): Path<(String, String)>) -> Answer {
    let fields = &visit.fields;
    let (method, below, body) = match &*action {
        "change" => {
            // What is sent as it was shown is not changed.
            let names = ["name", "tier", "scope", "expires"].into_iter();
            let changed = names.filter(|name| fields.get(name) != fields.get(&format!("{name}-before")));
            let value = |name: &str| -> Value {
                if name == "tier" { fields.given(name).into() } else { fields.get(name).into() }
            };
            (Method::PATCH, "", changed.map(|name| (name.to_owned(), value(name))).collect::<Value>())
        }
        "rotate" => (Method::POST, "/rotate", json!({ "overlap": fields.given("overlap") })),
        "reset-day" => (Method::POST, "/reset-day", Value::Null),
        "purge" => (Method::POST, "", json!({ "guild": fields.given("guild") })),
        "revoke" if fields.given("confirmed").is_some() => (Method::DELETE, "", Value::Null),
        "revoke" => {
            let problem = Problem::bad_request("Nothing was changed. Tick the box to revoke the key.");
            return show(Extension(visit.refused(problem)), Path(id)).await;
        }
        _ => return Err(Problem::not_found("there is no such form")),
    };
    let api_path = match &*action {
        "purge" => "/api/cache/purge".to_owned(),
        _ => format!("/api/keys/{}{below}", in_path(&id)),
    };
    match visit.api(method, &api_path, body).await {
        Ok(answer) if action == "rotate" => Ok(issued(&visit, "The key has another secret", &answer)),
        Ok(_) if action == "revoke" => Ok(Redirect::to("/keys?done=revoke").into_response()),
        Ok(_) => Ok(Redirect::to(&format!("/keys/{}?done={action}", in_path(&id))).into_response()),
        Err(problem) if problem.status() == StatusCode::NOT_FOUND => Err(problem),
        Err(problem) => show(Extension(visit.refused(problem)), Path(id)).await,
    }
}
