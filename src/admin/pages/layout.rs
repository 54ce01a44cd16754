//! What all pages have in common: the frame, the ways between pages, tables and forms.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use super::{Visit, in_path};
use crate::admin::problem::{Problem, ReloadFault};
use crate::admin::tokens::Role;
use crate::model::{date_of, rough};

/// The pages, by path and name.
const PAGES: [(&str, &str); 8] = [
    ("/", "Overview"),
    ("/keys", "Keys"),
    ("/guilds", "Guilds"),
    ("/tuning", "Tuning"),
    ("/refusals", "Refusals"),
    ("/cache", "Cache"),
    ("/configuration", "Configuration"),
    ("/audit", "Audit"),
];

/// What was done before, by the query's `done`.
const DONE: [(&str, &str); 11] = [
    ("change", "The key was changed."),
    ("reset-day", "The key has its whole day back."),
    ("revoke", "The key was revoked."),
    ("purge", "The answers were purged: none of them is used any more."),
    ("guild", "The guild was added."),
    ("rename", "The guild was renamed."),
    ("leave", "The bot has left the guild: its keys are answered with 03."),
    ("return", "The bot is back in the guild: its keys work."),
    ("remove", "The guild was removed with everything of it."),
    ("member", "The change of the member was made."),
    ("reload", "The files were reloaded; the first of the last reloads say what changed."),
];

/// A page of someone who is logged in.
pub(super) fn page(visit: &Visit, title: &str, content: Markup) -> Response {
    let status = visit.refused.as_ref().map_or(StatusCode::OK, Problem::status);
    let shadow = visit.shared().gateway.state().config.limits.shadow_warning();
    let done = DONE.iter().find(|(done, _)| visit.fields.get("done") == *done);
    let content = html! {
        @if let Some(warning) = shadow.filter(|_| visit.path != "/") { p.warn { (warning) } }
        @if let Some(problem) = &visit.refused { (alert(problem)) }
        @if let Some((_, said)) = done { p.good role="status" { (said) } }
        (content)
    };
    (status, frame(Some(visit), &visit.path, title, content)).into_response()
}

/// The way from a page to the first one, so that any prefix of a proxy before it is kept: `./`, `../` …
pub(super) fn to_root(path: &str) -> String {
    match path.matches('/').count() {
        0 | 1 => "./".to_owned(),
        depth => "../".repeat(depth - 1),
    }
}

/// A page with the ways to others, for those who are logged in. Every address in a page is relative to its `base`.
pub(super) fn frame(visit: Option<&Visit>, path: &str, title: &str, content: Markup) -> Markup {
    let is_current = |visit: &Visit, path: &str| visit.path.split('/').nth(1) == path.split('/').nth(1);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " – Guildgate" }
                base href=(to_root(path));
                link rel="stylesheet" href="assets/uplot-1.6.32.min.css";
                link rel="stylesheet" href="assets/style.css";
                link rel="icon" href="assets/icon.svg" type="image/svg+xml";
                script src="assets/uplot-1.6.32.min.js" defer {}
                script src="assets/chart.js" defer {}
                script src="assets/refresh.js" defer {}
            }
            body {
                a.skip href={ (path.trim_start_matches('/')) "#main" } { "Skip to the content" }
                header {
                    p.brand { img src="assets/icon.svg" alt=""; "Guildgate" }
                    @if let Some(visit) = visit {
                        nav aria-label="Pages" {
                            ul {
                                @for (path, name) in PAGES {
                                    li { a href={ "." (path) } aria-current=[is_current(visit, path).then_some("page")] { (name) } }
                                }
                            }
                        }
                        form method="post" action="logout" {
                            span.role { (visit.role.name()) " token" }
                            button { "Log out" }
                        }
                    }
                }
                main #main tabindex="-1" { h1 { (title) } (content) }
            }
        }
    }
}

/// Why something was refused, as a page.
pub(super) fn problem(visit: Option<&Visit>, path: &str, problem: &Problem) -> Markup {
    frame(visit, path, &problem.title, html! { (alert(problem)) p { a href="./" { "To the first page" } } })
}

/// Why something was refused, with every fault of the files.
pub(super) fn alert(problem: &Problem) -> Markup {
    html! { p.alert role="alert" { (problem.detail) } (faults(&problem.faults)) }
}

/// The faults of files, each with its location.
pub(super) fn faults(faults: &[ReloadFault]) -> Markup {
    html! { @if !faults.is_empty() { ul.faults { @for fault in faults { li { (fault) } } } } }
}

/// A form, sent to `action`. Its fields show what was typed, if it is the form that was sent.
pub(super) struct Form<'v> {
    pub(super) visit: &'v Visit,
    pub(super) action: &'v str,
}

impl Form<'_> {
    /// The form, if whoever is logged in may send it. The page begins with why it was refused.
    pub(super) fn post(&self, heading: &str, (class, button): (&str, &str), fields: Markup) -> Markup {
        html! {
            @if self.visit.role == Role::Admin {
                section.panel {
                    @if !heading.is_empty() { h2 { (heading) } }
                    form.card method="post" action={ "." (self.action) } {
                        (fields)
                        button class=(class) { (button) }
                    }
                }
            }
        }
    }

    /// A form that searches.
    pub(super) fn search(&self, label: &str) -> Markup {
        html! {
            form.search method="get" action={ "." (self.action) } role="search" {
                (self.text("q", label, "", ""))
                button { "Search" }
            }
        }
    }

    /// What was typed into a field of this form, or else `shown`.
    pub(super) fn value<'v>(&'v self, name: &str, shown: &'v str) -> &'v str {
        let typed = (self.visit.path == self.action).then(|| self.visit.fields.find(name));
        typed.flatten().unwrap_or(shown)
    }

    /// What is wrong with a field of this form, if it is that which was refused.
    fn error(&self, name: &str) -> Option<&str> {
        let refused = self.visit.refused.as_ref().filter(|_| self.visit.path == self.action)?;
        (self.visit.wrong_field == Some(name)).then_some(&refused.detail)
    }

    /// A field with its label.
    pub(super) fn text(&self, name: &str, label: &str, shown: &str, hint: &str) -> Markup {
        let (id, error) = (format!("field-{name}"), self.error(name));
        let has_hint = error.is_some() || !hint.is_empty();
        html! {
            div.field {
                label for=(id) { (label) }
                input id=(id) name=(name) value=(self.value(name, shown)) autocomplete="off" spellcheck="false"
                    aria-describedby=[has_hint.then(|| format!("{id}-hint"))]
                    aria-invalid=[error.map(|_| "true")] autofocus[error.is_some()];
                @if has_hint {
                    span id=(format!("{id}-hint")) {
                        @if let Some(error) = error { span.error { (error) " " } }
                        span.hint { (hint) }
                    }
                }
            }
        }
    }

    /// A choice with its label. Each option has a value and a text.
    pub(super) fn choice(&self, name: &str, label: &str, shown: &str, options: &[(&str, &str)]) -> Markup {
        let (id, error) = (format!("field-{name}"), self.error(name));
        html! {
            div.field {
                label for=(id) { (label) }
                select id=(id) name=(name) aria-invalid=[error.map(|_| "true")] autofocus[error.is_some()] {
                    @for (value, text) in options {
                        option value=(value) selected[*value == self.value(name, shown)] { (text) }
                    }
                }
                @if let Some(error) = error { span.error { (error) } }
            }
        }
    }
}

/// A box of a form to tick. `required`: browsers send the form only with it.
pub(super) fn tick(name: &str, label: &str, required: bool) -> Markup {
    html! { label { input type="checkbox" name=(name) value="yes" required[required]; " " (label) } }
}

/// A link to the page of a key.
pub(super) fn key_link(id: &str) -> Markup {
    html! { a.id href={ "keys/" (in_path(id)) } { (id) } }
}

/// The cells of a row of a table.
macro_rules! row {
    ($($cell:expr),* $(,)?) => { vec![$(maud::html! { ($cell) }),*] };
}
pub(super) use row;

/// Links that choose what a list shows: the value of the parameter `name`, and a text; `visit` has the others of `kept`.
pub(super) fn chips(visit: &Visit, name: &str, kept: &[&str], choices: &[(&str, &str)]) -> Markup {
    let path = visit.path.trim_start_matches('/');
    let kept = kept.iter().filter_map(|name| Some(format!("&{name}={}", in_path(visit.fields.given(name)?))));
    let kept = kept.collect::<String>();
    html! {
        ul.chips {
            @for (value, text) in choices {
                @let is_current = visit.fields.get(name) == *value;
                li { a href={ (path) "?" (name) "=" (in_path(value)) (kept) } aria-current=[is_current.then_some("true")] { (text) } }
            }
        }
    }
}

/// A text, with a button that copies it where there is a script.
pub(super) fn copied(id: &str, label: &str, text: &str) -> Markup {
    html! {
        code.secret id=(id) tabindex="0" aria-label=(label) { (text) }
        button type="button" data-copy=(id) hidden { "Copy" }
    }
}

/// Since when something lasts: the time, and how long that is.
pub(super) fn since(unix: i64, now: i64) -> Markup {
    let (date, lasts) = (date_of(unix), rough(Duration::from_secs(now.abs_diff(unix))));
    let shown = date.split('T').next_back().filter(|_| now - unix < 86_400).unwrap_or(&date);
    html! { time datetime=(date) title=(date) { (shown) } " (" (lasts) ")" }
}

/// A time in Unix seconds as how long ago it was, or in how long it will be; the tooltip has its date.
pub(super) fn ago(unix: i64, now: i64) -> Markup {
    let distance = rough(Duration::from_secs(now.abs_diff(unix)));
    let words = if unix > now { format!("in {distance}") } else { format!("{distance} ago") };
    html! { time datetime=(date_of(unix)) title=(date_of(unix)) { (words) } }
}

/// A name that people wrote, cut where it is long; the tooltip has the whole of it.
pub(super) fn cut(text: &str) -> Markup {
    html! { bdi.cut title=(text) { (text) } }
}

/// A table, whose rows are blocks on a phone, or a line where it has no row. Each column has a heading and a class; the
/// first cell of a row is its heading.
pub(super) fn table(
    caption: &str,
    columns: &[(&'static str, &'static str)],
    rows: impl IntoIterator<Item = Vec<Markup>>,
) -> Markup {
    let class_of = |class: &&'static str| Some(*class).filter(|class| !class.is_empty());
    let mut rows = rows.into_iter().peekable();
    if rows.peek().is_none() {
        return html! { p.hint { (caption) } p { "There are none." } };
    }
    html! {
        table {
            caption { (caption) }
            thead { tr { @for (heading, class) in columns { th scope="col" class=[class_of(class)] { (heading) } } } }
            tbody {
                @for row in rows {
                    tr {
                        @for (at, (cell, (heading, class))) in row.iter().zip(columns).enumerate() {
                            @if at == 0 { th scope="row" class=[class_of(class)] { (cell) } }
                            @else { td class=[class_of(class)] data-label=(heading) { span { (cell) } } }
                        }
                    }
                }
            }
        }
    }
}
