//! The resources of the API, each with its rows as JSON. Ids are texts, times are Unix seconds. A route is added with its
//! handler, whose types make its part of the description (OpenAPI), so that the two cannot differ.

pub(super) mod health; // without a token
mod records; // guilds, keys, members, warns and reviews
mod service; // status, configuration, limits, purge, reload
mod usage; // of each key

use std::sync::Arc;

use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, on};
use axum::{Extension, Json, Router};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use utoipa::openapi::path::ParameterIn;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{IntoParams, PartialSchema, ToSchema};

use super::authorize::CreatedId;
use super::extract::{Asked, is_nothing};
use super::problem::{PROBLEM_JSON, Problem};
use super::shared::Shared;
use crate::model::{GuildId, MemberId};
use crate::records::note::NoteId;

const GET: Method = Method::GET;
const POST: Method = Method::POST;
const PUT: Method = Method::PUT;
const PATCH: Method = Method::PATCH;
const DELETE: Method = Method::DELETE;

/// What a request may be refused with.
const REFUSALS: [(&str, &str); 12] = [
    ("400", "The request is malformed."),
    ("401", "The token is missing or wrong."),
    ("403", "The token may not do this."),
    ("404", "There is no such thing."),
    ("405", "The path has no such method."),
    ("408", "The body took too long."),
    ("409", "It exists already, breaks a rule, or this configuration has no such thing."),
    ("413", "The body is too large."),
    ("415", "The body is not JSON."),
    ("422", "Files were rejected, each as a whole."),
    ("429", "Too many attempts with a wrong token."),
    ("503", "The store is away, or it took too long."),
];

/// The API while it is put together.
pub(super) struct Api {
    router: Router<Arc<Shared>>,
    paths: Value,
    schemas: Vec<(String, RefOr<Schema>)>,
}

/// The API with the path of its description.
pub(super) fn routes() -> Router<Arc<Shared>> {
    let api = Api { router: Router::new(), paths: json!({}), schemas: Vec::new() };
    let Api { router, paths, mut schemas } = usage::add(service::add(records::add(api)));
    // What paths, queries and refusals have.
    Problem::schemas(&mut schemas);
    let named = [("Problem", Problem::schema()), ("GuildId", GuildId::schema()), ("MemberId", MemberId::schema())];
    let ids = [("NoteId", NoteId::schema())];
    schemas.extend(named.into_iter().chain(ids).map(|(name, schema)| (name.to_owned(), schema)));
    let schemas: Value = schemas.into_iter().map(|(name, schema)| (name, json!(schema))).collect();
    let description = json!({
        "openapi": "3.1.0",
        "info": { "title": "Guildgate admin API", "description": "See docs/admin.md.", "version": env!("CARGO_PKG_VERSION") },
        "components": { "schemas": schemas, "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } } },
        "security": [{ "token": [] }],
        "paths": paths,
    });
    router.route("/api/openapi.json", get(async move || Json(description)))
}

impl Api {
    /// Adds a route: its method, path, the statuses of success, the operation's id and a summary, and what answers it. That
    /// is called with the ids of the path, the parameters of the query and the body.
    fn route<I, Q, B, T, F>(
        mut self,
        (method, path, statuses): (Method, &str, &[u16]),
        (id, summary): (&str, &str),
        handler: impl Fn(Arc<Shared>, I, Q, B) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        Q: DeserializeOwned + IntoParams + Send + 'static,
        B: DeserializeOwned + ToSchema + Send + 'static,
        T: Serialize + ToSchema + Send + 'static,
        F: Future<Output = Result<Answer<T>, Problem>> + Send + 'static,
    {
        let mut responses = json!({});
        for (status, description) in REFUSALS {
            let content = json!({ (PROBLEM_JSON): { "schema": { "$ref": "#/components/schemas/Problem" } } });
            responses[status] = json!({ "description": description, "content": content });
        }
        for status in statuses {
            let body = json!({ "description": summary, "content": { "application/json": { "schema": T::schema() } } });
            responses[status.to_string()] = if *status == 204 { json!({ "description": summary }) } else { body };
        }
        let query = Q::into_params(|| Some(ParameterIn::Query)).into_iter().map(|parameter| json!(parameter));
        let parameters: Vec<Value> = path_parameters(path).chain(query).collect();
        let mut operation =
            json!({ "operationId": id, "summary": summary, "parameters": parameters, "responses": responses });
        if !is_nothing::<B>() {
            let is_required = serde_json::from_str::<B>("null").is_err();
            let content = json!({ "application/json": { "schema": B::schema() } });
            operation["requestBody"] = json!({ "required": is_required, "content": content });
        }
        self.paths[path][method.as_str().to_lowercase()] = operation;
        self.schemas.push((T::name().into(), T::schema()));
        T::schemas(&mut self.schemas);
        B::schemas(&mut self.schemas);
        let answer = async move |State(shared): State<Arc<Shared>>, Asked(ids, query, body): Asked<I, Q, B>| {
            handler(shared, ids, query, body).await
        };
        let filter = MethodFilter::try_from(method).unwrap_or(MethodFilter::GET); // axum knows all that are used
        Api { router: self.router.route(path, on(filter, answer)), ..self }
    }
}

/// The parameters in a path. An id is that of a key, or of a note.
fn path_parameters(path: &str) -> impl Iterator<Item = Value> + '_ {
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).map(move |name| {
        let schema = match name {
            "guild" => reference("GuildId"),
            "member" => reference("MemberId"),
            _ if path.starts_with("/api/keys/") => json!({ "type": "string", "minLength": 1 }),
            _ => reference("NoteId"),
        };
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    })
}

/// A row, or nothing (`()`), as the answer to a request.
struct Answer<T> {
    row: T,
    is_new: bool,
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        match (json!(self.row), self.is_new) {
            (Value::Null, _) => StatusCode::NO_CONTENT.into_response(),
            (row, false) => Json(row).into_response(),
            (row, true) => {
                let id = CreatedId(row["id"].as_str().unwrap_or_default().to_owned());
                (StatusCode::CREATED, Extension(id), Json(row)).into_response()
            }
        }
    }
}

/// Answers with a row that there is, or with nothing.
fn row<T>(row: T) -> Result<Answer<T>, Problem> {
    Ok(Answer { row, is_new: false })
}

/// Answers with a row that was made.
fn made<T>(row: T) -> Result<Answer<T>, Problem> {
    Ok(Answer { row, is_new: true })
}
