//! The last refusals, each with what it means and what to do.

use std::sync::Arc;

use axum::routing::get;
use axum::{Extension, Router};
use maud::{Markup, html};
use serde::Deserialize;

use super::layout::Heading::{Number, Text};
use super::{Pages, Visit, in_path, layout};
use crate::admin::extract::Params;
use crate::admin::problem::Problem;
use crate::telemetry::Outcome;
use crate::wire::{Operation, code_meaning};

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
    let mut refusals = visit.shared().gateway.last_refusals();
    let q = query.q.trim();
    refusals.retain(|outcome| has(outcome, q));
    let rows = html! { @for outcome in refusals.iter().take(MAX_ROWS) { (row(outcome)) } };
    let content = html! {
        p { "The last 50 refusals of each code since the start. The access log (" code { "log.access" } ") has all requests." }
        form.search method="get" action="/log" role="search" {
            (layout::text_field("q", "Code, key, address or request id", q, ""))
            button { "Search" }
        }
        @if refusals.is_empty() { p { "There are none." } }
        @else {
            (layout::table(&format!("Refusals: {}, the latest first", refusals.len()), &[Text("Time"), Text("Code"), Text("Why"),
                Text("Operation"), Text("Key"), Text("Address"), Number("Took"), Text("Request id")], rows))
        }
    };
    Ok(layout::page(&visit, "Log", "/log", content))
}

fn row(outcome: &Outcome) -> Markup {
    let code = outcome.code.unwrap_or_default();
    html! {
        tr {
            th.nowrap scope="row" { (outcome.time()) }
            td.nowrap { (format!("{code:02}")) " " (code_meaning(code)) }
            td.why { (explanation(outcome)) }
            td { (outcome.operation.map_or("–", Operation::name)) }
            td { @match &outcome.key { Some(key) => { a href=(format!("/keys/{}", in_path(key))) { (key) } }, None => "–" } }
            td { (outcome.client) }
            td.number.nowrap { (format!("{:?}", outcome.took)) }
            td { code { (outcome.id) } }
        }
    }
}

/// Why it was refused, and what to do.
fn explanation(outcome: &Outcome) -> String {
    let text = match (outcome.code, outcome.over_limit) {
        (Some(12), Some("strangers")) => {
            "The address sent too many requests without a valid key (limits.strangers). Its caller has to correct the key."
        }
        (Some(12), Some(limit)) => {
            return format!(
                "The key was over {limit} of its tier. Wait as long as Retry-After says, or try another limit on Tuning."
            );
        }
        (Some(12), None) => "The caller was over a limit. It has to wait as long as Retry-After says.",
        (Some(1), _) => "The request had no Authorization header. The caller has to send its key in it.",
        (Some(2), _) => {
            "The key is unknown: it may be mistyped, revoked, or past its end. Give the caller another key."
        }
        (Some(3), _) => {
            "The bot has left the key's guild. When it is back, `guildgate guild return` puts the keys in force."
        }
        (Some(15), _) => "The key may only read. Change its scope, or give the caller another key.",
        (Some(20), _) => {
            "The origin answered with something else, or ended the connection. See the upstreams on Now, and the log."
        }
        (Some(21), _) => "The store or the origin could not take the request. See what is wrong on Now, and the log.",
        (Some(22), _) => "The origin did not answer in time (origin.timeout). See the upstreams on Now.",
        _ => "The request is not as the contract says. The caller has to correct it.",
    };
    text.to_owned()
}
