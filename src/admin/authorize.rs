//! The middleware of each request: whose token it has and what that may do, the bounds of body and time, the headers
//! that every answer has, and the line in the audit log.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use tokio::time::timeout;

use super::audit::MAX_CHANGE;
use super::problem::Problem;
use super::server::MAX_CONNECTIONS;
use super::shared::Shared;
use super::tokens::Role;
use crate::clock::seconds_up;
use crate::config::Rate;
use crate::limits::Limiter;
use crate::model::hide_keys;

/// The largest body. The longest warn or review that is of use has a few KiB.
const MAX_BODY: usize = 64 * 1024;

/// Changes at once, those among them whose callers have hung up: as many as connections.
const MAX_CHANGES: usize = MAX_CONNECTIONS;

/// For a whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// For a request's handler; the removal of a large guild takes longest.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(30);

/// Attempts with a wrong token, of all callers together: enough for one who mistypes, far too few to guess.
const ATTEMPTS: Rate = Rate { period_ns: 1_000_000_000, burst: std::num::NonZeroU32::new(10).unwrap() };

/// The role of a request that a page of the dashboard makes for someone who is logged in.
#[derive(Clone, Copy, Debug)]
pub(super) struct InSession(pub(super) Role);

/// The id of what a request created, for the audit log.
#[derive(Clone, Debug)]
pub(super) struct CreatedId(pub(super) String);

/// Authorizes a request to the API, has it handled, and sets the header fields that every answer has.
pub(super) async fn authorize(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let mut answer = match path == "/api" || path.starts_with("/api/") {
        true => authorize_and_audit(&shared, request, next).await.unwrap_or_else(IntoResponse::into_response),
        false => run_handler(request, next).await,
    };
    if answer.status() == StatusCode::METHOD_NOT_ALLOWED {
        // The router adds `Allow`.
        answer = Problem::new(answer.status(), "this path has no such method; see Allow").into_response();
    }
    let headers = answer.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

async fn authorize_and_audit(shared: &Arc<Shared>, request: Request, next: Next) -> Result<Response, Problem> {
    let role = match request.extensions().get() {
        Some(InSession(role)) => *role,
        None => authenticate(shared, request.headers())?,
    };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let is_read = matches!(method, Method::GET | Method::HEAD);
    let detail = format!("the {} token may not {method} {path}", role.name());
    let refused = Problem::new(StatusCode::FORBIDDEN, detail);
    let permitted = is_allowed(role, is_read, &path).then_some(()).ok_or(refused);
    if is_read {
        permitted?;
        return Ok(run_handler(request, next).await);
    }
    if shared.own.changes.len() >= MAX_CHANGES {
        return Err(Problem::unavailable(format!("{MAX_CHANGES} changes are under way"), 1));
    }
    // hyper drops this task when the caller hangs up; the change, in a task of its own, still finishes and its audit
    // line is written.
    let of_change = shared.clone();
    let task = async move { change(&of_change, role, permitted, request, next).await };
    let task = shared.own.changes.spawn(task);
    let detail = "this is a defect, which the log names; please report it";
    task.await.map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail))
}

/// Makes a change, or refuses it, and writes its line in the audit log.
async fn change(shared: &Shared, role: Role, permitted: Result<(), Problem>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let (peer, method) = (parts.extensions.get().copied(), parts.method.clone());
    let path = parts.uri.path().to_owned();
    let mut content = Value::Null;
    let answer = async {
        permitted?;
        let body = read_body(body).await?;
        content = without_keys(&body);
        Ok(run_handler(Request::from_parts(parts, Body::from(body)), next).await)
    };
    let answer = answer.await.unwrap_or_else(Problem::into_response);
    let made = answer.extensions().get().map(|CreatedId(id)| id.clone());
    shared.audit(peer, role.name(), &method, &path, answer.status(), content, made);
    answer
}

/// Whose token a request has.
fn authenticate(shared: &Shared, headers: &HeaderMap) -> Result<Role, Problem> {
    let value = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let token = match value.split_at_checked(b"Bearer ".len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"Bearer ") => token,
        Some(_) | None => b"",
    };
    role_of(shared, token)
}

/// Whose token it is. Valid ones are never throttled.
pub(super) fn role_of(shared: &Shared, token: &[u8]) -> Result<Role, Problem> {
    shared.tokens.role_of(token).ok_or_else(|| {
        match shared.own.attempts.charge(&Limiter::new(ATTEMPTS), shared.gateway.clock().now()) {
            Ok(()) => Problem::unauthorized(),
            Err(wait) => {
                let detail = "too many attempts with a wrong token; a valid one is always accepted";
                Problem::new(StatusCode::TOO_MANY_REQUESTS, detail).with(RETRY_AFTER, seconds_up(wait).max(1).into())
            }
        }
    })
}

/// Whether a role may do this, by method and path; a bot may read and write members, warns and reviews.
fn is_allowed(role: Role, is_read: bool, path: &str) -> bool {
    match role {
        Role::Admin => true,
        Role::Read => is_read,
        Role::Bot => {
            let mut parts = path.split('/').skip(1);
            let is_guild = parts.next() == Some("api") && parts.next() == Some("guilds") && parts.next().is_some();
            is_guild && matches!(parts.next(), Some("members" | "warns" | "reviews"))
        }
    }
}

/// The whole body, within its bounds of size and time.
pub(super) async fn read_body(body: Body) -> Result<Bytes, Problem> {
    let collected = timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await;
    let collected = collected.map_err(|_| {
        Problem::new(StatusCode::REQUEST_TIMEOUT, format!("the body took longer than {} s", BODY_TIMEOUT.as_secs()))
    })?;
    collected.map(http_body_util::Collected::to_bytes).map_err(|error| {
        if error.downcast_ref::<LengthLimitError>().is_some() {
            let detail = format!("the body is larger than {} KiB", MAX_BODY / 1024);
            return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail);
        }
        Problem::bad_request(format!("the body cannot be read: {error}"))
    })
}

/// Runs the request's handler within its time limit.
async fn run_handler(request: Request, next: Next) -> Response {
    timeout(HANDLER_TIMEOUT, next.run(request)).await.unwrap_or_else(|_| {
        let detail = format!("it takes longer than {} s; it may still be done", HANDLER_TIMEOUT.as_secs());
        Problem::unavailable(detail, 1).into_response()
    })
}

/// The content of a body for the audit log. Keys are hidden after JSON's escapes were decoded.
fn without_keys(body: &[u8]) -> Value {
    if body.len() > MAX_CHANGE {
        return Value::from(format!("{} bytes", body.len()));
    }
    let body: Value = serde_json::from_str(&String::from_utf8_lossy(body)).unwrap_or_default();
    serde_json::from_str(&hide_keys(&body.to_string())).unwrap_or_default()
}
