//! Notes about members: warns and reviews. `POST` gives an id, `PUT` takes the caller's and may be repeated.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::admin::authorize::CreatedId;
use crate::admin::extract::{EndInput, Ids, JsonBody, Member, NoteId, Page, Params, page_limit};
use crate::admin::problem::Problem;
use crate::admin::shared::Shared;
use crate::model::{GuildId, MemberId, NOTE_KINDS, Note, NoteKind, Number};

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(remove)).routes(routes!(add)).routes(routes!(put))
}

/// A warn or a review of a member.
#[derive(Debug, Serialize, ToSchema)]
struct NoteRow {
    id: String,
    member: String,
    author: String,
    /// Of a warn: `reason`, and `expires` in Unix seconds, from which on it is in no answer. Of a review: `rating`, 1 to 5,
    /// and `text`.
    #[serde(flatten)]
    fields: BTreeMap<&'static str, Value>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct NoteInput {
    author: String,
    /// Of a warn: `reason`, and `expires`: Unix seconds, or a text such as `90d` or `2026-12-24`. Of a review: `rating`, 1
    /// to 5, and `text`.
    #[serde(flatten)]
    fields: BTreeMap<String, Value>,
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

impl NoteInput {
    fn note(mut self, kind: &NoteKind, id: i64, now: i64) -> Result<Note, Problem> {
        let mut take = |name| {
            let missing = || Problem::bad_request(format!("the body: missing field `{name}`"));
            self.fields.remove(name).ok_or_else(missing)
        };
        let (text, number) = (take(kind.text)?, take(kind.number.name())?);
        if let Some((name, _)) = self.fields.first_key_value() {
            return Err(Problem::bad_request(format!("the body: a {} has no field `{name}`", kind.name)));
        }
        let Value::String(text) = text else {
            return Err(Problem::bad_request(format!("the body: `{}` is a text", kind.text)));
        };
        let number = match kind.number {
            Number::Expires => {
                let end: EndInput = serde_json::from_value(number).map_err(|e| Problem::bad_request(e.to_string()))?;
                end.unix(now, false)?.ok_or_else(|| Problem::bad_request("expires is not in the future"))?
            }
            Number::Rating => number.as_i64().ok_or_else(|| Problem::bad_request("a rating is a whole number"))?,
        };
        kind.number.check(number).map_err(Problem::bad_request)?;
        Ok(Note { id, author: self.author, text, number }.one_line())
    }
}

impl NoteRow {
    fn new(kind: &NoteKind, member: MemberId, note: Note) -> Self {
        let fields = BTreeMap::from([(kind.text, note.text.into()), (kind.number.name(), note.number.into())]);
        NoteRow { id: note.id.to_string(), member: member.to_string(), author: note.author, fields }
    }
}

/// The kind that a path names, such as `warns`.
fn kind_of(notes: &str) -> Result<&'static NoteKind, Problem> {
    let kind = NOTE_KINDS.into_iter().find(|kind| kind.plural == notes);
    kind.ok_or_else(|| Problem::not_found("there is nothing at this path; /api/openapi.json has all paths"))
}

/// The answer to a request that created a note.
fn created(row: NoteRow) -> Response {
    (StatusCode::CREATED, Extension(CreatedId(row.id.clone())), Json(row)).into_response()
}

/// Lists a guild's warns or reviews by id, expired ones too.
#[utoipa::path(get, path = "/api/guilds/{guild}/{notes}", operation_id = "listNotes",
    params(("notes" = String, Path, description = "`warns` or `reviews`"), ListParams),
    responses((status = 200, body = Page<NoteRow>)))]
async fn list(
    State(shared): State<Arc<Shared>>,
    Ids((guild, notes)): Ids<(GuildId, String)>,
    Params(params): Params<ListParams>,
) -> Result<Json<Page<NoteRow>>, Problem> {
    let (kind, limit) = (kind_of(&notes)?, page_limit(params.limit)?);
    let (member, after) = (params.member.map(|Member(member)| member), params.after.map(|NoteId(id)| id));
    let found = shared.member_store()?.notes(kind, &guild, member, after, limit + 1).await?;
    let rows = found.into_iter().map(|(member, note)| NoteRow::new(kind, member, note)).collect();
    Ok(Json(Page::new(rows, limit, |row| row.id.clone())))
}

/// Warns or reviews a member, making it if need be.
#[utoipa::path(post, path = "/api/guilds/{guild}/members/{member}/{notes}", operation_id = "addNote",
    params(("notes" = String, Path, description = "`warns` or `reviews`")),
    request_body = NoteInput, responses((status = 201, body = NoteRow)))]
async fn add(
    State(shared): State<Arc<Shared>>,
    Ids((guild, Member(member), notes)): Ids<(GuildId, Member, String)>,
    JsonBody(input): JsonBody<NoteInput>,
) -> Result<Response, Problem> {
    let kind = kind_of(&notes)?;
    let note = input.note(kind, 0, shared.gateway.clock().unix())?;
    let id = shared.member_store()?.add_note(kind, &guild, member, note.clone()).await?;
    Ok(created(NoteRow::new(kind, member, Note { id, ..note })))
}

/// Warns or reviews a member under an id of the caller's, or replaces the member's one of that id.
#[utoipa::path(put, path = "/api/guilds/{guild}/members/{member}/{notes}/{id}", operation_id = "putNote",
    params(("notes" = String, Path, description = "`warns` or `reviews`")),
    request_body = NoteInput, responses((status = 200, body = NoteRow), (status = 201, body = NoteRow)))]
async fn put(
    State(shared): State<Arc<Shared>>,
    Ids((guild, Member(member), notes, id)): Ids<(GuildId, Member, String, NoteId)>,
    JsonBody(input): JsonBody<NoteInput>,
) -> Result<Response, Problem> {
    let (kind, id) = (kind_of(&notes)?, id.chosen()?);
    let note = input.note(kind, id, shared.gateway.clock().unix())?;
    let is_new = shared.member_store()?.put_note(kind, &guild, member, note.clone()).await?;
    let row = NoteRow::new(kind, member, note);
    Ok(if is_new { created(row) } else { Json(row).into_response() })
}

/// Removes a warn or review.
#[utoipa::path(delete, path = "/api/guilds/{guild}/{notes}/{id}", operation_id = "removeNote",
    params(("notes" = String, Path, description = "`warns` or `reviews`")),
    responses((status = 204)))]
async fn remove(
    State(shared): State<Arc<Shared>>,
    Ids((guild, notes, NoteId(id))): Ids<(GuildId, String, NoteId)>,
) -> Result<StatusCode, Problem> {
    shared.member_store()?.remove_note(kind_of(&notes)?, &guild, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
