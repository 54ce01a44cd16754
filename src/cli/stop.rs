//! How a running server hears that it is to stop, and how it does.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::handover::Attended;
use crate::edge::{Draining, Guests, Server};
use crate::telemetry::DecisionLog;

/// How often, while draining, the connections left are counted.
const DRAIN_LOOK: Duration = Duration::from_millis(5);

/// How long connections stay that idle when the process is stopped: those in use learn from an
/// answer that it is their last, and a request that is on its way arrives.
const IDLE_AT_STOP: Duration = Duration::from_secs(1);

/// And where another process has taken over, of `server.drain_timeout`: the rest is for requests that
/// came at the last moment.
const IDLE_OF_DRAIN: f64 = 0.9;

/// How long a process that has handed over keeps the record of decisions: until connections in use
/// have had their last answer. The other one holds its own decisions meanwhile.
const RECORD_KEPT: Duration = Duration::from_millis(500);

/// What a signal asks for.
enum Heard {
    Stop,
    Reload,
}

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// What is heard of SIGHUP, from now on.
    pub(super) fn hear_reload() -> io::Result<Signal> {
        signal(SignalKind::hangup())
    }

    /// And of those that say stop.
    pub(super) fn hear(hang_up: Signal) -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up,
        })
    }

    /// Waits for one that says stop.
    pub(super) async fn stop(&mut self) {
        self.stop_or(&|| ()).await;
    }

    /// Waits for one that says stop; `hang_up` is called at each SIGHUP until then.
    pub(super) async fn stop_or(&mut self, hang_up: &dyn Fn()) {
        while let Heard::Reload = self.next().await {
            hang_up();
        }
    }

    async fn next(&mut self) -> Heard {
        tokio::select! {
            _ = self.terminate.recv() => Heard::Stop,
            _ = self.interrupt.recv() => Heard::Stop,
            _ = self.hang_up.recv() => Heard::Reload,
        }
    }
}

/// How the wait ended.
pub(super) enum Drained {
    /// Every connection is gone.
    Whole,
    /// The time was over.
    Late { connections: usize },
    /// A signal said now.
    CutShort { connections: usize },
}

/// What is waited for once no new connections are accepted.
pub(super) struct Drain<'s> {
    pub(super) running: &'s Server,
    pub(super) guests: &'s Guests,
    pub(super) draining: &'s Draining,
    /// Where another process serves the addresses.
    pub(super) handed_over: Option<&'s Attended>,
    /// The record that another process waits for. What is decided after it is closed is not in it.
    pub(super) decisions: Option<&'s Arc<DecisionLog>>,
}

impl Drain<'_> {
    /// Waits until every connection is gone, or the time is over, or a signal says now. `hang_up` is called at each
    /// SIGHUP meanwhile.
    pub(super) async fn run(&self, end: Instant, signals: &mut Signals, hang_up: &dyn Fn()) -> Drained {
        let left = end.saturating_duration_since(Instant::now());
        // Where another process serves, nothing is gained by leaving callers in the lurch.
        let patience = if self.handed_over.is_some() { left.mul_f64(IDLE_OF_DRAIN) } else { IDLE_AT_STOP.min(left) };
        let mut end_idle = Instant::now() + patience;
        let mut close_record = self.decisions.map(|decisions| (Instant::now() + RECORD_KEPT, decisions.clone()));
        // Who has handed over was not told to stop yet.
        let mut stops_left = if self.handed_over.is_some() { 2 } else { 1 };
        loop {
            tokio::select! {
                () = tokio::time::sleep(DRAIN_LOOK) => {}
                () = signals.stop_or(hang_up) => {
                    stops_left -= 1;
                    // Theirs may be on the way, as at any stop.
                    end_idle = end_idle.min(Instant::now() + IDLE_AT_STOP);
                }
            }
            if Instant::now() >= end_idle {
                self.draining.end_idle();
            }
            if let Some((_, decisions)) = close_record.take_if(|(due, _)| Instant::now() >= *due) {
                tokio::task::spawn_blocking(move || decisions.close());
            }
            if self.running.is_over() && self.handed_over.is_none_or(Attended::is_last_of_its_line) {
                return Drained::Whole;
            }
            let connections = self.guests.here();
            if stops_left == 0 {
                return Drained::CutShort { connections };
            }
            if Instant::now() >= end {
                return Drained::Late { connections };
            }
        }
    }
}
