//! What is in memory, how much it helps, and purging it.

use std::sync::Arc;

use axum::extract::RawQuery;
use axum::http::Method;
use axum::response::Redirect;
use axum::routing::{get, post};
use axum::{Extension, Router};
use maud::{Markup, html};
use serde_json::json;

use super::layout::Heading::{Number, Text};
use super::now::{HITS, MISSES, share};
use super::{Fields, Pages, Visit, layout};
use crate::admin::problem::Problem;
use crate::wire::Operation;

pub(super) fn routes() -> Router<Arc<Pages>> {
    Router::new().route("/cache", get(show)).route("/cache/purge", post(purge))
}

async fn show(Extension(visit): Extension<Visit>, RawQuery(query): RawQuery) -> Markup {
    let (size, totals) = (visit.shared().gateway.cache_size(), visit.shared().gateway.totals());
    let max_size = visit.shared().gateway.state().config.cache.max_size;
    let rows = html! {
        @for operation in Operation::ALL.into_iter().filter(|operation| matches!(operation, Operation::Read(_))) {
            @let by_use = &totals.by_cache[operation.index()];
            @let (hits, misses) = (HITS.map(|of| by_use[of.index()]).iter().sum::<u64>(), MISSES.map(|of| by_use[of.index()]).iter().sum::<u64>());
            tr {
                th scope="row" { (operation.name()) }
                td.number { (hits) }
                td.number { (misses) }
                td.number { (share(hits, hits + misses)) }
            }
        }
    };
    let content = html! {
        @if query.as_deref() == Some("done") { p.good role="status" { "The answers were purged." } }
        dl.tiles {
            div { dt { "Answers" } dd { (size.entries) } }
            div { dt { "Memory" } dd { (size_of(size.bytes)) } }
            div { dt { code { "cache.max_size" } } dd { (size_of(max_size)) } }
            div { dt { "Evictions since the start" } dd { (size.evictions) } }
        }
        p {
            label { "Memory in use: " meter min="0" max=(max_size) value=(size.bytes.min(max_size)) { (share(size.bytes, max_size)) } }
            " " (share(size.bytes, max_size))
        }
        (layout::table("Reads since the start of the process", &[Text("Operation"), Number("From memory"), Number("Asked the origin"), Number("Hit ratio")], rows))
        @if visit.may_change() {
            h2 { "Purge" }
            p { "Purged answers are asked for again when a caller wants them. Nothing is lost." }
            form.card method="post" action="/cache/purge" {
                (layout::csrf(&visit))
                (layout::text_field("guild", "Guild", "", "Only answers to this guild's keys; empty for all guilds."))
                (layout::text_field("member", "Member", "", "Only answers about this member; empty for all members."))
                button.danger { "Purge" }
            }
        }
    };
    layout::page(&visit, "Cache", "/cache", content)
}

fn size_of(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

async fn purge(Extension(visit): Extension<Visit>, Extension(fields): Extension<Fields>) -> Result<Redirect, Problem> {
    let body = json!({ "guild": fields.given("guild"), "member": fields.given("member") });
    visit.api(Method::POST, "/api/cache/purge", None, body).await?;
    Ok(Redirect::to("/cache?done"))
}
