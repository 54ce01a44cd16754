//! Keys of the store, by id and never by secret. A secret is in the answer that makes it, and nowhere else. A change
//! with `If-Match` is refused where another admin has changed the key meanwhile.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::{ETAG, IF_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::guilds::guild;
use crate::admin::authorize::CreatedId;
use crate::admin::extract::{EndInput, Ids, JsonBody, OptionalBody, Page, Params, given, page_limit};
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::config::Limits;
use crate::config::leaf::HumanDuration;
use crate::keys::{IssueError, NewKey, check_tier, rotate};
use crate::model::{GuildId, Scope};
use crate::store::{KeyChange, KeyRecord, Store};

/// How long the secret before works after a rotation, where the request does not say.
const OVERLAP: HumanDuration = HumanDuration::secs(86_400);

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, change, revoke))
        .routes(routes!(rotate_key))
        .routes(routes!(reset_day))
}

/// A key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
struct KeyRow {
    id: String,
    name: String,
    #[schema(value_type = String)]
    guild: GuildId,
    /// The default tier where the key names none.
    tier: String,
    /// `read` or `write`.
    #[schema(value_type = String)]
    scope: Scope,
    /// Unix seconds, as the times below.
    created: i64,
    expires: Option<i64>,
    last_used: Option<i64>,
    /// Until when the secret before the last rotation works.
    previous_until: Option<i64>,
}

/// A key with its secret, which nothing shows again.
#[derive(Debug, Serialize, ToSchema)]
struct IssuedKey {
    #[serde(flatten)]
    row: KeyRow,
    /// The secret.
    key: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct KeyInput {
    #[schema(value_type = String)]
    guild: GuildId,
    #[serde(default)]
    name: String,
    /// The default tier, whichever that is at the time, if it is not given.
    tier: Option<String>,
    /// `read` or `write`, the default.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    scope: Scope,
    expires: Option<EndInput>,
}

/// What changes; a field that is not given stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct KeyPatch {
    name: Option<String>,
    /// null: the default tier, whichever that is at the time.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    tier: Option<Option<String>>,
    /// `read` or `write`.
    #[schema(value_type = Option<String>)]
    scope: Option<Scope>,
    /// null: never.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<EndInput>)]
    expires: Option<Option<EndInput>>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Rotation {
    /// How long the secret before works: `90s`, `24h` (the default), `30d`; `0s` ends it at once.
    #[schema(value_type = Option<String>)]
    overlap: Option<HumanDuration>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Only this guild's.
    #[param(value_type = Option<String>)]
    guild: Option<GuildId>,
    /// 1 to 1000; 100 if it is not given.
    limit: Option<usize>,
    /// The id after which the page begins.
    after: Option<String>,
}

impl From<IssueError> for Problem {
    fn from(error: IssueError) -> Self {
        match error {
            IssueError::Store(error) => error.into(),
            IssueError::UnknownTier { .. } => Problem::bad_request(error.to_string()),
            IssueError::NoRandomness(why) => Problem::unavailable(why, 1),
        }
    }
}

impl KeyRow {
    fn new(key: &KeyRecord, limits: &Limits, now: i64) -> Self {
        KeyRow {
            id: key.id.to_string(),
            name: key.name.clone(),
            guild: key.guild.clone(),
            tier: key.tier.clone().unwrap_or_else(|| limits.default_tier.name.clone()),
            scope: key.scope,
            created: key.created,
            expires: key.expires,
            last_used: key.last_used,
            previous_until: key.previous_ends().filter(|ends| *ends > now),
        }
    }
}

/// The state of a key that admins change. Its last use is no part of it.
pub(in crate::admin) fn etag(key: &KeyRecord) -> String {
    let state = format!("{:?}", KeyRecord { last_used: None, ..key.clone() });
    let digest = Sha256::digest(state);
    let hex: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
}

/// Refuses where the key is not in the state that the request expects. Returns the key.
async fn expected(store: &Store, id: &str, headers: &HeaderMap) -> Result<KeyRecord, Problem> {
    let key = key(store, id).await?;
    let Some(expected) = headers.get(IF_MATCH) else { return Ok(key) };
    let current = etag(&key);
    let expected = expected.to_str().unwrap_or_default();
    match expected.split(',').any(|tag| tag.trim() == current || tag.trim() == "*") {
        true => Ok(key),
        false => Err(Problem::new(
            StatusCode::PRECONDITION_FAILED,
            format!("key {id} was changed meanwhile; read it again, and repeat the change if it is still wanted"),
        )),
    }
}

async fn key(store: &Store, id: &str) -> Result<KeyRecord, Problem> {
    store.key(id).await?.ok_or_else(|| Problem::not_found(format!("there is no key {id}")))
}

/// The key in an answer, with its ETag.
fn shown(shared: &Shared, key: &KeyRecord) -> Response {
    let limits = &shared.gateway.state().config.limits;
    ([(ETAG, etag(key))], Json(KeyRow::new(key, limits, shared.gateway.clock().unix()))).into_response()
}

/// Lists the keys by id.
#[utoipa::path(get, path = "/api/keys", operation_id = "listKeys", params(ListParams),
    responses((status = 200, body = Page<KeyRow>)))]
async fn list(
    State(shared): State<Arc<Shared>>,
    Params(params): Params<ListParams>,
) -> Result<Json<Page<KeyRow>>, Problem> {
    let limit = page_limit(params.limit)?;
    let (store, now) = (shared.key_store()?, shared.gateway.clock().unix());
    let found = store.keys_page(params.guild.as_ref(), params.after.as_deref(), limit + 1).await?;
    if let (Some(id), true) = (&params.guild, found.is_empty()) {
        guild(store, id).await?;
    }
    let state = shared.gateway.state();
    let rows = found.iter().map(|key| KeyRow::new(key, &state.config.limits, now)).collect();
    Ok(Json(Page::new(rows, limit, |row| row.id.clone())))
}

/// Makes a key. The answer alone has its secret.
#[utoipa::path(post, path = "/api/keys", operation_id = "createKey", request_body = KeyInput,
    responses((status = 201, body = IssuedKey)))]
async fn create(State(shared): State<Arc<Shared>>, JsonBody(input): JsonBody<KeyInput>) -> Result<Response, Problem> {
    let now = shared.gateway.clock().unix();
    let config = shared.gateway.state().config.clone();
    let KeyInput { guild, name, tier, scope, expires } = input;
    let expires = expires.map(|end| end.unix(now, false)).transpose()?.flatten();
    let new = NewKey { guild, name, tier, scope, expires };
    let (record, key) = new.issue(shared.key_store()?, &config.limits, now).await?;
    let issued = IssuedKey { row: KeyRow::new(&record, &config.limits, now), key: key.reveal().to_owned() };
    let created = Extension(CreatedId(record.id.to_string()));
    Ok((StatusCode::CREATED, [(ETAG, etag(&record))], created, Json(issued)).into_response())
}

/// Shows a key. Its `ETag` is for `If-Match`.
#[utoipa::path(get, path = "/api/keys/{id}", operation_id = "getKey", responses((status = 200, body = KeyRow)))]
async fn show(State(shared): State<Arc<Shared>>, Ids(id): Ids<String>) -> Result<Response, Problem> {
    Ok(shown(&shared, &key(shared.key_store()?, &id).await?))
}

/// Changes a key while it works.
#[utoipa::path(patch, path = "/api/keys/{id}", operation_id = "changeKey", request_body = KeyPatch,
    params(("If-Match" = Option<String>, Header, description = "The ETag of the key as it was read.")),
    responses((status = 200, body = KeyRow),
        (status = 412, content_type = "application/problem+json", body = Problem)))]
async fn change(
    State(shared): State<Arc<Shared>>,
    Ids(id): Ids<String>,
    headers: HeaderMap,
    JsonBody(patch): JsonBody<KeyPatch>,
) -> Result<Response, Problem> {
    let store = shared.key_store()?;
    let config = shared.gateway.state().config.clone();
    check_tier(patch.tier.as_ref().and_then(|tier| tier.as_deref()), &config.limits)?;
    let now = shared.gateway.clock().unix();
    let expires = match patch.expires {
        Some(Some(end)) => Some(end.unix(now, true)?),
        Some(None) => Some(None),
        None => None,
    };
    let _lock = shared.key_lock.lock().await;
    expected(store, &id, &headers).await?;
    store.set_key(&id, KeyChange { name: patch.name, tier: patch.tier, scope: patch.scope, expires }).await?;
    Ok(shown(&shared, &key(store, &id).await?))
}

/// Takes a key away, with both secrets of a rotated one.
#[utoipa::path(delete, path = "/api/keys/{id}", operation_id = "revokeKey",
    params(("If-Match" = Option<String>, Header, description = "The ETag of the key as it was read.")),
    responses((status = 204), (status = 412, content_type = "application/problem+json", body = Problem)))]
async fn revoke(
    State(shared): State<Arc<Shared>>,
    Ids(id): Ids<String>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let store = shared.key_store()?;
    let _lock = shared.key_lock.lock().await;
    expected(store, &id, &headers).await?;
    store.revoke_key(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Gives a key another secret, which the answer alone has.
#[utoipa::path(post, path = "/api/keys/{id}/rotate", operation_id = "rotateKey",
    request_body(content = Option<Rotation>),
    params(("If-Match" = Option<String>, Header, description = "The ETag of the key as it was read.")),
    responses((status = 200, body = IssuedKey),
        (status = 412, content_type = "application/problem+json", body = Problem)))]
async fn rotate_key(
    State(shared): State<Arc<Shared>>,
    Ids(id): Ids<String>,
    headers: HeaderMap,
    OptionalBody(rotation): OptionalBody<Rotation>,
) -> Result<Response, Problem> {
    let store = shared.key_store()?;
    let HumanDuration(overlap) = rotation.overlap.unwrap_or(OVERLAP);
    let _lock = shared.key_lock.lock().await;
    expected(store, &id, &headers).await?;
    let (secret, _) = rotate(store, &id, overlap, shared.gateway.clock()).await?;
    let record = key(store, &id).await?;
    let state = shared.gateway.state();
    let row = KeyRow::new(&record, &state.config.limits, shared.gateway.clock().unix());
    let issued = IssuedKey { row, key: secret.reveal().to_owned() };
    Ok(([(ETAG, etag(&record))], Json(issued)).into_response())
}

/// Gives a key its whole day back (`daily`); the gateway follows within a second.
#[utoipa::path(post, path = "/api/keys/{id}/reset-day", operation_id = "resetDay", responses((status = 204)))]
async fn reset_day(State(shared): State<Arc<Shared>>, Ids(id): Ids<String>) -> Result<StatusCode, Problem> {
    let is_known = !shared.gateway.usage_of(|key| **key == *id).is_empty();
    shared.store()?.reset_day(&id, is_known).await?;
    Ok(StatusCode::NO_CONTENT)
}
