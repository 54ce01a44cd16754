//! Reloads files while serving. `gateway.toml`, the key file and the TLS pair are each put in force as a whole or not
//! at all, and each by itself, so that a fault in one delays no other (contract section 3, the last paragraph). The
//! swap itself is `Gateway::reload`.

use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, timeout};

use super::logs::Logs;
use super::preflight::Inputs;
use super::watch::{CHECK_INTERVAL, FileWatch};
use crate::admin::{ConfigText, ProcessState, ReloadFault, ReloadOutcome, ReloadRequest};
use crate::config::{self, Config, Keys, LoadError, Loaded, Notice, OriginKind, Reloaded};
use crate::edge::Tls;
use crate::gateway::{Gateway, KeyFile, KeySource, LoadedKeys, NewKeys};
use crate::keys::{ListedKey, read_key_file};
use crate::origin::{self, HttpOrigin, Origin};
use crate::store::AnyStore;
use crate::tls::Certificate;

/// How long the reload of a key file waits for that of gateway.toml where both changed together: the keys may name
/// tiers that are new there. Resolving the names of upstreams may take seconds, and a revoked key must not wait for
/// that.
const CONFIG_FIRST: Duration = Duration::from_millis(200);

/// How long to wait after the store's keys could not be read.
const LIST_RETRY: Duration = Duration::from_millis(500);

/// How long reading files may take. A pipe without a writer, or a file system whose server is away, must not prevent
/// later reloads. The largest key file takes a second or two.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Reloads files that change, and all of them at a SIGHUP.
#[derive(Debug)]
pub(super) struct Reloader {
    gateway: Arc<Gateway>,
    store: Option<Arc<AnyStore>>,
    tls: Option<Arc<Tls>>,
    logs: Logs,
    /// The configuration file that was named, if one was.
    named: Option<PathBuf>,
    watches: Watches,
    /// Requests to read everything again.
    requests: watch::Sender<()>,
    /// Locked while `gateway.toml` is reloaded.
    in_force: tokio::sync::Mutex<InForce>,
    /// Missing files, each of which was logged.
    missing: Mutex<HashSet<PathBuf>>,
    /// Locked while the key file is reloaded, so that what is read later is put in force later; and the TLS pair.
    keys_lock: tokio::sync::Mutex<()>,
    certificate_lock: tokio::sync::Mutex<()>,
    /// Shows the configuration in force to admins.
    admin: Arc<ProcessState>,
    /// Reloads that admins ask for.
    admin_requests: tokio::sync::Mutex<mpsc::Receiver<ReloadRequest>>,
}

/// What became of the reload of a part: what changed, and which settings take effect after a restart; or why it was
/// rejected, in lines.
type PartOutcome = Result<(Vec<String>, Vec<String>), String>;

/// The files whose changes cause a reload.
#[derive(Debug)]
pub(super) struct Watches {
    /// `gateway.toml`, and the TLS files for upstreams.
    config: Mutex<FileWatch>,
    keys: Mutex<FileWatch>,
    certificate: Mutex<FileWatch>,
}

/// What is known of the configuration in force.
#[derive(Debug)]
struct InForce {
    /// Whether it came from a file; otherwise it is the defaults.
    has_file: bool,
    /// Its notices, which were logged.
    notices: Vec<Notice>,
}

/// A configuration whose parts are ready to be put in force.
struct Prepared<'g> {
    loaded: Arc<Loaded>,
    reloaded: Reloaded,
    origin: Arc<Origin>,
    keys: NewKeys<'g>,
    certificate: Option<Certificate>,
}

impl Watches {
    /// Over the files of a configuration that is about to be put in force; `config_watch` watches its own file already.
    pub(super) fn new(named: Option<&Path>, mut config_watch: FileWatch, config: &Config) -> Self {
        config_watch.set_files(config_files(named, config), None);
        Watches {
            config: Mutex::new(config_watch),
            keys: Mutex::new(FileWatch::new(key_file(config))),
            certificate: Mutex::new(FileWatch::new(certificate_files(config))),
        }
    }
}

/// The file named, or the default one.
pub(super) fn config_file(named: Option<&Path>) -> PathBuf {
    named.unwrap_or(Path::new(config::DEFAULT_FILE)).to_owned()
}

/// `gateway.toml` and the files that are reloaded with it.
fn config_files(named: Option<&Path>, config: &Config) -> Vec<PathBuf> {
    let mut files = vec![config_file(named)];
    if let OriginKind::Http(upstreams) = &config.origin.kind {
        files.extend(upstreams.tls.files().cloned());
    }
    files
}

fn key_file(config: &Config) -> Option<PathBuf> {
    match &config.keys {
        Keys::File(path) => Some(path.clone()),
        Keys::Store | Keys::Origin { .. } => None,
    }
}

fn certificate_files(config: &Config) -> Vec<PathBuf> {
    config.server.tls.iter().flat_map(|tls| [tls.certificate.clone(), tls.private_key.clone()]).collect()
}

impl Reloader {
    /// For a gateway that was just started with the configuration `loaded`.
    pub(super) fn new(
        gateway: Arc<Gateway>,
        store: Option<Arc<AnyStore>>,
        tls: Option<Arc<Tls>>,
        logs: Logs,
        (named, has_file, notices): (Option<PathBuf>, bool, Vec<Notice>),
        watches: Watches,
        (admin, admin_requests): (Arc<ProcessState>, mpsc::Receiver<ReloadRequest>),
    ) -> Self {
        let in_force = tokio::sync::Mutex::new(InForce { has_file, notices });
        let requests = watch::Sender::new(());
        Reloader {
            gateway,
            store,
            tls,
            logs,
            named,
            watches,
            requests,
            in_force,
            missing: Mutex::default(),
            keys_lock: tokio::sync::Mutex::default(),
            certificate_lock: tokio::sync::Mutex::default(),
            admin,
            admin_requests: tokio::sync::Mutex::new(admin_requests),
        }
    }

    /// Reloads each file that changes, for ever. At a SIGHUP it reloads all of them and reopens the logs.
    pub(super) async fn run(self, mut hang_up: Signal) -> Infallible {
        let requests = || self.requests.subscribe();
        let config = self.follow(&self.watches.config, requests(), async |asked| drop(self.reload_config(asked).await));
        let keys = self.follow(&self.watches.keys, requests(), async |asked| drop(self.reload_keys(asked).await));
        let certificate = self.follow(&self.watches.certificate, requests(), async |asked| {
            drop(self.reload_certificate(asked).await);
        });
        let signals = async {
            loop {
                hang_up.recv().await;
                self.logs.reopen();
                self.requests.send_replace(());
            }
        };
        tokio::join!(config, keys, certificate, signals, self.answer_admins()).0
    }

    /// Reloads all files whenever an admin asks for it.
    async fn answer_admins(&self) -> Infallible {
        let mut requests = self.admin_requests.lock().await;
        while let Some(ReloadRequest(answer)) = requests.recv().await {
            let mut outcome = ReloadOutcome::default();
            let parts =
                [self.reload_config(true).await, self.reload_keys(true).await, self.reload_certificate(true).await];
            for part in parts {
                match part {
                    Ok((changed, after_restart)) => {
                        outcome.changed.extend(changed);
                        outcome.after_restart.extend(after_restart);
                    }
                    Err(lines) => outcome.faults.extend(lines.lines().map(ReloadFault::of_line)),
                }
            }
            let _ = answer.send(outcome); // it may not be waited for any more
        }
        std::future::pending().await
    }

    /// Calls `reload` when the files change, with `false`, and on each request, with `true`.
    async fn follow(
        &self,
        watch: &Mutex<FileWatch>,
        mut requests: watch::Receiver<()>,
        reload: impl AsyncFn(bool),
    ) -> Infallible {
        let mut interval = tokio::time::interval(CHECK_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            // A later change is noticed by a later check, because the files are read after this.
            let requested = tokio::select! {
                biased;
                Ok(()) = requests.changed() => {
                    watch.lock().reset();
                    true
                }
                _ = interval.tick() => {
                    let mut watch = watch.lock();
                    if !watch.has_changed(Instant::now()) {
                        if let Some(file) = watch.found_empty(Instant::now()) {
                            let file = file.display();
                            tracing::warn!(%file, "reload waits: the file is empty; write it, or send SIGHUP to read it");
                        }
                        continue;
                    }
                    false
                }
            };
            reload(requested).await;
        }
    }

    /// Whether one of these files is missing. Its removal is logged once, until the file is back.
    fn is_missing(&self, files: &[PathBuf], requested: bool) -> bool {
        let mut missing = self.missing.lock();
        let mut any = false;
        for path in files {
            if !path.metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
                missing.remove(path);
                continue;
            }
            any = true;
            let file = path.display();
            if missing.insert(path.clone()) {
                tracing::error!(%file, "a file was removed; what was read from it stays in force until it is back");
            } else if requested {
                tracing::info!(%file, "not reloaded: the file is still missing");
            }
        }
        any
    }

    async fn reload_config(&self, requested: bool) -> PartOutcome {
        let mut in_force = self.in_force.lock().await;
        let path = config_file(self.named.as_deref());
        if in_force.has_file && self.is_missing(slice::from_ref(&path), requested) {
            return Err(missing(&path));
        }
        let file = path.display();
        let (sections, settings) = match self.prepare_config().await {
            Ok(prepared) => self.apply_config(prepared, &mut in_force),
            Err(reason) => {
                self.admin.reloads.reject();
                tracing::error!(%file, "reload rejected; still running the previous configuration\n{reason}");
                return Err(reason);
            }
        };
        let changed = if sections.is_empty() { "nothing".to_owned() } else { sections.join(", ") };
        if settings.is_empty() {
            tracing::info!(%file, changed, "configuration reloaded");
        } else {
            let after_restart = settings.join(", ");
            tracing::warn!(
                %file,
                changed,
                after_restart,
                "configuration reloaded; what `after_restart` names takes effect after a restart"
            );
        }
        Ok((sections.into_iter().map(str::to_owned).collect(), settings))
    }

    /// Loads the configuration and does everything that may fail or wait, or returns why it is rejected.
    async fn prepare_config(&self) -> Result<Prepared<'_>, String> {
        let named = self.named.clone();
        let loaded = read_files(move || config::load(named.as_deref())).await?.map_err(|e: LoadError| e.to_string())?;
        let loaded = Arc::new(loaded);
        let running = self.gateway.state().clone();
        let mut reloaded = running.config.reloaded(loaded.config.clone(), self.store.is_some());
        let config = &reloaded.config;
        self.watch_new_files(&running.config, config);
        let inputs = {
            let (loaded, config, running) = (loaded.clone(), config.clone(), running.config.clone());
            read_files(move || Inputs::read(&loaded, &config, Some(&running), Vec::new())).await??
        };
        log_notice(inputs.certificate.as_ref());
        let origin = self.origin(config, inputs.upstream_tls, &running.origin).await?;
        let keys = match (&config.keys, inputs.keys) {
            (Keys::File(_), Some(keys)) => NewKeys::File(self.keys_of_file(keys)),
            (Keys::Store, _) if config.keys != running.config.keys => match &self.store {
                // Waited for last of all: no other keys are loaded until these are in force.
                Some(store) => NewKeys::Store(self.load_keys(KeySource::Store(store.clone())).await),
                None => NewKeys::Unchanged, // `reloaded` allows the store as the source only where one is open
            },
            (Keys::Origin { .. } | Keys::File(_) | Keys::Store, _) => NewKeys::Unchanged,
        };
        if !Arc::ptr_eq(&origin, &running.origin) && !reloaded.changed.contains(&"origin") {
            reloaded.changed.push("origin.tls");
        }
        Ok(Prepared { loaded, reloaded, origin, keys, certificate: inputs.certificate })
    }

    /// Puts a configuration in force as a whole, without waiting. Returns the sections that changed, and the names that
    /// take effect after a restart.
    fn apply_config(&self, prepared: Prepared<'_>, in_force: &mut InForce) -> (Vec<&'static str>, Vec<String>) {
        let Prepared { loaded, reloaded, origin, keys, certificate } = prepared;
        let Reloaded { config, changed, after_restart } = reloaded;
        self.watch_files_of(&config);
        self.gateway.reload(config, origin, keys);
        if let (Some(tls), Some(certificate)) = (&self.tls, certificate) {
            tls.replace(certificate);
        }
        for notice in loaded.notices.iter().filter(|notice| !in_force.notices.contains(notice)) {
            tracing::warn!("{notice}");
        }
        // A later removal of a file that was read now is logged again.
        self.missing.lock().retain(|path| !path.exists());
        *self.admin.config.write() = ConfigText::new(&loaded, &after_restart);
        self.admin.reloads.accept(self.gateway.clock().unix());
        *in_force = InForce { has_file: loaded.path.is_some(), notices: loaded.notices.clone() };
        (changed, after_restart)
    }

    /// Watches the files that `next` names and `running` does not, from before they are read. Until `next` is in force
    /// their change causes another reload of `gateway.toml`, which may be rejected because of them; none waits for them.
    fn watch_new_files(&self, running: &Config, next: &Config) {
        let named = self.named.as_deref();
        let others = |config| key_file(config).into_iter().chain(certificate_files(config));
        let known: Vec<PathBuf> = others(running).collect();
        let new = others(next).filter(|path| !known.contains(path));
        let in_force = config_files(named, running);
        let mut watch = self.watches.config.lock();
        watch.set_files(in_force.iter().cloned().chain(config_files(named, next)).chain(new), None);
        watch.wait_only_for(&in_force);
    }

    /// Watches the files of a configuration that is being put in force. Those that were watched as new files keep their
    /// state, so that a change since they were read is noticed.
    fn watch_files_of(&self, config: &Config) {
        let mut watch = self.watches.config.lock();
        self.watches.keys.lock().set_files(key_file(config), Some(&watch));
        self.watches.certificate.lock().set_files(certificate_files(config), Some(&watch));
        watch.set_files(config_files(self.named.as_deref(), config), None);
    }

    /// The keys of `source`, once the store can be read.
    async fn load_keys(&self, source: KeySource) -> LoadedKeys<'_> {
        let mut has_failed = false;
        loop {
            match self.gateway.follower.load_keys(Some(source.clone())).await {
                Ok(keys) => return keys,
                Err(error) if !has_failed => {
                    has_failed = true;
                    tracing::warn!(error, "reload waits: the store's keys cannot be read");
                }
                Err(_) => {}
            }
            tokio::time::sleep(LIST_RETRY).await;
        }
    }

    /// The origin of the new configuration. Where nothing about it changed it is the running one, whose connections
    /// stay open; otherwise the upstreams that stay keep theirs.
    async fn origin(
        &self,
        config: &Config,
        tls: Option<origin::Tls>,
        running: &Arc<Origin>,
    ) -> Result<Arc<Origin>, String> {
        let (OriginKind::Http(upstreams), Origin::Http(http)) = (&config.origin.kind, &**running) else {
            return Ok(running.clone()); // another kind takes effect after a restart
        };
        if http.has_settings(upstreams, &tls) {
            return Ok(running.clone());
        }
        let clock = self.gateway.clock().clone();
        Ok(Arc::new(Origin::Http(HttpOrigin::start((**upstreams).clone(), tls, clock, Some(http)).await?)))
    }

    async fn reload_keys(&self, requested: bool) -> PartOutcome {
        let _lock = self.keys_lock.lock().await;
        let Some(path) = key_file(&self.gateway.state().config) else { return Ok(Default::default()) };
        if self.is_missing(slice::from_ref(&path), requested) {
            return Err(missing(&path));
        }
        let file = path.display();
        let read = {
            let path = path.clone();
            read_files(move || read_key_file(&path).map_err(|e| e.to_string())).await.flatten()
        };
        let _ = timeout(CONFIG_FIRST, self.in_force.lock()).await;
        let keys = match read {
            Ok(keys) => keys,
            Err(reason) => {
                tracing::error!(%file, "key file rejected; the keys read before stay in force\n{reason}");
                return Err(reason);
            }
        };
        let state = self.gateway.state().clone();
        let removed = if let KeySource::File(file) = &state.keys { file.keys.len() } else { 0 };
        let is_empty = keys.is_empty();
        let is_changed = !matches!(&state.keys, KeySource::File(file) if *file.keys == *keys);
        // The configuration may name another key file by now.
        if key_file(&state.config).as_ref() == Some(&path) {
            self.gateway.reload((*state.config).clone(), state.origin.clone(), NewKeys::File(self.keys_of_file(keys)));
        }
        if is_empty && removed > 0 {
            tracing::warn!(%file, removed, "key file reloaded; it holds no key, so every request is refused");
        } else {
            tracing::info!(%file, "key file reloaded");
        }
        Ok((is_changed.then(|| "keys.file".to_owned()).into_iter().collect(), Vec::new()))
    }

    fn keys_of_file(&self, keys: Vec<ListedKey>) -> KeyFile {
        KeyFile { keys: keys.into(), guilds: self.store.clone() }
    }

    async fn reload_certificate(&self, requested: bool) -> PartOutcome {
        let _lock = self.certificate_lock.lock().await;
        let state = self.gateway.state().clone();
        let (Some(tls), Some(pair)) = (&self.tls, &state.config.server.tls) else { return Ok(Default::default()) };
        let files = certificate_files(&state.config);
        if self.is_missing(&files, requested) {
            return Err(files.iter().filter(|path| !path.exists()).map(|path| missing(path)).collect());
        }
        let (certificate, private_key) = (pair.certificate.display(), pair.private_key.display());
        let files = pair.clone();
        let read = read_files(move || Certificate::load("server.tls", &files).map_err(|fault| fault.to_string()))
            .await
            .flatten();
        match read {
            Ok(loaded) => {
                log_notice(Some(&loaded));
                // The configuration may name another pair by now.
                if self.gateway.state().config.server.tls.as_ref() == Some(pair) {
                    tls.replace(loaded);
                    tracing::info!(%certificate, %private_key, "TLS certificate reloaded");
                }
            }
            Err(reason) => {
                tracing::error!(
                    %certificate,
                    %private_key,
                    "TLS certificate rejected; new connections still get the previous one\n{reason}"
                );
                return Err(reason);
            }
        }
        Ok(Default::default())
    }
}

fn missing(path: &Path) -> String {
    format!("{} is missing; what was read from it stays in force\n", path.display())
}

/// Reads files on another thread, so that a disk that does not respond delays nothing else.
async fn read_files<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    match timeout(READ_TIMEOUT, spawn_blocking(read)).await {
        Ok(read) => read.map_err(|e| format!("reading the files failed: {e}")),
        Err(_) => {
            Err("reading the files takes too long; is one of them a pipe, or on a file system that hangs?".into())
        }
    }
}

fn log_notice(certificate: Option<&Certificate>) {
    if let Some(notice) = certificate.and_then(|certificate| certificate.notice.as_ref()) {
        tracing::warn!("{notice}");
    }
}
