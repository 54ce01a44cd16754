//! What all pages have in common: the frame, the ways between pages, and small parts such as fields and tables.

use maud::{DOCTYPE, Markup, html};

use super::{Refused, Visit};
use crate::admin::problem::{Problem, ReloadFault};

/// The pages, by path and name.
const PAGES: [(&str, &str); 6] = [
    ("/", "Now"),
    ("/keys", "Keys"),
    ("/tuning", "Tuning"),
    ("/configuration", "Configuration"),
    ("/cache", "Cache"),
    ("/log", "Log"),
];

/// A page of someone who is logged in. `current`: the path of the page, or of the one above it.
pub(super) fn page(visit: &Visit, title: &str, current: &str, content: Markup) -> Markup {
    let header = html! {
        nav aria-label="Pages" {
            ul {
                @for (path, name) in PAGES {
                    li { a href=(path) aria-current=[(path == current).then_some("page")] { (name) } }
                }
            }
        }
        form method="post" action="/logout" {
            span.role { "Logged in with the " (visit.role.name()) " token" }
            button { "Log out" }
        }
    };
    let state = visit.shared().gateway.state();
    let content = html! {
        @if let Some(warning) = state.config.limits.shadow_warning() { p.alert role="alert" { (warning) } }
        (content)
    };
    frame(title, Some(header), content)
}

/// A page with or without the ways to others.
pub(super) fn frame(title: &str, header: Option<Markup>, content: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " – Guildgate" }
                link rel="stylesheet" href="/assets/style.css";
                link rel="icon" href="/assets/icon.svg" type="image/svg+xml";
                script src="/assets/refresh.js" defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header { p.brand { "Guildgate" } @if let Some(header) = header { (header) } }
                main #main tabindex="-1" { h1 { (title) } (content) }
            }
        }
    }
}

/// Why something was refused, as a page. `back`: the page from which the request came, if that is known.
pub(super) fn problem(visit: Option<&Visit>, problem: &Problem, back: Option<&str>) -> Markup {
    let content = html! {
        p.alert role="alert" { (problem.detail) }
        (faults(&problem.faults))
        @match back {
            Some(page) => { p { a href=(page) { "Back to the page" } } },
            None => { p { a href="/" { "To the first page" } } },
        }
    };
    match visit {
        Some(visit) => page(visit, &problem.title, "", content),
        None => frame(&problem.title, None, content),
    }
}

/// The faults of files, each with its location.
pub(super) fn faults(faults: &[ReloadFault]) -> Markup {
    html! {
        @if !faults.is_empty() {
            ul.faults {
                @for fault in faults {
                    li { @if let Some(location) = &fault.location { code { (location) } ": " } (fault.detail) }
                }
            }
        }
    }
}

/// Why a form was refused, within the form.
pub(super) fn refusal(refused: &Refused) -> Markup {
    html! {
        @if let Some(problem) = &refused.problem { p.alert role="alert" { (problem.detail) } }
    }
}

/// A box of a form to tick. `required`: browsers send the form only with it.
pub(super) fn tick(name: &str, label: &str, required: bool) -> Markup {
    html! { label { input type="checkbox" name=(name) value="yes" required[required]; " " (label) } }
}

/// A field of a form with its label.
pub(super) fn text_field(name: &str, label: &str, value: &str, hint: &str) -> Markup {
    let id = format!("field-{name}");
    html! {
        div.field {
            label for=(id) { (label) }
            input id=(id) name=(name) value=(value) autocomplete="off" spellcheck="false"
                aria-describedby=[(!hint.is_empty()).then(|| format!("{id}-hint"))];
            @if !hint.is_empty() { span.hint id=(format!("{id}-hint")) { (hint) } }
        }
    }
}

/// A choice of a form with its label. Each option has a value and a text.
pub(super) fn choice(name: &str, label: &str, chosen: &str, options: &[(&str, &str)]) -> Markup {
    let id = format!("field-{name}");
    html! {
        div.field {
            label for=(id) { (label) }
            select id=(id) name=(name) {
                @for (value, text) in options {
                    option value=(value) selected[*value == chosen] { (text) }
                }
            }
        }
    }
}

/// The heading of a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heading {
    Text(&'static str),
    /// The column's cells have the class `number`.
    Number(&'static str),
}

/// A table that can be wider than a phone.
pub(super) fn table(caption: &str, headings: &[Heading], rows: Markup) -> Markup {
    html! {
        div.scroll role="region" aria-label=(caption) tabindex="0" {
            table {
                caption { (caption) }
                thead { tr { @for heading in headings {
                    @match heading {
                        Heading::Text(text) => { th scope="col" { (text) } }
                        Heading::Number(text) => { th.number scope="col" { (text) } }
                    }
                } } }
                tbody { (rows) }
            }
        }
    }
}
