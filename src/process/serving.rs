//! The second stage of a process: it serves until there is a reason to end.

use std::future::pending;
use std::sync::Arc;

use tokio::time::timeout;

use super::background::BackgroundTasks;
use super::draining::Draining;
use super::handover::HandoverTask;
use super::logs::Logs;
use super::signals::StopSignals;
use super::systemd;
use crate::admin::{AdminThread, ProcessState};
use crate::cluster::NodeState;

use crate::edge::Server;
use crate::gateway::Gateway;

/// Why a process ends.
#[derive(Debug)]
pub(super) enum StopReason {
    Signal,
    /// Another process has taken over.
    HandedOver {
        to: i32,
    },
    /// A task has ended without which the process cannot go on.
    TaskEnded {
        task: &'static str,
    },
}

impl StopReason {
    /// Whether another process serves the addresses.
    pub(super) fn is_handed_over(&self) -> bool {
        matches!(self, StopReason::HandedOver { .. })
    }

    pub(super) fn is_defect(&self) -> bool {
        matches!(self, StopReason::TaskEnded { .. })
    }

    pub(super) fn log(&self, connections: usize) {
        match self {
            StopReason::Signal => tracing::info!(connections, "stopping: finishing the requests under way"),
            StopReason::HandedOver { to } => {
                tracing::info!(to, connections, "handed over: finishing the requests under way");
            }
            StopReason::TaskEnded { task } => {
                tracing::error!(
                    connections,
                    "{task} by a defect; the process ends now, with exit code 1. Please report it, and start the server \
                     again, as a service manager does by itself"
                );
            }
        }
    }
}

/// A process that has printed its ready lines.
pub(super) struct Serving {
    pub(super) gateway: Arc<Gateway>,
    pub(super) server: Server,
    pub(super) logs: Logs,
    pub(super) background: BackgroundTasks,
    pub(super) handover: Option<HandoverTask>,
    pub(super) stop_signals: StopSignals,
    /// The admin listener, if it is on, and what it is told.
    pub(super) admin: (Option<AdminThread>, Arc<ProcessState>),
}

impl Serving {
    /// Serves until there is a reason to end, and after a stop signal for `server.drain_delay` more.
    pub(super) async fn run(mut self) -> Draining {
        let mut reason = self.stop_reason().await;
        self.admin.1.begin_drain();
        self.gateway.shared_limits().inspect(|limits| limits.set_state(Some(NodeState::Draining)));
        if !reason.is_handed_over() {
            systemd::stopping();
        }
        let delay = self.gateway.state().config.server.drain_delay;
        if matches!(reason, StopReason::Signal) && !delay.is_zero() {
            self.server.delay_drain();
            let delay_ms = delay.as_millis();
            tracing::info!(delay_ms, "stopping after server.drain_delay; until then the health path answers 503");
            reason = timeout(delay, self.stop_reason()).await.unwrap_or(StopReason::Signal);
        }
        if reason.is_handed_over() {
            // The other process needs the address.
            self.admin.0.iter().for_each(AdminThread::close);
        } else if let (Some(handover), false) = (&mut self.handover, reason.is_defect()) {
            // A successor that is amid a hand-over serves from now on, while this process drains.
            self.gateway.alone.begin();
            handover.close().await;
        }
        reason.log(self.server.connections());
        Draining { reason, process: self }
    }

    /// Waits for a reason to end.
    async fn stop_reason(&mut self) -> StopReason {
        let handover = &mut self.handover;
        let handed_over = async {
            match handover {
                Some(handover) => handover.ended().await,
                None => pending().await,
            }
        };
        tokio::select! {
            // A process that has handed over is not taken for one that was stopped.
            biased;
            reason = handed_over => reason,
            task = self.background.ended() => StopReason::TaskEnded { task },
            () = self.server.failed() => StopReason::TaskEnded { task: "a thread that serves callers has ended" },
            () = self.stop_signals.recv() => StopReason::Signal,
        }
    }
}
