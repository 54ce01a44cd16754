//! What the files of a part hold, and how that is put in force.

use std::fmt::Display;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::{Part, Reloader};
use crate::admin::{ConfigInForce, ReloadFault, ReloadOutcome};
use crate::config::{self, Keys, LoadError, Loaded, OriginKind, Reloaded};
use crate::gateway::{KeyFile, KeySource, NewKeys};
use crate::keys::{KeyFileError, ListedKey, read_key_file};
use crate::origin::{self, HttpOrigin, Origin};
use crate::process::{log_warnings, preflight};
use crate::telemetry::DecisionLog;
use crate::tls::Certificate;

/// What the files of a part hold.
#[derive(Debug)]
pub(super) enum Content {
    Config(Box<NextConfig>),
    Keys(Vec<ListedKey>),
    Certificate(Certificate),
}

/// A `gateway.toml` with the TLS of its upstreams.
#[derive(Debug)]
pub(super) struct NextConfig {
    loaded: Loaded,
    reloaded: Reloaded,
    tls: Option<origin::Tls>,
    /// Where decisions are recorded from now on, if that is to change.
    decisions: Option<Option<DecisionLog>>,
}

impl Reloader {
    /// Reads the files of a part as a whole.
    pub(super) fn reader(
        &self,
        part: Part,
    ) -> impl FnOnce() -> Result<Content, Vec<ReloadFault>> + Send + 'static + use<> {
        let (running, files) = (self.gateway.state().config.clone(), self.files(part));
        // A file that is gone is no reason for the defaults, unless these are in force for want of one.
        let has_file = self.admin.config.read().loaded.path.is_some();
        let (file, has_store) = (has_file.then(|| self.file.clone()), self.store.is_some());
        let clock = self.gateway.clock().clone();
        move || {
            let is_pipe = |file: &&PathBuf| file.metadata().is_ok_and(|file| file.file_type().is_fifo());
            if let Some(pipe) = files.iter().find(is_pipe) {
                return Err(fault(format!("{} is a pipe, which is not read again", pipe.display())));
            }
            match (part, &running.keys, &running.server.tls) {
                (Part::Keys, Keys::File(path), _) => read_key_file(path).map(Content::Keys).map_err(|e| match e {
                    KeyFileError::Faults(problems) => ReloadFault::of_file(&problems),
                    KeyFileError::Unusable(why) => fault(why),
                }),
                (Part::Certificate, _, Some(pair)) => {
                    Certificate::load("server.tls", pair).map(Content::Certificate).map_err(fault)
                }
                // The others have no files, and are not read.
                _ => {
                    let loaded = config::load(file.as_deref()).map_err(|e| match e {
                        LoadError::Missing(file) => fault(format!("{} is missing", file.display())),
                        LoadError::Problems(problems) => ReloadFault::of_file(&problems),
                        other => fault(other),
                    })?;
                    let reloaded = running.reloaded(loaded.config.clone(), has_store);
                    let tls = match &reloaded.config.origin.kind {
                        OriginKind::Http(upstreams) => origin::Tls::load(upstreams),
                        OriginKind::Builtin => Ok(None),
                    };
                    let tls = tls.map_err(|fault| ReloadFault::of_file(&loaded.faults(&[fault])))?;
                    let (before, log) = (&running.log, &reloaded.config.log);
                    let open = |path: &PathBuf| DecisionLog::open(path, log.decisions_max_size, clock);
                    let decisions = (before != log).then(|| log.decisions.as_ref().map(open).transpose());
                    let decisions = decisions.transpose().map_err(|e| fault(format!("log.decisions: {e}")))?;
                    Ok(Content::Config(Box::new(NextConfig { loaded, reloaded, tls, decisions })))
                }
            }
        }
    }

    /// Starts other upstreams than those in force, which waits for their names; `None`: they are the same. Another kind of
    /// origin takes effect after a restart.
    pub(super) fn other_origin(&self, next: &NextConfig) -> Option<JoinHandle<Arc<HttpOrigin>>> {
        match (&next.reloaded.config.origin.kind, &*self.gateway.state().origin) {
            (OriginKind::Http(upstreams), Origin::Http(before)) if !before.has_settings(upstreams, &next.tls) => {
                let (upstreams, tls) = ((**upstreams).clone(), next.tls.clone());
                let (clock, before) = (self.gateway.clock().clone(), before.clone());
                Some(tokio::spawn(async move { HttpOrigin::start(upstreams, tls, clock, Some(&before)).await }))
            }
            _ => None,
        }
    }

    pub(super) fn config_in_force(&self, next: NextConfig, origin: Option<Arc<HttpOrigin>>) -> ReloadOutcome {
        let NextConfig { loaded, reloaded, decisions, .. } = next;
        if let Some(decisions) = decisions {
            self.gateway.observer.record_decisions(decisions);
        }
        let after_restart = reloaded.after_restart;
        let mut changed: Vec<String> = reloaded.changed.into_iter().map(str::to_owned).collect();
        if origin.is_some() && !changed.iter().any(|section| section == "origin") {
            changed.push("origin.tls".to_owned());
        }
        let running = self.gateway.state().origin.clone();
        let origin = origin.map_or(running, |origin| Arc::new(Origin::Http(origin)));
        self.gateway.reload(reloaded.config, origin, NewKeys::Unchanged);
        log_warnings(&loaded, &[]);
        self.admin.reloads.accept(self.gateway.clock().unix());
        *self.admin.config.write() = ConfigInForce { loaded: Arc::new(loaded), after_restart: after_restart.clone() };
        ReloadOutcome { changed, after_restart, ..ReloadOutcome::default() }
    }

    pub(super) fn keys_in_force(&self, keys: Vec<ListedKey>) -> ReloadOutcome {
        let running = self.gateway.state().clone();
        let is_same = matches!(&running.keys, KeySource::File(file) if *file.keys == *keys);
        preflight::key_warnings(&running.config, &keys).iter().for_each(|warning| tracing::warn!("{warning}"));
        let keys = NewKeys::File(KeyFile::new(keys, self.store.clone()));
        self.gateway.reload(running.config.clone(), running.origin.clone(), keys);
        ReloadOutcome::changed((!is_same).then_some("keys.file"))
    }

    /// Shows new connections this certificate.
    pub(super) fn certificate_in_force(&self, certificate: Certificate) -> ReloadOutcome {
        certificate.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let is_other = self.tls.as_ref().is_some_and(|tls| tls.replace(certificate));
        ReloadOutcome::changed(is_other.then_some("server.tls"))
    }
}

/// The one fault of a part, without a location.
fn fault(why: impl Display) -> Vec<ReloadFault> {
    vec![ReloadFault::new(why)]
}
