//! A process that serves: it accepts until there is a reason to end. Then it accepts no more connections, finishes the
//! requests under way, and writes what only this process knows to the store and the logs.

use std::future::pending;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::demo::Demo;
use super::handover::HandoverTask;
use super::logs::Logs;
use super::signals::{StopSignals, stopped};
use super::systemd;
use crate::admin::{AdminThread, ProcessState};
use crate::cluster::NodeState;
use crate::edge::Server;
use crate::gateway::Gateway;
use crate::store::Store;
use crate::telemetry::{self, CLOSE_TIMEOUT};

/// How long idle connections stay open in a drain. Meanwhile a request that is on its way arrives, and its answer
/// announces the end of the connection.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// How long after that a write may still begin, which came just before its connection was closed.
const LAST_WRITES: Duration = Duration::from_millis(100);

/// How long the last counts of keys may take to be written, within `server.drain_timeout`: longer than the 2 s for
/// which a write waits for another process's lock.
const LAST_COUNTS: Duration = Duration::from_millis(2500);

/// The time that they are given in any case.
const LAST_COUNTS_AT_LEAST: Duration = Duration::from_millis(500);

/// A process whose parts are built and whose addresses are its own.
pub(super) struct Serving {
    pub(super) gateway: Arc<Gateway>,
    pub(super) store: Option<Arc<Store>>,
    pub(super) server: Server,
    pub(super) logs: Logs,
    pub(super) handover: Option<HandoverTask>,
    /// The admin listener, if it is on.
    pub(super) admin: Option<AdminThread>,
    pub(super) admin_url: String,
    pub(super) state: Arc<ProcessState>,
}

impl Serving {
    /// Accepts connections, and says so.
    pub(super) fn accept(&mut self, urls: &[String], demo: Option<&Demo>) {
        self.server.accept();
        self.set_node_state(NodeState::Serving);
        self.print_ready(urls, demo);
        systemd::notify("READY=1\n");
        tokio::spawn(systemd::notify_watchdog());
    }

    /// Prints a line for each address, and how to try the demo. On another thread, because a stderr that nobody reads
    /// must delay neither a hand-over nor a stop.
    fn print_ready(&self, urls: &[String], demo: Option<&Demo>) {
        let json = self.gateway.state().config.log.is_json();
        let line = |url: &String| match json {
            true => telemetry::ready_as_json(url, self.gateway.clock().unix_ms()),
            false => format!("ready: {url}\n"),
        };
        let ready: String = urls.iter().map(line).collect();
        let instructions = demo.zip(urls.first()).map(|(demo, url)| {
            demo.start_traffic(url);
            demo.instructions(url, &self.admin_url)
        });
        let instructions = instructions.unwrap_or_default();
        spawn_blocking(move || {
            // Errors are ignored: if the output is closed, nobody reads it.
            let _ = io::stderr().write_all(ready.as_bytes());
            let _ = io::stdout().write_all(instructions.as_bytes());
        });
    }

    fn set_node_state(&self, state: NodeState) {
        self.gateway.shared_limits().inspect(|limits| limits.set_state(state));
    }

    /// Serves until there is a reason to end, and after a stop signal for `server.drain_delay` more. Then it drains.
    pub(super) async fn run(mut self, mut stop_signals: StopSignals) {
        let mut successor = self.end(&mut stop_signals).await;
        self.state.begin_drain();
        self.set_node_state(NodeState::Draining);
        let delay = self.gateway.state().config.server.drain_delay;
        if successor.is_none() {
            systemd::notify("STOPPING=1\n");
            if !delay.is_zero() {
                self.server.delay_drain();
                let delay_ms = delay.as_millis();
                tracing::info!(delay_ms, "stopping after server.drain_delay; until then the health path answers 503");
                successor = timeout(delay, self.end(&mut stop_signals)).await.unwrap_or_default();
            }
        }
        let connections = self.server.connections();
        match successor {
            None => {
                if let Some(handover) = &mut self.handover {
                    // A successor that is amid a hand-over serves from now on, while this process drains.
                    self.gateway.not_alone();
                    handover.close().await;
                }
                tracing::info!(connections, "stopping: finishing the requests under way");
            }
            Some(to) => {
                self.admin.iter().for_each(AdminThread::close); // the other process needs the address
                tracing::info!(to, connections, "handed over: finishing the requests under way");
            }
        }
        self.drain(successor.is_some(), stop_signals).await;
    }

    /// Waits for a reason to end: the id of the process that serves the addresses now, or `None` for a stop signal. A process
    /// that has handed over is not taken for one that was stopped.
    async fn end(&mut self, stop_signals: &mut StopSignals) -> Option<i32> {
        tokio::select! {
            biased;
            Some(to) = OptionFuture::from(self.handover.as_mut().map(HandoverTask::ended)) => Some(to),
            () = stopped(stop_signals) => None,
        }
    }

    /// Finishes what is under way, within `server.drain_timeout` or until another stop signal.
    async fn drain(mut self, handed_over: bool, mut stop_signals: StopSignals) {
        let mut handover = self.handover.take().filter(|_| handed_over);
        let deadline = Instant::now() + self.gateway.state().config.server.drain_timeout;
        self.server.begin_drain(handed_over);
        let another_stop = async {
            // Whoever stops the service signals a process that has handed over as well, which changes nothing.
            if handed_over {
                stopped(&mut stop_signals).await;
            }
            stopped(&mut stop_signals).await;
        };
        let cut = tokio::select! {
            biased;
            () = self.server.ended() => None,
            () = another_stop => Some("another stop signal"),
            () = sleep_until(deadline) => Some("server.drain_timeout has passed"),
            () = self.take_steps(handover.as_mut()) => None,
        };
        if let Some(why) = cut {
            tracing::warn!(connections = self.server.connections(), "{why}; these connections are cut");
        }
        let (gateway, writes_ended) = (&self.gateway, self.gateway.end_writes());
        if let Some(handover) = handover.as_mut().filter(|_| writes_ended) {
            handover.done(gateway.unsettled_for());
        }
        // Where a write is still under way, the others are to take this node for one that ended without a word.
        if let Some(peers) = gateway.peers().filter(|_| writes_ended) {
            peers.bus.leave().await;
        }
        if let Some(store) = &self.store {
            let left = deadline.saturating_duration_since(Instant::now());
            gateway.finish_usage(store, left.clamp(LAST_COUNTS_AT_LEAST, LAST_COUNTS)).await;
        }
        if let Some(limits) = gateway.shared_limits() {
            limits.leave().await;
        }
        if let Some(admin) = self.admin {
            admin.stop().await;
        }
        self.logs.close(CLOSE_TIMEOUT);
    }

    /// Takes the steps of a drain, each at its time, and then waits for ever. `handover`: that to the process that has taken
    /// over.
    async fn take_steps(&self, handover: Option<&mut HandoverTask>) {
        sleep(IDLE_TIME).await;
        self.server.close_idle();
        sleep(LAST_WRITES).await;
        if let Some(handover) = handover {
            self.gateway.writes_ended().await;
            handover.done(self.gateway.unsettled_for());
        }
        pending().await
    }
}
