//! What takes a while before another `gateway.toml` can be in force: the names of new upstreams, and all keys of a store that
//! becomes the source of keys. Keys and certificates are taken up meanwhile; then `gateway.toml` is read again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::config::{Config, Keys, OriginKind, Upstreams};
use crate::gateway::{Gateway, KeySource, LoadedKeys, State};
use crate::origin::{HttpOrigin, Origin, Tls};
use crate::process::preflight::Inputs;
use crate::store::Store;

/// How long a reload waits for all keys of a store: a slow disk reads hundreds of thousands meanwhile.
const KEYS_TIMEOUT: Duration = Duration::from_secs(30);

/// What was waited for.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub(super) origin: Option<Arc<HttpOrigin>>,
    pub(super) keys: Option<LoadedKeys>,
}

/// What has to be waited for.
pub(super) struct Needs {
    /// Other upstreams than those in force, which keep their connections where they are among them.
    upstreams: Option<(Upstreams, Option<Tls>, Arc<HttpOrigin>)>,
    /// The store whose keys are to be read.
    store: Option<Arc<Store>>,
}

impl Needs {
    pub(super) fn of(config: &Config, inputs: &Inputs, running: &State, store: Option<&Arc<Store>>) -> Self {
        let upstreams = match (&config.origin.kind, &*running.origin) {
            (OriginKind::Http(upstreams), Origin::Http(http))
                if !http.has_settings(upstreams, &inputs.upstream_tls) =>
            {
                Some(((**upstreams).clone(), inputs.upstream_tls.clone(), http.clone()))
            }
            _ => None, // another kind of origin takes effect after a restart
        };
        let becomes_source = config.keys == Keys::Store && running.config.keys != Keys::Store;
        Needs { upstreams, store: store.filter(|_| becomes_source).cloned() }
    }

    /// What of `prepared` is needed; `None`: it is not enough.
    pub(super) fn met_by(&self, prepared: Prepared) -> Option<Prepared> {
        let is_needed = |origin: &Arc<HttpOrigin>| {
            self.upstreams.as_ref().is_some_and(|(upstreams, tls, _)| origin.has_settings(upstreams, tls))
        };
        let origin = prepared.origin.filter(is_needed);
        let keys = prepared.keys.filter(|_| self.store.is_some());
        let is_enough = origin.is_some() == self.upstreams.is_some() && keys.is_some() == self.store.is_some();
        is_enough.then_some(Prepared { origin, keys })
    }

    pub(super) async fn prepare(self, gateway: Arc<Gateway>) -> Result<Prepared, String> {
        let mut prepared = Prepared::default();
        if let Some((upstreams, tls, before)) = self.upstreams {
            let origin = HttpOrigin::start(upstreams, tls, gateway.clock().clone(), Some(&before)).await?;
            prepared.origin = Some(origin);
        }
        if let Some(store) = self.store {
            let keys = timeout(KEYS_TIMEOUT, gateway.load_keys(Some(KeySource::Store(store)))).await;
            let keys = keys.unwrap_or_else(|_| Err("the store takes too long".to_owned()));
            let keys = keys.map_err(|why| format!("keys.source: the store's keys cannot be read: {why}"))?;
            prepared.keys = Some(keys);
        }
        Ok(prepared)
    }
}
