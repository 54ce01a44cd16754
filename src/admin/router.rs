//! The paths of the admin listener, and the description of the API, which is made from the same code.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use serde_json::{Value, json};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use super::pages::Hosts;
use super::problem::{PROBLEM_JSON, Problem, ReloadFault};
use super::shared::Shared;
use super::{api, authorize, pages};
use crate::model::{GuildId, MemberId};
use crate::records::note::{ChosenId, NoteId};

#[derive(OpenApi)]
#[openapi(
    info(title = "Guildgate admin API", description = "See docs/admin.md."),
    components(schemas(Problem, ReloadFault, GuildId, MemberId, NoteId, ChosenId))
)]
struct Description;

/// What every request may be refused with.
const REFUSALS: [(&str, &str); 8] = [
    ("400", "The request is malformed."),
    ("401", "The token is missing or wrong."),
    ("403", "The token may not do this."),
    ("404", "There is no such thing."),
    ("405", "The path has no such method."),
    ("409", "It exists already, breaks a rule, or this configuration has no such thing."),
    ("429", "Too many attempts with a wrong token."),
    ("503", "The store is away, or it took too long."),
];

/// What a request with a body may be refused with besides.
const BODY_REFUSALS: [(&str, &str); 3] =
    [("408", "The body took too long."), ("413", "The body is too large."), ("415", "The body is not JSON.")];

/// All paths. What is not under `/api/` needs no token; the pages need a session.
pub(super) fn router(shared: Arc<Shared>, hosts: Hosts, is_tls: bool) -> Router {
    let (router, description) = OpenApiRouter::with_openapi(Description::openapi())
        .merge(api::routes())
        .with_state(shared.clone())
        .split_for_parts();
    let description = Arc::<str>::from(complete(&description).to_string());
    let openapi = move || async move { ([("content-type", "application/json")], description.to_string()) };
    let api = router.route("/api/openapi.json", get(openapi));
    let api_of_pages = api.clone().layer(from_fn_with_state(shared.clone(), authorize::authorize));
    api.merge(pages::routes(shared.clone(), api_of_pages, hosts, is_tls))
        .merge(api::health::routes().with_state(shared.clone()))
        .fallback(async || Problem::not_found("there is no such path; see /api/openapi.json"))
        .layer(from_fn_with_state(shared, authorize::authorize))
}

/// The description with what all operations have in common: the ids in the path, the token and the refusals.
fn complete(description: &utoipa::openapi::OpenApi) -> Value {
    let mut value = serde_json::to_value(description).unwrap_or_default(); // it is made of texts
    value["components"]["securitySchemes"] = json!({ "token": { "type": "http", "scheme": "bearer" } });
    value["security"] = json!([{ "token": [] }]);
    for (path, item) in value["paths"].as_object_mut().into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            if operation.get("requestBody").is_some() {
                add_refusals(operation, &BODY_REFUSALS);
            } else if method != "get" {
                add_refusals(operation, &BODY_REFUSALS[..2]);
            }
            add_refusals(operation, &REFUSALS);
            add_path_parameters(operation, path);
        }
    }
    value
}

fn add_refusals(operation: &mut Value, refusals: &[(&str, &str)]) {
    for (status, description) in refusals {
        operation["responses"][status] = json!({
            "description": description,
            "content": { (PROBLEM_JSON): { "schema": { "$ref": "#/components/schemas/Problem" } } },
        });
    }
}

fn add_path_parameters(operation: &mut Value, path: &str) {
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters = names.map(|name| {
        let schema = match (name, path) {
            ("guild", _) => reference("GuildId"),
            ("member", _) => reference("MemberId"),
            (_, path) if path.starts_with("/api/keys/") => json!({ "type": "string", "minLength": 1 }),
            (_, path) if path.contains("/{member}/") => reference("ChosenId"),
            _ => reference("NoteId"),
        };
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    });
    let others = operation["parameters"].as_array().cloned().unwrap_or_default();
    operation["parameters"] = others.into_iter().chain(parameters).collect();
}
