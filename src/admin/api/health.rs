//! Whether the process lives, whether it can answer as it should, and its metrics. None of them needs a token.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::admin::shared::Shared;
use crate::telemetry::metrics::Format;

pub(in crate::admin) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/healthz", get(async || "ok")).route("/readyz", get(ready)).route("/metrics", get(metrics))
}

async fn metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    ([(CONTENT_TYPE, format.content_type())], shared.metrics.encode(format))
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
