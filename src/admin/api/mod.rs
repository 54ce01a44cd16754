//! The resources of the API, each with its rows as JSON. Ids are texts, times are Unix seconds.

mod guilds;
pub(super) mod health; // without a token
pub(super) mod keys;
mod members;
mod notes; // warns and reviews
mod service; // status, configuration, limits, purge, reload
mod usage; // of each key

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;

use super::shared::Shared;

/// All resources.
pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    [guilds::routes(), keys::routes(), members::routes(), notes::routes(), service::routes(), usage::routes()]
        .into_iter()
        .fold(OpenApiRouter::new(), OpenApiRouter::merge)
}
