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
use crate::config::Tier;
use crate::gateway::KeyUsage;
use crate::limits::{ActivityCounts, day_of};
use crate::model::{GuildId, Limit, date_of};
use crate::store::{KEPT_DAYS, KeyRecord};
use crate::wire::code_meaning;

/// Refusals that are shown.
const MAX_REFUSALS: usize = 20;

pub(super) async fn show(Extension(visit): Extension<Visit>, Path(id): Path<String>) -> Answer {
    let shared = visit.shared();
    let usage = shared.gateway.usage_of(|of| **of == *id).into_iter().next();
    let live = html! { (live(shared, &id, usage.as_ref()).await) };
    // The script asks for the part alone.
    if visit.fields.find("part").is_some() {
        return Ok(live.into_response());
    }
    let (record, unread) = match shared.keys() {
        Ok(records) => match records.store.key(&id).await {
            Ok(record) => (record, None),
            Err(error) if usage.is_some() => (None, Some(error)), // what memory has can be shown
            Err(error) => return Err(error.into()),
        },
        Err(_) => (None, None), // the keys are elsewhere
    };
    if record.is_none() && usage.is_none() {
        return Err(Problem::not_found(format!("there is no key {id}")));
    }
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
    let limits = &shared.gateway.state().config.limits;
    let in_force = usage.map(|usage| usage.key.policy.tier().name.as_str());
    let tier = record.map_or(in_force, |record| Some(record.tier.as_deref().unwrap_or(&limits.default_tier.name)));
    let rates = limits.tiers.iter().find(|of| Some(&*of.name) == tier);
    let guild_name = match (shared.guilds(), guild) {
        (Ok(records), Some(guild)) => records.store.guild(guild).await.ok().flatten(),
        _ => None,
    };
    let date = |unix: Option<i64>, none: &str| unix.map_or(none.to_owned(), date_of);
    html! {
        section.panel {
            dl.facts {
                @if let Some(record) = record { dt { "Name" } dd { bdi { (record.name) } } }
                dt { "Guild" }
                dd {
                    @match (guild, &guild_name) {
                        (Some(id), Some(guild)) => { a href={ "guilds/" (in_path(id.as_str())) } { bdi { (guild.name) } } " " span.id { (id) }
                            @if guild.departed { " " span.badge.warn { "the bot has left it (03)" } } }
                        (Some(id), None) => { span.id { (id) } }
                        _ => { "–" }
                    }
                }
                dt { "Tier" }
                dd {
                    (tier.unwrap_or("–"))
                    @if record.is_some_and(|record| record.tier.is_none()) { " (the default tier)" }
                    @match rates { Some(tier) => { ": " (rates_of(shared, tier)) }, None => { " (not in the configuration)" } }
                }
                @if let Some(record) = record {
                    dt { "Scope" } dd { (record.scope) }
                    dt { "Made" } dd { (date_of(record.created)) }
                    dt { "Ends" } dd { (date(record.expires, "never")) }
                    dt { "Last use that is stored" } dd { (date(record.last_used, "none")) }
                    @if let Some(ends) = record.previous_ends() {
                        dt { "The secret before the last rotation ends" } dd { (date_of(ends)) }
                    }
                }
            }
        }
    }
}

/// The limits of a tier as they were typed.
fn rates_of(shared: &Shared, tier: &Tier) -> String {
    let in_force = limits_in_force(shared);
    let typed = in_force.get("tiers").and_then(|tiers| tiers.get(&tier.name));
    let rates = Limit::RATES.into_iter().zip(tier.rates()).filter_map(|(limit, rate)| {
        let (name, burst) = (limit.name(), rate?.burst);
        Some(format!("{name} {}, {burst} at once", typed?.get(name)?.as_str()?))
    });
    let daily = tier.daily.map(|max| format!("daily {max}"));
    let in_flight = tier.in_flight.map(|max| format!("in_flight {max}"));
    rates.chain(daily).chain(in_flight).collect::<Vec<_>>().join("; ")
}

/// What changes by itself: the charts, the limits now, and the last refusals.
async fn live(shared: &Shared, id: &str, usage: Option<&KeyUsage>) -> Markup {
    let refusals = shared.gateway.observer.last_refusals();
    let of_key = refusals.iter().filter(|outcome| outcome.key.as_deref() == Some(id)).take(MAX_REFUSALS);
    let rows = of_key.map(|outcome| {
        let (time, code) = (outcome.time(), outcome.code.unwrap_or_default());
        let why = html! { a href={ "refusals?q=" (outcome.id) } { "why" } };
        let limit = outcome.over_limit.as_deref().unwrap_or("–");
        row![time, format!("{code:02} {}", code_meaning(code)), limit, why]
    });
    let rows: Vec<_> = rows.collect();
    html! {
        div.halves {
            @if let Some(usage) = usage { (hours(shared, usage)) }
            (days(shared, id).await)
            @match usage {
                Some(usage) => (use_of(usage)),
                None => section.panel { p { "The key is not in force here yet, or has ended." } },
            }
            section.panel {
                h2 { "Last refusals" }
                @if rows.is_empty() { p { "None since the start, as far as they are kept (the last 50 of each code)." } }
                @else {
                    (table("The latest first", &[("Time", "nowrap"), ("Code", ""), ("Limit", ""), ("Explained", "")], rows))
                }
            }
        }
    }
}

/// The last 24 hours as this process counted them.
fn hours(shared: &Shared, usage: &KeyUsage) -> Markup {
    let clock = shared.gateway.clock();
    let hours = usage.key.budget.activity.hours(clock.now());
    let hour = i64::try_from(clock.now().since(Tick(0)).as_secs() % 3600).unwrap_or_default();
    let now = clock.unix() - hour; // when the newest hour began
    let over = |counts: &ActivityCounts| counts.over_limit.iter().sum::<u32>();
    let answered = |of: &ActivityCounts| of.requests.saturating_sub(over(of) + of.refused + of.failed);
    type Count<'f> = &'f dyn Fn(&ActivityCounts) -> u32;
    let kinds: [(usize, &'static str, Count<'_>); 4] = [
        (0, "Answered", &answered),
        (2, "Over a limit (12)", &over),
        (1, "Refused otherwise", &|of| of.refused),
        (4, "Failed (20 to 22)", &|of| of.failed),
    ];
    let line = |(color, name, count): &(usize, &str, Count<'_>)| {
        let points = hours.iter().enumerate().rev().map(|(ago, of)| (-(ago as f64), f64::from(count(of))));
        (*color, (*name).to_owned(), points.collect())
    };
    let lines: Vec<Line> = kinds.iter().map(line).collect();
    let rows = hours.iter().enumerate().filter(|(_, of)| of.requests > 0).map(|(ago, of)| {
        let mut row = row![date_of(now - 3600 * ago as i64)];
        row.extend(kinds.iter().map(|(_, _, count)| html! { (count(of)) }));
        row
    });
    let columns: Vec<_> = [("Hour from", "")].into_iter().chain(kinds.map(|(_, name, _)| (name, "number"))).collect();
    html! {
        section.panel {
            h2 { "Requests by hour, the last 24 hours" }
            (plot::draw("hours", &lines, 23.0, plot::HOURS, now))
            p.hint { "As this process counted them since its start; the last hour has only begun." }
            details { summary { "As a table" } (table("Hours with requests, the latest first", &columns, rows)) }
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
    let chart = |found: Vec<(i64, u64)>| {
        let of = |day| found.iter().find(|(of, _)| *of == day).map_or(0, |(_, requests)| *requests);
        let points = (1 - KEPT_DAYS..=0).map(|ago| (ago as f64, of(today + ago) as f64)).collect();
        let rows = found.iter().rev().map(|(day, requests)| row![&date_of(day * 86_400)[..10], requests]);
        html! {
            (plot::draw("days", &[(0, "Requests".to_owned(), points)], 30.0, plot::DAYS, today * 86_400))
            p.hint { "UTC days, by all processes with this store. They are written once a minute and kept for 31 days." }
            details { summary { "As a table" }
                (table("Days with requests, the latest first", &[("Day", ""), ("Requests", "number")], rows)) }
        }
    };
    html! {
        section.panel {
            h2 { "Requests by day, the last 31 days" }
            @match found { Ok(found) => (chart(found)), Err(why) => p.hint { (why) } }
        }
    }
}

fn use_of(usage: &KeyUsage) -> Markup {
    let recent = &usage.recent;
    let windows = [("Minute", &recent.minute), ("Hour", &recent.hour), ("Day", &recent.day)];
    let limits = levels(usage).into_iter().map(|(name, used)| row![name, meter(name, used)]);
    let requests = windows.map(|(name, counts)| row![name, counts.requests, refusals(counts)]);
    html! {
        section.panel {
            h2 { "Limits now" }
            (table("How much is used up", &[("Limit", ""), ("Used", "")], limits))
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
