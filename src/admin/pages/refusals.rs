//! The last refusals, each explained as `guildgate why` does.

use std::collections::{HashMap, HashSet};

use axum::Extension;
use maud::html;

use super::layout::{Form, key_link, page, row, table};
use super::{Answer, Visit};
use crate::config::Keys;
use crate::model::KeyId;
use crate::telemetry::{AccessLine, Explanation, KeyLookup};
use crate::wire::code_meaning;

/// Refusals on the page.
const MAX_ROWS: usize = 100;

const COLUMNS: [(&str, &str); 5] = [("Time", ""), ("Code", "code"), ("Why", "why"), ("Key", ""), ("Request id", "id")];

/// Whether the refusal has this text as its code, key, address or request id.
fn has(outcome: &AccessLine, text: &str) -> bool {
    let code = outcome.code.map(|code| format!("{code:02}")).unwrap_or_default();
    let fields = [code, outcome.client.to_string(), outcome.id.to_string()];
    text.is_empty() || fields.iter().any(|field| field == text) || outcome.key.as_deref() == Some(text)
}

pub(super) async fn show(Extension(visit): Extension<Visit>) -> Answer {
    let shared = visit.shared();
    let mut refusals = shared.gateway.observer.last_refusals();
    refusals.retain(|outcome| has(outcome, visit.fields.get("q")));
    let shown = &refusals[..refusals.len().min(MAX_ROWS)];
    let ids: HashSet<&KeyId> = shown.iter().filter_map(|outcome| outcome.key.as_ref()).collect();
    let in_force = shared.gateway.usage_of(|id| ids.contains(id)).into_iter();
    let guilds: HashMap<KeyId, String> =
        in_force.map(|usage| (usage.key.id.clone(), usage.key.guild.to_string())).collect();
    let unknown = match shared.gateway.state().config.keys {
        Keys::Origin { .. } => KeyLookup::AtOrigin,
        Keys::Store | Keys::File(_) => KeyLookup::NotListed,
    };
    let loaded = shared.process.config.read().loaded.clone();
    let rows = shown.iter().map(|outcome| {
        let guild = outcome.key.as_ref().and_then(|key| guilds.get(key)).cloned();
        let key = guild.map_or(unknown.clone(), |guild| KeyLookup::Found { name: None, guild });
        let explanation = Explanation::new(outcome.clone(), &key, Some(&loaded));
        let (time, code) = (outcome.time(), outcome.code.unwrap_or_default());
        let (day, hour) = time.split_at(time.find('T').map_or(0, |at| at + 1));
        row![
            html! { (day) wbr; (hour) },
            format!("{code:02} {}", code_meaning(code)),
            explanation.sentences().join(" "),
            html! { @match &outcome.key { Some(key) => (key_link(key)), None => "–" } },
            html! { code { (outcome.id) } },
        ]
    });
    let content = html! {
        p {
            "The last 50 refusals of each code since the start, as " code { "guildgate why" } " explains them; a key's \
             name is on its page. The access log (" code { "log.access" } ") has all requests."
        }
        (Form { visit: &visit, action: "/refusals" }.search("Code, key, address or request id"))
        @if refusals.is_empty() { p { "There are none." } }
        section.panel { (table(&format!("Refusals: {}, the latest first", refusals.len()), &COLUMNS, rows)) }
    };
    Ok(page(&visit, "Refusals", content))
}
