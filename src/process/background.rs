//! The tasks without which the gateway cannot go on: if one of them ends, which only a defect causes, so does the process.
//! Beside them, the one that warns daily of certificates that end soon.

use std::panic::AssertUnwindSafe;
use std::process::exit;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::sleep;

use super::logs::Logs;
use crate::clock::Clock;
use crate::cluster::{RedisStream, SharedLimits};
use crate::edge::Tls;
use crate::gateway::Gateway;
use crate::store::Store;
use crate::tls::ends_soon;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long the access log, the audit log and the decision record may take to be written after a defect, and how long the
/// process log after them: the process ends within a second.
const LOGS_AFTER_DEFECT: Duration = Duration::from_millis(250);

/// Runs a task that never ends by itself. If it does, this logs it, writes the logs to their end, and exits with 1.
pub(super) fn supervise(name: &'static str, logs: &Logs, task: impl Future<Output = ()> + Send + 'static) {
    let logs = logs.clone();
    tokio::spawn(async move {
        let _ = AssertUnwindSafe(task).catch_unwind().await; // a panic was logged
        tracing::error!(
            "{name} has ended by a defect; the process ends now, with exit code 1. Please report it, and start the server \
             again, as a service manager does by itself"
        );
        logs.close(LOGS_AFTER_DEFECT);
        logs.process.close(LOGS_AFTER_DEFECT);
        exit(1);
    });
}

/// Warns each day of the certificates for callers and admins that end soon, as the start did. `admin`: when that one ends, in
/// Unix seconds.
pub(super) async fn warn_of_ends(tls: Option<Arc<Tls>>, admin: Option<i64>, clock: Clock) {
    loop {
        sleep(DAY).await;
        let callers = tls.as_ref().and_then(|tls| tls.certificate_expires());
        for (setting, to) in [("server.tls", callers), ("admin.tls", admin)] {
            let warning = to.and_then(|to| ends_soon(setting, to, clock.unix()));
            warning.inspect(|warning| tracing::warn!("{warning}"));
        }
    }
}

/// What the gateway's background tasks have to do before the process ends.
#[derive(Debug)]
pub(super) struct BackgroundTasks {
    store: Option<Arc<Store>>,
}

impl BackgroundTasks {
    /// Starts the tasks that need the store, and those that share limits with other nodes and hear of their writes.
    pub(super) fn start(
        gateway: &Arc<Gateway>,
        logs: &Logs,
        store: Option<Arc<Store>>,
        limits: Option<Arc<SharedLimits>>,
        stream: Option<RedisStream>,
    ) -> Self {
        if let Some(store) = &store {
            let (writes, follows, flushes) =
                (store.clone(), (gateway.clone(), store.clone()), (gateway.clone(), store.clone()));
            supervise("the thread that writes to the store", logs, async move { writes.writer_ended().await });
            supervise("the task that follows the store's changes", logs, async move {
                follows.0.follow_store(&follows.1).await;
            });
            supervise("the task that keeps the counts of keys", logs, async move {
                flushes.0.flush_usage(&flushes.1).await;
            });
        }
        if let Some(stream) = stream {
            let gateway = gateway.clone();
            supervise("the task that hears of other nodes' writes", logs, async move {
                gateway.follow_peers(&stream).await;
            });
        }
        if let Some(limits) = limits {
            let gateway = gateway.clone();
            supervise("the task that shares limits with other nodes", logs, async move {
                limits.run(|node| gateway.describe(node)).await;
            });
        }
        BackgroundTasks { store }
    }

    /// Tells the other nodes that this process stops, and writes the last counts of keys to the store within `limit`.
    pub(super) async fn finish(self, gateway: &Gateway, limit: Duration) {
        // Where a write is still under way, the others are to take this node for one that ended without a word.
        if let (Some(peers), true) = (gateway.peers(), gateway.end_writes()) {
            peers.bus.leave().await;
        }
        if let Some(store) = &self.store {
            gateway.finish_usage(store, limit).await;
        }
        if let Some(limits) = gateway.shared_limits() {
            limits.leave().await;
        }
    }
}
