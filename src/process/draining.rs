//! The third stage of a process: it accepts no more connections, finishes the requests under way, and writes what only
//! this process knows to the store and the logs.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::handover::HandoverTask;
use super::logs::Logs;
use super::serving::{Serving, StopReason};
use super::signals::StopSignals;
use crate::edge::Server;
use crate::gateway::Gateway;
use crate::telemetry::CLOSE_TIMEOUT;

/// How long idle connections stay open. Meanwhile a request that is on its way arrives, and its answer announces the end
/// of the connection.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// How long after that a write may still begin, which came just before its connection was closed.
const LAST_WRITES: Duration = Duration::from_millis(100);

/// How long a process that has handed over keeps the record of decisions open: until connections in use have had their
/// last answer. The successor holds its own decisions in memory meanwhile.
const RECORD_AFTER_HANDOVER: Duration = Duration::from_millis(500);

/// How long the last counts of keys may take to be written, within `server.drain_timeout`: longer than the 2 s for
/// which a write waits for another process's lock.
const LAST_COUNTS: Duration = Duration::from_millis(2500);

/// The time that they are given in any case.
const LAST_COUNTS_AT_LEAST: Duration = Duration::from_millis(500);

/// A process that accepts no more connections.
pub(super) struct Draining {
    pub(super) reason: StopReason,
    pub(super) process: Serving,
    pub(super) stop_signals: StopSignals,
}

impl Draining {
    /// Finishes what is under way, within `server.drain_timeout` or until another stop signal.
    pub(super) async fn finish(mut self) {
        let Serving { gateway, server, logs, background, mut handover, admin } = self.process;
        let deadline = Instant::now() + gateway.state().config.server.drain_timeout;
        let handed_over = self.reason != StopReason::Signal;
        server.begin_drain(handed_over);
        let cut = tokio::select! {
            biased;
            () = server.ended() => None,
            () = another_stop(&mut self.stop_signals, handed_over) => Some("another stop signal"),
            () = sleep_until(deadline) => Some("server.drain_timeout has passed"),
            never = meanwhile(&gateway, &server, &logs, handover.as_mut().filter(|_| handed_over)) => match never {},
        };
        if let Some(why) = cut {
            tracing::warn!(connections = server.connections(), "{why}; these connections are cut");
        }
        if let Some(handover) = handover.as_mut().filter(|_| handed_over && gateway.end_writes()) {
            handover.done(gateway.unsettled_for());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        background.finish(&gateway, left.clamp(LAST_COUNTS_AT_LEAST, LAST_COUNTS)).await;
        if let Some(admin) = admin.0 {
            admin.stop().await;
        }
        logs.close(CLOSE_TIMEOUT);
    }
}

/// Waits for the signal that ends the drain. Whoever stops the service signals a process that has handed over as well, and
/// that first signal changes nothing.
async fn another_stop(signals: &mut StopSignals, handed_over: bool) {
    if handed_over {
        signals.recv().await;
    }
    signals.recv().await;
}

/// Takes the steps of a drain, each at its time. `handover`: that to the process that has taken over.
async fn meanwhile(gateway: &Gateway, server: &Server, logs: &Logs, handover: Option<&mut HandoverTask>) -> Infallible {
    let close_idle_at = Instant::now() + IDLE_TIME;
    if let (Some(record), Some(_)) = (&logs.decisions, &handover) {
        sleep(RECORD_AFTER_HANDOVER).await;
        record.begin_close(); // later decisions of this process are not recorded
    }
    sleep_until(close_idle_at).await;
    server.close_idle();
    sleep(LAST_WRITES).await;
    if let Some(handover) = handover {
        gateway.writes_ended().await;
        handover.done(gateway.unsettled_for());
    }
    pending().await
}
