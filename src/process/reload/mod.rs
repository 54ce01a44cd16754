//! Reloads files while serving. `gateway.toml`, the key file and the TLS pair are each put in force as a whole or not
//! at all, and each by itself, so that a fault in one delays no other (contract section 3, the last paragraph). One task
//! looks at all files four times a second, which sees an editor's rename, a link that leads elsewhere and what another
//! machine writes alike.

mod parts; // what a part's files hold, and how it is put in force

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use self::parts::{Content, NextConfig};
use crate::admin::{ProcessState, ReloadFault, ReloadOutcome, ReloadRequest};
use crate::clock::next_multiple_of;
use crate::config::{Config, Keys, OriginKind};
use crate::edge::Tls;
use crate::files::FileState;
use crate::gateway::Gateway;
use crate::origin::HttpOrigin;
use crate::store::Store;
use crate::telemetry::UNLIMITED;

/// How often files are looked at, and so how long a changed one must have stayed the same (contract section 3).
const TICK: Duration = Duration::from_millis(250);

/// A part that was rejected is tried again each second: a disk may be back.
const RETRY_TICKS: u32 = 4;

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

    /// What the log says of a reload, and of a rejection.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Part::Config => ("configuration reloaded", "reload rejected; still running the previous configuration"),
            Part::Keys => ("key file reloaded", "key file rejected; the keys read before stay in force"),
            Part::Certificate => {
                ("TLS certificate reloaded", "TLS certificate rejected; new connections still get the previous one")
            }
        }
    }

    /// Its files under this configuration. `file`: `gateway.toml`.
    fn files(self, file: &Path, config: &Config) -> Vec<PathBuf> {
        match (self, &config.origin.kind, &config.keys) {
            (Part::Config, OriginKind::Http(upstreams), _) => {
                std::iter::once(file).chain(upstreams.tls.files().map(|file| &**file)).map(Path::to_owned).collect()
            }
            (Part::Config, OriginKind::Builtin, _) => vec![file.to_owned()],
            (Part::Keys, _, Keys::File(path)) => vec![path.clone()],
            (Part::Keys, ..) => Vec::new(),
            (Part::Certificate, ..) => {
                config.server.tls.iter().flat_map(|tls| [tls.certificate.clone(), tls.private_key.clone()]).collect()
            }
        }
    }
}

/// The states of files at one moment; `None`: there was no such file.
pub(super) type States = BTreeMap<PathBuf, Option<FileState>>;

/// Looks at files, which may take for ever.
pub(super) fn look(paths: impl IntoIterator<Item = PathBuf>) -> States {
    paths.into_iter().map(|path| (path.clone(), FileState::of(&path))).collect()
}

/// All files that are reloaded. `file`: `gateway.toml`.
pub(super) fn all_files(file: &Path, config: &Config) -> Vec<PathBuf> {
    Part::ALL.map(|part| part.files(file, config)).concat()
}

/// The states of these files; `None`: one of them was not looked at.
fn of_files(files: &[PathBuf], states: &States) -> Option<States> {
    files.iter().map(|file| Some((file.clone(), *states.get(file)?))).collect()
}

/// What is known of a part.
#[derive(Debug, Default)]
struct PartState {
    /// How its files were at the last look.
    seen: States,
    /// In which states they were read last.
    taken: States,
    /// Why it was rejected then; empty where it was not.
    faults: Vec<ReloadFault>,
    /// When a reload was asked for that has not been made (Unix milliseconds).
    asked_at: Option<i64>,
}

impl PartState {
    /// Whether its files, which are in these states now, stand still and are to be read. `retries`: where they had a fault, they
    /// are.
    fn is_due(&mut self, states: &States, retries: bool) -> bool {
        let before = std::mem::replace(&mut self.seen, states.clone());
        let is_wanted = self.taken != *states || self.asked_at.is_some() || retries && !self.faults.is_empty();
        is_wanted && before == *states
    }

    /// An empty file, which is more likely being written than meant. One that was empty already when a reload was asked for
    /// is read.
    fn empty_file<'s>(&self, states: &'s States) -> Option<&'s Path> {
        let is_empty = |state: &FileState| state.is_empty_since(self.asked_at.unwrap_or(i64::MIN));
        states.iter().find(|(_, state)| state.as_ref().is_some_and(is_empty)).map(|(file, _)| &**file)
    }
}

/// Another `gateway.toml` that waits for the names of its upstreams.
#[derive(Debug)]
struct Waiting {
    /// Those in which its files were read.
    states: States,
    next: Box<NextConfig>,
    origin: JoinHandle<Arc<HttpOrigin>>,
}

/// Reloads files that change, and all of them at a SIGHUP or for an admin.
#[derive(Debug)]
pub(super) struct Reloader {
    gateway: Arc<Gateway>,
    store: Option<Arc<Store>>,
    tls: Option<Arc<Tls>>,
    /// `gateway.toml`.
    file: PathBuf,
    parts: [PartState; 3],
    waiting: Option<Waiting>,
    requests: mpsc::Receiver<ReloadRequest>,
    /// Who asked for the reload that has not been made.
    answers: Vec<oneshot::Sender<ReloadOutcome>>,
    /// What became of it so far.
    outcome: ReloadOutcome,
    /// Shows the configuration in force to admins.
    admin: Arc<ProcessState>,
}

impl Reloader {
    /// `file`: `gateway.toml`. `looked`: how the files were before they were read.
    pub(super) fn new(
        gateway: Arc<Gateway>,
        store: Option<Arc<Store>>,
        tls: Option<Arc<Tls>>,
        (file, looked): (PathBuf, States),
        (admin, requests): (Arc<ProcessState>, mpsc::Receiver<ReloadRequest>),
    ) -> Self {
        let (waiting, answers, outcome) = Default::default();
        let config = gateway.state().config.clone();
        let taken = |part: Part| of_files(&part.files(&file, &config), &looked).unwrap_or_default();
        let parts = Part::ALL.map(|part| PartState { taken: taken(part), ..PartState::default() });
        Reloader { gateway, store, tls, file, parts, waiting, requests, answers, outcome, admin }
    }

    /// Reloads each file that changes, and at a SIGHUP all of them, for ever.
    pub(super) async fn run(mut self, mut sighup: Signal) {
        let mut tick = 0_u32;
        loop {
            next_multiple_of(TICK).await;
            tick = tick.wrapping_add(1);
            if sighup.recv().now_or_never().is_some() || !self.requests.is_empty() {
                let now = self.gateway.clock().unix_ms();
                self.parts.iter_mut().for_each(|part| part.asked_at = Some(now));
            }
            while let Ok(ReloadRequest(answer)) = self.requests.try_recv() {
                self.answers.push(answer);
            }
            self.tick(tick.is_multiple_of(RETRY_TICKS)).await;
            if self.parts.iter().all(|part| part.asked_at.is_none()) {
                let outcome = std::mem::take(&mut self.outcome);
                self.answers.drain(..).for_each(|answer| drop(answer.send(outcome.clone()))); // nobody may wait any more
            }
        }
    }

    /// Looks at all files, and reloads the parts that are due. `retries`: those with a fault are, too.
    async fn tick(&mut self, retries: bool) {
        let paths = all_files(&self.file, &self.gateway.state().config);
        let Some(now) = on_thread(move || look(paths)).await else { return };
        for part in Part::ALL {
            let (files, state) = (self.files(part), &mut self.parts[part as usize]);
            if files.is_empty() {
                *state = PartState::default();
            } else if let Some(states) = of_files(&files, &now)
                && state.is_due(&states, retries)
            {
                self.reload(part, states).await;
            }
        }
    }

    fn files(&self, part: Part) -> Vec<PathBuf> {
        part.files(&self.file, &self.gateway.state().config)
    }

    /// Reloads a part, whose files stand still in these states.
    async fn reload(&mut self, part: Part, states: States) {
        if part == Part::Config && self.waiting.is_some() {
            return self.end_wait(states).await;
        }
        if let Some(file) = self.parts[part as usize].empty_file(&states) {
            let why = format!("{} is empty; write it, or send SIGHUP to read it", file.display());
            return self.tell(part, states, ReloadOutcome::rejected(part.name(), vec![ReloadFault::new(why)]));
        }
        let (read, paths) = (self.reader(part), states.keys().cloned().collect::<Vec<_>>());
        let Some((content, after)) = on_thread(move || (read(), look(paths))).await else { return };
        if after != states {
            return; // it was written meanwhile, and is read again
        }
        let outcome = match content {
            Ok(Content::Config(next)) => match self.other_origin(&next) {
                Some(origin) => {
                    self.waiting = Some(Waiting { states, next, origin });
                    return;
                }
                None => self.config_in_force(*next, None),
            },
            Ok(Content::Keys(keys)) => self.keys_in_force(keys),
            Ok(Content::Certificate(certificate)) => self.certificate_in_force(certificate),
            Err(faults) => ReloadOutcome::rejected(part.name(), faults),
        };
        self.tell(part, states, outcome);
    }

    /// Puts the `gateway.toml` in force that has waited long enough, if its files are still in these states.
    async fn end_wait(&mut self, states: States) {
        if let Some(waiting) = self.waiting.take_if(|waiting| waiting.origin.is_finished())
            && waiting.states == states
        {
            let outcome = match waiting.origin.await.map_err(|e| e.to_string()) {
                Ok(origin) => self.config_in_force(*waiting.next, Some(origin)),
                Err(why) => ReloadOutcome::rejected(Part::Config.name(), vec![ReloadFault::new(why)]),
            };
            self.tell(Part::Config, states, outcome);
        }
    }

    /// Tells the log, admins, and those who asked for it, what became of a part whose files were in these states. That nothing has changed, or that a fault was
    /// found again, is told only to those who asked.
    fn tell(&mut self, part: Part, taken: States, outcome: ReloadOutcome) {
        let (reloaded, rejected) = part.texts();
        let file = self.files(part).iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" and ");
        let state = &mut self.parts[part as usize];
        state.taken = taken;
        let asked_at = state.asked_at.take();
        let is_same = outcome.changed.is_empty() && outcome.after_restart.is_empty() && outcome.faults == state.faults;
        state.faults.clone_from(&outcome.faults);
        if is_same && asked_at.is_none() {
            return;
        }
        let changed = if outcome.changed.is_empty() { "nothing".to_owned() } else { outcome.changed.join(", ") };
        let after_restart = outcome.after_restart.join(", ");
        if !outcome.faults.is_empty() {
            let faults = outcome.faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            tracing::error!(%file, "{rejected}: {faults}");
            self.admin.reloads.rejected.fetch_add(1, Ordering::Relaxed);
        } else if after_restart.is_empty() {
            tracing::info!(target: UNLIMITED, %file, changed, "{reloaded}");
        } else {
            let what = "what `after_restart` names takes effect after a restart";
            tracing::warn!(target: UNLIMITED, %file, changed, after_restart, "{reloaded}; {what}");
        }
        self.admin.reloads.record(self.gateway.clock().unix(), part.name(), &outcome);
        if asked_at.is_some() {
            self.outcome.add(outcome);
            // Files that a `gateway.toml` newly names are asked for with it.
            for other in [Part::Keys, Part::Certificate] {
                if of_files(&self.files(other), &self.parts[other as usize].taken).is_none() {
                    self.parts[other as usize].asked_at = asked_at;
                }
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_once_it_stands_still_where_it_has_changed_had_a_fault_or_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let states = |text: Option<&str>| {
            let _ = std::fs::remove_file(&path);
            text.inspect(|text| std::fs::write(&path, text).unwrap());
            look([path.clone()])
        };
        let (gone, empty, one, two) = (states(None), states(Some("")), states(Some("1")), states(Some("22")));
        let mut part = PartState { seen: one.clone(), taken: one.clone(), ..PartState::default() };
        let due = |part: &mut PartState, retries, looks: &[&States]| -> Vec<bool> {
            looks.iter().map(|states| part.is_due(states, retries)).collect()
        };
        assert_eq!(due(&mut part, true, &[&one, &two, &one, &gone, &one]), [false; 5], "never twice the same");
        assert_eq!(due(&mut part, false, &[&two, &two, &gone, &gone]), [false, true, false, true]);
        part.faults = vec![ReloadFault::new("no key")];
        assert_eq!(due(&mut part, false, &[&one, &one]), [false; 2]);
        assert_eq!(due(&mut part, true, &[&one]), [true]);
        part = PartState { seen: one.clone(), taken: one.clone(), asked_at: Some(0), ..PartState::default() };
        assert_eq!(due(&mut part, false, &[&one]), [true]);
        assert!(part.empty_file(&one).is_none() && part.empty_file(&gone).is_none());
        for (asked_at, refused) in [(None, true), (Some(0), true), (Some(i64::MAX), false)] {
            part.asked_at = asked_at;
            assert_eq!(part.empty_file(&empty), refused.then_some(&*path), "asked at {asked_at:?}");
        }
    }
}
