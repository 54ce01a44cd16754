//! The third stage of a process: it accepts no more connections, finishes the requests under way, and writes what only
//! this process knows to the store and the logs.

use std::time::{Duration, Instant};

use super::ProcessError;
use super::serving::{Serving, StopReason};
use crate::telemetry::CLOSE_TIMEOUT;

/// How often a drain checks whether it has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// How long idle connections stay open. Meanwhile a request that is on its way arrives, and its answer announces the end
/// of the connection.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// How long after that a write may still begin, which came just before its connection was closed.
const LAST_WRITES: Duration = Duration::from_millis(100);

/// How long a process that has handed over keeps the record of decisions open: until connections in use have had their
/// last answer. The successor holds its own decisions in memory meanwhile.
const RECORD_AFTER_HANDOVER: Duration = Duration::from_millis(500);

/// How long requests under way may take after a background task has ended: the process ends within a second.
const AFTER_DEFECT: Duration = Duration::from_millis(300);

/// How long the access log, the audit log and the decision record may take after it, all together; `LOG_AFTER_DEFECT`
/// comes after that.
const LOGS_AFTER_DEFECT: Duration = Duration::from_millis(250);

/// How long the last counts of keys may take to be written, within `server.drain_timeout`: longer than the 2 s for
/// which a write waits for another process's lock.
const LAST_COUNTS: Duration = Duration::from_millis(2500);

/// The time that they are given in any case.
const LAST_COUNTS_AT_LEAST: Duration = Duration::from_millis(500);

/// A process that accepts no more connections.
pub(super) struct Draining {
    pub(super) reason: StopReason,
    pub(super) process: Serving,
}

/// How the wait for the connections ended.
enum Drained {
    AllClosed,
    TimedOut,
    /// By another stop signal.
    Stopped,
}

impl Draining {
    /// Finishes what is under way. The result is the process's.
    pub(super) async fn finish(mut self) -> Result<(), ProcessError> {
        let drain_timeout = self.process.gateway.state().config.server.drain_timeout;
        let limit = if self.reason.is_defect() { drain_timeout.min(AFTER_DEFECT) } else { drain_timeout };
        let deadline = Instant::now() + limit;
        self.process.server.begin_drain(self.reason.is_handed_over());
        let drained = self.wait(deadline).await;
        let Serving { gateway, server, background, .. } = &mut self.process;
        let connections = server.connections();
        match drained {
            Drained::AllClosed => {}
            Drained::TimedOut => {
                tracing::warn!(connections, "server.drain_timeout has passed; these connections are cut")
            }
            Drained::Stopped => tracing::warn!(connections, "another stop signal; these connections are cut"),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = (!self.reason.is_defect()).then(|| left.clamp(LAST_COUNTS_AT_LEAST, LAST_COUNTS));
        background.finish(gateway, limit).await;
        // After a defect an admin's request is not waited for: the process ends within a second.
        if let Some(admin) = self.process.admin.0.take().filter(|_| !self.reason.is_defect()) {
            admin.stop().await;
        }
        self.process.logs.close(if self.reason.is_defect() { LOGS_AFTER_DEFECT } else { CLOSE_TIMEOUT });
        match self.reason {
            StopReason::Signal | StopReason::HandedOver { .. } => Ok(()),
            StopReason::TaskEnded { .. } => Err(ProcessError::Defect),
        }
    }

    /// Waits until every connection has ended, the deadline has passed, or a signal ends the wait.
    async fn wait(&mut self, mut deadline: Instant) -> Drained {
        let handed_over = self.reason.is_handed_over();
        let Serving { gateway, server, logs, background, handover, stop_signals, .. } = &mut self.process;
        let begin = Instant::now();
        let close_idle_at = deadline.min(begin + IDLE_TIME);
        let mut open_record = logs.decisions.clone().filter(|_| handed_over);
        // Whoever stops the service signals this process as well, and the first signal after a hand-over changes nothing.
        let mut signals_left = if handed_over { 2 } else { 1 };
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                task = background.ended(), if !self.reason.is_defect() => {
                    self.reason = StopReason::TaskEnded { task };
                    self.reason.log(server.connections());
                    deadline = deadline.min(Instant::now() + AFTER_DEFECT);
                }
                () = stop_signals.recv() => signals_left -= 1,
            }
            if Instant::now() >= close_idle_at {
                server.close_idle();
            }
            if let Some(record) = open_record.take_if(|_| begin.elapsed() >= RECORD_AFTER_HANDOVER) {
                // Later decisions of this process are not recorded.
                record.begin_close();
            }
            let is_quiet = server.has_ended() || Instant::now() >= close_idle_at + LAST_WRITES;
            if let Some(handover) = handover.as_mut().filter(|_| handed_over && is_quiet && gateway.alone.end_writes())
            {
                handover.done(gateway.alone.unsettled());
            }
            if server.has_ended() {
                return Drained::AllClosed;
            }
            if signals_left == 0 {
                return Drained::Stopped;
            }
            if Instant::now() >= deadline && (!server.has_ended() || self.reason.is_defect()) {
                return Drained::TimedOut;
            }
        }
    }
}
