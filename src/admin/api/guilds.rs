//! Guilds of the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::admin::extract::{Ids, JsonBody, Page, Params, page_limit};
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::model::{GuildId, NOTE_KINDS};
use crate::store::{GuildRecord, RemovedGuild, Store};

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list, add)).routes(routes!(show, change, remove))
}

/// A guild.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Guild {
    #[schema(value_type = String)]
    id: GuildId,
    name: String,
    /// The bot has left it: its keys are answered with 03.
    left: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewGuild {
    #[schema(value_type = String)]
    id: GuildId,
    name: String,
}

/// What changes; a field that is not given stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct GuildChange {
    name: Option<String>,
    left: Option<bool>,
}

/// What was removed with a guild.
#[derive(Debug, Serialize, ToSchema)]
struct Removed {
    members: u64,
    keys: u64,
    /// How many of each kind: `warns`, `reviews`.
    #[serde(flatten)]
    notes: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// 1 to 1000; 100 if it is not given.
    limit: Option<usize>,
    /// The id after which the page begins.
    after: Option<String>,
}

impl From<GuildRecord> for Guild {
    fn from(GuildRecord { id, name, departed: left }: GuildRecord) -> Self {
        Guild { id, name, left }
    }
}

/// Lists the guilds by id.
#[utoipa::path(get, path = "/api/guilds", operation_id = "listGuilds", params(ListParams),
    responses((status = 200, body = Page<Guild>)))]
async fn list(
    State(shared): State<Arc<Shared>>,
    Params(params): Params<ListParams>,
) -> Result<Json<Page<Guild>>, Problem> {
    let limit = page_limit(params.limit)?;
    let after = params.after.unwrap_or_default();
    let guilds = shared.store()?.guilds().await?.into_iter().filter(|guild| guild.id.as_str() > after.as_str());
    let guilds = guilds.take(limit + 1).map(Guild::from).collect();
    Ok(Json(Page::new(guilds, limit, |guild| guild.id.to_string())))
}

/// Adds a guild.
#[utoipa::path(post, path = "/api/guilds", operation_id = "addGuild", request_body = NewGuild,
    responses((status = 201, body = Guild)))]
async fn add(
    State(shared): State<Arc<Shared>>,
    JsonBody(new): JsonBody<NewGuild>,
) -> Result<(StatusCode, Json<Guild>), Problem> {
    let store = shared.store()?;
    store.add_guild(&new.id, guild_name(&new.name)?).await?;
    Ok((StatusCode::CREATED, Json(guild(store, &new.id).await?)))
}

/// Shows a guild.
#[utoipa::path(get, path = "/api/guilds/{guild}", operation_id = "getGuild", responses((status = 200, body = Guild)))]
async fn show(State(shared): State<Arc<Shared>>, Ids(id): Ids<GuildId>) -> Result<Json<Guild>, Problem> {
    Ok(Json(guild(shared.store()?, &id).await?))
}

/// Renames a guild, or notes that the bot has left it or is back.
#[utoipa::path(patch, path = "/api/guilds/{guild}", operation_id = "changeGuild", request_body = GuildChange,
    responses((status = 200, body = Guild)))]
async fn change(
    State(shared): State<Arc<Shared>>,
    Ids(id): Ids<GuildId>,
    JsonBody(change): JsonBody<GuildChange>,
) -> Result<Json<Guild>, Problem> {
    let store = shared.store()?;
    if let Some(name) = &change.name {
        store.rename_guild(&id, guild_name(name)?).await?;
    }
    if let Some(left) = change.left {
        store.set_guild_departed(&id, left).await?;
    }
    Ok(Json(guild(store, &id).await?))
}

/// Removes a guild with its members, warns, reviews and keys.
#[utoipa::path(delete, path = "/api/guilds/{guild}", operation_id = "removeGuild",
    responses((status = 200, body = Removed)))]
async fn remove(State(shared): State<Arc<Shared>>, Ids(id): Ids<GuildId>) -> Result<Json<Removed>, Problem> {
    let RemovedGuild { members, notes, keys } = shared.store()?.remove_guild(&id).await?;
    let notes = NOTE_KINDS.iter().map(|kind| kind.plural).zip(notes).collect();
    Ok(Json(Removed { members, notes, keys }))
}

pub(super) async fn guild(store: &Store, id: &GuildId) -> Result<Guild, Problem> {
    let found = store.guilds().await?.into_iter().find(|guild| guild.id == *id);
    found.map(Guild::from).ok_or_else(|| Problem::not_found(format!("guild {id} is not in the store")))
}

fn guild_name(name: &str) -> Result<&str, Problem> {
    match name.chars().all(|c| c.is_whitespace() || c.is_control()) {
        true => Err(Problem::bad_request("a guild's name is not empty")),
        false => Ok(name),
    }
}
