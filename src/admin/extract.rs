//! What a request says: ids in the path, parameters of the query, and a JSON body. Anything that is not as it should be
//! is a problem with a reason.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::authorize::read_body;
use super::problem::Problem;
use crate::json::from_object;

/// The items of a page where the request names no number.
const DEFAULT_LIMIT: usize = 100;

/// The most items of a page.
const MAX_LIMIT: usize = 1000;

/// The most bytes of a page's items, unless the first one alone has more. A name or text has up to 64 KiB, and an answer
/// stays in memory until its caller has read it: on all 64 connections 64 MiB.
const MAX_PAGE: usize = 1024 * 1024;

/// What a request says: the ids in its path, the parameters of its query, and its body. `()` is a body that is not read; a
/// body that is missing is null.
pub(super) struct Asked<I, Q, B>(pub(super) I, pub(super) Q, pub(super) B);

/// The query of a request that has no parameters.
#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct Nothing {}

/// Whether it is `()`.
pub(super) const fn is_nothing<B>() -> bool {
    size_of::<B>() == 0
}

impl<S: Send + Sync, I, Q, B> FromRequest<S> for Asked<I, Q, B>
where
    I: DeserializeOwned + Send,
    Q: DeserializeOwned + Send,
    B: DeserializeOwned,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let ids = Path::<I>::from_request_parts(&mut parts, state).await;
        let Path(ids) = ids.map_err(|error| Problem::bad_request(error.body_text()))?;
        let query = Query::<Q>::try_from_uri(&parts.uri);
        let Query(query) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
        let body = read_body(body).await?;
        let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let is_json =
            content_type.split(';').next().is_some_and(|it| it.trim().eq_ignore_ascii_case("application/json"));
        let json = match (is_nothing::<B>() || body.is_empty(), is_json) {
            (true, _) => b"null",
            (false, true) => &*body,
            (false, false) => {
                let detail = "the body must be JSON: Content-Type: application/json";
                return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
            }
        };
        let body = from_object(json).map_err(|error| Problem::bad_request(format!("the body: {error}")))?;
        Ok(Asked(ids, query, body))
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
