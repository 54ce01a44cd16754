//! What a request says: ids in the path, parameters of the query, and a JSON body. Anything that is not as it should be
//! is a problem with a reason.

use std::ops::Range;

use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::authorize::InSession;
use super::problem::Problem;
use crate::config::expires::{Expires, ExpiresOrNever};
use crate::json::from_object;
use crate::model::MemberId;

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
        let is_of_form = request.extensions().get::<InSession>().is_some();
        let bytes = Bytes::from_request(request, state).await.map_err(|e| Problem::bad_request(e.body_text()))?;
        from_object(&bytes).map(JsonBody).map_err(|error| {
            let detail = format!("the body: {error}");
            // Who filled in a form has seen no body, and no line or column of it.
            let location = format!(" at line {} column {}", error.line(), error.column());
            let fault = detail.strip_prefix("the body: ").and_then(|fault| fault.strip_suffix(&*location));
            Problem::bad_request(fault.filter(|_| is_of_form).unwrap_or(&detail))
        })
    }
}

/// As [`JsonBody`]; a request without a body says nothing.
pub(super) struct OptionalBody<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        // The body was read before, so its length is known.
        if request.body().size_hint().exact() == Some(0) {
            return Ok(OptionalBody(T::default()));
        }
        JsonBody::from_request(request, state).await.map(|JsonBody(body)| OptionalBody(body))
    }
}

/// A member's id, as text.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Member(pub(super) MemberId);

impl TryFrom<String> for Member {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        text.parse().map(Member)
    }
}

/// The highest id of a warn or review that a `PUT` may choose: `POST` takes the next one, so some are left for it.
const MAX_CHOSEN_ID: i64 = i64::MAX / 2;

/// The id of a warn or review, as text.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct NoteId(pub(super) i64);

impl NoteId {
    /// The id that a `PUT` chooses.
    pub(super) fn chosen(self) -> Result<i64, Problem> {
        match self.0 {
            id @ ..=MAX_CHOSEN_ID => Ok(id),
            _ => Err(Problem::bad_request(format!("an id that you choose is a whole number, 0 to {MAX_CHOSEN_ID}"))),
        }
    }
}

impl TryFrom<String> for NoteId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_number = text.bytes().all(|b| b.is_ascii_digit());
        let id = if is_number { text.parse().ok() } else { None };
        id.map(NoteId).ok_or_else(|| format!("an id is a whole number, 0 to {}", i64::MAX))
    }
}

/// When something ends: Unix seconds, or a text as the commands take it: `90d`, `2026-12-24`, `2026-12-24T18:00:00Z`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "an end is Unix seconds, or a text: a while from now such as \"90d\", a day such as \"2026-12-24\", or a \
                 time such as \"2026-12-24T18:00:00Z\""
)]
pub(super) enum EndInput {
    Seconds(i64),
    Text(String),
}

impl EndInput {
    /// In Unix seconds, after `now`; `None`: `never`, where `may_be_never`.
    pub(super) fn unix(&self, now: i64, may_be_never: bool) -> Result<Option<i64>, Problem> {
        let ends = match self {
            EndInput::Seconds(unix) => ExpiresOrNever::At(Expires::At(*unix)),
            EndInput::Text(text) if may_be_never => text.parse().map_err(Problem::bad_request)?,
            EndInput::Text(text) => {
                ExpiresOrNever::At(text.parse().map_err(|usage: &str| Problem::bad_request(usage))?)
            }
        };
        match ends {
            ExpiresOrNever::At(time) => {
                let unix = time.in_future(now).map_err(|why| Problem::bad_request(format!("expires {why}")))?;
                Ok(Some(unix))
            }
            ExpiresOrNever::Never => Ok(None),
        }
    }
}

/// A field that is `null` or has a value, if it is given at all.
pub(super) fn given<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// The most items of a page, checked.
pub(super) fn page_limit(limit: Option<usize>) -> Result<usize, Problem> {
    match limit.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => Ok(limit),
        _ => Err(Problem::bad_request(format!("limit is 1 to {MAX_LIMIT}"))),
    }
}

/// The items of `list` that would have these places if it was sorted by `key`, sorted.
pub(super) fn part_of<T, K: Ord>(mut list: Vec<T>, places: Range<usize>, key: impl Fn(&T) -> K) -> Vec<T> {
    let places = places.start.min(list.len())..places.end.min(list.len());
    // What is not in the part is not sorted, which saves most of the work.
    if (1..list.len()).contains(&places.end) {
        list.select_nth_unstable_by_key(places.end - 1, &key);
    }
    list.truncate(places.end);
    if (1..list.len()).contains(&places.start) {
        list.select_nth_unstable_by_key(places.start, &key);
    }
    list.drain(..places.start);
    list.sort_unstable_by_key(key);
    list
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
    pub(super) fn new(mut found: Vec<T>, limit: usize, id: impl Fn(&T) -> String) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_list_is_that_of_the_sorted_list() {
        let list: Vec<u32> = (0..100).map(|n| n * 37 % 101).collect();
        let mut sorted = list.clone();
        sorted.sort_unstable();
        for places in [0..0, 0..1, 0..50, 50..100, 99..100, 30..200, 100..200, 0..100] {
            let expected = &sorted[places.start.min(100)..places.end.min(100)];
            assert_eq!(part_of(list.clone(), places.clone(), |n| *n), expected, "{places:?}");
        }
    }
}
