//! Reloading, until the process ends. `gateway.toml`, the key file and the TLS pair are each taken up whole or not at
//! all, each by itself, so that a fault in one holds up no other (contract section 3, the last paragraph).

use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::watch::{LOOK, Watch};
use crate::config::{self, Config, Keys, LoadError, Loaded, Notice, OriginKind, Reloaded, SettingFault};
use crate::edge::{Certificate, Tls};
use crate::gateway::{Fresh, Gateway, KeySource};
use crate::keys::KeyFileError;
use crate::origin::{self, HttpOrigin, Origin};
use crate::store::AnyStore;

/// How long a key file that changed together with gateway.toml waits for it: the tiers that its keys name may be new
/// there. Names of upstreams that cannot be resolved take gateway.toml seconds, for which no revoked key waits.
const HEAD_START: Duration = Duration::from_millis(200);

/// How soon keys that the store did not tell are asked for again.
const AGAIN: Duration = Duration::from_millis(500);

/// How long files may take to be read: a pipe that nobody writes into, or a file system whose server is away, must
/// not keep later reloads from being made. The largest key file takes a second or two.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// What is reloaded by itself.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// `gateway.toml`, and the files of TLS to upstreams.
    Config,
    Keys,
    Certificate,
}

/// The files whose change or removal asks for a reload.
#[derive(Debug)]
pub(super) struct Watches {
    config: Watch,
    keys: Watch,
    certificate: Watch,
}

impl Watches {
    /// Over the files of a configuration that is about to be put in force; `config` watches its file already.
    pub(super) fn new(named: Option<&Path>, mut config: Watch, files: &Config) -> Self {
        config.set(config_files(named, files));
        Watches { config, keys: Watch::over(key_file(files)), certificate: Watch::over(certificate_files(files)) }
    }
}

/// The file named, or the default one.
pub(super) fn config_file(named: Option<&Path>) -> PathBuf {
    named.unwrap_or(Path::new(config::DEFAULT_FILE)).to_owned()
}

/// `gateway.toml` and what is taken up with it.
fn config_files(named: Option<&Path>, config: &Config) -> Vec<PathBuf> {
    let upstreams: Vec<PathBuf> = match &config.origin.kind {
        OriginKind::Http(upstreams) => upstreams.tls.files().cloned().collect(),
        OriginKind::Builtin => Vec::new(),
    };
    std::iter::once(config_file(named)).chain(upstreams).collect()
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

/// What is needed to put new files in force while serving.
#[derive(Debug)]
pub(super) struct Reloader {
    pub(super) gateway: Arc<Gateway>,
    pub(super) store: Option<Arc<AnyStore>>,
    tls: Option<Arc<Tls>>,
    named: Option<PathBuf>,
    /// There is a file; without one the defaults are in force.
    has_file: AtomicBool,
    watches: Mutex<Watches>,
    requests: watch::Sender<()>,
    /// Held while `gateway.toml` is reloaded.
    loading: tokio::sync::Mutex<()>,
    /// Files whose removal was logged.
    removed: Mutex<HashSet<PathBuf>>,
    /// The notices of the configuration in force, which were logged.
    noticed: Mutex<Vec<Notice>>,
}

impl Reloader {
    /// For a gateway that has just been started, from a file or (`has_file`: no) with the defaults.
    pub(super) fn new(
        gateway: Arc<Gateway>,
        (named, has_file, noticed): (Option<PathBuf>, bool, Vec<Notice>),
        watches: Watches,
        store: Option<Arc<AnyStore>>,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        Reloader {
            gateway,
            store,
            tls,
            named,
            has_file: AtomicBool::new(has_file),
            watches: Mutex::new(watches),
            requests: watch::Sender::new(()),
            loading: tokio::sync::Mutex::new(()),
            removed: Mutex::default(),
            noticed: Mutex::new(noticed),
        }
    }

    /// Asks for everything to be read again.
    pub(super) fn request(&self) {
        self.requests.send_replace(());
    }

    /// Reloads what changes, or everything when it is [requested](Reloader::request) from now on, for ever.
    pub(super) fn run(&self) -> impl Future<Output = Infallible> {
        let follow = |part| self.follow(part, self.requests.subscribe());
        let parts = (follow(Part::Config), follow(Part::Keys), follow(Part::Certificate));
        async { tokio::join!(parts.0, parts.1, parts.2).0 }
    }

    async fn follow(&self, part: Part, mut requests: watch::Receiver<()>) -> Infallible {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            // What changes after this is seen by a later look: the files are read afterwards.
            let requested = tokio::select! {
                biased;
                Ok(()) = requests.changed() => {
                    self.watch(part).take_all();
                    true
                }
                _ = look.tick() => {
                    if !self.watch(part).has_changed(Instant::now()) {
                        continue;
                    }
                    false
                }
            };
            match part {
                Part::Config => self.reload_config(requested).await,
                Part::Keys => self.reload_keys(requested).await,
                Part::Certificate => self.reload_certificate(requested).await,
            }
            self.watch(part).done();
        }
    }

    fn watch(&self, part: Part) -> MappedMutexGuard<'_, Watch> {
        MutexGuard::map(self.watches.lock(), |watches| match part {
            Part::Config => &mut watches.config,
            Part::Keys => &mut watches.keys,
            Part::Certificate => &mut watches.certificate,
        })
    }

    /// Whether one of these files is not there. Its removal is logged once, until it is back.
    fn is_missing(&self, files: &[PathBuf], requested: bool) -> bool {
        let is_there = |file: &PathBuf| !file.metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        let mut missing = false;
        let mut removed = self.removed.lock();
        for file in files {
            if is_there(file) {
                removed.remove(file);
                continue;
            }
            missing = true;
            let file_shown = file.display();
            if removed.insert(file.clone()) {
                tracing::error!(file = %file_shown, "a file was removed; what was read from it stays in force until it is back");
            } else if requested {
                tracing::info!(file = %file_shown, "not reloaded: the file is still missing");
            }
        }
        missing
    }

    async fn reload_config(&self, requested: bool) {
        let _loading = self.loading.lock().await;
        let file = config_file(self.named.as_deref());
        if self.has_file.load(Ordering::Relaxed) && self.is_missing(std::slice::from_ref(&file), requested) {
            return;
        }
        let file = file.display();
        let (changed, after_restart) = match self.try_config().await {
            Ok(names) => names,
            Err(reason) => {
                tracing::error!(%file, "reload rejected; still running the previous configuration\n{reason}");
                return;
            }
        };
        let changed = if changed.is_empty() { "nothing".to_owned() } else { changed.join(", ") };
        if after_restart.is_empty() {
            tracing::info!(%file, changed, "configuration reloaded");
        } else {
            let after_restart = after_restart.join(", ");
            tracing::warn!(
                %file,
                changed,
                after_restart,
                "configuration reloaded; what `after_restart` names takes effect after a restart"
            );
        }
    }

    /// The sections that changed and the names that take effect after a restart, or why nothing changed.
    async fn try_config(&self) -> Result<(Vec<&'static str>, Vec<String>), String> {
        let named = self.named.clone();
        let loaded = aside(move || config::load(named.as_deref())).await?.map_err(|e: LoadError| e.to_string())?;
        let placed = |loaded: &Loaded, fault: SettingFault| loaded.faults(&[fault]).to_string();
        let before = self.gateway.state().clone();
        let Reloaded { config, mut changed, after_restart } =
            before.config.reloaded(loaded.config.clone(), self.store.is_some());
        let (keys_watch, certificate_watch) = self.watch_new_files(&before.config, &config);

        let upstream_tls = match &config.origin.kind {
            OriginKind::Http(upstreams) => {
                let upstreams = upstreams.clone();
                aside(move || origin::Tls::load(&upstreams)).await?.map_err(|fault| placed(&loaded, fault))?
            }
            OriginKind::Builtin => None,
        };
        let origin = self.origin(&config, upstream_tls, &before.origin).await?;
        if !Arc::ptr_eq(&origin, &before.origin) && !changed.contains(&"origin") {
            changed.push("origin.tls");
        }
        let keys = match (&config.keys, &before.config.keys) {
            (Keys::Origin { .. }, _) => None,
            (keys, before) if keys == before => None,
            (Keys::File(path), _) => {
                Some(KeySource::file(path.clone(), self.store.clone()).await.map_err(|e| match e {
                    KeyFileError::Unreadable(why) => placed(&loaded, SettingFault::new("keys.file", why)),
                    KeyFileError::Faults(faults) => faults.to_string(),
                })?)
            }
            (Keys::Store, _) => self.store.clone().map(KeySource::Store),
        };
        let certificate = match (&self.tls, &config.server.tls) {
            (Some(tls), Some(files)) if config.server.tls != before.config.server.tls => {
                Some((tls, load_certificate(files.clone()).await?.map_err(|fault| placed(&loaded, fault))?))
            }
            _ => None,
        };
        let is_store = keys.as_ref().unwrap_or(&before.keys).is_store();
        let fresh = if is_store { Some(self.list_keys(keys.as_ref()).await) } else { None };

        // Nothing waits from here on: it is taken up as a whole.
        let files = config_files(self.named.as_deref(), &config);
        let keys = keys.unwrap_or_else(|| self.gateway.state().keys.clone());
        self.gateway.reload(config, origin, keys, fresh);
        if let Some((tls, certificate)) = certificate {
            tls.replace(certificate);
        }
        self.has_file.store(loaded.path.is_some(), Ordering::Relaxed);
        let mut watches = self.watches.lock();
        watches.config.set(files);
        watches.keys = keys_watch.unwrap_or_else(|| std::mem::replace(&mut watches.keys, Watch::over([])));
        watches.certificate =
            certificate_watch.unwrap_or_else(|| std::mem::replace(&mut watches.certificate, Watch::over([])));
        let before = std::mem::replace(&mut *self.noticed.lock(), loaded.notices.clone());
        for notice in loaded.notices.iter().filter(|notice| !before.contains(notice)) {
            tracing::warn!("{notice}");
        }
        Ok((changed, after_restart))
    }

    /// The keys of `other`, or of the source in force, as soon as the store tells them.
    async fn list_keys(&self, other: Option<&KeySource>) -> Fresh<'_> {
        let mut failing = false;
        loop {
            match self.gateway.list(other).await {
                Ok(fresh) => return fresh,
                Err(error) if !failing => {
                    failing = true;
                    tracing::warn!(error, "reload waits: the store's keys cannot be read");
                }
                Err(_) => {}
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Watches the files that `next` names and `before` does not, from before they are read. Until it is in force their
    /// change asks for another try of `gateway.toml`, which may be rejected for want of them; from then on they are
    /// parts by themselves, with the watches returned.
    fn watch_new_files(&self, before: &Config, next: &Config) -> (Option<Watch>, Option<Watch>) {
        let keys = (key_file(before) != key_file(next)).then(|| key_file(next));
        let certificate = (before.server.tls != next.server.tls).then(|| certificate_files(next));
        let named = self.named.as_deref();
        let tried = keys.iter().flatten().chain(certificate.iter().flatten()).cloned();
        let files = config_files(named, before).into_iter().chain(config_files(named, next)).chain(tried);
        self.watch(Part::Config).set(files);
        (keys.map(Watch::over), certificate.map(Watch::over))
    }

    /// The origin of the new configuration: the same one where nothing about it changed, so that
    /// its connections stay; else those of the upstreams that are in both.
    async fn origin(
        &self,
        config: &Config,
        tls: Option<origin::Tls>,
        before: &Arc<Origin>,
    ) -> Result<Arc<Origin>, String> {
        let (OriginKind::Http(upstreams), Origin::Http(http)) = (&config.origin.kind, &**before) else {
            return Ok(before.clone()); // its kind changes at a start only
        };
        if http.is_of(upstreams, &tls) {
            return Ok(before.clone());
        }
        let clock = self.gateway.clock().clone();
        Ok(Arc::new(Origin::Http(HttpOrigin::start((**upstreams).clone(), tls, clock, Some(http)).await?)))
    }

    async fn reload_keys(&self, requested: bool) {
        let Some(path) = key_file(&self.gateway.state().config) else { return };
        if self.is_missing(std::slice::from_ref(&path), requested) {
            return;
        }
        let file = path.display();
        let read = KeySource::file(path.clone(), self.store.clone()).await;
        let count = |keys: &KeySource| if let KeySource::File { listed, .. } = keys { listed.len() } else { 0 };
        let (before, now) = (count(&self.gateway.state().keys), read.as_ref().map_or(0, count));
        let _ = tokio::time::timeout(HEAD_START, self.loading.lock()).await;
        match read.map(|keys| self.put_keys(&path, keys)) {
            Ok(()) if now == 0 && before > 0 => {
                tracing::warn!(%file, removed = before, "key file reloaded; it holds no key, so every request is refused");
            }
            Ok(()) => tracing::info!(%file, "key file reloaded"),
            Err(reason) => tracing::error!(%file, "key file rejected; the keys read before stay in force\n{reason}"),
        }
    }

    fn put_keys(&self, path: &Path, keys: KeySource) {
        let state = self.gateway.state().clone();
        // Not where gateway.toml names another one by now.
        if key_file(&state.config).as_deref() == Some(path) {
            self.gateway.reload((*state.config).clone(), state.origin.clone(), keys, None);
        }
    }

    async fn reload_certificate(&self, requested: bool) {
        let state = self.gateway.state().clone();
        let (Some(tls), Some(pair)) = (&self.tls, &state.config.server.tls) else { return };
        if self.is_missing(&certificate_files(&state.config), requested) {
            return;
        }
        let (certificate, private_key) = (pair.certificate.display(), pair.private_key.display());
        let read = load_certificate(pair.clone()).await;
        match read.and_then(|read| read.map_err(|fault| fault.to_string())) {
            Ok(loaded) => {
                // Not where gateway.toml names another one by now.
                if self.gateway.state().config.server.tls.as_ref() == Some(pair) {
                    tls.replace(loaded);
                    tracing::info!(%certificate, %private_key, "TLS certificate reloaded");
                }
            }
            Err(reason) => tracing::error!(
                %certificate,
                %private_key,
                "TLS certificate rejected; new connections are still shown the previous one\n{reason}"
            ),
        }
    }
}

/// Reads files aside: those on a disk that is away hold nothing else up.
async fn aside<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    match timeout(READ_WITHIN, spawn_blocking(read)).await {
        Ok(read) => read.map_err(|e| format!("reading the files failed: {e}")),
        Err(_) => {
            Err("reading the files takes too long; is one of them a pipe, or on a file system that hangs?".into())
        }
    }
}

async fn load_certificate(files: config::Tls) -> Result<Result<Certificate, SettingFault>, String> {
    let read = aside(move || Certificate::load(&files)).await?;
    if let Ok(Certificate { notice: Some(notice), .. }) = &read {
        tracing::warn!("{notice}");
    }
    Ok(read)
}
