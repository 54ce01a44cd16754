//! Reloads files while serving. `gateway.toml`, the key file and the TLS pair are each put in force as a whole or not
//! at all, and each by itself, so that a fault in one delays no other (contract section 3, the last paragraph). The
//! swap itself is `Gateway::reload`.

mod certificate; // the TLS pair
mod config; // gateway.toml
mod files; // looks at files, and reads them as a whole
mod keys; // the key file
mod watches; // which files are watched

use std::collections::HashSet;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use self::files::{LOOK_EVERY, Rejection};
use super::logs::Logs;
use super::watch::{FileWatch, tell_when_to_check};
use crate::admin::{ProcessState, ReloadOutcome, ReloadRequest};
use crate::edge::Tls;
use crate::gateway::Gateway;
use crate::store::Store;
use crate::tls::Certificate;

pub(super) use config::InForce;
pub(super) use watches::{Watches, config_file};

/// What is reloaded by itself, for admins: the file, or the setting that names it.
const CONFIG_FILE: &str = "gateway.toml";
const KEY_FILE: &str = "keys.file";
const TLS_PAIR: &str = "server.tls";

/// Reloads files that change, and all of them at a SIGHUP.
#[derive(Debug)]
pub(super) struct Reloader {
    gateway: Arc<Gateway>,
    store: Option<Arc<Store>>,
    tls: Option<Arc<Tls>>,
    logs: Logs,
    watches: Watches,
    /// Requests to read everything again.
    requests: watch::Sender<()>,
    /// Files may have changed.
    checks: watch::Sender<()>,
    /// A part was reloaded, or its reload was rejected.
    reloads: watch::Sender<()>,
    /// Locked while `gateway.toml` is reloaded, which begins with its staying the same if it is asked for.
    in_force: tokio::sync::Mutex<InForce>,
    /// Missing files, each of which was logged.
    missing: Mutex<HashSet<PathBuf>>,
    /// Locked while the key file is reloaded, so that what is read later is put in force later. When that last waited for the
    /// reload of `gateway.toml`.
    keys_lock: tokio::sync::Mutex<Option<Instant>>,
    /// Locked while the TLS pair is reloaded, for the same reason.
    certificate_lock: tokio::sync::Mutex<()>,
    /// Shows the configuration in force to admins.
    admin: Arc<ProcessState>,
    /// Reloads that admins ask for.
    admin_requests: tokio::sync::Mutex<mpsc::Receiver<ReloadRequest>>,
}

/// What is reloaded by itself, as a whole or not at all.
#[derive(Clone, Copy, Debug)]
enum Part {
    Config,
    Keys,
    Certificate,
}

impl Reloader {
    /// For a gateway that was just started.
    pub(super) fn new(
        gateway: Arc<Gateway>,
        store: Option<Arc<Store>>,
        tls: Option<Arc<Tls>>,
        logs: Logs,
        in_force: InForce,
        watches: Watches,
        (admin, admin_requests): (Arc<ProcessState>, mpsc::Receiver<ReloadRequest>),
    ) -> Self {
        Reloader {
            gateway,
            store,
            tls,
            logs,
            watches,
            requests: watch::Sender::new(()),
            checks: watch::Sender::new(()),
            reloads: watch::Sender::new(()),
            in_force: tokio::sync::Mutex::new(in_force),
            missing: Mutex::default(),
            keys_lock: tokio::sync::Mutex::default(),
            certificate_lock: tokio::sync::Mutex::default(),
            admin,
            admin_requests: tokio::sync::Mutex::new(admin_requests),
        }
    }

    /// Reloads each file that changes, for ever. At a SIGHUP it reloads all of them and reopens the logs.
    pub(super) async fn run(self, mut sighup: Signal) -> Infallible {
        let requests = || self.requests.subscribe();
        let config = self.reload_on_change(&self.watches.config, requests(), Part::Config);
        let keys = self.reload_on_change(&self.watches.keys, requests(), Part::Keys);
        let certificate = self.reload_on_change(&self.watches.certificate, requests(), Part::Certificate);
        let signals = async {
            loop {
                sighup.recv().await;
                self.logs.reopen();
                self.requests.send_replace(());
            }
        };
        let checks = tell_when_to_check(&self.checks, || self.watches.paths(), self.reloads.subscribe());
        tokio::join!(config, keys, certificate, signals, checks, self.answer_admins()).0
    }

    /// Reloads all files whenever an admin asks for it.
    async fn answer_admins(&self) -> Infallible {
        let mut requests = self.admin_requests.lock().await;
        while let Some(ReloadRequest(answer)) = requests.recv().await {
            let mut outcome = ReloadOutcome::default();
            for (watch, part) in [
                (&self.watches.config, Part::Config),
                (&self.watches.keys, Part::Keys),
                (&self.watches.certificate, Part::Certificate),
            ] {
                let ReloadOutcome { changed, after_restart, rejected, faults, is_unread, .. } =
                    self.reload(watch, part, true).await;
                if is_unread {
                    watch.lock().forget_read();
                    self.checks.send_replace(());
                }
                outcome.changed.extend(changed);
                outcome.after_restart.extend(after_restart);
                outcome.rejected.extend(rejected);
                outcome.faults.extend(faults);
            }
            let _ = answer.send(outcome); // it may not be waited for any more
        }
        std::future::pending().await
    }

    /// Reloads a part, if there is one, and remembers for admins what became of it. `requested`: its files may be the
    /// same.
    async fn reload(&self, watch: &Mutex<FileWatch>, part: Part, requested: bool) -> ReloadOutcome {
        let name = match part {
            Part::Config => CONFIG_FILE,
            Part::Keys => KEY_FILE,
            Part::Certificate => TLS_PAIR,
        };
        let outcome = self.reload_part(watch, part, requested).await.unwrap_or_else(|rejection| {
            tracing::error!(name, "reload rejected: {}", rejection.reason);
            Some(rejection.outcome())
        });
        self.reloads.send_replace(());
        outcome.map_or_else(ReloadOutcome::default, |mut outcome| {
            if !outcome.faults.is_empty() {
                outcome.rejected.push(name);
            }
            self.admin.reloads.record(self.gateway.clock().unix(), name, &outcome);
            outcome
        })
    }

    /// Reloads a part. If it is `requested`, its files must stay the same first.
    async fn reload_part(
        &self,
        watch: &Mutex<FileWatch>,
        part: Part,
        requested: bool,
    ) -> Result<Option<ReloadOutcome>, Rejection> {
        let settled = async || match requested {
            true => self.look_when_settled(watch).await,
            false => Ok(()), // it was just done
        };
        match part {
            Part::Config => {
                let mut in_force = self.in_force.lock().await;
                settled().await?;
                Ok(self.reload_config(requested, &mut in_force).await)
            }
            Part::Keys => {
                settled().await?;
                Ok(self.reload_keys(requested).await)
            }
            Part::Certificate => {
                settled().await?;
                Ok(self.reload_certificate(requested).await)
            }
        }
    }

    /// Reloads a part when its files change and on each request.
    async fn reload_on_change(
        &self,
        watch: &Mutex<FileWatch>,
        mut requests: watch::Receiver<()>,
        part: Part,
    ) -> Infallible {
        let mut checks = self.checks.subscribe();
        checks.mark_changed();
        loop {
            let (has_unsettled, reads_again) = {
                let watch = watch.lock();
                (watch.has_unsettled(), watch.reads_again())
            };
            let next_check = async {
                tokio::select! {
                    _ = checks.changed() => {} // its sender is in `self`
                    () = reads_again.notified() => watch.lock().forget_read(),
                    () = sleep(LOOK_EVERY), if has_unsettled => {}
                }
            };
            let looked = async {
                next_check.await;
                self.look(watch).await
            };
            // Files are read after a look at them, so a change during the read is found by the next check.
            let requested = tokio::select! {
                biased;
                Ok(()) = requests.changed() => true,
                states = looked => {
                    let has_changed = watch.lock().has_changed(&states, Instant::now());
                    if !has_changed {
                        self.tell_what_waits(watch).await;
                        continue;
                    }
                    false
                }
            };
            if self.reload(watch, part, requested).await.is_unread {
                watch.lock().forget_read(); // a key may have been revoked in it
            }
        }
    }

    /// Logs which file is empty, so that a reload waits for it, and which were removed meanwhile.
    async fn tell_what_waits(&self, watch: &Mutex<FileWatch>) {
        let (empty, removed) = {
            let mut watch = watch.lock();
            (watch.take_empty(Instant::now()), watch.take_removed())
        };
        if let Some(file) = empty {
            let file = file.display();
            tracing::warn!(%file, "reload waits: the file is empty; write it, or send SIGHUP to read it");
        }
        if !removed.is_empty() {
            self.missing_lines(watch, removed, false).await;
        }
    }
}

fn log_warning(certificate: Option<&Certificate>) {
    if let Some(warning) = certificate.and_then(|certificate| certificate.warning.as_ref()) {
        tracing::warn!("{warning}");
    }
}
