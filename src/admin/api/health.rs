//! Whether the process lives, whether it can answer as it should, and its metrics. None of them needs a token.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::admin::shared::Shared;
use crate::telemetry::metrics::OPEN_METRICS;

pub(in crate::admin) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/healthz", get(async || "ok")).route("/readyz", get(ready)).route("/metrics", get(metrics))
}

async fn metrics(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, OPEN_METRICS)], shared.metrics.encode())
}

async fn ready(State(shared): State<Arc<Shared>>) -> (StatusCode, String) {
    match shared.faults().as_slice() {
        [] => {
            // Reads go on.
            let unwritable = shared.store.as_ref().and_then(|store| store.write_fault());
            let unwritable = unwritable.map(|why| format!("the store cannot be written to: {why}"));
            let faults = shared.gateway.redis_fault().map(str::to_owned).into_iter().chain(unwritable);
            (StatusCode::OK, std::iter::once("ok".to_owned()).chain(faults).collect::<Vec<_>>().join("; "))
        }
        faults => (StatusCode::SERVICE_UNAVAILABLE, faults.join("\n")),
    }
}
