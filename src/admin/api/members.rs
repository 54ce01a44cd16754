//! Members of guilds.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::admin::extract::{Ids, JsonBody, Member, Page, Params, page_limit};
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::model::{GuildId, MemberId};
use crate::store::{MemberRecord, Store};

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show, put, remove))
}

/// A member of a guild.
#[derive(Debug, Serialize, ToSchema)]
struct MemberRow {
    member: String,
    name: String,
    points: i64,
}

/// What changes; a field that is not given stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MemberChange {
    /// A new member is named by its id.
    name: Option<String>,
    /// A new member has 0.
    points: Option<i64>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// 1 to 1000; 100 if it is not given.
    limit: Option<usize>,
    /// The id after which the page begins.
    #[param(value_type = Option<String>)]
    after: Option<Member>,
}

impl From<MemberRecord> for MemberRow {
    fn from(MemberRecord { member, name, points }: MemberRecord) -> Self {
        MemberRow { member: member.to_string(), name, points }
    }
}

/// Lists a guild's members by id.
#[utoipa::path(get, path = "/api/guilds/{guild}/members", operation_id = "listMembers", params(ListParams),
    responses((status = 200, body = Page<MemberRow>)))]
async fn list(
    State(shared): State<Arc<Shared>>,
    Ids(guild): Ids<GuildId>,
    Params(params): Params<ListParams>,
) -> Result<Json<Page<MemberRow>>, Problem> {
    let limit = page_limit(params.limit)?;
    let after = params.after.map(|Member(after)| after);
    let members = shared.member_store()?.members(&guild, after, limit + 1).await?;
    Ok(Json(Page::new(members.into_iter().map(MemberRow::from).collect(), limit, |row| row.member.clone())))
}

/// Shows a member.
#[utoipa::path(get, path = "/api/guilds/{guild}/members/{member}", operation_id = "getMember",
    responses((status = 200, body = MemberRow)))]
async fn show(
    State(shared): State<Arc<Shared>>,
    Ids((guild, Member(member))): Ids<(GuildId, Member)>,
) -> Result<Json<MemberRow>, Problem> {
    Ok(Json(row(shared.member_store()?, &guild, member).await?))
}

/// Sets a member's name or points, making the member if need be.
#[utoipa::path(put, path = "/api/guilds/{guild}/members/{member}", operation_id = "putMember",
    request_body = MemberChange, responses((status = 200, body = MemberRow)))]
async fn put(
    State(shared): State<Arc<Shared>>,
    Ids((guild, Member(member))): Ids<(GuildId, Member)>,
    JsonBody(change): JsonBody<MemberChange>,
) -> Result<Json<MemberRow>, Problem> {
    let store = shared.member_store()?;
    store.set_member(&guild, member, change.name.as_deref(), change.points).await?;
    Ok(Json(row(store, &guild, member).await?))
}

/// Removes a member with its warns and reviews.
#[utoipa::path(delete, path = "/api/guilds/{guild}/members/{member}", operation_id = "removeMember",
    responses((status = 204)))]
async fn remove(
    State(shared): State<Arc<Shared>>,
    Ids((guild, Member(member))): Ids<(GuildId, Member)>,
) -> Result<StatusCode, Problem> {
    shared.member_store()?.remove_member(&guild, member).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn row(store: &Store, guild: &GuildId, member: MemberId) -> Result<MemberRow, Problem> {
    let found = store.member(guild, member).await?;
    found.map(MemberRow::from).ok_or_else(|| Problem::not_found(format!("guild {guild} has no member {member}")))
}
