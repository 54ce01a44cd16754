//! Whether the process lives, and whether it can answer as it should. Both need no token.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;

use crate::admin::shared::Shared;

pub(in crate::admin) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/healthz", get(async || "ok")).route("/readyz", get(ready))
}

async fn ready(State(shared): State<Arc<Shared>>) -> (StatusCode, String) {
    match shared.faults().as_slice() {
        [] => (StatusCode::OK, "ok".to_owned()),
        faults => (StatusCode::SERVICE_UNAVAILABLE, faults.join("\n")),
    }
}
