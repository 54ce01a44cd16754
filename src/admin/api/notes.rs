//! Warns and reviews of members. `POST` gives an id, `PUT` takes the caller's and may be repeated.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::admin::authorize::CreatedId;
use crate::admin::extract::{EndInput, Ids, JsonBody, Member, NoteId, Page, Params, page_limit};
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::model::{GuildId, MemberId, RATINGS, Review, Warn, one_line};
use crate::store::Members;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new()
        .routes(routes!(list_warns))
        .routes(routes!(remove_warn))
        .routes(routes!(add_warn))
        .routes(routes!(put_warn))
        .routes(routes!(list_reviews))
        .routes(routes!(remove_review))
        .routes(routes!(add_review))
        .routes(routes!(put_review))
}

/// A warn of a member.
#[derive(Debug, Serialize, ToSchema)]
struct WarnRow {
    id: String,
    member: String,
    author: String,
    reason: String,
    /// Unix seconds; from this second on the warn has expired.
    expires: i64,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WarnInput {
    author: String,
    reason: String,
    expires: EndInput,
}

/// A review of a member.
#[derive(Debug, Serialize, ToSchema)]
struct ReviewRow {
    id: String,
    member: String,
    author: String,
    /// 1 to 5.
    rating: u8,
    text: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ReviewInput {
    author: String,
    /// 1 to 5.
    rating: u8,
    text: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Only this member's.
    #[param(value_type = Option<String>)]
    member: Option<Member>,
    /// 1 to 1000; 100 if it is not given.
    limit: Option<usize>,
    /// The id after which the page begins.
    #[param(value_type = Option<String>)]
    after: Option<NoteId>,
}

impl ListParams {
    fn member(&self) -> Option<MemberId> {
        self.member.map(|Member(member)| member)
    }

    fn after(&self) -> Option<i64> {
        self.after.map(|NoteId(id)| id)
    }
}

impl WarnInput {
    fn warn(self, id: i64, now: i64) -> Result<Warn, Problem> {
        let expires = self.expires.unix(now, false)?;
        let expires = expires.ok_or_else(|| Problem::bad_request("expires is not in the future"))?;
        Ok(Warn { id, author: self.author, reason: self.reason, expires })
    }
}

impl ReviewInput {
    fn review(self, id: i64) -> Result<Review, Problem> {
        if !RATINGS.contains(&self.rating) {
            return Err(Problem::bad_request(format!("a rating is {} to {}", RATINGS.start(), RATINGS.end())));
        }
        Ok(Review { id, author: self.author, rating: self.rating, text: self.text })
    }
}

impl WarnRow {
    fn new((member, warn): (MemberId, Warn)) -> Self {
        let (author, reason) = (one_line(&warn.author).into_owned(), one_line(&warn.reason).into_owned());
        WarnRow { id: warn.id.to_string(), member: member.to_string(), author, reason, expires: warn.expires }
    }
}

impl ReviewRow {
    fn new((member, review): (MemberId, Review)) -> Self {
        let (author, text) = (one_line(&review.author).into_owned(), one_line(&review.text).into_owned());
        ReviewRow { id: review.id.to_string(), member: member.to_string(), author, rating: review.rating, text }
    }
}

/// The answer to a request that created a warn or a review.
fn created<T: Serialize>(id: i64, row: T) -> Response {
    (StatusCode::CREATED, Extension(CreatedId(id.to_string())), Json(row)).into_response()
}

/// Lists a guild's warns by id, expired ones too.
#[utoipa::path(get, path = "/api/guilds/{guild}/warns", operation_id = "listWarns", params(ListParams),
    responses((status = 200, body = Page<WarnRow>)))]
async fn list_warns(
    State(shared): State<Arc<Shared>>,
    Ids(guild): Ids<GuildId>,
    Params(params): Params<ListParams>,
) -> Result<Json<Page<WarnRow>>, Problem> {
    let limit = page_limit(params.limit)?;
    let found = shared.member_store()?.notes(&guild, params.member(), params.after(), limit + 1).await?;
    Ok(Json(Page::new(found.into_iter().map(WarnRow::new).collect(), limit, |row| row.id.clone())))
}

/// Warns a member, making it if need be.
#[utoipa::path(post, path = "/api/guilds/{guild}/members/{member}/warns", operation_id = "addWarn",
    request_body = WarnInput, responses((status = 201, body = WarnRow)))]
async fn add_warn(
    State(shared): State<Arc<Shared>>,
    Ids((guild, Member(member))): Ids<(GuildId, Member)>,
    JsonBody(input): JsonBody<WarnInput>,
) -> Result<Response, Problem> {
    let warn = input.warn(0, shared.gateway.clock().unix())?;
    let id = shared.member_store()?.add_note(&guild, member, warn.clone()).await?;
    Ok(created(id, WarnRow::new((member, Warn { id, ..warn }))))
}

/// Warns a member under an id of the caller's, or replaces the member's warn of that id.
#[utoipa::path(put, path = "/api/guilds/{guild}/members/{member}/warns/{id}", operation_id = "putWarn",
    request_body = WarnInput, responses((status = 200, body = WarnRow), (status = 201, body = WarnRow)))]
async fn put_warn(
    State(shared): State<Arc<Shared>>,
    Ids((guild, Member(member), id)): Ids<(GuildId, Member, NoteId)>,
    JsonBody(input): JsonBody<WarnInput>,
) -> Result<Response, Problem> {
    let id = id.chosen()?;
    let warn = input.warn(id, shared.gateway.clock().unix())?;
    let is_new = shared.member_store()?.put_note(&guild, member, warn.clone()).await?;
    let row = WarnRow::new((member, warn));
    Ok(if is_new { created(id, row) } else { Json(row).into_response() })
}

/// Takes a warn back.
#[utoipa::path(delete, path = "/api/guilds/{guild}/warns/{id}", operation_id = "removeWarn",
    responses((status = 204)))]
async fn remove_warn(
    State(shared): State<Arc<Shared>>,
    Ids((guild, NoteId(id))): Ids<(GuildId, NoteId)>,
) -> Result<StatusCode, Problem> {
    shared.member_store()?.remove_note::<Warn>(&guild, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists a guild's reviews by id.
#[utoipa::path(get, path = "/api/guilds/{guild}/reviews", operation_id = "listReviews", params(ListParams),
    responses((status = 200, body = Page<ReviewRow>)))]
async fn list_reviews(
    State(shared): State<Arc<Shared>>,
    Ids(guild): Ids<GuildId>,
    Params(params): Params<ListParams>,
) -> Result<Json<Page<ReviewRow>>, Problem> {
    let limit = page_limit(params.limit)?;
    let found = shared.member_store()?.notes(&guild, params.member(), params.after(), limit + 1).await?;
    Ok(Json(Page::new(found.into_iter().map(ReviewRow::new).collect(), limit, |row| row.id.clone())))
}

/// Reviews a member, making it if need be.
#[utoipa::path(post, path = "/api/guilds/{guild}/members/{member}/reviews", operation_id = "addReview",
    request_body = ReviewInput, responses((status = 201, body = ReviewRow)))]
async fn add_review(
    State(shared): State<Arc<Shared>>,
    Ids((guild, Member(member))): Ids<(GuildId, Member)>,
    JsonBody(input): JsonBody<ReviewInput>,
) -> Result<Response, Problem> {
    let review = input.review(0)?;
    let id = shared.member_store()?.add_note(&guild, member, review.clone()).await?;
    Ok(created(id, ReviewRow::new((member, Review { id, ..review }))))
}

/// Reviews a member under an id of the caller's, or replaces the member's review of that id.
#[utoipa::path(put, path = "/api/guilds/{guild}/members/{member}/reviews/{id}", operation_id = "putReview",
    request_body = ReviewInput, responses((status = 200, body = ReviewRow), (status = 201, body = ReviewRow)))]
async fn put_review(
    State(shared): State<Arc<Shared>>,
    Ids((guild, Member(member), id)): Ids<(GuildId, Member, NoteId)>,
    JsonBody(input): JsonBody<ReviewInput>,
) -> Result<Response, Problem> {
    let id = id.chosen()?;
    let review = input.review(id)?;
    let is_new = shared.member_store()?.put_note(&guild, member, review.clone()).await?;
    let row = ReviewRow::new((member, review));
    Ok(if is_new { created(id, row) } else { Json(row).into_response() })
}

/// Removes a review.
#[utoipa::path(delete, path = "/api/guilds/{guild}/reviews/{id}", operation_id = "removeReview",
    responses((status = 204)))]
async fn remove_review(
    State(shared): State<Arc<Shared>>,
    Ids((guild, NoteId(id))): Ids<(GuildId, NoteId)>,
) -> Result<StatusCode, Problem> {
    shared.member_store()?.remove_note::<Review>(&guild, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
