//! Reloads files while serving. `gateway.toml`, the key file and the TLS pair are each put in force as a whole or not
//! at all, and each by itself, so that a fault in one delays no other (contract section 3, the last paragraph). The
//! swap itself is `Gateway::reload`.

mod certificate; // the TLS pair
mod config; // gateway.toml
mod keys; // the key file
mod watches; // which files are watched

use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::logs::Logs;
use super::preflight::UnusableInputs;
use super::watch::{CHECK_INTERVAL, FileStates, FileWatch, SETTLE_TIME, look_at, tell_when_to_check};
use crate::admin::{ProcessState, ReloadOutcome, ReloadRequest};
use crate::edge::Tls;
use crate::files::FileState;
use crate::gateway::Gateway;
use crate::store::AnyStore;
use crate::tls::Certificate;

pub(super) use config::InForce;
pub(super) use watches::{Watches, config_file};

/// How long reading files may take. A pipe without a writer, or a file system whose server is away, must not prevent
/// later reloads. The largest key file takes a second or two.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

const TAKES_TOO_LONG: &str = "reading the files takes too long; is one of them a pipe, or on a file system that hangs?";

/// How long a requested reload waits until files that change stay the same, and how often it looks. Whoever asks for one with
/// each change must not be the reason that none is taken up.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Pause before files are read again that could not be read. A key that was revoked in one of them counts on it.
const READ_AGAIN: Duration = Duration::from_millis(250);

/// What is reloaded by itself, for admins: the file, or the setting that names it.
const CONFIG_FILE: &str = "gateway.toml";
const KEY_FILE: &str = "keys.file";
const TLS_PAIR: &str = "server.tls";

/// Reloads files that change, and all of them at a SIGHUP.
#[derive(Debug)]
pub(super) struct Reloader {
    gateway: Arc<Gateway>,
    store: Option<Arc<AnyStore>>,
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
    /// Locked while the key file is reloaded, so that what is read later is put in force later. When that last waited in vain for
    /// the reload of `gateway.toml`.
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
        store: Option<Arc<AnyStore>>,
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
        let mut in_force = match part {
            Part::Config => Some(self.in_force.lock().await),
            Part::Keys | Part::Certificate => None,
        };
        let looked = match requested {
            true => self.look_when_settled(watch).await,
            false => Ok(()), // it was just done
        };
        let outcome = match part {
            _ if let Err(rejection) = &looked => {
                tracing::error!(name, "reload rejected: {}", rejection.reason);
                Some(rejection.outcome())
            }
            _ if let Some(in_force) = &mut in_force => self.reload_config(requested, in_force).await,
            Part::Certificate => self.reload_certificate(requested).await,
            _ => self.reload_keys(requested).await,
        };
        drop(in_force);
        self.reloads.send_replace(());
        outcome.map_or_else(ReloadOutcome::default, |mut outcome| {
            if !outcome.faults.is_empty() {
                outcome.rejected.push(name);
            }
            self.admin.reloads.record(self.gateway.clock().unix(), name, &outcome);
            outcome
        })
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
                    () = sleep(CHECK_INTERVAL), if has_unsettled => {}
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
                    let mut watch = watch.lock();
                    if !watch.has_changed(&states, Instant::now()) {
                        if let Some(file) = watch.take_empty(Instant::now()) {
                            let file = file.display();
                            tracing::warn!(%file, "reload waits: the file is empty; write it, or send SIGHUP to read it");
                        }
                        continue;
                    }
                    false
                }
            };
            if self.reload(watch, part, requested).await.is_unread {
                sleep(READ_AGAIN).await;
                watch.lock().forget_read();
            }
        }
    }

    /// Looks at the files of a part that are to be read, though they may be the same or empty. Those that have changed must
    /// have stayed the same for a while.
    async fn look_when_settled(&self, watch: &Mutex<FileWatch>) -> Result<(), Rejection> {
        let look = async || {
            let looked = timeout(READ_TIMEOUT, self.look(watch)).await;
            looked.map_err(|_| Rejection { reason: TAKES_TOO_LONG.to_owned(), is_unread: true })
        };
        let mut states = look().await?;
        let begun = Instant::now();
        let mut settles = changed_file(&watch.lock().read(), &states).map(|_| begun + SETTLE_TIME);
        while settles.is_some_and(|settles| Instant::now() < settles) {
            sleep(LOOK_EVERY).await;
            let before = std::mem::replace(&mut states, look().await?);
            match changed_file(&before, &states) {
                Some(file) if begun.elapsed() > SETTLES_WITHIN => return Err(is_being_written(file)),
                Some(_) => settles = Some(Instant::now() + SETTLE_TIME),
                None => {}
            }
        }
        watch.lock().reset(states);
        Ok(())
    }

    /// Looks at the files of a part on another thread, because this may take for ever; that delays this part alone. If
    /// the part has other files meanwhile, it looks at those; and it looks again after a while, since the file that hangs may
    /// have been replaced.
    async fn look(&self, watch: &Mutex<FileWatch>) -> FileStates {
        loop {
            let (paths, retry_after, reader) = {
                let watch = watch.lock();
                (Vec::from_iter(watch.paths()), watch.retry_after(), watch.reader())
            };
            if paths.is_empty() {
                return Vec::new(); // no thread is woken for them
            }
            let these = paths.clone();
            let mut looking = pin!(async {
                let reader = reader.await;
                let look = move || {
                    let _reader = reader;
                    look_at(these)
                };
                spawn_blocking(look).await
            });
            let begin = Instant::now();
            while watch.lock().paths().eq(paths.iter().cloned()) {
                if let Ok(states) = timeout(SETTLE_TIME, &mut looking).await {
                    return states.unwrap_or_default();
                }
                if begin.elapsed() >= retry_after {
                    watch.lock().drop_others();
                    break;
                }
            }
        }
    }

    /// Reads files of a part on another thread, so that a disk that does not respond delays nothing else. If that takes too
    /// long, they are read again as soon as it has ended, or after a while, since a key may have been revoked in them.
    async fn read_files<T: Send + 'static>(
        &self,
        watch: &Mutex<FileWatch>,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Rejection> {
        let reader = watch.lock().reader();
        let reader = timeout(READ_TIMEOUT, reader).await;
        let reader = reader.map_err(|_| Rejection { reason: TAKES_TOO_LONG.to_owned(), is_unread: true })?;
        let mut reading = spawn_blocking(move || {
            let _reader = reader;
            read()
        });
        match timeout(READ_TIMEOUT, &mut reading).await {
            Ok(read) => read.map_err(|e| format!("reading the files failed: {e}").into()),
            Err(_) => {
                let (retry_after, reads_again) = {
                    let watch = watch.lock();
                    (watch.retry_after(), watch.reads_again())
                };
                tokio::spawn(async move {
                    let _ = timeout(retry_after, reading).await; // what it read may be old by now
                    reads_again.notify_one();
                });
                Err(TAKES_TOO_LONG.to_owned().into())
            }
        }
    }

    /// Reads these files as a whole: refuses what was read of them if one changed meanwhile, or since it stayed the same, since
    /// what is written in place may lack its end. A file that is missing is read once it is back, as `watch` notices.
    async fn read_whole<T: Send + 'static>(
        &self,
        watch: &Mutex<FileWatch>,
        files: Vec<PathBuf>,
        read: impl FnOnce() -> Result<T, Rejection> + Send + 'static,
    ) -> Result<T, Rejection> {
        let settled = watch.lock().read();
        let read = move || {
            let before = look_at(files.clone());
            if let Some(file) = changed_file(&settled, &before) {
                return (Err(is_being_written(file)), Vec::new());
            }
            let read = read();
            let after = look_at(files);
            match changed_file(&before, &after) {
                None => (read, after),
                Some(file) => (Err(is_being_written(file)), Vec::new()),
            }
        };
        let (mut read, states) = self.read_files(watch, read).await?;
        let missing: FileStates = states.into_iter().filter(|(_, state)| state.is_none()).collect();
        if let (Err(rejection), false) = (&mut read, missing.is_empty()) {
            rejection.is_unread = false;
            watch.lock().reset(missing);
        }
        read
    }

    /// A line for each of these files, which `watch` watches, that is missing. Its removal is logged once, until the file is
    /// back. Where looking takes too long none is missing; the read that follows then tells.
    async fn missing_lines(&self, watch: &Mutex<FileWatch>, files: Vec<PathBuf>, requested: bool) -> String {
        let is_missing = |path: &PathBuf| path.metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        let look = move || files.into_iter().map(|path| (is_missing(&path), path)).collect::<Vec<_>>();
        let looked = self.read_files(watch, look).await.unwrap_or_default();
        let (mut missing, mut lines) = (self.missing.lock(), String::new());
        for (is_missing, path) in looked {
            if !is_missing {
                missing.remove(&path);
                continue;
            }
            lines += &missing_line(&path);
            // It may be back at once, the same as before.
            watch.lock().reset(vec![(path.clone(), None)]);
            let file = path.display();
            if missing.insert(path.clone()) {
                tracing::error!(%file, "a file was removed; what was read from it stays in force until it is back");
            } else if requested {
                tracing::info!(%file, "not reloaded: the file is still missing");
            }
        }
        lines
    }
}

/// Why a reload was rejected.
#[derive(Debug)]
struct Rejection {
    /// A line for each fault.
    reason: String,
    /// A file or the store could not be read, which may pass by itself. The file is read again soon.
    is_unread: bool,
}

impl From<UnusableInputs> for Rejection {
    fn from(UnusableInputs { reason, is_unread }: UnusableInputs) -> Self {
        Rejection { reason, is_unread }
    }
}

impl From<String> for Rejection {
    fn from(reason: String) -> Self {
        Rejection { reason, is_unread: false }
    }
}

impl Rejection {
    fn outcome(&self) -> ReloadOutcome {
        ReloadOutcome { is_unread: self.is_unread, ..ReloadOutcome::rejected(&self.reason) }
    }
}

/// The first file that is in another state in `after` than in `before`, of those that are in both.
fn changed_file<'s>(before: &FileStates, after: &'s FileStates) -> Option<&'s Path> {
    let is_same = |before: &Option<FileState>, after: &Option<FileState>| match (before, after) {
        (Some(before), Some(after)) => after.is_as_before(before),
        (before, after) => before.is_none() && after.is_none(),
    };
    let state_before = |path: &Path| before.iter().find(|(of, _)| of == path);
    let changed = |(path, after): &&(PathBuf, _)| state_before(path).is_some_and(|(_, before)| !is_same(before, after));
    after.iter().find(changed).map(|(path, _)| &**path)
}

fn is_being_written(file: &Path) -> Rejection {
    let reason = format!("{} is still being written; it is read when it stays the same", file.display());
    Rejection { reason, is_unread: true } // it may soon be in the state that was read last
}

fn missing_line(path: &Path) -> String {
    format!("{} is missing; what was read from it stays in force\n", path.display())
}

fn log_warning(certificate: Option<&Certificate>) {
    if let Some(warning) = certificate.and_then(|certificate| certificate.warning.as_ref()) {
        tracing::warn!("{warning}");
    }
}
