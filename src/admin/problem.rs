//! Errors as problem details (RFC 9457), and how the store's errors become them.

use std::fmt;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::config::{self, Problems};
use crate::model::hide_keys;
use crate::store::StoreError;

/// The content type of problem details.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// Why a request was refused (RFC 9457).
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// Always `about:blank`: the status says what kind of problem it is.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status in words.
    pub(super) title: String,
    status: u16,
    /// What happened, and what to do.
    pub(super) detail: String,
    /// Every fault of the files that were not loaded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) faults: Vec<ReloadFault>,
    #[serde(skip)]
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

/// A fault of a file that was not loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReloadFault {
    /// The file with line and column, if the fault has them.
    #[serde(rename = "place")]
    pub location: Option<String>,
    pub detail: String,
}

impl fmt::Display for ReloadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.location.iter().try_for_each(|location| write!(f, "{location}: "))?;
        f.write_str(&self.detail)
    }
}

impl ReloadFault {
    /// A fault without a location.
    pub fn new(detail: impl fmt::Display) -> Self {
        ReloadFault { location: None, detail: detail.to_string() }
    }

    /// The faults of one file.
    pub fn of_file(problems: &Problems) -> Vec<Self> {
        let fault = |problem: &config::Problem| ReloadFault {
            location: Some(format!("{}:{}:{}", problems.name, problem.line, problem.column)),
            detail: problem.detail(),
        };
        problems.list.iter().map(fault).collect()
    }
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or_default().to_owned();
        let (kind, detail) = ("about:blank", hide_keys(&detail.into()));
        Problem { kind, title, status: status.as_u16(), detail, faults: Vec::new(), headers: Vec::new() }
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::NOT_FOUND, detail)
    }

    pub(super) fn conflict(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::CONFLICT, detail)
    }

    /// Another try may succeed after `seconds`.
    pub(super) fn unavailable(detail: impl Into<String>, seconds: u64) -> Self {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).with(RETRY_AFTER, seconds.into())
    }

    pub(super) fn unauthorized() -> Self {
        let detail = "needs a valid token: Authorization: Bearer TOKEN (admin.token)";
        Problem::new(StatusCode::UNAUTHORIZED, detail).with(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    /// With every fault of what was to be put in force or tried.
    pub(super) fn with_faults(detail: &str, faults: Vec<ReloadFault>) -> Self {
        Problem { faults, ..Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail) }
    }

    pub(super) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(super) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let detail = error.to_string();
        match error {
            StoreError::GuildDeparted(_) | StoreError::NotFound(_) => Problem::not_found(detail),
            StoreError::Refused(_) => Problem::conflict(detail),
            StoreError::Busy(_) | StoreError::Failed(_) | StoreError::Unknown(_) | StoreError::Late(_) => {
                Problem::unavailable(detail, 1)
            }
        }
    }
}

/// The answer has the problem among its extensions too, for the dashboard, which shows it as a page.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let body = serde_json::to_string(&self).unwrap_or_default(); // texts and numbers can be written as JSON
        let mut response = (status, [(CONTENT_TYPE, PROBLEM_JSON)], body).into_response();
        response.headers_mut().extend(self.headers.clone());
        response.extensions_mut().insert(self);
        response
    }
}
