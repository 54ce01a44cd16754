//! Logging in with a token, and logging out. Both are in the audit log.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;

use super::guard::{COOKIE_NAME, session_id};
use super::{Fields, Pages, Visit, layout};
use crate::admin::audit::Change;
use crate::admin::authorize::role_of;
use crate::admin::extract::Params;
use crate::admin::problem::Problem;
use crate::admin::server::Peer;
use crate::admin::shared::Shared;
use crate::admin::tokens::Role;
use crate::keys::hide_keys;
use crate::model::date_of;

pub(super) fn routes() -> Router<Arc<Pages>> {
    Router::new().route("/login", get(show).post(log_in)).route("/logout", post(log_out))
}

#[derive(Debug, Deserialize)]
struct Query {
    /// The page to go to after the log-in.
    #[serde(default)]
    from: String,
    /// A form was sent without a session, so nothing became of it.
    unsent: Option<String>,
}

async fn show(visit: Option<Extension<Visit>>, headers: HeaderMap, Params(query): Params<Query>) -> Response {
    let said = match (query.unsent, session_id(&headers)) {
        (Some(_), _) => Some("Your session has ended, and nothing was changed. Log in, and send the form again."),
        (None, Some(_)) => Some("Your session has ended. Log in again."),
        (None, None) => None,
    };
    match visit {
        Some(_) => Redirect::to("/").into_response(),
        None => form(said, &query.from).into_response(),
    }
}

/// `from`: the page to go to after the log-in.
fn form(said: Option<&str>, from: &str) -> Markup {
    let content = html! {
        @if let Some(said) = said { p.alert role="alert" #error { (said) } }
        form.card method="post" action="/login" {
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
    layout::frame("Log in", None, content)
}

async fn log_in(
    State(pages): State<Arc<Pages>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Extension(fields): Extension<Fields>,
) -> Response {
    let role = role_of(&pages.shared, fields.get("token").as_bytes());
    let name = role.as_ref().map_or("none", |role| role.name());
    let answer = session_of(&pages, role, &headers, fields.get("from"));
    // The throttle bounds the others, so that a flood of wrong tokens does not fill the disk.
    if answer.status() != StatusCode::TOO_MANY_REQUESTS {
        record(&pages.shared, peer.map(|Extension(peer)| peer), name, "/login", answer.status());
    }
    answer
}

/// Begins a session, or says why not.
fn session_of(pages: &Pages, role: Result<Role, Problem>, headers: &HeaderMap, from: &str) -> Response {
    let refused = |problem: Problem, error: &str| {
        (problem.status(), problem.headers.into_iter().collect::<HeaderMap>(), form(Some(error), from)).into_response()
    };
    let shared = &pages.shared;
    let role = match role {
        Ok(role @ (Role::Admin | Role::Read)) => role,
        Ok(Role::Bot) => {
            let problem = Problem::new(StatusCode::FORBIDDEN, "");
            return refused(problem, "The bot token cannot log in; use the admin token or the read token.");
        }
        Err(problem) if problem.status() == StatusCode::TOO_MANY_REQUESTS => {
            return refused(problem, "There were too many attempts with a wrong token. Wait a second, and try again.");
        }
        Err(problem) => return refused(problem, "The token is wrong."),
    };
    // A session that was there before is not needed any more.
    if let Some(id) = session_id(headers) {
        shared.sessions.end(id);
    }
    match shared.sessions.begin(role, shared.gateway.clock().now()) {
        Ok(id) => {
            let page = if is_own_page(from) { from } else { "/" };
            ([(SET_COOKIE, cookie(pages, &id, ""))], Redirect::to(page)).into_response()
        }
        Err(why) => Problem::unavailable(why, 1).into_response(),
    }
}

/// Whether this is a path here, and no other site's name as browsers read it: `//site`, `/\site`, and a slash and a tab
/// before another slash.
fn is_own_page(from: &str) -> bool {
    from.starts_with('/') && !from.starts_with("//") && from.bytes().all(|b| b.is_ascii_graphic() && b != b'\\')
}

async fn log_out(Extension(visit): Extension<Visit>, headers: HeaderMap) -> Response {
    if let Some(id) = session_id(&headers) {
        visit.shared().sessions.end(id);
    }
    record(visit.shared(), visit.peer, visit.role.name(), "/logout", StatusCode::SEE_OTHER);
    ([(SET_COOKIE, cookie(&visit.pages, "", "; Max-Age=0"))], Redirect::to("/login")).into_response()
}

/// Writes a log-in or log-out to the audit log.
fn record(shared: &Shared, peer: Option<Peer>, role: &'static str, path: &str, status: StatusCode) {
    if let (Some(audit), Some(Peer(client))) = (&shared.audit, peer) {
        audit.record(Change {
            time: date_of(shared.gateway.clock().unix()),
            client: client.ip(),
            role,
            method: Method::POST.to_string(),
            path: path.to_owned(),
            status: status.as_u16(),
            change: Value::Null,
            made: None,
        });
    }
}

fn cookie(pages: &Pages, id: &str, more: &str) -> String {
    let secure = if pages.is_tls { "; Secure" } else { "" };
    format!("{COOKIE_NAME}={id}; HttpOnly; SameSite=Strict; Path=/{secure}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_in_leads_to_no_other_site() {
        for page in ["/", "/keys", "/keys/k_1?done=changed", "/keys?q=//x&page=2"] {
            assert!(is_own_page(page), "{page}");
        }
        for other in
            ["", "keys", "//evil.example", "/\\evil.example", "/\t/evil.example", "https://evil.example", "/\n"]
        {
            assert!(!is_own_page(other), "{other:?}");
        }
    }
}
