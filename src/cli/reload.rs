use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::serve::listed_keys;
use crate::config::{self, Config, Keys, OriginKind};
use crate::edge::{Certificate, Tls};
use crate::gateway::{Gateway, KeySource};
use crate::origin::{self, HttpOrigin, Origin};
use crate::store::AnyStore;

/// The files beside the configuration that it is made of: the key file, and those of TLS.
pub(super) fn files_of(config: &Config) -> Vec<PathBuf> {
    let keys = match &config.keys {
        Keys::File(path) => Some(path.clone()),
        Keys::Store | Keys::Origin { .. } => None,
    };
    let tls: Vec<PathBuf> = match &config.origin.kind {
        OriginKind::Http(upstreams) => upstreams.tls.files().cloned().collect(),
        OriginKind::Builtin => Vec::new(),
    };
    let server = &config.server.tls;
    let certificate = server.iter().flat_map(|tls| [tls.certificate.clone(), tls.private_key.clone()]);
    keys.into_iter().chain(tls).chain(certificate).collect()
}

/// What is needed to put a new configuration in force while serving.
#[derive(Debug)]
pub(super) struct Reloader {
    pub(super) gateway: Arc<Gateway>,
    pub(super) store: Option<Arc<AnyStore>>,
    tls: Option<Arc<Tls>>,
    named: Option<PathBuf>,
    /// What the process was started with: what cannot change while running goes by this.
    started: Arc<Config>,
    /// There is a file; without one the defaults are in force.
    has_file: AtomicBool,
    /// The files named last, by a configuration that was taken or not.
    tried: Mutex<Vec<PathBuf>>,
}

impl Reloader {
    /// For a gateway that has just been started, from a file or (`has_file`: no) with the defaults.
    pub(super) fn new(
        gateway: Arc<Gateway>,
        named: Option<PathBuf>,
        has_file: bool,
        store: Option<Arc<AnyStore>>,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        let started = gateway.state().config.clone();
        let tried = Mutex::new(files_of(&started));
        Reloader { gateway, store, tls, named, started, has_file: AtomicBool::new(has_file), tried }
    }

    /// The files whose change asks for a reload: the configuration, what it names, and what was named
    /// by one that was not taken, which may be for want of it.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let config = self.named.clone().unwrap_or_else(|| config::DEFAULT_FILE.into());
        let mut files = files_of(&self.gateway.state().config);
        for tried in self.tried.lock().iter() {
            if !files.contains(tried) {
                files.push(tried.clone());
            }
        }
        std::iter::once(config).chain(files).collect()
    }

    /// Reads the configuration anew: all of it is taken, or none and the reasons are logged.
    pub(super) async fn reload(&self) {
        match self.try_reload().await {
            Ok(()) => tracing::info!("the configuration was read anew and is in force"),
            Err(reason) => tracing::error!("the configuration was not taken; the one before stays in force\n{reason}"),
        }
    }

    async fn try_reload(&self) -> Result<(), String> {
        let loaded = config::load(self.named.as_deref()).map_err(|e| e.to_string())?;
        if loaded.path.is_none() && self.has_file.load(Ordering::Relaxed) {
            return Err(format!(
                "there is no {} any more; the defaults are for a start without one",
                config::DEFAULT_FILE
            ));
        }
        *self.tried.lock() = files_of(&loaded.config);
        let before = self.gateway.state().clone();
        for setting in self.started.needs_restart(&loaded.config) {
            tracing::warn!(setting, "cannot change while running; start anew for it");
        }
        for notice in &loaded.notices {
            tracing::warn!("{notice}");
        }
        let config = loaded.config;
        if config.limits.counts_days() && self.store.is_none() {
            return Err("a tier's `daily` needs the store, which is opened at the start; start anew for it".into());
        }
        let origin = self.origin(&config, &before.origin).await?;
        let keys = self.keys(&config, &before.keys).await?;
        let certificate = self.certificate(&config)?;
        let fresh = self.gateway.list(Some(&keys)).await?;
        self.gateway.reload(config, origin, keys, fresh);
        self.has_file.store(loaded.path.is_some(), Ordering::Relaxed);
        if let (Some(tls), Some(certificate)) = (&self.tls, certificate) {
            tls.replace(certificate);
        }
        Ok(())
    }

    /// The certificate of the new configuration, where one is shown at all.
    fn certificate(&self, config: &Config) -> Result<Option<Certificate>, String> {
        let (Some(_), Some(files)) = (&self.tls, &config.server.tls) else { return Ok(None) };
        let certificate = Certificate::load(files).map_err(|e| e.to_string())?;
        if let Some(notice) = &certificate.notice {
            tracing::warn!("{notice}");
        }
        Ok(Some(certificate))
    }

    /// Where the keys are in the new configuration. What was learned of keys stays learned.
    async fn keys(&self, config: &Config, before: &KeySource) -> Result<KeySource, String> {
        match (&config.keys, before) {
            (Keys::Origin { .. }, KeySource::Origin(_)) => Ok(before.clone()),
            (Keys::Origin { .. }, _) | (_, KeySource::Origin(_)) => {
                Err("keys.source cannot become or cease to be \"origin\" while running; start anew for it".into())
            }
            (Keys::Store | Keys::File(_), _) => listed_keys(config, self.store.as_ref()).await,
        }
    }

    /// The origin of the new configuration: the same one where nothing about it changed, so that
    /// its connections stay; else those of the upstreams that are in both.
    async fn origin(&self, config: &Config, before: &Arc<Origin>) -> Result<Arc<Origin>, String> {
        match (&config.origin.kind, &**before) {
            (OriginKind::Builtin, Origin::Builtin(_)) => Ok(before.clone()),
            (OriginKind::Http(upstreams), Origin::Http(http)) => {
                let tls = origin::Tls::load(upstreams)?;
                if http.is_of(upstreams, &tls) {
                    return Ok(before.clone());
                }
                let clock = self.gateway.clock().clone();
                Ok(Arc::new(Origin::Http(HttpOrigin::start((**upstreams).clone(), tls, clock, Some(http)).await?)))
            }
            (OriginKind::Builtin, Origin::Http(_)) | (OriginKind::Http(_), Origin::Builtin(_)) => {
                Err("origin.kind cannot change while running; start anew for it".into())
            }
        }
    }
}
