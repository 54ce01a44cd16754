//! Keys by their use today, with how close each is to its limits; and making a key.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use axum::http::Method;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Value, json};

use super::layout::Heading::{Number, Text};
use super::{Fields, Pages, Refused, Visit, in_path, layout};
use crate::admin::extract::Params;
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::config::Rate;
use crate::gateway::KeyUsage;
use crate::keys::Key;
use crate::limits::{ActivityCounts, KeyLevels, Level};
use crate::model::{GuildId, KeyId, Limit, date_of};
use crate::records::Records;
use crate::store::{GuildRecord, KeyRecord};

/// Keys on a page.
const PAGE: usize = 50;

pub(super) fn routes() -> Router<Arc<Pages>> {
    Router::new().route("/keys", get(show).post(create))
}

#[derive(Debug, Default, Deserialize)]
struct Search {
    #[serde(default)]
    q: String,
    /// Counted from 1.
    page: Option<usize>,
    /// What was done before.
    done: Option<String>,
}

/// A key as it is listed.
struct Row {
    id: KeyId,
    name: String,
    guild: GuildId,
    guild_name: String,
    tier: Option<String>,
    last_used: Option<i64>,
    /// Its requests on the last day, if this process had any.
    used: Option<(u32, Arc<Key>)>,
}

/// A page of keys.
struct Found {
    /// How many keys there are on all pages.
    count: usize,
    page: usize,
    pages: usize,
    rows: Vec<Row>,
    /// For a new key.
    guilds: Vec<GuildRecord>,
}

impl Row {
    /// `text` is in lower case.
    fn contains(&self, text: &str) -> bool {
        let fields = [&*self.id, &self.name, self.guild.as_str(), &self.guild_name];
        fields.iter().any(|field| field.to_lowercase().contains(text))
    }

    fn requests(&self) -> u32 {
        self.used.as_ref().map_or(0, |(requests, _)| *requests)
    }
}

/// What the store has of keys and guilds; without a store, nothing.
pub(super) async fn stored(shared: &Shared) -> Result<(Vec<KeyRecord>, Vec<GuildRecord>), Problem> {
    let Ok(Records { store, .. }) = shared.guilds() else { return Ok(Default::default()) };
    let keys = if shared.keys().is_ok() { store.keys().await? } else { Vec::new() };
    Ok((keys, store.guilds().await?))
}

/// A page of those keys of the store, and of those that were used on the last day, that have the text `q`; those with
/// the most requests first.
async fn find(shared: &Shared, q: &str, page: usize) -> Result<Found, Problem> {
    let (keys, mut guilds) = stored(shared).await?;
    let names: HashMap<&GuildId, &str> = guilds.iter().map(|guild| (&guild.id, guild.name.as_str())).collect();
    let name_of = |guild: &GuildId| names.get(guild).copied().unwrap_or_default().to_owned();
    let used = shared.gateway.used_keys().into_iter().map(|(requests, key)| (key.id.clone(), (requests, key)));
    let mut used: HashMap<KeyId, (u32, Arc<Key>)> = used.collect();
    let stored = keys.into_iter().map(|KeyRecord { id, name, guild, tier, last_used, .. }| {
        let (used, guild_name) = (used.remove(&id), name_of(&guild));
        Row { id, name, guild, guild_name, tier, last_used, used }
    });
    let mut rows: Vec<Row> = stored.collect();
    rows.extend(used.into_values().map(|(requests, key)| Row {
        id: key.id.clone(),
        name: String::new(),
        guild: key.guild.clone(),
        guild_name: name_of(&key.guild),
        tier: Some(key.policy.tier().name.clone()),
        last_used: None,
        used: Some((requests, key)),
    }));
    let q = q.to_lowercase();
    rows.retain(|row| q.is_empty() || row.contains(&q));
    rows.sort_by_cached_key(|row| (Reverse(row.requests()), row.id.clone()));
    let (count, pages) = (rows.len(), rows.len().div_ceil(PAGE).max(1));
    let page = page.clamp(1, pages);
    let rows = rows.into_iter().skip((page - 1) * PAGE).take(PAGE).collect();
    guilds.truncate(PAGE);
    Ok(Found { count, page, pages, rows, guilds })
}

async fn show(Extension(visit): Extension<Visit>, Params(search): Params<Search>) -> Result<Markup, Problem> {
    page(&visit, &search, &Refused::default()).await
}

async fn page(visit: &Visit, search: &Search, refused: &Refused) -> Result<Markup, Problem> {
    let (text, page) = (search.q.trim().to_owned(), search.page.unwrap_or(1));
    let found = visit.pages.shared.over_all_keys(async move |shared: Arc<Shared>| find(&shared, &text, page).await);
    let Found { count, page, pages, rows, guilds } = found.await?;
    let q = search.q.trim();
    let to_page = |page: usize| format!("/keys?q={}&page={page}", in_path(q));
    let content = html! {
        @if search.done.as_deref() == Some("revoked") { p.good role="status" { "The key was revoked." } }
        form.search method="get" action="/keys" role="search" {
            (layout::text_field("q", "Id, name or guild", q, ""))
            button { "Search" }
        }
        div.stacked {
            (layout::table(&format!("Keys: {count}, those with the most requests first"),
                &[Text("Key"), Text("Name"), Text("Guild"), Text("Tier"), Number("Requests, day"), Text("Rate"),
                    Text("Other limits"), Text("Refused, day"), Text("Last use")],
                html! { @for row in &rows { (key_row(visit.shared(), row)) } }))
        }
        @if pages > 1 {
            nav aria-label="Pages of keys" {
                ul {
                    @if page > 1 { li { a href=(to_page(page - 1)) rel="prev" { "Previous" } } }
                    li { "Page " (page) " of " (pages) }
                    @if page < pages { li { a href=(to_page(page + 1)) rel="next" { "Next" } } }
                }
            }
        }
        @if visit.may_change() {
            @match visit.shared().keys() {
                Ok(_) => (create_form(visit, &guilds, refused)),
                Err(problem) => p { (problem.detail) "." },
            }
        }
    };
    Ok(layout::page(visit, "Keys", "/keys", content))
}

fn key_row(shared: &Shared, row: &Row) -> Markup {
    let usage = row.used.as_ref().map(|(_, key)| shared.gateway.usage(key.clone()));
    let state = shared.gateway.state();
    let default_tier = &state.config.limits.default_tier.name;
    html! {
        tr {
            th scope="row" { a href=(format!("/keys/{}", in_path(&row.id))) { (row.id) } }
            td.name { (row.name) }
            td.name data-label="Guild" { (row.guild_name) @if !row.guild_name.is_empty() { br; } span.hint { (row.guild) } }
            td data-label="Tier" { (row.tier.as_ref().unwrap_or(default_tier)) }
            td.number data-label="Requests, day" { (row.requests()) }
            @if let Some(usage) = &usage {
                td.nowrap data-label="Rate" { (meter("rate", burst_used(usage))) }
                td.nowrap data-label="Other limits" { (other_levels(usage)) }
                td data-label="Refused, day" { (refusals(&usage.recent.day)) }
            } @else {
                @for label in ["Rate", "Other limits", "Refused, day"] { td data-label=(label) { "–" } }
            }
            td.nowrap data-label="Last use" { (last_use(usage.as_ref(), row.last_used)) }
        }
    }
}

fn last_use(usage: Option<&KeyUsage>, last_used: Option<i64>) -> String {
    match (usage, last_used) {
        (Some(usage), _) if usage.recent.minute.requests > 0 => "within a minute".to_owned(),
        (_, Some(unix)) => date_of(unix),
        (Some(usage), None) if usage.recent.hour.requests > 0 => "within an hour".to_owned(),
        (Some(_), None) => "within a day".to_owned(),
        (None, None) => "never".to_owned(),
    }
}

/// How much of the burst is used up now, and the burst.
pub(super) fn burst_used(usage: &KeyUsage) -> (u64, u64) {
    usage.levels.rates[0].map_or_else(Default::default, used_of)
}

fn used_of((level, rate): (Level, Rate)) -> (u64, u64) {
    let burst = u64::from(rate.burst.get());
    (burst.saturating_sub(level.remaining), burst)
}

/// How much is used of how much, as a bar and in figures.
pub(super) fn meter(label: &str, (used, max): (u64, u64)) -> Markup {
    html! {
        meter aria-label=(label) min="0" max=(max) value=(used.min(max)) low=(max / 2) high=(max - max / 10) optimum="0" {}
        " " (used) " of " (max)
    }
}

/// The levels of the limits that the tier has besides `rate`: name, used, and the most there may be.
pub(super) fn levels(usage: &KeyUsage) -> Vec<(&'static str, (u64, u64))> {
    let KeyLevels { rates, daily, in_flight: (in_flight, max_in_flight) } = usage.levels;
    let rates = Limit::RATES.into_iter().zip(rates).skip(1);
    let rates = rates.filter_map(|(limit, at)| Some((limit, used_of(at?))));
    let daily = daily.map(|used| (Limit::Daily, used));
    let in_flight = max_in_flight.map(|max| (Limit::InFlight, (in_flight.into(), max.into())));
    rates.chain(daily).chain(in_flight).map(|(limit, used)| (limit.name(), used)).collect()
}

fn other_levels(usage: &KeyUsage) -> Markup {
    let levels = levels(usage);
    html! {
        @for (name, used) in &levels { div { (meter(name, *used)) " " span.hint { (name) } } }
        @if levels.is_empty() { "–" }
    }
}

/// The reasons of refusals with their counts.
pub(super) fn refusals(counts: &ActivityCounts) -> Markup {
    let over = Limit::ALL.map(|limit| (limit.name(), counts.over_limit[limit.index()]));
    let all = over.into_iter().chain([("other refusals", counts.refused), ("origin failed", counts.failed)]);
    let some: Vec<_> = all.filter(|(_, n)| *n > 0).collect();
    html! {
        @for (reason, n) in &some { div { (reason) ": " (n) } }
        @if some.is_empty() { "none" }
    }
}

/// The tiers to choose from; "" is the default one.
pub(super) fn tier_choice(visit: &Visit, chosen: &str) -> Markup {
    let state = visit.shared().gateway.state();
    let limits = &state.config.limits;
    let default = format!("the default tier ({} now)", limits.default_tier.name);
    let tiers = limits.tiers.iter().map(|tier| (tier.name.as_str(), tier.name.as_str()));
    let mut options: Vec<(&str, &str)> = [("", default.as_str())].into_iter().chain(tiers).collect();
    let gone = format!("{chosen} (not in the configuration)");
    if options.iter().all(|(name, _)| *name != chosen) {
        options.push((chosen, &gone));
    }
    layout::choice("tier", "Tier", chosen, &options)
}

pub(super) fn scope_choice(chosen: &str) -> Markup {
    layout::choice("scope", "Scope", chosen, &[("write", "write: reads and setPoints"), ("read", "read: reads only")])
}

/// A field for a guild's id, with those that there are to choose from.
pub(super) fn guild_field(guilds: &[GuildRecord], value: &str, required: bool, hint: &str) -> Markup {
    html! {
        div.field {
            label for="field-guild" { "Guild" }
            input #field-guild name="guild" list="guilds" required[required] autocomplete="off" spellcheck="false"
                value=(value) aria-describedby="field-guild-hint";
            span.hint #field-guild-hint { (hint) }
            datalist #guilds { @for guild in guilds { option value=(guild.id) { (guild.name) } } }
        }
    }
}

fn create_form(visit: &Visit, guilds: &[GuildRecord], refused: &Refused) -> Markup {
    let only = guilds.first().filter(|_| guilds.len() == 1).map_or("", |guild| guild.id.as_str());
    html! {
        h2 { "Make a key" }
        form.card method="post" action="/keys" {
            (layout::refusal(refused))
            (guild_field(guilds, refused.value("guild", only), true, "The id of one that was added."))
            (layout::text_field("name", "Name", refused.value("name", ""), "For people; it may be empty."))
            (tier_choice(visit, refused.value("tier", "")))
            (scope_choice(refused.value("scope", "write")))
            (layout::text_field("expires", "Ends", refused.value("expires", ""), "Such as 90d or 2030-12-24; empty for never."))
            button.primary { "Make the key" }
        }
    }
}

async fn create(Extension(visit): Extension<Visit>, Extension(fields): Extension<Fields>) -> Result<Response, Problem> {
    let mut body = json!({ "guild": fields.get("guild"), "name": fields.get("name"), "scope": fields.get("scope") });
    for name in ["tier", "expires"] {
        if let Some(value) = fields.given(name) {
            body[name] = value.into();
        }
    }
    match visit.api(Method::POST, "/api/keys", body).await {
        Ok(issued) => Ok(secret_page(&visit, "The key was made", &issued).into_response()),
        Err(problem) => {
            let refused = Refused::new("create", fields, problem);
            Ok((refused.status(), page(&visit, &Search::default(), &refused).await?).into_response())
        }
    }
}

/// Shows a secret, this once.
pub(super) fn secret_page(visit: &Visit, title: &str, issued: &Value) -> Markup {
    let text = |name: &str| issued[name].as_str().unwrap_or_default().to_owned();
    let content = html! {
        p { "This is the secret of the key " code { (text("id")) } ". It is shown only now; copy it." }
        p { code.secret #secret tabindex="0" aria-label="Secret" { (text("key")) } }
        p { a href=(format!("/keys/{}", in_path(&text("id")))) { "To the key" } " · " a href="/keys" { "To all keys" } }
    };
    layout::page(visit, title, "/keys", content)
}
