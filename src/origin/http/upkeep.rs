//! What is done about upstreams aside of requests: names are resolved anew, health is checked, and
//! who is out is tried again. Every task here ends with the origin it looks after.

use std::sync::{Arc, Weak};
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use super::HttpOrigin;
use super::backend::Backend;
use crate::wire::MAX_ORIGIN_ANSWER;

/// How often a name is resolved. A name that moves is followed soon, and whoever answers for it is
/// asked six times a minute.
const RESOLVE_EVERY: Duration = Duration::from_secs(10);

/// How long the start waits for names to be resolved. A name server that is slow or away must not
/// hold up the gateway, which answers 21 until there is an address.
const FIRST_LOOK_UP: Duration = Duration::from_secs(2);

/// How often it is looked for who is due to be tried again, where there are no health checks.
const LOOK: Duration = Duration::from_secs(1);

/// From here on the origin is looked after. Waits until each name was looked up once, or for
/// [`FIRST_LOOK_UP`].
pub(super) async fn begin(origin: &Arc<HttpOrigin>) {
    let mut first = Vec::new();
    for (i, site) in origin.backends.sites().iter().enumerate() {
        if site.upstream.address().is_some() {
            continue;
        }
        let (done, looked_up) = oneshot::channel();
        tokio::spawn(follow_name(Arc::downgrade(origin), i, done));
        if origin.backends.is_unknown(i) {
            first.push(looked_up);
        }
    }
    let all = async {
        for looked_up in first {
            let _ = looked_up.await; // a task that is gone will not tell any more
        }
    };
    if tokio::time::timeout(FIRST_LOOK_UP, all).await.is_err() {
        tracing::warn!("the upstreams' names are not resolved yet; those without an address are asked once they are");
    }
    tokio::spawn(look_after(Arc::downgrade(origin)));
}

/// Resolves a name now and then. Where that fails, the last good addresses stay.
async fn follow_name(origin: Weak<HttpOrigin>, site: usize, done: oneshot::Sender<()>) {
    let mut done = Some(done);
    let mut failing = false;
    loop {
        let Some((name, port)) = origin.upgrade().and_then(|origin| {
            let upstream = &origin.backends.sites().get(site)?.upstream;
            Some((upstream.name.clone(), upstream.port))
        }) else {
            return;
        };
        // As long as it takes: a look-up that hangs is a thread, and there is never a second one.
        let found = tokio::net::lookup_host((name.as_str(), port)).await.map(Vec::from_iter);
        let Some(origin) = origin.upgrade() else { return };
        match found {
            Ok(found) if !found.is_empty() => {
                failing = false;
                origin.backends.resolved(site, found);
            }
            failed if !failing => {
                failing = true;
                let reason = failed.err().map_or_else(|| "it has no address".to_owned(), |e| e.to_string());
                let upstream = &origin.backends.sites()[site].upstream;
                tracing::warn!(%upstream, reason, "a name cannot be resolved; its previous addresses stay in use");
            }
            _ => {}
        }
        drop(origin);
        if let Some(done) = done.take() {
            let _ = done.send(()); // nobody may be waiting
        }
        tokio::time::sleep(RESOLVE_EVERY).await;
    }
}

/// Checks everyone at each interval, or tries those who are due again.
async fn look_after(origin: Weak<HttpOrigin>) {
    let Some(every) = origin.upgrade().map(|o| o.settings.health.as_ref().map_or(LOOK, |health| health.interval))
    else {
        return;
    };
    let mut look = tokio::time::interval(every);
    look.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        look.tick().await;
        let Some(origin) = origin.upgrade() else { return };
        let now = origin.clock.now();
        for backend in origin.backends.list().iter() {
            // One that takes long is not looked at twice at once, and holds up nobody.
            if (origin.check.is_some() || backend.record().is_due(now)) && backend.begin_look() {
                tokio::spawn(look_at(origin.clone(), backend.clone()));
            }
        }
    }
}

async fn look_at(origin: Arc<HttpOrigin>, backend: Arc<Backend>) {
    if origin.check.is_some() {
        let limit = origin.settings.timeout;
        let checked = tokio::time::timeout(limit, check(&origin, &backend)).await;
        let checked = checked.unwrap_or_else(|_| Err("they take longer than origin.timeout".to_owned()));
        origin.backends.checked(&backend, origin.clock.now(), checked);
    } else {
        let connected = backend.connect(origin.settings.connect_timeout).await.is_ok();
        origin.backends.tried(&backend, origin.clock.now(), connected);
    }
    backend.end_look();
}

/// Asks for the health path on a connection of its own. Any answer with a status below 500 is good.
async fn check(origin: &HttpOrigin, backend: &Backend) -> Result<(), String> {
    let Some(target) = &origin.check else { return Ok(()) };
    let mut connection = backend.connect(origin.settings.connect_timeout).await.map_err(|e| e.to_string())?;
    let answer = connection.send_request(backend.site.check(target)).await.map_err(|e| e.to_string())?;
    let status = answer.status().as_u16();
    // To the end: one that is cut off shows in the upstream's log as a caller who hung up.
    let _ = Limited::new(answer.into_body(), MAX_ORIGIN_ANSWER).collect().await;
    if status < 500 { Ok(()) } else { Err(format!("status {status}")) }
}
