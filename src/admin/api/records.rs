//! Guilds, keys, members, warns and reviews of the store. A key's secret is in the answer that makes it, and nowhere else.
//! Of warns and reviews, `POST` gives an id; `PUT` takes the caller's and may be repeated.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::admin::authorize::CreatedId;
use crate::admin::extract::{Ids, JsonBody, OptionalBody, Page, PageLimit, Params};
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::model::{GuildId, MemberId, NoteKind, REVIEW, WARN};
use crate::records::guild::{self, GuildChange, GuildInput, GuildRow, RemovedRow};
use crate::records::key::{self, IssuedKey, KeyChange, KeyInput, KeyRow, Rotation};
use crate::records::member::{self, MemberInput, MemberRow};
use crate::records::note::{self, ChosenId, NoteId, NoteInput, NoteRow, ReviewInput, WarnInput};

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new()
        .routes(routes!(list_guilds, add_guild))
        .routes(routes!(show_guild, change_guild, remove_guild))
        .routes(routes!(list_keys, create_key))
        .routes(routes!(show_key, change_key, revoke_key))
        .routes(routes!(rotate_key))
        .routes(routes!(reset_day))
        .routes(routes!(list_members))
        .routes(routes!(show_member, put_member, remove_member))
        .routes(routes!(list_warns))
        .routes(routes!(remove_warn))
        .routes(routes!(add_warn))
        .routes(routes!(put_warn))
        .routes(routes!(list_reviews))
        .routes(routes!(remove_review))
        .routes(routes!(add_review))
        .routes(routes!(put_review))
}

/// Where a request is handled.
type At = State<Arc<Shared>>;

/// What a request is answered with.
type Answer<T> = Result<Json<T>, Problem>;

/// The answer to a request that made something.
type Created<T> = Result<(StatusCode, Extension<CreatedId>, Json<T>), Problem>;

/// The answer to a request that removed something.
type Removed = Result<StatusCode, Problem>;

/// Of which member, and the caller's id.
type Chosen = Ids<(GuildId, MemberId, ChosenId)>;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct GuildParams {
    #[param(inline)]
    limit: PageLimit,
    /// The id after which the page begins.
    after: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct KeyParams {
    /// Only this guild's.
    guild: Option<GuildId>,
    #[param(inline)]
    limit: PageLimit,
    /// The id after which the page begins.
    after: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct MemberParams {
    #[param(inline)]
    limit: PageLimit,
    /// The id after which the page begins.
    after: Option<MemberId>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct NoteParams {
    /// Only this member's.
    member: Option<MemberId>,
    #[param(inline)]
    limit: PageLimit,
    /// The id after which the page begins.
    after: Option<NoteId>,
}

fn created<T>(id: String, row: T) -> Created<T> {
    Ok((StatusCode::CREATED, Extension(CreatedId(id)), Json(row)))
}

/// Lists the guilds by id.
#[utoipa::path(get, path = "/api/guilds", operation_id = "listGuilds", params(GuildParams),
    responses((status = 200, body = Page<GuildRow>)))]
async fn list_guilds(
    State(shared): At,
    Params(GuildParams { limit, after }): Params<GuildParams>,
) -> Answer<Page<GuildRow>> {
    let guilds = guild::list(&shared.guilds()?, after.as_deref(), limit.and_one()).await?;
    Ok(Json(Page::new(guilds, limit, |guild| guild.id.to_string())))
}

/// Adds a guild.
#[utoipa::path(post, path = "/api/guilds", operation_id = "addGuild", request_body = GuildInput,
    responses((status = 201, body = GuildRow)))]
async fn add_guild(State(shared): At, JsonBody(input): JsonBody<GuildInput>) -> Created<GuildRow> {
    let added = guild::add(&shared.guilds()?, input).await?;
    created(added.id.to_string(), added)
}

/// Shows a guild.
#[utoipa::path(get, path = "/api/guilds/{guild}", operation_id = "getGuild", responses((status = 200, body = GuildRow)))]
async fn show_guild(State(shared): At, Ids(id): Ids<GuildId>) -> Answer<GuildRow> {
    Ok(Json(guild::show(&shared.guilds()?, &id).await?))
}

/// Renames a guild, or notes that the bot has left it or is back.
#[utoipa::path(patch, path = "/api/guilds/{guild}", operation_id = "changeGuild", request_body = GuildChange,
    responses((status = 200, body = GuildRow)))]
async fn change_guild(
    State(shared): At,
    Ids(id): Ids<GuildId>,
    JsonBody(change): JsonBody<GuildChange>,
) -> Answer<GuildRow> {
    Ok(Json(guild::change(&shared.guilds()?, &id, change).await?))
}

/// Removes a guild with its members, warns, reviews and keys.
#[utoipa::path(delete, path = "/api/guilds/{guild}", operation_id = "removeGuild",
    responses((status = 200, body = RemovedRow)))]
async fn remove_guild(State(shared): At, Ids(id): Ids<GuildId>) -> Answer<RemovedRow> {
    Ok(Json(guild::remove(&shared.guilds()?, &id).await?))
}

/// Lists the keys by id.
#[utoipa::path(get, path = "/api/keys", operation_id = "listKeys", params(KeyParams),
    responses((status = 200, body = Page<KeyRow>)))]
async fn list_keys(State(shared): At, Params(params): Params<KeyParams>) -> Answer<Page<KeyRow>> {
    let KeyParams { guild, limit, after } = params;
    let keys = key::list(&shared.keys()?, guild.as_ref(), after.as_deref(), limit.and_one()).await?;
    Ok(Json(Page::new(keys, limit, |row| row.id.clone())))
}

/// Makes a key. The answer alone has its secret.
#[utoipa::path(post, path = "/api/keys", operation_id = "createKey", request_body = KeyInput,
    responses((status = 201, body = IssuedKey)))]
async fn create_key(State(shared): At, JsonBody(input): JsonBody<KeyInput>) -> Created<IssuedKey> {
    let issued = key::create(&shared.keys()?, input).await?;
    created(issued.row.id.clone(), issued)
}

/// Shows a key.
#[utoipa::path(get, path = "/api/keys/{id}", operation_id = "getKey", responses((status = 200, body = KeyRow)))]
async fn show_key(State(shared): At, Ids(id): Ids<String>) -> Answer<KeyRow> {
    Ok(Json(key::show(&shared.keys()?, &id).await?))
}

/// Changes a key while it works.
#[utoipa::path(patch, path = "/api/keys/{id}", operation_id = "changeKey", request_body = KeyChange,
    responses((status = 200, body = KeyRow)))]
async fn change_key(State(shared): At, Ids(id): Ids<String>, JsonBody(change): JsonBody<KeyChange>) -> Answer<KeyRow> {
    Ok(Json(key::change(&shared.keys()?, &id, change).await?))
}

/// Takes a key away, with both secrets of a rotated one.
#[utoipa::path(delete, path = "/api/keys/{id}", operation_id = "revokeKey", responses((status = 204)))]
async fn revoke_key(State(shared): At, Ids(id): Ids<String>) -> Removed {
    shared.keys()?.store.revoke_key(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Gives a key another secret, which the answer alone has.
#[utoipa::path(post, path = "/api/keys/{id}/rotate", operation_id = "rotateKey", request_body = Option<Rotation>,
    responses((status = 200, body = IssuedKey)))]
async fn rotate_key(
    State(shared): At,
    Ids(id): Ids<String>,
    OptionalBody(rotation): OptionalBody<Rotation>,
) -> Answer<IssuedKey> {
    Ok(Json(key::rotate(&shared.keys()?, &id, rotation).await?))
}

/// Gives a key its whole day back (`daily`); the gateway follows within a second.
#[utoipa::path(post, path = "/api/keys/{id}/reset-day", operation_id = "resetDay", responses((status = 204)))]
async fn reset_day(State(shared): At, Ids(id): Ids<String>) -> Removed {
    let is_known = !shared.gateway.usage_of(|key| **key == *id).is_empty();
    shared.guilds()?.store.reset_day(&id, is_known).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists a guild's members by id.
#[utoipa::path(get, path = "/api/guilds/{guild}/members", operation_id = "listMembers", params(MemberParams),
    responses((status = 200, body = Page<MemberRow>)))]
async fn list_members(
    State(shared): At,
    Ids(guild): Ids<GuildId>,
    Params(MemberParams { limit, after }): Params<MemberParams>,
) -> Answer<Page<MemberRow>> {
    let members = member::list(&shared.members()?, &guild, after, limit.and_one()).await?;
    Ok(Json(Page::new(members, limit, |row| row.member.to_string())))
}

/// Shows a member.
#[utoipa::path(get, path = "/api/guilds/{guild}/members/{member}", operation_id = "getMember",
    responses((status = 200, body = MemberRow)))]
async fn show_member(State(shared): At, Ids((guild, id)): Ids<(GuildId, MemberId)>) -> Answer<MemberRow> {
    Ok(Json(member::show(&shared.members()?, &guild, id).await?))
}

/// Sets a member's name or points, making the member if need be.
#[utoipa::path(put, path = "/api/guilds/{guild}/members/{member}", operation_id = "putMember",
    request_body = MemberInput, responses((status = 200, body = MemberRow)))]
async fn put_member(
    State(shared): At,
    Ids((guild, id)): Ids<(GuildId, MemberId)>,
    JsonBody(input): JsonBody<MemberInput>,
) -> Answer<MemberRow> {
    Ok(Json(member::set(&shared.members()?, &guild, id, input).await?))
}

/// Removes a member with its warns and reviews.
#[utoipa::path(delete, path = "/api/guilds/{guild}/members/{member}", operation_id = "removeMember",
    responses((status = 204)))]
async fn remove_member(State(shared): At, Ids((guild, id)): Ids<(GuildId, MemberId)>) -> Removed {
    shared.members()?.store.remove_member(&guild, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists a guild's warns by id, expired ones too.
#[utoipa::path(get, path = "/api/guilds/{guild}/warns", operation_id = "listWarns", params(NoteParams),
    responses((status = 200, body = Page<NoteRow>)))]
async fn list_warns(at: At, of: Ids<GuildId>, params: Params<NoteParams>) -> Answer<Page<NoteRow>> {
    list_notes(at, &WARN, of, params).await
}

/// Lists a guild's reviews by id.
#[utoipa::path(get, path = "/api/guilds/{guild}/reviews", operation_id = "listReviews", params(NoteParams),
    responses((status = 200, body = Page<NoteRow>)))]
async fn list_reviews(at: At, of: Ids<GuildId>, params: Params<NoteParams>) -> Answer<Page<NoteRow>> {
    list_notes(at, &REVIEW, of, params).await
}

/// Warns a member, making it if need be.
#[utoipa::path(post, path = "/api/guilds/{guild}/members/{member}/warns", operation_id = "addWarn",
    request_body = WarnInput, responses((status = 201, body = NoteRow)))]
async fn add_warn(at: At, of: Ids<(GuildId, MemberId)>, warn: JsonBody<WarnInput>) -> Created<NoteRow> {
    add_note(at, of, warn).await
}

/// Reviews a member, making it if need be.
#[utoipa::path(post, path = "/api/guilds/{guild}/members/{member}/reviews", operation_id = "addReview",
    request_body = ReviewInput, responses((status = 201, body = NoteRow)))]
async fn add_review(at: At, of: Ids<(GuildId, MemberId)>, review: JsonBody<ReviewInput>) -> Created<NoteRow> {
    add_note(at, of, review).await
}

/// Warns a member under an id of the caller's, or replaces the member's warn of that id.
#[utoipa::path(put, path = "/api/guilds/{guild}/members/{member}/warns/{id}", operation_id = "putWarn",
    request_body = WarnInput, responses((status = 200, body = NoteRow), (status = 201, body = NoteRow)))]
async fn put_warn(at: At, of: Chosen, warn: JsonBody<WarnInput>) -> Result<Response, Problem> {
    put_note(at, of, warn).await
}

/// Reviews a member under an id of the caller's, or replaces the member's review of that id.
#[utoipa::path(put, path = "/api/guilds/{guild}/members/{member}/reviews/{id}", operation_id = "putReview",
    request_body = ReviewInput, responses((status = 200, body = NoteRow), (status = 201, body = NoteRow)))]
async fn put_review(at: At, of: Chosen, review: JsonBody<ReviewInput>) -> Result<Response, Problem> {
    put_note(at, of, review).await
}

/// Removes a warn.
#[utoipa::path(delete, path = "/api/guilds/{guild}/warns/{id}", operation_id = "removeWarn", responses((status = 204)))]
async fn remove_warn(at: At, of: Ids<(GuildId, NoteId)>) -> Removed {
    remove_note(at, &WARN, of).await
}

/// Removes a review.
#[utoipa::path(delete, path = "/api/guilds/{guild}/reviews/{id}", operation_id = "removeReview",
    responses((status = 204)))]
async fn remove_review(at: At, of: Ids<(GuildId, NoteId)>) -> Removed {
    remove_note(at, &REVIEW, of).await
}

async fn list_notes(
    State(shared): At,
    kind: &'static NoteKind,
    Ids(guild): Ids<GuildId>,
    Params(NoteParams { member, limit, after }): Params<NoteParams>,
) -> Answer<Page<NoteRow>> {
    let notes = note::list(&shared.members()?, kind, &guild, member, after, limit.and_one()).await?;
    Ok(Json(Page::new(notes, limit, |row| row.id.clone())))
}

async fn add_note<I: NoteInput>(
    State(shared): At,
    Ids((guild, member)): Ids<(GuildId, MemberId)>,
    JsonBody(input): JsonBody<I>,
) -> Created<NoteRow> {
    let row = note::add(&shared.members()?, &guild, member, input).await?;
    created(row.id.clone(), row)
}

async fn put_note<I: NoteInput>(
    State(shared): At,
    Ids((guild, member, id)): Chosen,
    JsonBody(input): JsonBody<I>,
) -> Result<Response, Problem> {
    let (row, is_new) = note::put(&shared.members()?, &guild, member, id, input).await?;
    Ok(if is_new { created(row.id.clone(), row)?.into_response() } else { Json(row).into_response() })
}

async fn remove_note(State(shared): At, kind: &'static NoteKind, Ids((guild, id)): Ids<(GuildId, NoteId)>) -> Removed {
    shared.members()?.store.remove_note(kind, &guild, id.0).await?;
    Ok(StatusCode::NO_CONTENT)
}
