//! The configuration: its faults, what takes effect after a restart, what is in force and differs from the default, the
//! last reloads, and a reload.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering;

use axum::Extension;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect};
use maud::{Markup, html};
use serde_json::Value;
use toml::{Table, Value as Setting};

use super::layout::{Form, faults, page, row, table};
use super::{Answer, Visit};
use crate::admin::shared::{ConfigInForce, Reload};
use crate::config::{Loaded, below, load_str};
use crate::model::date_of;

const SETTINGS: [(&str, &str); 3] = [("Setting", "name"), ("Value", "name"), ("Default", "name")];

pub(super) async fn reload(Extension(visit): Extension<Visit>) -> Answer {
    match visit.api(Method::POST, "/api/reload", Value::Null).await {
        Ok(_) => Ok(Redirect::to("/configuration?done=reload").into_response()),
        Err(problem) => show(Extension(visit.refused(problem))).await,
    }
}

pub(super) async fn show(Extension(visit): Extension<Visit>) -> Answer {
    let process = &visit.shared().process;
    let ConfigInForce { loaded, after_restart } = process.config.read().clone();
    let reloads = &process.reloads;
    let [accepted, rejected] = [&reloads.accepted, &reloads.rejected].map(|n| n.load(Ordering::Relaxed));
    let form = Form { visit: &visit, action: "/configuration/reload" };
    let rejected_files = reloads.rejected_files();
    let content = html! {
        @if !rejected_files.is_empty() {
            ul.issues role="alert" {
                @for (file, fault) in &rejected_files {
                    li.alert { "The last reload of " (file) " was rejected, and what was in force stays so: " (fault) }
                }
            }
        }
        @if !after_restart.is_empty() {
            p.warn role="status" { "These take effect after a restart: " (after_restart.join(", ")) "." }
        }
        @if !loaded.warnings.is_empty() { ul.issues { @for warning in &loaded.warnings { li.warn { (warning) } } } }
        section.panel {
            p {
                @match &loaded.path { Some(path) => { "It is read from " code { (path.display()) } "." }, None => { "There is no file; these are the defaults." } }
                " In force since " (date_of(reloads.since.load(Ordering::Relaxed))) ". Reloads of it: "
                (accepted) " put in force, " (rejected) " rejected."
            }
        }
        @if visit.shared().reload.is_some() { (form.post("", ("primary", "Reload the files"), html! {})) }
        @else { p { "This is a demo: its listeners, store, keys and admin token are its own, and it reloads nothing." } }
        (in_force(&visit, &loaded))
        section.panel {
            h2 { "What differs from the default" }
            (table("Settings that differ from the default", &SETTINGS, differences(&loaded)))
        }
        section.panel {
            h2 { "The last reloads" }
            (table("Reloads, the latest first", &[("Time", "nowrap"), ("File", ""), ("What became of it", "")],
                reloads.last().iter().map(last_reload)))
        }
    };
    Ok(page(&visit, "Configuration", content))
}

/// The configuration in force, folded, and a search in it.
fn in_force(visit: &Visit, loaded: &Loaded) -> Markup {
    let form = Form { visit, action: "/configuration" };
    let text = visit.fields.given("q").map(str::to_lowercase);
    let settings = leaves("", &loaded.in_force).into_iter();
    let has = |of: &str| text.as_ref().is_some_and(|text| of.to_lowercase().contains(text));
    let found = settings.filter(|(name, value)| has(name) || has(value));
    let rows: Vec<_> = found.map(|(name, value)| row![code(&name), code(&value)]).collect();
    html! {
        section.panel {
            h2 #in-force { "In force" }
            (form.search("Part of a setting or of its value"))
            @if text.is_some() { (table(&format!("Settings: {}", rows.len()), &SETTINGS[..2], rows)) }
            details {
                summary { "The whole configuration" }
                pre tabindex="0" role="region" aria-labelledby="in-force" { code { (loaded.toml()) } }
            }
        }
    }
}

fn code(text: &str) -> Markup {
    html! { code { (text) } }
}

fn last_reload(Reload { at, file, changed, after_restart, faults: found }: &Reload) -> Vec<Markup> {
    let outcome = html! {
        @if !found.is_empty() { "rejected" (faults(found)) }
        @else if changed.is_empty() { "nothing changed" }
        @else { "changed: " (changed.join(", ")) }
        @if !after_restart.is_empty() { "; after a restart: " (after_restart.join(", ")) }
    };
    row![date_of(*at), file, outcome]
}

/// The settings of the file that differ from the default: name, value, and the default, if the default configuration has
/// the setting.
fn differences(loaded: &Loaded) -> Vec<Vec<Markup>> {
    let defaults = load_str("", Path::new(""), "").map(|defaults| leaves("", &defaults.in_force)).unwrap_or_default();
    let defaults: HashMap<String, String> = defaults.into_iter().collect();
    let given = leaves("", &loaded.in_force).into_iter().filter(|(setting, _)| loaded.is_given(setting));
    let other = given.filter(|(setting, value)| defaults.get(setting) != Some(value));
    other.map(|(name, value)| row![code(&name), code(&value), code(defaults.get(&name).map_or("–", |d| d))]).collect()
}

/// The settings of a table, by their whole names.
fn leaves(path: &str, table: &Table) -> Vec<(String, String)> {
    let leaf = |(name, value): (&String, &Setting)| match (below(path, name), value) {
        (path, Setting::Table(table)) => leaves(&path, table),
        (path, value) => vec![(path, value.to_string())],
    };
    table.iter().flat_map(leaf).collect()
}
