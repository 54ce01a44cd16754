//! The last refusals, each explained as `guildgate why` does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::routing::get;
use axum::{Extension, Router};
use maud::{Markup, html};
use serde::Deserialize;

use super::layout::Heading;
use super::{Pages, Visit, in_path, layout};
use crate::admin::extract::Params;
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::config::{Keys, Loaded};
use crate::gateway::KeyUsage;
use crate::model::{GuildId, KeyId};
use crate::telemetry::{Explanation, KeyLookup, Outcome};
use crate::wire::code_meaning;

/// Refusals on the page.
const MAX_ROWS: usize = 100;

pub(super) fn routes() -> Router<Arc<Pages>> {
    Router::new().route("/log", get(show))
}

#[derive(Debug, Deserialize)]
struct Query {
    #[serde(default)]
    q: String,
}

/// Whether the refusal has this text as its code, key, address or request id.
fn has(outcome: &Outcome, text: &str) -> bool {
    let code = outcome.code.map(|code| format!("{code:02}")).unwrap_or_default();
    let fields = [code, outcome.client.to_string(), outcome.id.to_string()];
    text.is_empty() || fields.iter().any(|field| field == text) || outcome.key.as_deref() == Some(text)
}

async fn show(Extension(visit): Extension<Visit>, Params(query): Params<Query>) -> Result<Markup, Problem> {
    let shared = &visit.pages.shared;
    let mut refusals = shared.gateway.observer.last_refusals();
    let q = query.q.trim();
    refusals.retain(|outcome| has(outcome, q));
    let shown = &refusals[..refusals.len().min(MAX_ROWS)];
    let keys = look_up(shared, shown.iter().filter_map(|outcome| outcome.key.clone()).collect()).await?;
    let loaded = shared.process.config.read().loaded.clone();
    let rows = html! {
        @for outcome in shown {
            @let key = outcome.key.as_ref().and_then(|key| keys.get(key)).unwrap_or(&KeyLookup::NotListed);
            (row(outcome, key, &loaded))
        }
    };
    let content = html! {
        p {
            "The last 50 refusals of each code since the start, as " code { "guildgate why" } " explains them. The access log ("
            code { "log.access" } ") has all requests."
        }
        form.search method="get" action="/log" role="search" {
            (layout::text_field("q", "Code, key, address or request id", q, ""))
            button { "Search" }
        }
        @if refusals.is_empty() { p { "There are none." } }
        @else {
            div.stacked.log {
                (layout::table(&format!("Refusals: {}, the latest first", refusals.len()),
                    &["Time", "Code", "Why", "Key", "Request id"].map(Heading::Text), rows))
            }
        }
    };
    Ok(layout::page(&visit, "Log", "/log", content))
}

fn row(outcome: &Outcome, key: &KeyLookup, loaded: &Loaded) -> Markup {
    let code = outcome.code.unwrap_or_default();
    let explanation = Explanation::new(outcome.into(), key, Some(loaded));
    let time = outcome.time();
    let (day, hour) = time.split_at(time.find('T').map_or(0, |at| at + 1));
    html! {
        tr {
            th scope="row" { (day) wbr; (hour) }
            td.code { (format!("{code:02}")) " " (code_meaning(code)) }
            td.why { @for sentence in explanation.sentences() { (sentence) " " } }
            td { @match &outcome.key { Some(key) => { a href=(format!("/keys/{}", in_path(key))) { (key) } }, None => "–" } }
            td.id { code { (outcome.id) } }
        }
    }
}

/// What is known of these keys; of others it is [`KeyLookup::NotListed`].
async fn look_up(shared: &Arc<Shared>, ids: HashSet<KeyId>) -> Result<HashMap<KeyId, KeyLookup>, Problem> {
    let config = shared.gateway.state().config.clone();
    Ok(match &config.keys {
        Keys::Origin { .. } => ids.into_iter().map(|id| (id, KeyLookup::AtOrigin)).collect(),
        Keys::File(_) => {
            let found = async move |shared: Arc<Shared>| Ok(shared.gateway.usage_of(|id| ids.contains(id)));
            let found = shared.over_all_keys(found).await?.into_iter();
            found.map(|KeyUsage { key, .. }| (key.id.clone(), found_key("", &key.guild))).collect()
        }
        Keys::Store => {
            let store = shared.keys()?.store;
            let (mut found, mut failure) = (HashMap::new(), None::<String>);
            for id in ids {
                let lookup = match &failure {
                    Some(why) => KeyLookup::Failed(why.clone()), // a store that is away is waited for once
                    None => match store.key(&id).await {
                        Ok(Some(key)) => found_key(&key.name, &key.guild),
                        Ok(None) => KeyLookup::NotListed,
                        Err(error) => KeyLookup::Failed(failure.insert(error.to_string()).clone()),
                    },
                };
                found.insert(id, lookup);
            }
            found
        }
    })
}

fn found_key(name: &str, guild: &GuildId) -> KeyLookup {
    KeyLookup::Found { name: (!name.is_empty()).then(|| name.to_owned()), guild: guild.to_string() }
}
