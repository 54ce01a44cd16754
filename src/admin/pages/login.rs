//! Logging in with a token, and logging out. Both are in the audit log.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use serde_json::Value;

use super::guard::{COOKIE_NAME, session_id};
use super::{Fields, Pages, Visit, layout};
use crate::admin::authorize::role_of;
use crate::admin::problem::Problem;
use crate::admin::server::Peer;
use crate::admin::tokens::Role;

use crate::config::is_trusted;
use crate::model::hide_keys;

pub(super) async fn show(
    State(pages): State<Arc<Pages>>,
    visit: Option<Extension<Visit>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Extension(fields): Extension<Fields>,
) -> Response {
    if role_of_link(&pages, &fields).is_some() {
        return log_in(State(pages), peer, headers, Extension(fields)).await;
    }
    let ended = "Your session has ended, and nothing was changed since. Log in again.";
    match visit {
        Some(_) => Redirect::to("/").into_response(),
        None => form(session_id(&headers).map(|_| ended), fields.get("from")).into_response(),
    }
}

/// `from`: the page to go to after the log-in.
fn form(said: Option<&str>, from: &str) -> Markup {
    let content = html! {
        @if let Some(said) = said { p.alert role="alert" { (said) } }
        form.card.panel method="post" action="login" {
            input type="hidden" name="from" value=(hide_keys(from));
            div.field {
                label for="token" { "Token" }
                input #token type="password" name="token" required autocomplete="current-password" autofocus
                    aria-describedby="token-hint";
                span.hint #token-hint {
                    "It is in the file of the setting " code { "admin.token" } "; " code { "admin.read_token" }
                    " sees everything and changes nothing."
                }
            }
            button.primary { "Log in" }
        }
    };
    layout::frame(None, "/login", "Log in", content)
}

/// Whose link it is that logs in once: it has the id of a session that nobody has used.
fn role_of_link(pages: &Pages, fields: &Fields) -> Option<Role> {
    pages.shared.own.sessions.get(fields.given("once")?, pages.shared.gateway.clock().now(), true)
}

pub(super) async fn log_in(
    State(pages): State<Arc<Pages>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Extension(fields): Extension<Fields>,
) -> Response {
    let role = role_of_link(&pages, &fields);
    let role = role.map_or_else(|| role_of(&pages.shared, fields.get("token").as_bytes()), Ok);
    pages.shared.own.sessions.end(fields.get("once"));
    let name = role.as_ref().map_or("none", |role| role.name());
    let peer = peer.map(|Extension(peer)| peer);
    let secure = is_secure(&pages, peer, &headers);
    let begun = begin_session(&pages, role, &headers, (fields.get("from"), secure));
    let status = begun.as_ref().map_or_else(Problem::status, Response::status);
    // The throttle bounds the others, so that a flood of wrong tokens does not fill the disk.
    if status != StatusCode::TOO_MANY_REQUESTS {
        pages.shared.audit(peer, name, &Method::POST, "/login", status, Value::Null, None);
    }
    begun.unwrap_or_else(|problem| {
        let headers: HeaderMap = problem.headers.iter().cloned().collect();
        (status, headers, form(Some(&problem.detail), fields.get("from"))).into_response()
    })
}

fn begin_session(
    pages: &Pages,
    role: Result<Role, Problem>,
    headers: &HeaderMap,
    (from, secure): (&str, bool),
) -> Result<Response, Problem> {
    let sessions = &pages.shared.own.sessions;
    let role = role.map_err(|problem| match problem.status() {
        StatusCode::UNAUTHORIZED => Problem::new(StatusCode::UNAUTHORIZED, "The token is wrong."),
        _ => problem,
    })?;
    if role == Role::Bot {
        let detail = "The bot token cannot log in; use the admin token or the read token.";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    // A session that was there before is not needed any more.
    sessions.end(session_id(headers).unwrap_or_default());
    let id = sessions.begin(role, pages.shared.gateway.clock().now()).map_err(|why| Problem::unavailable(why, 1))?;
    let page = if is_own_page(from) { from } else { "/" };
    Ok(([(SET_COOKIE, cookie(secure, &id, ""))], Redirect::to(page)).into_response())
}

/// Whether this is a path here, and no other site's name as browsers read it: `//site`, `/\site`, and a slash and a tab
/// before another slash.
fn is_own_page(from: &str) -> bool {
    from.starts_with('/') && !from.starts_with("//") && from.bytes().all(|b| b.is_ascii_graphic() && b != b'\\')
}

pub(super) async fn log_out(Extension(visit): Extension<Visit>, headers: HeaderMap) -> Response {
    let shared = visit.shared();
    shared.own.sessions.end(session_id(&headers).unwrap_or_default());
    let status = StatusCode::SEE_OTHER;
    shared.audit(visit.peer, visit.role.name(), &Method::POST, "/logout", status, Value::Null, None);
    let secure = is_secure(&visit.pages, visit.peer, &headers);
    ([(SET_COOKIE, cookie(secure, "", "; Max-Age=0"))], Redirect::to("/login")).into_response()
}

/// Whether the browser speaks TLS: with this listener, or with a trusted proxy before it that says so.
fn is_secure(pages: &Pages, peer: Option<Peer>, headers: &HeaderMap) -> bool {
    let state = pages.shared.gateway.state();
    let says_https =
        headers.get("x-forwarded-proto").is_some_and(|proto| proto.as_bytes().eq_ignore_ascii_case(b"https"));
    let is_trusted = |Peer(peer): Peer| is_trusted(Some(peer.ip()), &state.config.server.trusted_proxies);
    pages.is_tls || says_https && peer.is_some_and(is_trusted)
}

/// Without `Path`, a browser sends it to the paths below that of the log-in, whatever a proxy has before it.
fn cookie(secure: bool, id: &str, more: &str) -> String {
    let secure = if secure { "; Secure" } else { "" };
    format!("{COOKIE_NAME}={id}; HttpOnly; SameSite=Strict{secure}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_in_leads_to_no_other_site() {
        for page in ["/", "/keys", "/keys/k_1?done=change", "/keys?q=//x&page=2"] {
            assert!(is_own_page(page), "{page}");
        }
        for other in
            ["", "keys", "//evil.example", "/\\evil.example", "/\t/evil.example", "https://evil.example", "/\n"]
        {
            assert!(!is_own_page(other), "{other:?}");
        }
    }
}
