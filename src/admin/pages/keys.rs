//! Keys by their use today, with how close each is to its limits; and making a key.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::http::Method;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::layout::{Form, key_link, page, row, table};
use super::{Answer, Visit, in_path};
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::gateway::KeyUsage;
use crate::keys::Key;
use crate::limits::ActivityCounts;
use crate::model::{GuildId, KeyId, Limit, date_of};
use crate::store::{GuildRecord, KeyRecord};

/// Keys on a page.
const PAGE: usize = 50;

const COLUMNS: [(&str, &str); 8] = [
    ("Key", ""),
    ("Name", "name"),
    ("Guild", "name"),
    ("Tier", ""),
    ("Requests, day", "number"),
    ("Limits", "nowrap"),
    ("Refused, day", ""),
    ("Last use", "nowrap"),
];

/// A key as it is listed.
struct Row {
    id: KeyId,
    name: String,
    guild: GuildId,
    guild_name: String,
    tier: String,
    last_used: Option<i64>,
    requests: u32,
    /// If this process answered it on the last day.
    used: Option<Arc<Key>>,
}

/// What the store has of keys and guilds; without a store, nothing.
pub(super) async fn stored(shared: &Shared) -> Result<(Vec<KeyRecord>, Vec<GuildRecord>), Problem> {
    let Ok(records) = shared.guilds() else { return Ok(Default::default()) };
    let keys = if shared.keys().is_ok() { records.store.keys().await? } else { Vec::new() };
    Ok((keys, records.store.guilds().await?))
}

/// Those keys of the store, and of those that were used on the last day, that have the text `q`; those with the most
/// requests first. And the guilds.
async fn find(shared: &Shared, q: &str) -> Result<(Vec<Row>, Vec<GuildRecord>), Problem> {
    let (keys, guilds) = stored(shared).await?;
    let names: HashMap<&GuildId, &str> = guilds.iter().map(|guild| (&guild.id, guild.name.as_str())).collect();
    let name_of = |guild: &GuildId| names.get(guild).copied().unwrap_or_default().to_owned();
    let default_tier = shared.gateway.state().config.limits.default_tier.name.clone();
    let mut rows: HashMap<KeyId, Row> = HashMap::new();
    for KeyRecord { id, name, guild, tier, last_used, .. } in keys {
        let (guild_name, tier) = (name_of(&guild), tier.unwrap_or_else(|| default_tier.clone()));
        rows.insert(id.clone(), Row { id, name, guild, guild_name, tier, last_used, requests: 0, used: None });
    }
    for (requests, key) in shared.gateway.used_keys() {
        let row = rows.entry(key.id.clone()).or_insert_with(|| Row {
            id: key.id.clone(),
            name: String::new(),
            guild: key.guild.clone(),
            guild_name: name_of(&key.guild),
            tier: key.policy.tier().name.clone(),
            last_used: None,
            requests,
            used: None,
        });
        (row.requests, row.used) = (requests, Some(key));
    }
    let q = q.to_lowercase();
    let has_text = |row: &Row| {
        [&*row.id, &row.name, row.guild.as_str(), &row.guild_name].iter().any(|text| text.to_lowercase().contains(&q))
    };
    let mut rows: Vec<Row> = rows.into_values().filter(has_text).collect();
    rows.sort_by_cached_key(|row| (Reverse(row.requests), row.id.clone()));
    Ok((rows, guilds))
}

pub(super) async fn show(Extension(visit): Extension<Visit>) -> Answer {
    let (shared, q) = (visit.shared(), visit.fields.get("q"));
    let (found, guilds) = find(shared, q).await?;
    let pages = found.len().div_ceil(PAGE).max(1);
    let number = visit.fields.get("page").parse().unwrap_or(1).clamp(1, pages);
    let rows = found.iter().skip((number - 1) * PAGE).take(PAGE).map(|row| key_row(shared, row));
    let to_page = |page: usize| format!("keys?q={}&page={page}", in_path(q));
    let form = Form { visit: &visit, action: "/keys" };
    let content = html! {
        (form.search("Id, name or guild"))
        section.panel { (table(&format!("Keys: {}, those with the most requests first", found.len()), &COLUMNS, rows)) }
        @if pages > 1 {
            nav aria-label="Pages of keys" {
                ul {
                    @if number > 1 { li { a href=(to_page(number - 1)) rel="prev" { "Previous" } } }
                    li { "Page " (number) " of " (pages) }
                    @if number < pages { li { a href=(to_page(number + 1)) rel="next" { "Next" } } }
                }
            }
        }
        @match shared.keys() {
            Ok(_) => (create_form(&form, &guilds)),
            Err(problem) => p { (problem.detail) "." },
        }
    };
    Ok(page(&visit, "Keys", content))
}

fn key_row(shared: &Shared, row: &Row) -> Vec<Markup> {
    let usage = row.used.as_ref().map(|key| shared.gateway.usage(key.clone()));
    let guild = html! { (row.guild_name) @if !row.guild_name.is_empty() { br; } span.hint { (row.guild) } };
    let limits = usage.as_ref().map_or_else(Vec::new, levels);
    let limits = html! { @for (name, used) in limits { div { (meter(name, used)) " " span.hint { (name) } } } };
    let refused = usage.as_ref().map_or(html! { "–" }, |usage| refusals(&usage.recent.day));
    let last_use = match (&usage, row.last_used) {
        (Some(usage), _) if usage.recent.minute.requests > 0 => "within a minute".to_owned(),
        (_, Some(unix)) => date_of(unix),
        (Some(_), None) => "within a day".to_owned(),
        (None, None) => "never".to_owned(),
    };
    row![key_link(&row.id), row.name, guild, row.tier, row.requests, limits, refused, last_use]
}

/// How much is used of how much, as a bar and in figures.
pub(super) fn meter(label: &str, (used, max): (u64, u64)) -> Markup {
    html! {
        meter aria-label=(label) min="0" max=(max) value=(used.min(max)) low=(max / 2) high=(max - max / 10) optimum="0" {}
        " " (used) " of " (max)
    }
}

/// How full each limit of the tier is: name, used, and the most there may be.
pub(super) fn levels(usage: &KeyUsage) -> Vec<(&'static str, (u64, u64))> {
    let levels = &usage.levels;
    let rates = Limit::RATES.into_iter().zip(levels.rates).filter_map(|(limit, at)| {
        let (level, rate) = at?;
        let burst = u64::from(rate.burst.get());
        Some((limit, (burst.saturating_sub(level.remaining), burst)))
    });
    let (in_flight, max_in_flight) = levels.in_flight;
    let daily = levels.daily.map(|used| (Limit::Daily, used));
    let in_flight = max_in_flight.map(|max| (Limit::InFlight, (in_flight.into(), max.into())));
    rates.chain(daily).chain(in_flight).map(|(limit, used)| (limit.name(), used)).collect()
}

/// The reasons of refusals with their counts.
pub(super) fn refusals(counts: &ActivityCounts) -> Markup {
    let over = Limit::ALL.map(|limit| (limit.name(), counts.over_limit[limit.index()]));
    let all = over.into_iter().chain([("other refusals", counts.refused), ("origin failed", counts.failed)]);
    html! { @for (reason, n) in all.filter(|(_, n)| *n > 0) { div { (reason) ": " (n) } } }
}

/// The tiers to choose from; "" is the default one.
pub(super) fn tier_choice(form: &Form<'_>, shown: &str) -> Markup {
    let state = form.visit.shared().gateway.state();
    let limits = &state.config.limits;
    let default = format!("the default tier ({} now)", limits.default_tier.name);
    let gone = format!("{shown} (not in the configuration)");
    let mut options = vec![("", default.as_str())];
    options.extend(limits.tiers.iter().map(|tier| (tier.name.as_str(), tier.name.as_str())));
    if options.iter().all(|(name, _)| *name != shown) {
        options.push((shown, &gone));
    }
    form.choice("tier", "Tier", shown, &options)
}

pub(super) fn scope_choice(form: &Form<'_>, shown: &str) -> Markup {
    form.choice("scope", "Scope", shown, &[("write", "write: reads and setPoints"), ("read", "read: reads only")])
}

/// A field for a guild's id, with some that there are to choose from.
pub(super) fn guild_field(form: &Form<'_>, guilds: &[GuildRecord], shown: &str, hint: &str) -> Markup {
    html! {
        (form.text("guild", "Guild", shown, hint))
        datalist #guilds { @for guild in guilds.iter().take(PAGE) { option value=(guild.id) { (guild.name) } } }
    }
}

fn create_form(form: &Form<'_>, guilds: &[GuildRecord]) -> Markup {
    let only = guilds.first().filter(|_| guilds.len() == 1).map_or("", |guild| guild.id.as_str());
    form.post(
        "Make a key",
        ("primary", "Make the key"),
        html! {
            (guild_field(form, guilds, only, "The id of one that was added."))
            (form.text("name", "Name", "", "For people; it may be empty."))
            (tier_choice(form, ""))
            (scope_choice(form, "write"))
            (form.text("expires", "Ends", "", "Such as 90d or 2030-12-24; empty for never."))
        },
    )
}

pub(super) async fn create(Extension(visit): Extension<Visit>) -> Answer {
    let [guild, name, scope] = ["guild", "name", "scope"].map(|name| visit.fields.get(name));
    let [tier, expires] = ["tier", "expires"].map(|name| visit.fields.given(name));
    let body = json!({ "guild": guild, "name": name, "scope": scope, "tier": tier, "expires": expires });
    match visit.api(Method::POST, "/api/keys", body).await {
        Ok(answer) => Ok(issued(&visit, "The key was made", &answer)),
        Err(problem) => show(Extension(visit.refused(problem))).await,
    }
}

/// Shows a secret, this once.
pub(super) fn issued(visit: &Visit, title: &str, issued: &Value) -> Response {
    let text = |name: &str| issued[name].as_str().unwrap_or_default();
    let content = html! {
        p { "This is the secret of the key " code { (text("id")) } ". It is shown only now; copy it." }
        p { code.secret #secret tabindex="0" aria-label="Secret" { (text("key")) } }
        p { "To the key: " (key_link(text("id"))) " · " a href="keys" { "To all keys" } }
    };
    page(visit, title, content)
}
