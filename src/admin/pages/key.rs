//! One key: its use in the last minute, hour and day, its limits, and what can be done with it.

use axum::Extension;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Redirect};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::keys::{issued, levels, meter, refusals, scope_choice, tier_choice};
use super::layout::{Form, page, row, table, tick};
use super::{Answer, Visit, in_path};
use crate::admin::problem::Problem;
use crate::gateway::KeyUsage;
use crate::model::date_of;
use crate::store::KeyRecord;

pub(super) async fn show(Extension(visit): Extension<Visit>, Path(id): Path<String>) -> Answer {
    let shared = visit.shared();
    let record = match shared.keys() {
        Ok(records) => records.store.key(&id).await?,
        Err(_) => None, // the keys are elsewhere
    };
    let usage = shared.gateway.usage_of(|of| **of == *id).into_iter().next();
    if record.is_none() && usage.is_none() {
        return Err(Problem::not_found(format!("there is no key {id}")));
    }
    let path = |action: &str| format!("/keys/{}/{action}", in_path(&id));
    let content = html! {
        @if let Some(record) = &record { (facts(record)) }
        @if let Some(usage) = &usage { (use_of(usage)) }
        @else { p { "The key is not in force here yet, or has ended." } }
        @if usage.as_ref().is_some_and(|usage| usage.levels.daily.is_some()) {
            (Form { visit: &visit, action: &path("reset-day") }.post("", ("", "Give the key its whole day back"), html! {}))
        }
        @if let Some(record) = &record {
            (change_form(&Form { visit: &visit, action: &path("change") }, record))
            @let form = Form { visit: &visit, action: &path("rotate") };
            (form.post("Rotate", ("primary", "Make another secret"),
                form.text("overlap", "Overlap", "24h", "How long the present secret still works: 24h, 30d, or 0s.")))
            (Form { visit: &visit, action: &path("revoke") }.post("Revoke", ("danger", "Revoke the key"), html! {
                p { "Requests with this key are refused within a second. It cannot be undone." }
                (tick("confirmed", &format!("Yes, revoke {id}"), true))
            }))
        }
    };
    Ok(page(&visit, &format!("Key {id}"), content))
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
    table("The key", &[("What", ""), ("Value", "name")], facts.map(|(name, value)| row![name, value]))
}

fn use_of(usage: &KeyUsage) -> Markup {
    let recent = &usage.recent;
    let windows = [("Minute", &recent.minute), ("Hour", &recent.hour), ("Day", &recent.day)];
    let limits = levels(usage).into_iter().map(|(name, used)| row![name, meter(name, used)]);
    let requests = windows.map(|(name, counts)| row![name, counts.requests, refusals(counts)]);
    html! {
        h2 { "Limits now" }
        (table("How much is used up", &[("Limit", ""), ("Used", "")], limits))
        h2 { "Requests" }
        (table("Requests of the last minute, hour and day", &[("Last", ""), ("Requests", "number"), ("Refused", "")], requests))
    }
}

fn change_form(form: &Form<'_>, record: &KeyRecord) -> Markup {
    let (tier, ends) = (record.tier.as_deref().unwrap_or_default(), record.expires.map_or("never".to_owned(), date_of));
    let shown = [("name", &*record.name), ("tier", tier), ("scope", record.scope.name()), ("expires", &ends)];
    form.post(
        "Change",
        ("primary", "Change the key"),
        html! {
            (form.text("name", "Name", &record.name, ""))
            (tier_choice(form, tier))
            (scope_choice(form, record.scope.name()))
            (form.text("expires", "Ends", &ends, "Such as never, 90d or 2030-12-24."))
            @for (name, shown) in shown {
                @let before = format!("{name}-before");
                input type="hidden" name=(before) value=(form.value(&before, shown));
            }
        },
    )
}

/// Does with a key what one of its forms says.
pub(super) async fn act(Extension(visit): Extension<Visit>, Path((id, action)): Path<(String, String)>) -> Answer {
    let fields = &visit.fields;
    let (method, below, body) = match &*action {
        "change" => {
            // What is sent as it was shown is not changed.
            let names = ["name", "tier", "scope", "expires"].into_iter();
            let changed = names.filter(|name| fields.get(name) != fields.get(&format!("{name}-before")));
            let value = |name: &str| -> Value {
                if name == "tier" { fields.given(name).into() } else { fields.get(name).into() }
            };
            (Method::PATCH, "", changed.map(|name| (name.to_owned(), value(name))).collect::<Value>())
        }
        "rotate" => (Method::POST, "/rotate", json!({ "overlap": fields.given("overlap") })),
        "reset-day" => (Method::POST, "/reset-day", Value::Null),
        "revoke" if fields.given("confirmed").is_some() => (Method::DELETE, "", Value::Null),
        "revoke" => {
            let problem = Problem::bad_request("Nothing was changed. Tick the box to revoke the key.");
            return show(Extension(visit.refused(problem)), Path(id)).await;
        }
        _ => return Err(Problem::not_found("there is no such form")),
    };
    match visit.api(method, &format!("/api/keys/{}{below}", in_path(&id)), body).await {
        Ok(answer) if action == "rotate" => Ok(issued(&visit, "The key has another secret", &answer)),
        Ok(_) if action == "revoke" => Ok(Redirect::to("/keys?done=revoke").into_response()),
        Ok(_) => Ok(Redirect::to(&format!("/keys/{}?done={action}", in_path(&id))).into_response()),
        Err(problem) if problem.status() == StatusCode::NOT_FOUND => Err(problem),
        Err(problem) => show(Extension(visit.refused(problem)), Path(id)).await,
    }
}
