//! A server from its ready lines to its end: it serves until it is told to stop, or another process has its place, and
//! finishes what is under way. Files are followed all the while.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Failure;
use super::background::{Background, LAST_ANSWERS};
use super::error::CommandError;
use super::handover::{Attended, Ended};
use super::manager;
use super::reload::Reloader;
use super::stop::{Drain, Drained, Signals};
use crate::edge::{Draining, Guests, Server};
use crate::gateway::Told;
use crate::telemetry::{AccessLog, DecisionLog};

/// How long the stop waits, within `server.drain_timeout`, for the day's last counts and the last uses
/// of keys to be written down: longer than the 2 s for which a write waits for another process's lock.
const LAST_NOTES: Duration = Duration::from_millis(2500);

/// The least that they are given, where the connections took all of `server.drain_timeout`.
const LAST_NOTES_LEAST: Duration = Duration::from_millis(500);

/// A server that has said that it is ready.
pub(super) struct Serving {
    pub(super) reloader: Arc<Reloader>,
    /// A demo is its own configuration; the file would make something else of it.
    pub(super) is_demo: bool,
    pub(super) signals: Signals,
    pub(super) place: Option<Attended>,
    pub(super) background: Option<Background>,
    pub(super) running: Server,
    pub(super) guests: Arc<Guests>,
    pub(super) draining: Arc<Draining>,
    pub(super) access: Option<Arc<AccessLog>>,
    pub(super) decisions: Option<Arc<DecisionLog>>,
    pub(super) told: Arc<Mutex<Told>>,
}

impl Serving {
    /// Serves until it is told to stop, or has handed over, and until the last request is answered.
    pub(super) async fn run(mut self) -> Result<(), Failure> {
        let reloader = self.reloader.clone();
        let files = (!self.is_demo).then(|| reloader.run());
        let followed = async {
            match files {
                Some(files) => files.await,
                None => pending().await,
            }
        };
        tokio::select! {
            ended = self.until_the_end() => ended,
            // Until the process ends: a key that is taken away stops, however long the callers of a server that is
            // told to stop may stay. A file that takes for ever to be read holds no stop up.
            never = followed => match never {},
        }
    }

    async fn until_the_end(&mut self) -> Result<(), Failure> {
        let ended = self.ended().await;
        // Another process serves the addresses, be it the one after or the one before.
        let handed_over = matches!(ended, Some(Ended::HandedOver { .. } | Ended::Withdrawn { .. }));
        if !handed_over && let Some(place) = &mut self.place {
            place.close().await;
        }
        self.tell(ended.as_ref());
        let is_broken = matches!(ended, Some(Ended::Broken { .. }));
        self.finish(handed_over, is_broken).await;
        match ended {
            Some(Ended::Withdrawn { why }) => Err(CommandError::new(why).into()),
            Some(Ended::Broken { what }) => Err(CommandError::new(format!(
                "{what} by a defect, which the log names; please report it. Start the server again, as a service manager \
                 does by itself"
            ))
            .into()),
            Some(Ended::HandedOver { .. }) | None => Ok(()),
        }
    }

    /// Waits until it is to end; `None`: by a signal.
    async fn ended(&mut self) -> Option<Ended> {
        let Serving { reloader, is_demo, signals, place, background, access, decisions, .. } = self;
        let hang_up = &hang_up(reloader, *is_demo, access.as_ref(), decisions.as_ref());
        let moved = async {
            match place {
                Some(place) => place.ended().await,
                None => pending().await,
            }
        };
        let broken = async {
            match background {
                Some(background) => background.ended().await,
                None => pending().await,
            }
        };
        tokio::select! {
            // Who has handed over is not to be taken for one that was stopped.
            biased;
            ended = moved => Some(ended),
            what = broken => Some(Ended::Broken { what }),
            () = signals.stop_or(hang_up) => None,
        }
    }

    fn tell(&self, ended: Option<&Ended>) {
        let connections = self.guests.here();
        match ended {
            Some(Ended::HandedOver { to }) => {
                tracing::info!(to, connections, "handed over: requests under way here are finished");
            }
            Some(Ended::Withdrawn { why }) => {
                tracing::error!(connections, "{why}; requests under way are finished");
            }
            Some(Ended::Broken { what }) => {
                manager::stopping();
                tracing::error!(connections, "{what} by a defect; the process ends now, with exit code 1");
            }
            None => {
                manager::stopping();
                tracing::info!(connections, "stopping: requests under way are finished");
            }
        }
    }

    /// Finishes what is under way, and writes down what is known here only.
    async fn finish(&mut self, handed_over: bool, is_broken: bool) {
        let Serving { reloader, is_demo, signals, place, running, guests, draining, access, decisions, told, .. } =
            self;
        let drain_timeout = reloader.gateway.state().config.server.drain_timeout;
        let drain = Drain {
            running,
            guests,
            draining,
            handed_over: place.as_ref().filter(|_| handed_over),
            decisions: decisions.as_ref().filter(|_| handed_over),
        };
        draining.begin(handed_over);
        running.stop();
        let end = Instant::now() + if is_broken { drain_timeout.min(LAST_ANSWERS) } else { drain_timeout };
        let hang_up = &hang_up(reloader, *is_demo, access.as_ref(), decisions.as_ref());
        match drain.run(end, signals, hang_up).await {
            Drained::Whole => {}
            Drained::Late { connections: 0 } => {
                tracing::warn!(
                    "server.drain_timeout is over, and the process before this one is still there; it begins no more writes"
                );
            }
            Drained::Late { connections } => {
                tracing::warn!(connections, "server.drain_timeout is over; these connections are cut");
            }
            Drained::CutShort { connections } => {
                tracing::warn!(connections, "told to stop again; these connections are cut")
            }
        }
        reloader.gateway.tell_limits_now(&mut told.lock());
        if let Some(store) = reloader.store.as_ref().filter(|_| !is_broken) {
            let left = end.saturating_duration_since(Instant::now());
            reloader.gateway.last_notes(store, left.clamp(LAST_NOTES_LEAST, LAST_NOTES)).await;
        }
        if let Some(decisions) = &*decisions {
            decisions.close();
        }
        if let Some(access) = &*access {
            access.close();
        }
    }
}

/// What SIGHUP asks for: everything is read again, and logs that were moved away are begun anew.
fn hang_up(
    reloader: &Reloader,
    is_demo: bool,
    access: Option<&Arc<AccessLog>>,
    decisions: Option<&Arc<DecisionLog>>,
) -> impl Fn() {
    move || {
        if !is_demo {
            access.iter().for_each(|access| access.reopen());
            decisions.iter().for_each(|decisions| decisions.reopen());
            reloader.request();
        }
    }
}
