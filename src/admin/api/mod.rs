//! The resources of the API, each with its rows as JSON. Ids are texts, times are Unix seconds.

pub(super) mod health; // without a token
mod records; // guilds, keys, members, warns and reviews
mod service; // status, configuration, limits, purge, reload
mod usage; // of each key

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;

use super::shared::Shared;

/// All resources.
pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().merge(records::routes()).merge(service::routes()).merge(usage::routes())
}
