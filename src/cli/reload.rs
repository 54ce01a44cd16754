use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::serve::listed_keys;
use crate::config::{self, Config, Keys, OriginKind};
use crate::gateway::{Gateway, KeySource};
use crate::origin::{HttpOrigin, Origin};
use crate::store::SqliteStore;

fn key_file(config: &Config) -> Option<PathBuf> {
    match &config.keys {
        Keys::File(path) => Some(path.clone()),
        Keys::Store | Keys::Origin { .. } => None,
    }
}

/// What is needed to put a new configuration in force while serving.
#[derive(Debug)]
pub(super) struct Reloader {
    pub(super) gateway: Arc<Gateway>,
    pub(super) store: Option<Arc<SqliteStore>>,
    named: Option<PathBuf>,
    /// What the process was started with: what cannot change while running goes by this.
    started: Arc<Config>,
    /// There is a file; without one the defaults are in force.
    has_file: AtomicBool,
    /// The key file that was named last, by a configuration that was taken or not.
    key_file: Mutex<Option<PathBuf>>,
}

impl Reloader {
    /// For a gateway that has just been started, from a file or (`has_file`: no) with the defaults.
    pub(super) fn new(
        gateway: Arc<Gateway>,
        named: Option<PathBuf>,
        has_file: bool,
        store: Option<Arc<SqliteStore>>,
    ) -> Self {
        let started = gateway.state().config.clone();
        let key_file = Mutex::new(key_file(&started));
        Reloader { gateway, store, named, started, has_file: AtomicBool::new(has_file), key_file }
    }

    /// The files whose change asks for a reload: the configuration, the key file in force, and the
    /// one that was named by a configuration that was not taken, which may be for want of it.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let config = self.named.clone().unwrap_or_else(|| config::DEFAULT_FILE.into());
        let named = self.key_file.lock().clone();
        let in_force = key_file(&self.gateway.state().config).filter(|path| Some(path) != named.as_ref());
        std::iter::once(config).chain(in_force).chain(named).collect()
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
        *self.key_file.lock() = key_file(&loaded.config);
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
        let origin = self.origin(&config, &before.origin)?;
        let keys = self.keys(&config, &before.keys).await?;
        let listed = keys.list().await?;
        self.gateway.reload(config, origin, keys, listed);
        self.has_file.store(loaded.path.is_some(), Ordering::Relaxed);
        Ok(())
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
    /// its connections stay.
    fn origin(&self, config: &Config, before: &Arc<Origin>) -> Result<Arc<Origin>, String> {
        match (&config.origin.kind, &**before) {
            (OriginKind::Builtin, Origin::Builtin(_)) => Ok(before.clone()),
            (OriginKind::Http(upstream), Origin::Http(http)) if http.upstream() == upstream => Ok(before.clone()),
            (OriginKind::Http(upstream), Origin::Http(_)) => {
                Ok(Arc::new(Origin::Http(HttpOrigin::new(upstream.clone())?.into())))
            }
            (OriginKind::Builtin, Origin::Http(_)) | (OriginKind::Http(_), Origin::Builtin(_)) => {
                Err("origin.kind cannot change while running; start anew for it".into())
            }
        }
    }
}
