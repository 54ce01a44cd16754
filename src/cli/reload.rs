use std::path::PathBuf;
use std::sync::Arc;

use super::serve::listed_keys;
use crate::config::{self, Config, Keys, OriginKind};
use crate::edge::{Certificate, Tls};
use crate::gateway::{Gateway, KeySource};
use crate::origin::{HttpOrigin, Origin};
use crate::store::SqliteStore;

/// What is needed to put a new configuration in force while serving.
#[derive(Debug)]
pub(super) struct Reloader {
    pub(super) gateway: Arc<Gateway>,
    pub(super) named: Option<PathBuf>,
    pub(super) store: Option<Arc<SqliteStore>>,
    pub(super) tls: Option<Arc<Tls>>,
}

impl Reloader {
    /// The files whose change asks for a reload: the configuration, and those it names.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let config = self.named.clone().unwrap_or_else(|| config::DEFAULT_FILE.into());
        let state = self.gateway.state();
        let keys = match &state.config.keys {
            Keys::File(path) => Some(path.clone()),
            Keys::Store | Keys::Origin { .. } => None,
        };
        let tls = state.config.server.tls.iter().flat_map(|tls| [tls.certificate.clone(), tls.private_key.clone()]);
        std::iter::once(config).chain(keys).chain(tls).collect()
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
        let before = self.gateway.state().clone();
        for setting in before.config.needs_restart(&loaded.config) {
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
        let certificate = self.certificate(&config)?;
        self.gateway.reload(config, origin, keys, listed);
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
