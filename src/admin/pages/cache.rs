//! What is in memory, how much it helps, and purging it.

use axum::Extension;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use maud::html;
use serde_json::json;

use super::layout::{Form, page, row, table, tick};
use super::overview::{HITS, MISSES, share, used};
use super::{Answer, Visit};
use crate::admin::problem::Problem;
use crate::wire::Operation;

pub(super) async fn show(Extension(visit): Extension<Visit>) -> Answer {
    let gateway = &visit.shared().gateway;
    let (size, totals, max_size) =
        (gateway.cache_size(), gateway.observer.totals(), gateway.state().config.cache.max_size);
    let rows = Operation::ALL.into_iter().filter(|operation| !operation.is_write()).map(|operation| {
        let [hits, misses] = [&HITS[..], &MISSES].map(|of| used(&totals.by_cache[operation.index()], of));
        row![operation.name(), hits, misses, share(hits, hits + misses)]
    });
    let columns =
        [("Operation", ""), ("From memory", "number"), ("Asked the origin", "number"), ("Hit ratio", "number")];
    let form = Form { visit: &visit, action: "/cache/purge" };
    let content = html! {
        dl.tiles {
            div { dt { "Answers" } dd { (size.entries) } }
            div { dt { "Memory" } dd { (size_of(size.bytes)) } }
            div { dt { "Memory in use" } dd { (share(size.bytes, max_size)) } }
            div { dt { code { "cache.max_size" } } dd { (size_of(max_size)) } }
            div { dt { "Evictions since the start" } dd { (size.evictions) } }
        }
        p.hint {
            "All answers in memory are counted. One that was purged or is too old is not used any more, and stays in \
             memory until another answer takes its place or the room is needed."
        }
        section.panel { (table("Reads since the start of the process", &columns, rows)) }
        (form.post("Purge", ("danger", "Purge"), html! {
            p { "Purged answers are asked for again when a caller wants them. Nothing is lost." }
            (form.text("guild", "Guild", "", "Its id; only answers to this guild's keys."))
            (form.text("member", "Member", "", "Only answers about this member."))
            (tick("everything", "Everything, for all guilds and members", false))
        }))
    };
    Ok(page(&visit, "Cache", content))
}

fn size_of(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

pub(super) async fn purge(Extension(visit): Extension<Visit>) -> Answer {
    let [guild, member, everything] = ["guild", "member", "everything"].map(|name| visit.fields.given(name));
    let purged = match guild.or(member).is_some() == everything.is_some() {
        true => Err(Problem::bad_request(
            "Nothing was purged. Name a guild or a member, or tick the box for everything, and not both.",
        )),
        false => visit.api(Method::POST, "/api/cache/purge", json!({ "guild": guild, "member": member })).await,
    };
    match purged {
        Ok(_) => Ok(Redirect::to("/cache?done=purge").into_response()),
        Err(problem) => show(Extension(visit.refused(problem))).await,
    }
}
