//! Reloads files while serving. `gateway.toml`, the key file and the TLS pair are each put in force as a whole or not
//! at all, and each by itself, so that a fault in one delays no other (contract section 3, the last paragraph). One task
//! looks at all files four times a second; the swap itself is `Gateway::reload`.

mod parts; // reads the parts, and puts them in force
mod prepare; // what gateway.toml has to wait for
mod tell; // what became of each part

use std::cell::Cell;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

use self::prepare::Prepared;
use self::tell::in_one_line;
use super::logs::Logs;
use super::watch::{States, TICK, Watch, look};
use crate::admin::{ProcessState, ReloadFault, ReloadOutcome, ReloadRequest};
use crate::clock::AlignedTimer;
use crate::config::{self, Config, Keys, OriginKind, SettingFault};
use crate::edge::Tls;
use crate::gateway::Gateway;
use crate::store::Store;

/// A part that was rejected is tried again each second: a disk may be back, or another file may fit it by now.
const RETRY_TICKS: u32 = 4;

/// How long a reload that is asked for waits until files that change stand still. Whoever writes them again and again
/// must not be the reason that none is taken up.
const ASKED_TICKS: u32 = 8;

/// After how long the log says that files cannot be read. The largest key file takes 2 to 3 s.
const HANGS_AFTER: Duration = Duration::from_secs(5);

/// What is reloaded by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// `gateway.toml` with the TLS files of upstreams.
    Config,
    Keys,
    Certificate,
}

impl Part {
    const ALL: [Part; 3] = [Part::Config, Part::Keys, Part::Certificate];

    /// The file, or the setting that names it, as admins see it.
    fn name(self) -> &'static str {
        ["gateway.toml", "keys.file", "server.tls"][self as usize]
    }

    /// Its files that a configuration names.
    fn files(self, config: &Config) -> Vec<PathBuf> {
        match (self, &config.origin.kind, &config.keys) {
            (Part::Config, OriginKind::Http(upstreams), _) => upstreams.tls.files().cloned().collect(),
            (Part::Keys, _, Keys::File(path)) => vec![path.clone()],
            (Part::Certificate, ..) => {
                config.server.tls.iter().flat_map(|tls| [tls.certificate.clone(), tls.private_key.clone()]).collect()
            }
            (Part::Config | Part::Keys, ..) => Vec::new(),
        }
    }
}

/// How the files of a configuration are now, before they are read.
pub(super) fn look_at_files(config: &Config) -> States {
    look(Part::ALL.map(|part| part.files(config)).concat())
}

/// The configuration file that the command line gives, or the default one.
pub(super) fn config_file(config_path: Option<&Path>) -> PathBuf {
    config_path.unwrap_or(Path::new(config::DEFAULT_FILE)).to_owned()
}

/// What is known of a part.
#[derive(Debug, Default)]
struct PartState {
    /// Why it was rejected when it was read last; empty where it was not.
    faults: Vec<ReloadFault>,
    /// A reload of it was asked for, and has not been made.
    is_asked: bool,
}

/// A reload that was asked for.
#[derive(Debug, Default)]
struct Asked {
    /// When it was asked for, in Unix milliseconds: a file that is emptied later is being written.
    at: i64,
    answers: Vec<oneshot::Sender<ReloadOutcome>>,
    /// What became of it so far.
    outcome: ReloadOutcome,
    /// For how many ticks it goes on waiting for files that change.
    ticks_left: u32,
}

/// What is known of the configuration in force.
#[derive(Debug)]
pub(super) struct InForce {
    /// `gateway.toml`.
    pub(super) file: PathBuf,
    /// Whether it came from that file; otherwise it is the defaults.
    pub(super) has_file: bool,
    /// Its warnings, which were logged.
    pub(super) warnings: Vec<SettingFault>,
}

/// Reloads files that change, and all of them at a SIGHUP or for an admin.
#[derive(Debug)]
pub(super) struct Reloader {
    gateway: Arc<Gateway>,
    store: Option<Arc<Store>>,
    tls: Option<Arc<Tls>>,
    logs: Logs,
    in_force: InForce,
    watch: Watch,
    /// The files that the last `gateway.toml` names, unless it is in force.
    named: Vec<PathBuf>,
    /// What `gateway.toml` waits for.
    preparing: Option<JoinHandle<Result<Prepared, String>>>,
    parts: [PartState; 3],
    asked: Asked,
    requests: mpsc::Receiver<ReloadRequest>,
    /// Shows the configuration in force to admins.
    admin: Arc<ProcessState>,
}

impl Reloader {
    /// For a gateway that is being started. `looked`: how its files were before they were read.
    pub(super) fn new(
        gateway: Arc<Gateway>,
        store: Option<Arc<Store>>,
        tls: Option<Arc<Tls>>,
        logs: Logs,
        (in_force, looked): (InForce, States),
        (admin, requests): (Arc<ProcessState>, mpsc::Receiver<ReloadRequest>),
    ) -> Self {
        let watch = Watch::new(looked);
        let (named, preparing, parts, asked) = Default::default();
        Reloader { gateway, store, tls, logs, in_force, watch, named, preparing, parts, asked, requests, admin }
    }

    /// Takes up what has changed since the start read it: a key that was removed from its file meanwhile is not to be
    /// accepted again (guarantee 7).
    ///
    /// # Errors
    /// Why this process must not take over from another one, which has other files in force.
    pub(super) async fn catch_up(&mut self) -> Result<(), String> {
        for _ in 0..ASKED_TICKS {
            self.tick(false).await;
            if !self.watch.is_behind() {
                break;
            }
            sleep(TICK).await;
        }
        let rejected = self.parts.iter().find(|part| !part.faults.is_empty());
        let fault = rejected
            .map(|part| in_one_line(&part.faults))
            .or_else(|| self.watch.is_behind().then(|| "it is empty, or being written".to_owned()));
        fault.map_or(Ok(()), |why| Err(format!("a file has changed since this start began: {why}")))
    }

    /// Reloads each file that changes, for ever. At a SIGHUP it reloads all of them and reopens the logs.
    pub(super) async fn run(mut self, mut sighup: Signal) -> Infallible {
        let (logs, is_signalled) = (self.logs.clone(), Cell::new(false));
        let signals = async {
            loop {
                sighup.recv().await;
                logs.reopen(); // although another disk may hang
                is_signalled.set(true);
            }
        };
        let ticks = async {
            let (timer, mut tick) = (AlignedTimer::new(), 0_u32);
            loop {
                timer.next_multiple_of(TICK).await;
                tick = tick.wrapping_add(1);
                self.take_requests(is_signalled.take());
                self.tick(tick.is_multiple_of(RETRY_TICKS)).await;
                self.answer_requests();
            }
        };
        tokio::join!(signals, ticks).0
    }

    /// Looks at all files, and reloads the parts that are due. `retries`: those with a fault are, too.
    async fn tick(&mut self, retries: bool) {
        let paths = Part::ALL.map(|part| self.files(part)).concat();
        let Some(states) = on_thread(move || look(paths)).await else { return };
        for file in self.watch.looked(states) {
            let file = file.display();
            tracing::warn!(%file, "reload waits: the file is empty; write it, or send SIGHUP to read it");
        }
        let prepared = match self.preparing.take_if(|preparing| preparing.is_finished()) {
            Some(preparing) => preparing.await.ok(),
            None => None,
        };
        let parts = Part::ALL.map(|part| self.is_due(part, retries));
        if parts.contains(&true) {
            self.reload(parts, prepared).await;
        }
    }

    /// The files that are read for a part.
    fn files(&self, part: Part) -> Vec<PathBuf> {
        let files = part.files(&self.gateway.state().config);
        match part {
            Part::Config => [vec![self.in_force.file.clone()], files, self.named.clone()].concat(),
            Part::Keys | Part::Certificate => files,
        }
    }

    fn is_due(&mut self, part: Part, retries: bool) -> bool {
        let (files, state) = (self.files(part), &mut self.parts[part as usize]);
        if files.is_empty() {
            *state = PartState::default();
        }
        let may_be_read = part != Part::Config || self.preparing.is_none();
        let is_due = state.is_asked || retries && !state.faults.is_empty() || self.watch.is_due(&files);
        may_be_read && is_due
    }

    fn take_requests(&mut self, is_signalled: bool) {
        let before = self.asked.answers.len();
        self.asked.answers.extend(std::iter::from_fn(|| self.requests.try_recv().ok()).map(|request| request.0));
        if is_signalled || self.asked.answers.len() > before {
            self.parts.iter_mut().for_each(|part| part.is_asked = true);
            (self.asked.at, self.asked.ticks_left) = (self.gateway.clock().unix_ms(), ASKED_TICKS);
        }
    }

    /// Answers who asked for a reload, once each part was read, or its files have not stood still for too long.
    fn answer_requests(&mut self) {
        self.asked.ticks_left = self.asked.ticks_left.saturating_sub(1);
        let may_wait = self.preparing.is_some() || self.asked.ticks_left > 0;
        if may_wait && self.parts.iter().any(|part| part.is_asked) {
            return;
        }
        for part in Part::ALL.into_iter().filter(|part| self.parts[*part as usize].is_asked).collect::<Vec<_>>() {
            self.parts[part as usize].is_asked = false;
            if let Some(file) = self.watch.moving(&self.files(part)) {
                let why = format!("{} is still being written; it is read once it stays the same", file.display());
                self.asked.outcome.add(ReloadOutcome::rejected(part.name(), vec![ReloadFault::new(why)]));
            }
        }
        let outcome = std::mem::take(&mut self.asked.outcome);
        self.asked.answers.drain(..).for_each(|answer| drop(answer.send(outcome.clone()))); // nobody may wait any more
    }
}

/// Does this on another thread, because a disk may not respond; the log says so then, and nothing is reloaded until it does.
/// `None`: it has failed by a defect, which was logged.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let mut working = spawn_blocking(work);
    if let Ok(done) = timeout(HANGS_AFTER, &mut working).await {
        return done.ok();
    }
    tracing::error!("reading the files takes too long; nothing is reloaded until the disk that they are on responds");
    working.await.ok()
}
