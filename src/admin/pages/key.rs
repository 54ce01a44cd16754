//! One key: its use in the last minute, hour and day, its limits, and what can be done with it.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Value, json};

use super::keys::{burst_used, levels, meter, refusals, scope_choice, secret_page, tier_choice};
use super::layout::Heading::{Number, Text};
use super::{Fields, Pages, Refused, Visit, in_path, layout};
use crate::admin::extract::{Ids, Params};
use crate::admin::problem::Problem;
use crate::gateway::KeyUsage;
use crate::model::date_of;
use crate::store::KeyRecord;

pub(super) fn routes() -> Router<Arc<Pages>> {
    Router::new()
        .route("/keys/{id}", get(show))
        .route("/keys/{id}/change", post(change))
        .route("/keys/{id}/rotate", post(rotate))
        .route("/keys/{id}/revoke", post(revoke))
        .route("/keys/{id}/reset-day", post(reset_day))
}

#[derive(Debug, Deserialize)]
struct Query {
    /// What was done before.
    done: Option<String>,
}

async fn show(
    Extension(visit): Extension<Visit>,
    Ids(id): Ids<String>,
    Params(query): Params<Query>,
) -> Result<Markup, Problem> {
    page(&visit, &id, query.done.as_deref(), &Refused::default()).await
}

/// The page again with the form that was refused. What concerns the key, and not what was typed, is a page of its own.
async fn refuse(
    visit: &Visit,
    id: &str,
    form: &'static str,
    fields: Fields,
    problem: Problem,
) -> Result<Response, Problem> {
    if problem.status() == StatusCode::NOT_FOUND {
        return Err(problem);
    }
    let refused = Refused::new(form, fields, problem);
    Ok((refused.status(), page(visit, id, None, &refused).await?).into_response())
}

async fn page(visit: &Visit, id: &str, done: Option<&str>, refused: &Refused) -> Result<Markup, Problem> {
    let shared = visit.shared();
    let record = match shared.keys() {
        Ok(records) => records.store.key(id).await?,
        Err(_) => None,
    };
    let usage = shared.gateway.usage_of(|of| **of == *id).into_iter().next();
    if record.is_none() && usage.is_none() {
        return Err(Problem::not_found(format!("there is no key {id}")));
    }
    let content = html! {
        @match done {
            Some("changed") => { p.good role="status" { "The key was changed." } },
            Some("reset") => { p.good role="status" { "The key has its whole day back." } },
            _ => {}
        }
        @if let Some(record) = &record { (facts(record)) }
        @if let Some(usage) = &usage { (use_of(usage)) }
        @else { p { "The key is not in force here yet, or has ended." } }
        @if visit.may_change() {
            @if usage.as_ref().is_some_and(|usage| usage.levels.daily.is_some()) {
                form method="post" action=(format!("/keys/{}/reset-day", in_path(id))) {
                    button { "Give the key its whole day back" }
                }
            }
            @if let Some(record) = &record { (change_forms(visit, record, refused)) }
        }
    };
    Ok(layout::page(visit, &format!("Key {id}"), "/keys", content))
}

fn facts(record: &KeyRecord) -> Markup {
    let date = |unix: Option<i64>, none: &str| unix.map_or(none.to_owned(), date_of);
    let facts = [
        ("Name", record.name.clone()),
        ("Guild", record.guild.to_string()),
        ("Tier", record.tier.clone().unwrap_or_else(|| "the default tier".to_owned())),
        ("Scope", record.scope.to_string()),
        ("Made", date_of(record.created)),
        ("Ends", date(record.expires, "never")),
        ("Last use that is stored", date(record.last_used, "none")),
        ("The secret before the last rotation ends", date(record.previous_ends(), "there is none")),
    ];
    html! {
        div.scroll role="region" aria-label="The key" tabindex="0" {
            table { tbody { @for (name, value) in facts { tr { th scope="row" { (name) } td.name { (value) } } } } }
        }
    }
}

fn use_of(usage: &KeyUsage) -> Markup {
    let recent = &usage.recent;
    let windows = [("Minute", &recent.minute), ("Hour", &recent.hour), ("Day", &recent.day)];
    html! {
        h2 { "Limits now" }
        (layout::table("How much is used up", &[Text("Limit"), Text("Used")], html! {
            tr { th scope="row" { "rate" } td { (meter("rate", burst_used(usage))) } }
            @for (name, used) in levels(usage) { tr { th scope="row" { (name) } td { (meter(name, used)) } } }
        }))
        h2 { "Requests" }
        (layout::table("Requests of the last minute, hour and day", &[Text("Last"), Number("Requests"), Text("Refused")], html! {
            @for (name, counts) in windows {
                tr { th scope="row" { (name) } td.number { (counts.requests) } td { (refusals(counts)) } }
            }
        }))
    }
}

fn change_forms(visit: &Visit, record: &KeyRecord, refused: &Refused) -> Markup {
    let action = |what: &str| format!("/keys/{}/{what}", in_path(&record.id));
    let [rotate, revoke] = ["rotate", "revoke"].map(|form| refused.of(form));
    html! {
        (change_form(visit, record, &refused.of("change")))
        h2 { "Rotate" }
        form.card method="post" action=(action("rotate")) {
            (layout::refusal(&rotate))
            (layout::text_field("overlap", "Overlap", rotate.value("overlap", "24h"),
                "How long the present secret still works: 24h, 30d, or 0s."))
            button.primary { "Make another secret" }
        }
        h2 { "Revoke" }
        form.card method="post" action=(action("revoke")) {
            (layout::refusal(&revoke))
            p { "Requests with this key are refused within a second. It cannot be undone." }
            (layout::tick("confirmed", &format!("Yes, revoke {}", record.id), true))
            button.danger { "Revoke the key" }
        }
    }
}

fn change_form(visit: &Visit, record: &KeyRecord, refused: &Refused) -> Markup {
    let ends = record.expires.map_or("never".to_owned(), date_of);
    let shown = [
        ("name", &*record.name),
        ("tier", record.tier.as_deref().unwrap_or_default()),
        ("scope", record.scope.name()),
        ("expires", &ends),
    ];
    let [name, tier, scope, expires] = shown.map(|(name, shown)| refused.value(name, shown));
    html! {
        h2 { "Change" }
        form.card method="post" action=(format!("/keys/{}/change", in_path(&record.id))) {
            (layout::refusal(refused))
            (layout::text_field("name", "Name", name, ""))
            (tier_choice(visit, tier))
            (scope_choice(scope))
            (layout::text_field("expires", "Ends", expires, "Such as never, 90d or 2030-12-24."))
            @for (name, shown) in shown {
                @let before = format!("{name}-before");
                input type="hidden" name=(before) value=(refused.value(&before, shown));
            }
            button.primary { "Change the key" }
        }
    }
}

fn to_key(id: &str, done: &str) -> Redirect {
    Redirect::to(&format!("/keys/{}?done={done}", in_path(id)))
}

async fn change(
    Extension(visit): Extension<Visit>,
    Ids(id): Ids<String>,
    Extension(fields): Extension<Fields>,
) -> Result<Response, Problem> {
    // What is sent as it was shown is not changed.
    let mut body = json!({});
    for name in ["name", "tier", "scope", "expires"] {
        if fields.get(name) != fields.get(&format!("{name}-before")) {
            body[name] = match name {
                "tier" => fields.given(name).into(),
                _ => fields.get(name).into(),
            };
        }
    }
    let path = format!("/api/keys/{}", in_path(&id));
    match visit.api(Method::PATCH, &path, body).await {
        Ok(_) => Ok(to_key(&id, "changed").into_response()),
        Err(problem) => refuse(&visit, &id, "change", fields, problem).await,
    }
}

async fn rotate(
    Extension(visit): Extension<Visit>,
    Ids(id): Ids<String>,
    Extension(fields): Extension<Fields>,
) -> Result<Response, Problem> {
    let path = format!("/api/keys/{}/rotate", in_path(&id));
    let body = fields.given("overlap").map_or(Value::Null, |overlap| json!({ "overlap": overlap }));
    match visit.api(Method::POST, &path, body).await {
        Ok(issued) => Ok(secret_page(&visit, "The key has another secret", &issued).into_response()),
        Err(problem) => refuse(&visit, &id, "rotate", fields, problem).await,
    }
}

async fn revoke(
    Extension(visit): Extension<Visit>,
    Ids(id): Ids<String>,
    Extension(fields): Extension<Fields>,
) -> Result<Response, Problem> {
    if fields.get("confirmed").is_empty() {
        let problem = Problem::bad_request("Nothing was changed. Tick the box to revoke the key.");
        return refuse(&visit, &id, "revoke", fields, problem).await;
    }
    let path = format!("/api/keys/{}", in_path(&id));
    visit.api(Method::DELETE, &path, Value::Null).await?;
    Ok(Redirect::to("/keys?done=revoked").into_response())
}

async fn reset_day(Extension(visit): Extension<Visit>, Ids(id): Ids<String>) -> Result<Redirect, Problem> {
    let path = format!("/api/keys/{}/reset-day", in_path(&id));
    visit.api(Method::POST, &path, Value::Null).await?;
    Ok(to_key(&id, "reset"))
}
