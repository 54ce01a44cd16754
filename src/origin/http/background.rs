//! What runs in the background of requests: names are resolved again, health is checked, and ejected backends are probed. Every task
//! here ends once its origin is dropped.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

use super::HttpOrigin;
use super::backend::{Backend, PreparedUpstream};
use crate::clock::next_multiple_of;

/// How often a name is resolved: an upstream that moves is found soon, at six queries a minute.
const RESOLVE_EVERY: Duration = Duration::from_secs(10);

/// How long the start waits for names to be resolved. A name server that is slow or down must not delay the gateway,
/// which answers 21 until there is an address.
const FIRST_RESOLVE: Duration = Duration::from_secs(2);

/// How often backends are tested for a due probe, where there are no health checks.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Look-ups of names under way at once, of all origins: one that hangs keeps a thread, of which the runtime has 512 for
/// everything, reloads of files among it.
static LOOK_UPS: Semaphore = Semaphore::const_new(128);

/// Starts the tasks of an origin. Waits until each name was resolved once, or for [`FIRST_RESOLVE`].
pub(super) async fn start(origin: &Arc<HttpOrigin>) {
    let mut first = Vec::new();
    for upstream in origin.backends.upstreams() {
        if upstream.settings.address().is_some() {
            continue;
        }
        let (done, resolved) = oneshot::channel();
        tokio::spawn(resolve_repeatedly(Arc::downgrade(origin), upstream.clone(), done));
        if !origin.backends.is_resolved(upstream) {
            first.push(resolved);
        }
    }
    let all = futures_util::future::join_all(first);
    if tokio::time::timeout(FIRST_RESOLVE, all).await.is_err() {
        tracing::warn!("some upstreams' names are not resolved yet; they get requests once they are");
    }
    tokio::spawn(check_repeatedly(Arc::downgrade(origin)));
}

/// Resolves a name at each interval. Where that fails, the last addresses stay in use.
async fn resolve_repeatedly(origin: Weak<HttpOrigin>, upstream: Arc<PreparedUpstream>, done: oneshot::Sender<()>) {
    let mut done = Some(done);
    let mut is_failing = false;
    while origin.strong_count() > 0 {
        // Without a time limit: a look-up that hangs takes a thread, and so there is never a second one.
        let permit = LOOK_UPS.acquire().await;
        let found = tokio::net::lookup_host((upstream.settings.name.as_str(), upstream.settings.port)).await;
        drop(permit);
        let Some(origin) = origin.upgrade() else { return };
        match found.map(Vec::from_iter) {
            Ok(found) if !found.is_empty() => {
                is_failing = false;
                origin.backends.resolved(&upstream, found);
            }
            failed if !is_failing => {
                is_failing = true;
                let reason = failed.err().map_or_else(|| "it has no address".to_owned(), |e| e.to_string());
                let upstream = &upstream.settings;
                tracing::warn!(%upstream, reason, "a name cannot be resolved; addresses that it had before stay in use");
            }
            _ => {}
        }
        drop(origin);
        if let Some(done) = done.take() {
            let _ = done.send(()); // nothing may be waiting
        }
        next_multiple_of(RESOLVE_EVERY).await;
    }
}

/// At each interval, closes idle connections that can no longer be used, and checks every backend or probes the ejected
/// ones that are due.
async fn check_repeatedly(origin: Weak<HttpOrigin>) {
    let interval = |o: Arc<HttpOrigin>| o.settings.health.as_ref().map_or(PROBE_INTERVAL, |health| health.interval);
    let Some(interval) = origin.upgrade().map(interval) else { return };
    while let Some(origin) = origin.upgrade() {
        let now = origin.clock.now();
        for backend in origin.backends.list().iter() {
            backend.idle.close_unusable();
            // A slow check delays no other one, and no second check of this backend begins meanwhile.
            if (origin.check_target.is_some() || backend.record().is_probe_due(now)) && backend.begin_check() {
                tokio::spawn(check_or_probe(origin.clone(), backend.clone()));
            }
        }
        drop(origin);
        next_multiple_of(interval).await;
    }
}

async fn check_or_probe(origin: Arc<HttpOrigin>, backend: Arc<Backend>) {
    if origin.check_target.is_some() {
        let limit = origin.settings.timeout;
        let checked = tokio::time::timeout(limit, check(&origin, &backend)).await;
        let checked = checked.unwrap_or_else(|_| Err("they take longer than origin.timeout".to_owned()));
        origin.backends.check_ended(&backend, origin.clock.now(), checked);
    } else {
        let connected = backend.connect(origin.settings.connect_timeout).await.is_ok();
        origin.backends.probed(&backend, origin.clock.now(), connected);
    }
    backend.end_check();
}

/// Gets the health path on a connection of its own. Any answer with a status below 500 passes.
async fn check(origin: &HttpOrigin, backend: &Backend) -> Result<(), String> {
    let Some(target) = &origin.check_target else { return Ok(()) };
    let mut connection = backend.connect(origin.settings.connect_timeout).await.map_err(|e| e.to_string())?;
    backend.upstream.write_check(target, connection.request());
    let header = connection.send().await.map_err(|e| e.to_string())?;
    // The body is read to its end: in the upstream's log a closed connection looks like a caller that gave up.
    let _ = connection.read_body(&header).await;
    if header.status < 500 { Ok(()) } else { Err(format!("status {}", header.status)) }
}
