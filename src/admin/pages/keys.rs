//! Keys by their use today, with how close each is to its limits; and making a key.

use std::collections::{HashMap, HashSet};

use axum::Extension;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::layout::{Form, ago, chips, copied, cut, key_link, page, row, table};
use super::{Answer, Fields, Visit, in_path};
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::admin::tokens::Role;
use crate::config::expires::Expires;
use crate::gateway::KeyUsage;
use crate::keys::Key;
use crate::limits::ActivityCounts;
use crate::model::{GuildId, KeyId, Limit, rough};
use crate::store::{GuildRecord, KeyRecord, KeySearch, Store};

/// Keys on a page.
const PAGE: usize = 50;

/// The keys with the most requests on the last day that are listed before all others.
const MOST_USED: usize = 1000;

/// Guilds to choose from in a list; where there are more, an id is typed.
const MAX_GUILDS: usize = 200;

/// Keys that end within so many seconds are soon to end.
const SOON: i64 = 30 * 86_400;

const SORTS: [(&str, &str); 4] =
    [("", "Most requests first"), ("name", "By name"), ("last-use", "Last use first"), ("end", "Next to end first")];

const FILTERS: [(&str, &str); 6] = [
    ("", "All"),
    ("over", "Refused for a limit on the last day"),
    ("ending", "End within 30 days"),
    ("unused", "Never used"),
    ("read", "Scope read"),
    ("write", "Scope write"),
];

const COLUMNS: [(&str, &str); 9] = [
    ("Name", "nowrap"),
    ("Key", "nowrap"),
    ("Guild", "nowrap"),
    ("Tier", ""),
    ("Nearest limit", ""),
    ("Requests today", "number"),
    ("Refused today", ""),
    ("Last use", "nowrap"),
    ("Ends", "nowrap"),
];

/// A key as it is listed.
struct Row {
    id: KeyId,
    name: String,
    guild: GuildId,
    tier: Option<String>,
    last_used: Option<i64>,
    expires: Option<i64>,
    /// If this process answered it on the last day.
    usage: Option<KeyUsage>,
}

/// A page of the keys that the query looks for, and whether there are more.
async fn find(shared: &Shared, fields: &Fields, skip: usize) -> Result<(Vec<Row>, bool), Problem> {
    let (gateway, text) = (&shared.gateway, fields.get("q").to_lowercase());
    let (sort, filter) = (fields.get("sort"), fields.get("show"));
    let mut used = gateway.used_keys();
    if filter == "over" {
        used.retain(|(_, key)| gateway.usage(key.clone()).recent.day.over_limit.iter().any(|n| *n > 0));
    }
    used.sort_unstable_by(|(a, one), (b, other)| b.cmp(a).then_with(|| one.id.cmp(&other.id)));
    let mut rows: Vec<Row> = match shared.keys() {
        Ok(records) => {
            let most: Vec<KeyId> = used.iter().take(MOST_USED).map(|(_, key)| key.id.clone()).collect();
            let search = KeySearch {
                text,
                scope: filter.parse().ok(),
                ends_before: (filter == "ending").then(|| gateway.clock().unix() + SOON),
                is_unused: filter == "unused",
                sort: sort.to_owned(),
                ..KeySearch::default()
            };
            let found = find_stored(&records.store, search, most, filter == "over", skip).await?;
            found.into_iter().map(Row::stored).collect()
        }
        Err(_) => {
            let has_text = |key: &Key| key.id.to_lowercase().contains(&text) || key.guild.as_str().contains(&text);
            let found = used.iter().filter(|(_, key)| has_text(key)).skip(skip).take(PAGE + 1);
            found.map(|(_, key)| Row::used(key)).collect()
        }
    };
    let has_more = rows.len() > PAGE;
    rows.truncate(PAGE);
    let mut at: HashMap<KeyId, usize> = rows.iter().enumerate().map(|(at, row)| (row.id.clone(), at)).collect();
    for (_, key) in used {
        if let Some(at) = at.remove(&key.id) {
            rows[at].usage = Some(gateway.usage(key));
        }
    }
    Ok((rows, has_more))
}

/// The keys of the store that are looked for: first those with the most requests, if nothing else is sorted by, and then
/// the others. `only_most`: no others.
async fn find_stored(
    store: &Store,
    mut search: KeySearch,
    most: Vec<KeyId>,
    only_most: bool,
    skip: usize,
) -> Result<Vec<KeyRecord>, Problem> {
    let (mut found, mut before) = (Vec::new(), 0);
    if search.sort.is_empty() && !search.is_unused || only_most {
        let first = KeySearch { among: true, ids: most.clone(), ..search.clone() };
        let mut first = store.find_keys(first, 0, MOST_USED).await?;
        if search.sort.is_empty() {
            let place: HashMap<&KeyId, usize> = most.iter().enumerate().map(|(place, id)| (id, place)).collect();
            first.sort_by_key(|key| place.get(&key.id).copied());
        }
        before = first.len();
        found.extend(first.into_iter().skip(skip).take(PAGE + 1));
        search.ids = most;
    } else if search.is_unused {
        search.ids = most; // their use may not be stored yet
    }
    if !only_most && found.len() <= PAGE {
        found.extend(store.find_keys(search, skip.saturating_sub(before), PAGE + 1 - found.len()).await?);
    }
    Ok(found)
}

impl Row {
    fn stored(key: KeyRecord) -> Self {
        let KeyRecord { id, name, guild, tier, last_used, expires, .. } = key;
        Row { id, name, guild, tier, last_used, expires, usage: None }
    }

    fn used(key: &Key) -> Self {
        let (id, guild, tier) = (key.id.clone(), key.guild.clone(), Some(key.policy.tier().name.clone()));
        Row { id, name: String::new(), guild, tier, last_used: None, expires: None, usage: None }
    }

    fn cells(self, shared: &Shared, guilds: &HashMap<GuildId, String>) -> Vec<Markup> {
        let now = shared.gateway.clock().unix();
        let guild = guilds.get(&self.guild).filter(|name| !name.is_empty()).map_or(self.guild.as_str(), String::as_str);
        let tier = self.tier.unwrap_or_else(|| shared.gateway.state().config.limits.default_tier.name.clone());
        let day = self.usage.as_ref().map(|usage| &usage.recent.day);
        let is_active = self.usage.as_ref().is_some_and(|usage| usage.recent.minute.requests > 0);
        let name = if self.name.is_empty() { "(no name)" } else { &self.name };
        row![
            html! { a href={ "keys/" (in_path(&self.id)) } { (cut(name)) } },
            html! { code { (self.id) } },
            html! { bdi.cut title=(format!("{guild} ({})", self.guild)) { (guild) } },
            cut(&tier),
            html! { @if let Some(usage) = &self.usage { (nearest(usage)) } },
            day.map_or(0, |day| day.requests),
            html! { @if let Some(day) = day { (refusals(day)) } },
            html! {
                @if is_active { "now" }
                @else if let Some(unix) = self.last_used { (ago(unix, now)) }
                @else if day.is_some() { "today" } @else { "never" }
            },
            html! { @if let Some(unix) = self.expires { (ago(unix, now)) } @else { "never" } },
        ]
    }
}

pub(super) async fn show(Extension(visit): Extension<Visit>) -> Answer {
    if visit.fields.find("make").is_some() {
        return make_page(&visit).await;
    }
    let (shared, fields) = (visit.shared(), &visit.fields);
    let number = fields.get("page").parse().unwrap_or(1_usize).clamp(1, usize::MAX / PAGE);
    let (found, has_more) = find(shared, fields, (number - 1) * PAGE).await?;
    let mut guilds = HashMap::new();
    if let Ok(records) = shared.guilds() {
        for id in found.iter().map(|row| row.guild.clone()).collect::<HashSet<_>>() {
            guilds.extend(records.store.guild(&id).await?.map(|guild| (id, guild.name)));
        }
    }
    let rows: Vec<_> = found.into_iter().map(|row| row.cells(shared, &guilds)).collect();
    let [q, sort, filter] = ["q", "sort", "show"].map(|name| fields.get(name));
    let to_page =
        |page: usize| format!("keys?q={}&sort={}&show={}&page={page}", in_path(q), in_path(sort), in_path(filter));
    let caption = format!(
        "Keys {} to {}. Requests and refusals are those that this process counted on the last day; it started {} ago.",
        if rows.is_empty() { 0 } else { (number - 1) * PAGE + 1 },
        (number - 1) * PAGE + rows.len(),
        rough(shared.process.started.elapsed()),
    );
    let content = html! {
        div.row {
            (Form { visit: &visit, action: "/keys" }.search("Id, name or guild"))
            @match shared.keys() {
                Ok(_) if visit.role == Role::Admin => a.button.primary href="keys?make=yes" { "Make a key" },
                Ok(_) => {}
                Err(problem) => p.hint { (problem.detail) "." },
            }
        }
        (chips(&visit, "show", &["q", "sort"], &FILTERS))
        @if shared.keys().is_ok() { (chips(&visit, "sort", &["q", "show"], &SORTS)) }
        section.panel {
            (table(&caption, &COLUMNS, rows))
            @if number > 1 || has_more {
                nav aria-label="Pages of keys" {
                    ul {
                        @if number > 1 { li { a href=(to_page(number - 1)) rel="prev" { "Previous" } } }
                        @if has_more { li { a href=(to_page(number + 1)) rel="next" { "Next" } } }
                    }
                }
            }
        }
    };
    Ok(page(&visit, "Keys", content))
}

/// The limit that is nearest to be exceeded, with its rate.
fn nearest(usage: &KeyUsage) -> Markup {
    let near = |of: &(&str, (u64, u64))| std::cmp::Reverse(of.1.0 * 10_000 / of.1.1.max(1));
    let Some((name, used)) = levels(usage).into_iter().min_by_key(near) else { return html! {} };
    let rate = Limit::RATES.into_iter().zip(usage.levels.rates).find(|(limit, _)| limit.name() == name);
    let rate = rate.and_then(|(_, at)| at).map(|(_, rate)| format!(", {}/s", rate.per_second()));
    html! { (meter(name, used)) " " span.hint { (name) (rate.unwrap_or_default()) } }
}

/// How much is used of how much, as a bar and in figures.
pub(super) fn meter(label: &str, (used, max): (u64, u64)) -> Markup {
    html! {
        meter aria-label=(label) min="0" max=(max) value=(used.min(max)) low=(max / 2) high=(max * 9 / 10) optimum="0" {}
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
    let all = over.into_iter().chain([("others", counts.refused), ("failed", counts.failed)]);
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

/// The page with the form that makes a key, alone, so that what is wrong with it is in sight.
async fn make_page(visit: &Visit) -> Answer {
    let form = Form { visit, action: "/keys" };
    let guilds = visit.shared().keys()?.store.guilds_page(None, MAX_GUILDS + 1).await?;
    let name = |guild: &GuildRecord| format!("{} ({})", guild.name, guild.id);
    let names: Vec<String> = guilds.iter().map(name).collect();
    let options = guilds.iter().zip(&names).map(|(guild, name)| (guild.id.as_str(), name.as_str()));
    let options: Vec<_> = [("", "Choose a guild")].into_iter().filter(|_| guilds.len() > 1).chain(options).collect();
    let content = form.post(
        "",
        ("primary", "Make the key"),
        html! {
            @if guilds.is_empty() {
                p.warn { "There is no guild yet, and a key belongs to one. " code { "guildgate guild add" } " adds it." }
            }
            @if guilds.len() <= MAX_GUILDS { (form.choice("guild", "Guild", "", &options)) }
            @else { (form.text("guild", "Guild", "", "The id of one that was added.")) }
            (form.text("name", "Name", "", "For people; it may be empty."))
            (tier_choice(&form, ""))
            (scope_choice(&form, "write"))
            (form.text("expires", "Ends", "", "Such as 90d or 2030-12-24; empty for never."))
        },
    );
    Ok(page(visit, "Make a key", html! { (content) p { a href="keys" { "To all keys" } } }))
}

pub(super) async fn create(Extension(visit): Extension<Visit>) -> Answer {
    let [guild, name, scope] = ["guild", "name", "scope"].map(|name| visit.fields.get(name));
    let [tier, expires] = ["tier", "expires"].map(|name| visit.fields.given(name));
    let body = json!({ "guild": guild, "name": name, "scope": scope, "tier": tier, "expires": expires });
    match visit.api(Method::POST, "/api/keys", body).await {
        Ok(answer) => Ok(issued(&visit, "The key was made", &answer)),
        Err(problem) => {
            let wrong_field = if guild.parse::<GuildId>().is_err() || problem.status() == StatusCode::NOT_FOUND {
                Some("guild")
            } else if expires.is_some_and(|expires| expires.parse::<Expires>().is_err()) {
                Some("expires")
            } else {
                tier.filter(|tier| problem.detail.contains(tier)).map(|_| "tier")
            };
            make_page(&Visit { wrong_field, ..visit.refused(problem) }).await
        }
    }
}

/// Shows a secret, this once.
pub(super) fn issued(visit: &Visit, title: &str, issued: &Value) -> Response {
    let text = |name: &str| issued[name].as_str().unwrap_or_default();
    let (shared, secret) = (visit.shared(), text("key"));
    let base = &shared.gateway.state().config.server.base_path;
    let curl = shared.urls.iter().find(|url| url.starts_with("http"));
    let curl = curl.map(|url| format!("curl -d memberID=1 -H 'Authorization: {secret}' {url}{base}/getPoints"));
    let content = html! {
        section.panel {
            p { "This is the secret of the key " code { (text("id")) } ". It is shown only now; copy it." }
            (copied("secret", "Secret", secret))
            @if let Some(curl) = curl {
                p { "To try it, from this machine:" }
                (copied("curl", "Command", &curl))
            }
            p { "To the key: " (key_link(text("id"))) " · " a href="keys" { "To all keys" } }
        }
    };
    page(visit, title, content)
}
