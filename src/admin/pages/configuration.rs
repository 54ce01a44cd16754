//! The configuration in force: what differs from the default, what takes effect after a restart, the last
//! reloads with their faults, and a reload.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use maud::{Markup, html};
use serde_json::Value;
use toml::{Table, Value as Setting};

use super::layout::Heading;
use super::{Pages, Visit, layout};
use crate::admin::problem::Problem;
use crate::admin::shared::{ConfigInForce, Reload};
use crate::config::load_str;
use crate::model::date_of;

pub(super) fn routes() -> Router<Arc<Pages>> {
    Router::new().route("/configuration", get(show)).route("/configuration/reload", post(reload))
}

async fn show(Extension(visit): Extension<Visit>) -> Markup {
    page(&visit, html! {})
}

/// Reloads, and shows what became of it.
async fn reload(Extension(visit): Extension<Visit>) -> Response {
    let outcome = visit.api(Method::POST, "/api/reload", Value::Null).await;
    let status = outcome.as_ref().map_or_else(Problem::status, |_| StatusCode::OK);
    let outcome = match outcome {
        Ok(reloaded) => {
            let list = |name: &str| -> Vec<&str> {
                reloaded[name].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
            };
            let (changed, after_restart) = (list("changed"), list("after_restart"));
            html! {
                p.good role="status" {
                    "The files were reloaded. "
                    @if changed.is_empty() { "Nothing changed." } @else { "Changed: " (changed.join(", ")) "." }
                    @if !after_restart.is_empty() { " These take effect after a restart: " (after_restart.join(", ")) "." }
                }
            }
        }
        Err(problem) => html! { p.alert role="alert" { (problem.detail) } (layout::faults(&problem.faults)) },
    };
    (status, page(&visit, outcome)).into_response()
}

fn page(visit: &Visit, outcome: Markup) -> Markup {
    let process = &visit.shared().process;
    let ConfigInForce { loaded, after_restart } = process.config.read().clone();
    let different = differences(&loaded.in_force);
    let count = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
    let rows = html! {
        @for (setting, value, default) in &different {
            tr {
                th scope="row" { code { (setting) } }
                td { code { (value) } }
                td { @match default { Some(default) => { code { (default) } }, None => { "none" } } }
            }
        }
    };
    let content = html! {
        (outcome)
        p {
            @match &loaded.path { Some(path) => { "It is read from " code { (path.display()) } "." }, None => { "There is no file; these are the defaults." } }
            " In force since " (date_of(process.reloads.since.load(Ordering::Relaxed))) ". Reloads of it: "
            (count(&process.reloads.accepted)) " put in force. Files rejected: " (count(&process.reloads.rejected)) "."
        }
        @if !after_restart.is_empty() {
            p.alert { "These take effect after a restart: " (after_restart.join(", ")) "." }
        }
        @if visit.shared().reload.is_none() {
            p { "This is a demo: its listeners, store, keys and admin token are its own, and it reloads nothing." }
        }
        @if !loaded.warnings.is_empty() {
            h2 { "Warnings" }
            ul { @for warning in &loaded.warnings { li { (warning) } } }
        }
        @if visit.may_change() && visit.shared().reload.is_some() {
            form method="post" action="/configuration/reload" {
                button.primary { "Reload the files" }
            }
        }
        (last_reloads(&process.reloads.last()))
        h2 { "What differs from the default" }
        @if different.is_empty() { p { "Nothing." } }
        @else { (layout::table("Settings that differ from the default", &["Setting", "Value", "Default"].map(Heading::Text), rows)) }
        h2 #in-force { "In force" }
        pre tabindex="0" role="region" aria-labelledby="in-force" { code { (loaded.toml()) } }
    };
    layout::page(visit, "Configuration", "/configuration", content)
}

/// The last reloads of any file, the latest first.
fn last_reloads(reloads: &[Reload]) -> Markup {
    let rows = html! {
        @for Reload { at, file, changed, after_restart, faults } in reloads {
            tr {
                th.nowrap scope="row" { (date_of(*at)) }
                td { code { (file) } }
                @if faults.is_empty() {
                    td {
                        @if changed.is_empty() { "nothing changed" } @else { "changed: " (changed.join(", ")) }
                        @if !after_restart.is_empty() {
                            "; after a restart: " (after_restart.join(", "))
                        }
                    }
                } @else {
                    td { "rejected" (layout::faults(faults)) }
                }
            }
        }
    };
    html! {
        h2 { "The last reloads" }
        @if reloads.is_empty() { p { "There were none since the start." } }
        @else { (layout::table("Reloads, the latest first", &["Time", "File", "What became of it"].map(Heading::Text), rows)) }
    }
}

/// With these in force, settings have defaults that the default configuration lacks.
const OTHER_KINDS: &str = r#"
    origin = { kind = "http", upstreams = ["http://localhost"] }
    keys.source = "origin"
    limits.tiers.other = {}
"#;

/// The settings of `in_force` that differ from the default: name, value, and the default, if there is one.
fn differences(in_force: &Table) -> Vec<(String, String, Option<String>)> {
    let defaults_beside = |text: &str| {
        let loaded = load_str(text, std::path::Path::new(""), "").ok();
        let values = loaded.as_ref().map(|loaded| leaves(&loaded.in_force)).unwrap_or_default();
        values.into_iter().filter(move |(setting, _)| !loaded.as_ref().is_some_and(|loaded| loaded.is_given(setting)))
    };
    let defaults: Vec<_> = defaults_beside("").chain(defaults_beside(OTHER_KINDS)).collect();
    let default_of = |setting: &str| defaults.iter().find(|(of, _)| of == setting).map(|(_, value)| value.clone());
    let default_of = |setting: &str| default_of(setting).or_else(|| default_of(&of_other_tier(setting)?));
    let values = leaves(in_force).into_iter().map(|(setting, value)| (default_of(&setting), setting, value));
    values
        .filter(|(default, _, value)| default.as_ref() != Some(value))
        .map(|(default, setting, value)| (setting, value, default))
        .collect()
}

/// The same limit of the tier `other`.
fn of_other_tier(setting: &str) -> Option<String> {
    let (_, limit) = setting.strip_prefix("limits.tiers.")?.rsplit_once('.')?;
    Some(format!("limits.tiers.other.{limit}"))
}

/// The settings of a table, by their whole names.
fn leaves(table: &Table) -> Vec<(String, String)> {
    let leaf = |(name, value): (&String, &Setting)| match value {
        Setting::Table(below) => leaves(below).into_iter().map(|(of, value)| (format!("{name}.{of}"), value)).collect(),
        value => vec![(name.clone(), value.to_string())],
    };
    table.iter().flat_map(leaf).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_from_the_default_is_named() {
        let loaded = |text: &str| load_str(text, std::path::Path::new(""), "").unwrap().in_force;
        assert_eq!(
            differences(&loaded("server.threads = 7")),
            [("server.threads".to_owned(), "7".to_owned(), default_threads())]
        );
    }

    #[test]
    fn what_is_not_given_does_not_differ_from_the_default_whatever_is_given_beside_it() {
        let toml = r#"
            origin = { kind = "http", upstreams = ["http://10.0.0.7:3000"], retries = 3, first_byte_timeout = "2s" }
            keys.source = "origin"
            limits.tiers.standard = {}
            limits.tiers.gold = { burst = 7, daily = 1000 }
        "#;
        let mut found = differences(&load_str(toml, std::path::Path::new(""), "").unwrap().in_force);
        found.sort();
        let found: Vec<_> = found.iter().map(|(s, value, default)| (&**s, &**value, default.as_deref())).collect();
        assert_eq!(
            found,
            [
                ("keys.source", r#""origin""#, Some(r#""store""#)),
                ("limits.tiers.gold.burst", "7", Some("40")),
                ("limits.tiers.gold.daily", "1000", None),
                ("origin.first_byte_timeout", r#""2s""#, None),
                ("origin.kind", r#""http""#, Some(r#""builtin""#)),
                ("origin.retries", "3", Some("1")),
                ("origin.upstreams", r#"["http://10.0.0.7:3000"]"#, None),
            ]
        );
    }

    /// The number of processors.
    fn default_threads() -> Option<String> {
        let default = load_str("", std::path::Path::new(""), "").unwrap();
        Some(default.config.server.threads.to_string())
    }
}
