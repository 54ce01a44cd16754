//! What is in memory, how much it helps, and purging it.

use std::sync::Arc;

use axum::extract::RawQuery;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use maud::{Markup, html};
use serde_json::json;

use super::keys::guild_field;
use super::layout::Heading::{Number, Text};
use super::now::{HITS, MISSES, share};
use super::{Fields, Pages, Refused, Visit, layout};
use crate::admin::problem::Problem;
use crate::store::GuildRecord;
use crate::wire::Operation;

/// Guilds to choose from.
const MAX_CHOICES: usize = 50;

pub(super) fn routes() -> Router<Arc<Pages>> {
    Router::new().route("/cache", get(show)).route("/cache/purge", post(purge))
}

async fn show(Extension(visit): Extension<Visit>, RawQuery(query): RawQuery) -> Markup {
    page(&visit, query.as_deref() == Some("done"), &Refused::default()).await
}

async fn page(visit: &Visit, is_done: bool, refused: &Refused) -> Markup {
    let (size, totals) = (visit.shared().gateway.cache_size(), visit.shared().gateway.observer.totals());
    let max_size = visit.shared().gateway.state().config.cache.max_size;
    let rows = html! {
        @for operation in Operation::ALL.into_iter().filter(|operation| !operation.is_write()) {
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
        @if is_done { p.good role="status" { "The answers were purged: none of them is used any more." } }
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
        p.hint {
            "All answers in memory are counted. One that was purged or is too old is not used any more, and stays in \
             memory until another answer takes its place or the room is needed."
        }
        (layout::table("Reads since the start of the process", &[Text("Operation"), Number("From memory"), Number("Asked the origin"), Number("Hit ratio")], rows))
        @if visit.may_change() { (purge_form(visit, refused).await) }
    };
    layout::page(visit, "Cache", "/cache", content)
}

async fn purge_form(visit: &Visit, refused: &Refused) -> Markup {
    let value = |name| refused.value(name, "");
    html! {
        h2 { "Purge" }
        p { "Purged answers are asked for again when a caller wants them. Nothing is lost." }
        form.card method="post" action="/cache/purge" {
            (layout::refusal(refused))
            (guild_field(&guilds(visit).await, value("guild"), false, "Only answers to this guild's keys."))
            (layout::text_field("member", "Member", value("member"), "Only answers about this member."))
            (layout::tick("everything", "Everything, for all guilds and members", false))
            button.danger { "Purge" }
        }
    }
}

/// The first guilds of the store, to choose from; none if there is no store or it is away.
async fn guilds(visit: &Visit) -> Vec<GuildRecord> {
    let Ok(records) = visit.shared().guilds() else { return Vec::new() };
    records.store.guilds_page(None, MAX_CHOICES).await.unwrap_or_default()
}

fn size_of(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

async fn purge(Extension(visit): Extension<Visit>, Extension(fields): Extension<Fields>) -> Response {
    let (guild, member) = (fields.given("guild"), fields.given("member"));
    let purged = match (guild.or(member), fields.given("everything")) {
        (None, None) => Err("Nothing was purged. Name a guild or a member, or tick the box for everything."),
        (Some(_), Some(_)) => Err("Nothing was purged. Name a guild or a member, or tick the box, and not both."),
        _ => Ok(json!({ "guild": guild, "member": member })),
    };
    let purged = match purged.map_err(Problem::bad_request) {
        Ok(body) => visit.api(Method::POST, "/api/cache/purge", body).await,
        Err(problem) => Err(problem),
    };
    match purged {
        Ok(_) => Redirect::to("/cache?done").into_response(),
        Err(problem) => {
            let refused = Refused::new("purge", fields, problem);
            (refused.status(), page(&visit, false, &refused).await).into_response()
        }
    }
}
