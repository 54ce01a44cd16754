//! What runs beside requests: names are resolved again, health is checked, and idle connections that the upstream has
//! closed are closed here too. The tasks end once their origin is dropped.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use super::HttpOrigin;
use super::backend::{Backend, backends_at};
use crate::config::Upstream;

/// How often a name is resolved: an upstream that moves is found soon, at six queries a minute.
const RESOLVE_EVERY: Duration = Duration::from_secs(10);

/// How long the start waits for names to be resolved. A name server that is slow or down must not delay the gateway,
/// which answers 21 until there is an address.
const FIRST_RESOLVE: Duration = Duration::from_secs(2);

/// How often idle connections are looked at, where there are no health checks.
const CLOSE_EVERY: Duration = Duration::from_secs(1);

/// The most addresses of one name that are used.
const MAX_ADDRESSES: usize = 64;

/// Starts the tasks of an origin. Waits until each name was resolved once, or for [`FIRST_RESOLVE`].
pub(super) async fn start(origin: &Arc<HttpOrigin>) {
    let (weak, list) = (Arc::downgrade(origin), &origin.settings.list);
    let names: Arc<[Upstream]> = list.iter().filter(|upstream| upstream.address().is_none()).cloned().collect();
    let first = tokio::spawn(resolve_all(weak.clone(), names.clone()));
    if timeout(FIRST_RESOLVE, first).await.is_err() {
        tracing::warn!("some upstreams' names are not resolved yet; they get requests once they are");
    }
    tokio::spawn(check_repeatedly(weak.clone()));
    tokio::spawn(async move {
        while !names.is_empty() && weak.strong_count() > 0 {
            sleep(RESOLVE_EVERY).await;
            resolve_all(weak.clone(), names.clone()).await;
        }
    });
}

async fn resolve_all(origin: Weak<HttpOrigin>, names: Arc<[Upstream]>) {
    join_all(names.iter().map(|upstream| resolve(&origin, upstream))).await;
}

/// Resolves a name. Where that fails, the last addresses stay in use.
async fn resolve(origin: &Weak<HttpOrigin>, upstream: &Upstream) {
    let found = tokio::net::lookup_host((upstream.name.as_str(), upstream.port)).await;
    let Some(origin) = origin.upgrade() else { return };
    match found.map(Vec::from_iter) {
        Ok(found) if !found.is_empty() => origin.resolved(upstream, found),
        failed => {
            let reason = failed.err().map_or_else(|| "it has no address".to_owned(), |e| e.to_string());
            tracing::warn!(%upstream, reason, "a name cannot be resolved; addresses that it had before stay in use");
        }
    }
}

impl HttpOrigin {
    /// The name of this upstream now has these addresses.
    fn resolved(&self, upstream: &Upstream, mut found: Vec<SocketAddr>) {
        found.sort_unstable(); // the order of a name server's answer has no meaning
        found.dedup();
        found.truncate(MAX_ADDRESSES);
        let is_its = |backend: &&Arc<Backend>| backend.upstream == *upstream;
        if self.backends.load().iter().filter(is_its).map(|b| b.address).eq(found.iter().copied()) {
            return;
        }
        self.backends.rcu(|there| {
            let others = there.iter().filter(|backend| !is_its(backend)).cloned();
            others.chain(backends_at(there, upstream, &found)).collect::<Vec<_>>()
        });
        let addresses: Vec<String> = found.iter().map(ToString::to_string).collect();
        tracing::info!(%upstream, addresses = addresses.join(","), "a name was resolved");
    }

    /// Gets the health path on a connection of its own. Any answer with a status below 500 passes.
    async fn check(&self, backend: &Backend, path: &str) -> Result<(), String> {
        let connecting = backend.connect(self.tls.as_ref(), self.settings.connect_timeout);
        let mut connection = connecting.await.map_err(|error| error.to_string())?;
        backend.write_check(path, connection.request());
        let header = connection.send().await.map_err(|failed| failed.to_string())?;
        // The body is read to its end: in the upstream's log a closed connection looks like a caller that gave up.
        let _ = connection.read_body(&header).await;
        if header.status < 500 { Ok(()) } else { Err(format!("status {}", header.status)) }
    }
}

/// At each interval, closes idle connections that can no longer be used, and checks all backends at once.
async fn check_repeatedly(origin: Weak<HttpOrigin>) {
    while let Some(origin) = origin.upgrade() {
        let (list, settings, now) = (origin.backends.load_full(), &origin.settings, origin.clock.now());
        list.iter().for_each(|backend| backend.idle.close_unusable(now));
        if let Some(rules) = &settings.health {
            join_all(list.iter().map(async |backend| {
                let checked = timeout(settings.timeout, origin.check(backend, &rules.path)).await;
                let checked = checked.unwrap_or_else(|_| Err("it takes longer than origin.timeout".to_owned()));
                let changes = backend.health.checked(checked.is_ok(), rules);
                match checked {
                    Ok(()) if changes => backend.came_back("its health checks pass"),
                    Err(why) if changes => {
                        backend.went_down(origin.clock.unix(), &format!("its health checks fail: {why}"))
                    }
                    _ => {}
                }
            }))
            .await;
        }
        let interval = settings.health.as_ref().map_or(CLOSE_EVERY, |health| health.interval);
        drop(origin);
        sleep(interval).await;
    }
}
