//! The paths of the admin listener.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;

use super::pages::Hosts;
use super::problem::Problem;
use super::shared::Shared;
use super::{api, authorize, pages};

/// All paths. What is not under `/api/` needs no token; the pages need a session.
pub(super) fn router(shared: Arc<Shared>, hosts: Hosts, is_tls: bool) -> Router {
    let api = api::routes().with_state(shared.clone());
    let api_of_pages = api.clone().layer(from_fn_with_state(shared.clone(), authorize::authorize));
    api.merge(pages::routes(shared.clone(), api_of_pages, hosts, is_tls))
        .merge(api::health::routes().with_state(shared.clone()))
        .fallback(async || Problem::not_found("there is no such path; see /api/openapi.json"))
        .layer(from_fn_with_state(shared, authorize::authorize))
}
