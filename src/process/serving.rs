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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    Signal,
    /// Another process has taken over, and serves the addresses.
    HandedOver {
        to: i32,
    },
}

/// A process that has printed its ready lines.
pub(super) struct Serving {
    pub(super) gateway: Arc<Gateway>,
    pub(super) server: Server,
    pub(super) logs: Logs,
    pub(super) background: BackgroundTasks,
    pub(super) handover: Option<HandoverTask>,
    /// The admin listener, if it is on, and what it is told.
    pub(super) admin: (Option<AdminThread>, Arc<ProcessState>),
}

impl Serving {
    /// Serves until there is a reason to end, and after a stop signal for `server.drain_delay` more.
    pub(super) async fn run(mut self, mut stop_signals: StopSignals) -> Draining {
        let mut reason = self.stop_reason(&mut stop_signals).await;
        self.admin.1.begin_drain();
        self.gateway.shared_limits().inspect(|limits| limits.set_state(NodeState::Draining));
        let delay = self.gateway.state().config.server.drain_delay;
        if reason == StopReason::Signal {
            systemd::stopping();
            if !delay.is_zero() {
                self.server.delay_drain();
                let delay_ms = delay.as_millis();
                tracing::info!(delay_ms, "stopping after server.drain_delay; until then the health path answers 503");
                reason = timeout(delay, self.stop_reason(&mut stop_signals)).await.unwrap_or(StopReason::Signal);
            }
        }
        let connections = self.server.connections();
        match reason {
            StopReason::Signal => {
                if let Some(handover) = &mut self.handover {
                    // A successor that is amid a hand-over serves from now on, while this process drains.
                    self.gateway.not_alone();
                    handover.close().await;
                }
                tracing::info!(connections, "stopping: finishing the requests under way");
            }
            StopReason::HandedOver { to } => {
                self.admin.0.iter().for_each(AdminThread::close); // the other process needs the address
                tracing::info!(to, connections, "handed over: finishing the requests under way");
            }
        }
        Draining { reason, process: self, stop_signals }
    }

    /// Waits for a reason to end.
    async fn stop_reason(&mut self, stop_signals: &mut StopSignals) -> StopReason {
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
            () = stop_signals.recv() => StopReason::Signal,
        }
    }
}
