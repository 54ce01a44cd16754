//! What a request says: ids in the path, parameters of the query, and a JSON body. Anything that is not as it should be
//! is a problem with a reason.

use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::problem::Problem;
use crate::json::from_object;

/// The items of a page where the request names no number.
const DEFAULT_LIMIT: usize = 100;

/// The most items of a page.
const MAX_LIMIT: usize = 1000;

/// The most bytes of a page's items, unless the first one alone has more. A name or text has up to 64 KiB, and an answer
/// stays in memory until its caller has read it: on all 64 connections 64 MiB.
const MAX_PAGE: usize = 1024 * 1024;

/// Ids in the path.
pub(super) struct Ids<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Ids<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let ids = Path::<T>::from_request_parts(parts, state).await;
        ids.map(|Path(ids)| Ids(ids)).map_err(|error| Problem::bad_request(error.body_text()))
    }
}

/// Parameters of the query.
pub(super) struct Params<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = Query::<T>::from_request_parts(parts, state).await;
        params.map(|Query(params)| Params(params)).map_err(|error| Problem::bad_request(error.body_text()))
    }
}

/// A JSON body.
pub(super) struct JsonBody<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let content_type =
            request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            let detail = "the body must be JSON: Content-Type: application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let bytes = Bytes::from_request(request, state).await.map_err(|e| Problem::bad_request(e.body_text()))?;
        from_object(&bytes).map(JsonBody).map_err(|error| Problem::bad_request(format!("the body: {error}")))
    }
}

/// As [`JsonBody`]; a request without a body, or with null, says nothing.
pub(super) struct OptionalBody<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        // The body was read before, so its length is known.
        if request.body().size_hint().exact() == Some(0) {
            return Ok(OptionalBody(T::default()));
        }
        let JsonBody(body) = JsonBody::<Option<T>>::from_request(request, state).await?;
        Ok(OptionalBody(body.unwrap_or_default()))
    }
}

/// The most items of a page.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(try_from = "usize")]
#[schema(value_type = usize, minimum = 1, maximum = 1000, default = 100)]
pub(super) struct PageLimit(usize);

impl PageLimit {
    /// One item more tells that there is another page.
    pub(super) fn and_one(self) -> usize {
        self.0 + 1
    }

    pub(super) fn get(self) -> usize {
        self.0
    }
}

impl Default for PageLimit {
    fn default() -> Self {
        PageLimit(DEFAULT_LIMIT)
    }
}

impl TryFrom<usize> for PageLimit {
    type Error = String;

    fn try_from(limit: usize) -> Result<Self, String> {
        match limit {
            1..=MAX_LIMIT => Ok(PageLimit(limit)),
            _ => Err(format!("limit is 1 to {MAX_LIMIT}")),
        }
    }
}

/// Some of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Page<T> {
    pub(super) items: Vec<T>,
    /// Where the next page begins (`?after=`); null: this is the last one.
    pub(super) next: Option<String>,
}

impl<T: Serialize> Page<T> {
    /// A page of `found`, which has one item more than `limit` if there is another page. `id` is an item's.
    pub(super) fn new(mut found: Vec<T>, PageLimit(limit): PageLimit, id: impl Fn(&T) -> String) -> Self {
        let mut bytes = 0;
        let fits = |item: &&T| {
            bytes += serde_json::to_vec(item).map_or(0, |json| json.len());
            bytes <= MAX_PAGE
        };
        let count = found.iter().take(limit).take_while(fits).count().max(1);
        let has_more = found.len() > count;
        found.truncate(count);
        let next = found.last().filter(|_| has_more).map(id);
        Page { items: found, next }
    }
}
