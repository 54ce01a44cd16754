//! Logging in with a token, and logging out. Both are in the audit log.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use maud::{Markup, html};
use serde_json::Value;

use super::guard::{COOKIE_NAME, session_id};
use super::{Fields, Pages, Visit, layout};
use crate::admin::audit::Change;
use crate::admin::authorize::role_of;
use crate::admin::problem::Problem;
use crate::admin::server::Peer;
use crate::admin::shared::Shared;
use crate::admin::tokens::Role;
use crate::model::date_of;

pub(super) fn routes() -> Router<Arc<Pages>> {
    Router::new().route("/login", get(show).post(log_in)).route("/logout", post(log_out))
}

async fn show(visit: Option<Extension<Visit>>) -> Response {
    match visit {
        Some(_) => Redirect::to("/").into_response(),
        None => form(None).into_response(),
    }
}

fn form(error: Option<&str>) -> Markup {
    let content = html! {
        @if let Some(error) = error { p.alert role="alert" #error { (error) } }
        form.card method="post" action="/login" {
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
    let answer = session_of(&pages, role, &headers);
    // The throttle bounds the others, so that a flood of wrong tokens does not fill the disk.
    if answer.status() != StatusCode::TOO_MANY_REQUESTS {
        record(&pages.shared, peer.map(|Extension(peer)| peer), name, "/login", answer.status());
    }
    answer
}

/// Begins a session, or says why not.
fn session_of(pages: &Pages, role: Result<Role, Problem>, headers: &HeaderMap) -> Response {
    let refused = |problem: Problem, error: &str| {
        (problem.status(), problem.headers.into_iter().collect::<HeaderMap>(), form(Some(error))).into_response()
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
        Ok(id) => ([(SET_COOKIE, cookie(pages, &id, ""))], Redirect::to("/")).into_response(),
        Err(why) => Problem::unavailable(why, 1).into_response(),
    }
}

async fn log_out(Extension(visit): Extension<Visit>, headers: HeaderMap) -> Response {
    if let Some(id) = session_id(&headers) {
        visit.shared().sessions.end(id);
    }
    record(visit.shared(), visit.peer, visit.session.role.name(), "/logout", StatusCode::SEE_OTHER);
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
