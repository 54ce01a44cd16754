//! The last refusals, equal ones as one line, each explained as `guildgate why` does; and the last requests as they come.

use std::collections::HashMap;

use axum::Extension;
use axum::response::IntoResponse;
use maud::{Markup, html};

use super::layout::{Form, ago, chips, cut, page, row, table};
use super::{Answer, Visit, in_path};
use crate::admin::shared::Shared;
use crate::config::Keys;
use crate::model::{KeyId, counted};
use crate::store::KeySearch;
use crate::telemetry::{AccessLine, CacheUse, Explanation, KeyLookup};
use crate::wire::{Operation, code_meaning};

/// Lines on a page.
const MAX_ROWS: usize = 100;

/// Request ids that a line of equal refusals names.
const MAX_IDS: usize = 5;

const COLUMNS: [(&str, &str); 5] =
    [("Code", "nowrap"), ("Key or address", "nowrap"), ("Times", "number"), ("Last", "nowrap"), ("Why", "why")];

const LIVE_COLUMNS: [(&str, &str); 7] = [
    ("Time", "nowrap"),
    ("Code", ""),
    ("Operation", ""),
    ("Key or address", "nowrap"),
    ("Cache", ""),
    ("Took", "number"),
    ("Request id", "id"),
];

/// Whether the request has this text as its code, key, address or request id.
fn has(line: &AccessLine, text: &str) -> bool {
    let code = line.code.map(|code| format!("{code:02}")).unwrap_or_default();
    let fields = [code, line.client.to_string(), line.id.to_string()];
    text.is_empty() || fields.iter().any(|field| field == text) || line.key.as_deref() == Some(text)
}

/// The guilds of keys that are in force, and the names of those in the store, if it answers.
async fn known_keys(shared: &Shared, lines: &[AccessLine]) -> HashMap<KeyId, KeyLookup> {
    let mut ids: Vec<KeyId> = lines.iter().filter_map(|line| line.key.clone()).collect();
    ids.sort_unstable();
    ids.dedup();
    let usage = shared.gateway.usage_of(|id| ids.binary_search(id).is_ok()).into_iter();
    let in_force = |key: &KeyId, guild: String, name| (key.clone(), KeyLookup::Found { name, guild });
    let mut known: HashMap<_, _> =
        usage.map(|usage| in_force(&usage.key.id, usage.key.guild.to_string(), None)).collect();
    if let Ok(records) = shared.keys() {
        let (search, all) = (KeySearch { among: true, ids, ..KeySearch::default() }, i64::MAX as usize);
        let found = records.store.find_keys(search, 0, all).await.unwrap_or_default();
        known.extend(found.into_iter().map(|key| in_force(&key.id, key.guild.to_string(), Some(key.name))));
    }
    known
}

/// Whose request it was: a link to its key, or the address.
fn who(line: &AccessLine, known: &HashMap<KeyId, KeyLookup>) -> Markup {
    let Some(id) = &line.key else { return html! { (line.client) } };
    let name = match known.get(id) {
        Some(KeyLookup::Found { name: Some(name), .. }) if !name.is_empty() => name.as_str(),
        _ => id,
    };
    html! { a href={ "keys/" (in_path(id)) } { (cut(name)) } }
}

fn code_words(code: Option<u8>) -> String {
    code.map_or("answered".to_owned(), |code| format!("{code:02} {}", code_meaning(code)))
}

pub(super) async fn show(Extension(visit): Extension<Visit>) -> Answer {
    let (shared, fields) = (visit.shared(), &visit.fields);
    let totals = shared.gateway.observer.totals().by_code;
    let codes = (1..totals.len()).filter(|code| totals[*code] > 0);
    let codes =
        codes.map(|code| (format!("{code:02}"), format!("{} ({})", code_words(Some(code as u8)), totals[code])));
    let codes: Vec<(String, String)> = [(String::new(), "All codes".to_owned())].into_iter().chain(codes).collect();
    let codes: Vec<(&str, &str)> = codes.iter().map(|(code, text)| (code.as_str(), text.as_str())).collect();
    let mut refusals = shared.gateway.observer.last_refusals();
    refusals.retain(|line| has(line, fields.get("code")) && has(line, fields.get("q")));
    let known = known_keys(shared, &refusals).await;
    let groups = groups(refusals);
    let rows: Vec<_> =
        groups.iter().take(MAX_ROWS).map(|group| group_row(shared, group, &known, groups.len())).collect();
    let content = html! {
        p { a.button href="refusals/live" { "Live: requests as they come" } }
        (chips(&visit, "code", &["q"], &codes))
        (Form { visit: &visit, action: "/refusals" }.search("Code, key, address or request id"))
        section.panel {
            (table("The last 50 refusals of each code since the start, the latest first; equal ones are one line", &COLUMNS, rows))
        }
        p.hint {
            "The numbers beside the codes count all refusals since the start of this process. The access log ("
            code { "log.access" } ") has all requests, and " code { "guildgate why" } " explains one."
        }
    };
    Ok(page(&visit, "Refusals", content))
}

/// Refusals that are equal but for their times and ids, the latest first.
fn groups(refusals: Vec<AccessLine>) -> Vec<Vec<AccessLine>> {
    let (mut groups, mut places): (Vec<Vec<AccessLine>>, HashMap<_, usize>) = Default::default();
    for line in refusals {
        let who = line.key.as_deref().map_or(line.client.to_string(), str::to_owned);
        let why = (line.over_limit.clone(), line.upstream.clone(), line.upstream_error.clone());
        let place = *places.entry((line.code, who, line.operation.map(Operation::name), why)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(line),
            None => groups.push(vec![line]),
        }
    }
    groups
}

fn group_row(shared: &Shared, group: &[AccessLine], known: &HashMap<KeyId, KeyLookup>, groups: usize) -> Vec<Markup> {
    let line = &group[0];
    let unknown = match shared.gateway.state().config.keys {
        Keys::Origin { .. } => KeyLookup::AtOrigin,
        Keys::Store | Keys::File(_) => KeyLookup::NotListed,
    };
    let key = line.key.as_ref().and_then(|key| known.get(key)).unwrap_or(&unknown);
    let loaded = shared.process.config.read().loaded.clone();
    let explanation = Explanation::new(line.clone(), key, Some(&loaded));
    let short = match (&line.over_limit, &line.upstream, &line.upstream_error) {
        (Some(limit), ..) => format!("over {limit} of {}", line.tier.as_deref().unwrap_or("all addresses")),
        (_, Some(upstream), Some(error)) => format!("{upstream}: {error}"),
        _ => format!("{}, status {}", line.operation.map_or("no operation", Operation::name), line.status),
    };
    let ids = group.iter().take(MAX_IDS);
    row![
        code_words(line.code),
        who(line, known),
        group.len(),
        ago(line.unix_ms / 1000, shared.gateway.clock().unix()),
        html! {
            details open[groups == 1] {
                summary { (short) }
                p { (explanation.sentences().join(" ")) }
                p.hint {
                    (counted(group.len() as u64, "refusal")) ", the last request ids: "
                    @for line in ids { code { (line.id) } " " }
                }
            }
        },
    ]
}

/// The last requests, while somebody looks at them.
pub(super) async fn live(Extension(visit): Extension<Visit>) -> Answer {
    let (shared, q) = (visit.shared(), visit.fields.get("q"));
    let now_ms = shared.gateway.clock().unix_ms();
    let mut lines = shared.gateway.observer.live_requests(now_ms);
    lines.retain(|line| has(line, q));
    lines.truncate(MAX_ROWS);
    let known = known_keys(shared, &lines).await;
    let rows: Vec<_> = lines
        .iter()
        .map(|line| {
            let time = line.time();
            row![
                time.split('T').next_back().unwrap_or_default(),
                code_words(line.code),
                line.operation.map_or("–", Operation::name),
                who(line, &known),
                line.cache.map_or("–", CacheUse::name),
                format!("{:.1} ms", line.took.as_secs_f64() * 1e3),
                line.id,
            ]
        })
        .collect();
    let caption = "The last requests since this page was opened, the latest first; where there are more than 200 in a \
                   second, some of them";
    let list = table(caption, &LIVE_COLUMNS, rows);
    if visit.fields.find("part").is_some() {
        return Ok(list.into_response());
    }
    let content = html! {
        p { a.button href="refusals" { "The last refusals" } }
        (Form { visit: &visit, action: "/refusals/live" }.search("Code, key, address or request id"))
        section.panel { div data-refresh={ "refusals/live?part=main&q=" (in_path(q)) } data-seconds="1" { (list) } }
        p.hint { "Without a script, load the page again. The process notes requests only while this page is open." }
    };
    Ok(page(&visit, "Live", content))
}
