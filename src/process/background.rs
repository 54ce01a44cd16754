//! The tasks without which the gateway cannot go on: if one of them ends, which only a defect causes, so does the process.
//! Beside them, the one that warns daily of certificates that end soon.

use std::panic::AssertUnwindSafe;
use std::process::exit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::time::sleep;

use super::logs::Logs;
use crate::clock::Clock;
use crate::cluster::{RedisStream, SharedLimits};
use crate::edge::Tls;
use crate::gateway::Gateway;
use crate::store::Store;
use crate::tls::ends_soon;

/// How often the log warns of a certificate that ends soon.
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

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
        logs.process.close(Instant::now() + LOGS_AFTER_DEFECT);
        exit(1);
    });
}

/// Warns again and again of the certificates for callers and admins that end soon, as the start did. `admin`: when that one
/// ends, in Unix seconds.
pub(super) async fn warn_of_ends(tls: Option<Arc<Tls>>, admin: Option<i64>, clock: Clock, every: Duration) {
    loop {
        sleep(every).await;
        let callers = tls.as_ref().and_then(|tls| tls.certificate_expires());
        for (setting, to) in [("server.tls", callers), ("admin.tls", admin)] {
            let warning = to.and_then(|to| ends_soon(setting, to, clock.unix()));
            warning.inspect(|warning| tracing::warn!("{warning}"));
        }
    }
}

/// Starts the tasks that need the store, and those that share limits with other nodes and hear of their writes.
pub(super) fn start_tasks(
    gateway: &Arc<Gateway>,
    logs: &Logs,
    store: Option<&Arc<Store>>,
    limits: Option<Arc<SharedLimits>>,
    stream: Option<RedisStream>,
) {
    if let Some(store) = store {
        let parts = || (gateway.clone(), store.clone());
        let (_, store) = parts();
        supervise("the thread that writes to the store", logs, async move { store.writer_ended().await });
        let (gateway, store) = parts();
        let follow = async move { gateway.follow_store(&store).await };
        supervise("the task that follows the store's changes", logs, follow);
        let (gateway, store) = parts();
        supervise("the task that keeps the counts of keys", logs, async move { gateway.flush_usage(&store).await });
    }
    if let Some(stream) = stream {
        let gateway = gateway.clone();
        let hear = async move { gateway.follow_peers(&stream).await };
        supervise("the task that hears of other nodes' writes", logs, hear);
    }
    if let Some(limits) = limits {
        let gateway = gateway.clone();
        let share = async move { limits.run(|node| gateway.describe(node)).await };
        supervise("the task that shares limits with other nodes", logs, share);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::read_to_string;

    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_certificate_is_warned_of_each_day_from_14_days_before_its_end() {
        let (log, clock) = (tempfile::NamedTempFile::new().unwrap(), Clock::manual(0));
        let subscriber = tracing_subscriber::fmt().with_writer(Arc::new(log.reopen().unwrap())).finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let day = DAY.as_secs().cast_signed();
        let warns = warn_of_ends(None, Some(20 * day), clock.clone(), Duration::ZERO);
        let warnings = || read_to_string(log.path()).unwrap().matches("admin.tls.certificate ends at").count();
        let looks = async {
            sleep(Duration::from_millis(20)).await;
            assert_eq!(warnings(), 0);
            clock.set_unix(10 * day);
            while warnings() < 3 {
                yield_now().await;
            }
        };
        tokio::select! {
            () = warns => {}
            () = looks => {}
        }
    }
}
