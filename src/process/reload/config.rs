//! The reload of `gateway.toml`, together with the TLS files of upstreams, which is put in force as a whole or not at all.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::files::{Rejection, changed_file, is_being_written, missing_line};
use super::keys::log_if_empty;
use super::watches::{Watches, certificate_files, key_file};
use super::{CONFIG_FILE, KEY_FILE, Reloader, TLS_PAIR, log_warning};
use crate::admin::{ConfigText, ReloadOutcome};
use crate::config::{self, Config, Keys, LoadError, Loaded, OriginKind, Reloaded, Warning};
use crate::gateway::{KeySource, LoadedKeys, NewKeys};
use crate::keys::{ListedKey, read_key_file};
use crate::origin::{self, HttpOrigin, Origin};
use crate::process::preflight::Inputs;
use crate::process::watch::{FileStates, SETTLE_TIME, look_at};
use crate::store::Store;
use crate::tls::Certificate;

/// What is known of the configuration in force.
#[derive(Debug)]
pub(in crate::process) struct InForce {
    /// Whether it came from a file; otherwise it is the defaults.
    pub(in crate::process) has_file: bool,
    /// Its warnings, which were logged.
    pub(in crate::process) warnings: Vec<Warning>,
}

/// A configuration whose parts are ready to be put in force.
struct Prepared<'g> {
    loaded: Arc<Loaded>,
    reloaded: Reloaded,
    origin: Arc<Origin>,
    keys: NewKeys<'g>,
    certificate: Option<Certificate>,
}

/// How long a reload waits for all keys of a store that `gateway.toml` newly names: a slow disk reads hundreds of thousands
/// meanwhile. No other change of `gateway.toml` takes effect before.
const KEYS_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a reload that changes the tiers waits for the key file, which may hang, or be written without end: one of 100,000
/// keys takes a second.
const KEY_FILE_WITHIN: Duration = Duration::from_millis(1500);

impl Reloader {
    pub(super) async fn reload_config(&self, requested: bool, in_force: &mut InForce) -> Option<ReloadOutcome> {
        let path = self.watches.config_file();
        let missing = if in_force.has_file {
            self.missing_lines(&self.watches.config, vec![path.clone()], requested).await
        } else {
            String::new()
        };
        if !missing.is_empty() {
            return Some(ReloadOutcome::rejected(&missing));
        }
        let file = path.display();
        let (sections, settings) = match self.prepare_config(requested, in_force.has_file).await {
            Ok(prepared) => self.apply_config(prepared, in_force),
            Err(rejection) => {
                let outcome = rejection.outcome();
                if requested || !self.admin.reloads.is_known(CONFIG_FILE, &outcome) {
                    let reason = &rejection.reason;
                    self.admin.reloads.reject();
                    tracing::error!(%file, "reload rejected; still running the previous configuration\n{reason}");
                }
                return Some(outcome);
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
        let changed = sections.into_iter().map(str::to_owned).collect();
        Some(ReloadOutcome { changed, after_restart: settings, ..ReloadOutcome::default() })
    }

    /// Does everything that may fail or wait, or returns why the configuration is rejected. What may take seconds (names of
    /// upstreams, all keys of a store) is done first and kept; then all files are read again, until nothing is left to
    /// wait for: a key that was revoked meanwhile does not come back, and no older file is put in force.
    async fn prepare_config(&self, requested: bool, has_file: bool) -> Result<Prepared<'_>, Rejection> {
        let config_file = vec![self.watches.config_file()];
        let (mut made_origin, mut store_keys) = (None, None);
        let mut seen = self.watches.config.lock().read(); // it has stayed the same
        let mut may_be_empty = requested;
        loop {
            let state = self.look_at_files(config_file.clone()).await?;
            self.are_settled(&state, &mut seen, may_be_empty).await?;
            self.watches.config.lock().reset(state);
            let loaded = self.load_config(has_file).await?;
            let running = self.gateway.state().clone();
            let mut reloaded = running.config.reloaded(loaded.config.clone(), self.store.is_some());
            let config = &reloaded.config;
            let mut files = Watches::files_of(config, &running.config);
            let states = self.look_at_files(files.clone()).await?;
            self.watches.add(states.clone(), &running.config);
            self.are_settled(&states, &mut seen, may_be_empty).await?;
            may_be_empty = false;
            let other_keys = self.keys_for_other_tiers(&running.config, config, &mut seen);
            let other_keys = timeout(KEY_FILE_WITHIN, other_keys).await.ok().flatten();
            let inputs = {
                files.extend(config_file.clone());
                let (loaded, config, running) = (loaded.clone(), config.clone(), running.config.clone());
                let read = move || Ok(Inputs::read(&loaded, &config, Some(&running), Vec::new())?);
                self.read_whole(&self.watches.config, files, read).await?
            };
            let Some(origin) = self.origin(config, inputs.upstream_tls, &running.origin, &mut made_origin).await?
            else {
                store_keys = None;
                continue;
            };
            let keys = match (&config.keys, inputs.keys, &self.store) {
                (Keys::File(_), Some(keys), _) => NewKeys::File(self.keys_of_file(keys)),
                (Keys::File(_), None, _) => match (other_keys, &running.keys, &self.gateway.state().keys) {
                    // Its own reload has put no content in force meanwhile, which would be a newer one.
                    (Some(keys), KeySource::File(before), KeySource::File(now))
                        if Arc::ptr_eq(&before.keys, &now.keys) =>
                    {
                        reloaded.changed.extend((*before.keys != *keys).then_some(KEY_FILE));
                        NewKeys::File(self.keys_of_file(keys))
                    }
                    _ => NewKeys::Unchanged,
                },
                // Without a store `reloaded` does not allow it as the source.
                (Keys::Store, _, Some(store)) if config.keys != running.config.keys => match store_keys.take() {
                    Some(keys) => NewKeys::Store(keys),
                    None => {
                        store_keys = Some(self.keys_of_store(store).await?);
                        continue;
                    }
                },
                (Keys::Origin { .. } | Keys::Store, ..) => NewKeys::Unchanged,
            };
            if !Arc::ptr_eq(&origin, &running.origin) && !reloaded.changed.contains(&"origin") {
                reloaded.changed.push("origin.tls");
            }
            log_warning(inputs.certificate.as_ref());
            return Ok(Prepared { loaded, reloaded, origin, keys, certificate: inputs.certificate });
        }
    }

    /// The keys of the key file, if the tiers are others now: a tier that is renamed, or swapped with another one, in both files
    /// is taken from both at once, since no more than its keys' burst in between would be left of their tokens. `None`, too, if
    /// the file cannot be used now, which its own reload tells.
    async fn keys_for_other_tiers(
        &self,
        running: &Config,
        next: &Config,
        seen: &mut FileStates,
    ) -> Option<Vec<ListedKey>> {
        let are_same =
            (&next.limits.tiers, &next.limits.default_tier) == (&running.limits.tiers, &running.limits.default_tier);
        let path = key_file(next).filter(|_| !are_same && next.keys == running.keys)?;
        loop {
            seen.extend(self.watches.keys.lock().read());
            let states = self.look_at_files(vec![path.clone()]).await.ok()?;
            match self.are_settled(&states, seen, false).await {
                Ok(()) => {}
                Err(rejection) if rejection.is_unread => continue, // it is being written
                Err(_) => return None,                             // it stays empty, which may be for ever
            }
            let path = path.clone();
            let read = move || {
                let keys = read_key_file(&path).ok();
                changed_file(&states, &look_at(vec![path])).is_none().then_some(keys)
            };
            if let Some(keys) = self.read_files(&self.watches.keys, read).await.ok()? {
                return keys;
            }
        }
    }

    async fn load_config(&self, has_file: bool) -> Result<Arc<Loaded>, Rejection> {
        let path = self.watches.config_path.clone();
        let rejection = |e: LoadError| Rejection {
            is_unread: matches!(e, LoadError::Missing(_) | LoadError::Unreadable { .. }),
            reason: e.to_string(),
        };
        let load = move || config::load(path.as_deref()).map_err(rejection);
        let loaded = self.read_whole(&self.watches.config, vec![self.watches.config_file()], load).await?;
        if has_file && loaded.path.is_none() {
            // It was there a moment ago: the defaults must not replace it.
            return Err(Rejection { reason: missing_line(&self.watches.config_file()), is_unread: true });
        }
        Ok(Arc::new(loaded))
    }

    /// Puts a configuration in force as a whole, without waiting. Returns the sections that changed, and the names that
    /// take effect after a restart.
    fn apply_config(&self, prepared: Prepared<'_>, in_force: &mut InForce) -> (Vec<&'static str>, Vec<String>) {
        let Prepared { loaded, reloaded, origin, keys, certificate } = prepared;
        let Reloaded { config, changed, after_restart } = reloaded;
        self.watches.set_in_force(&config);
        // A later removal of a file that was read now is logged again.
        let mut read = vec![self.watches.config_file()];
        read.extend(key_file(&config).filter(|_| matches!(keys, NewKeys::File(_))));
        read.extend(certificate.iter().flat_map(|_| certificate_files(&config)));
        self.missing.lock().retain(|path| !read.contains(path));
        if !matches!(keys, NewKeys::Unchanged) {
            self.admin.reloads.replaced(KEY_FILE);
        }
        if let (NewKeys::File(file), Some(path)) = (&keys, key_file(&config)) {
            log_if_empty(&path, file.keys.len(), &self.gateway.state().keys);
        }
        self.gateway.reload(config, origin, keys);
        if let (Some(tls), Some(certificate)) = (&self.tls, certificate) {
            tls.replace(certificate);
            self.admin.reloads.replaced(TLS_PAIR);
        }
        for warning in loaded.warnings.iter().filter(|warning| !in_force.warnings.contains(warning)) {
            tracing::warn!("{warning}");
        }
        // At each reload, unlike the warnings: who reads the log from there must see that the gate is open.
        loaded.config.limits.shadow_warning().inspect(|warning| tracing::warn!("{warning}"));
        *self.admin.config.write() = ConfigText::new(loaded.clone(), &after_restart);
        self.admin.reloads.accept(self.gateway.clock().unix());
        *in_force = InForce { has_file: loaded.path.is_some(), warnings: loaded.warnings.clone() };
        (changed, after_restart)
    }

    /// The keys of the store, which becomes their source.
    async fn keys_of_store(&self, store: &Arc<Store>) -> Result<LoadedKeys<'_>, Rejection> {
        let keys = self.gateway.follower.load_keys(Some(KeySource::Store(store.clone())));
        let keys = timeout(KEYS_TIMEOUT, keys).await.unwrap_or_else(|_| Err("the store takes too long".to_owned()));
        keys.map_err(|error| Rejection {
            is_unread: true,
            reason: format!("keys.source: the store's keys cannot be read, and are read again: {error}\n"),
        })
    }

    /// The origin of the new configuration: the running one where nothing about it changed, so that its connections stay
    /// open, or the one that was `made` before. `None`: it was made now, and upstreams that stay keep their connections.
    async fn origin(
        &self,
        config: &Config,
        tls: Option<origin::Tls>,
        running: &Arc<Origin>,
        made: &mut Option<Arc<HttpOrigin>>,
    ) -> Result<Option<Arc<Origin>>, String> {
        let (OriginKind::Http(upstreams), Origin::Http(http)) = (&config.origin.kind, &**running) else {
            return Ok(Some(running.clone())); // another kind takes effect after a restart
        };
        if http.has_settings(upstreams, &tls) {
            return Ok(Some(running.clone()));
        }
        if let Some(made) = made.as_ref().filter(|made| made.has_settings(upstreams, &tls)) {
            return Ok(Some(Arc::new(Origin::Http(made.clone()))));
        }
        let clock = self.gateway.clock().clone();
        *made = Some(HttpOrigin::start((**upstreams).clone(), tls, clock, Some(http)).await?);
        Ok(None)
    }

    async fn look_at_files(&self, files: Vec<PathBuf>) -> Result<FileStates, Rejection> {
        self.read_files(&self.watches.config, move || look_at(files)).await
    }

    /// Refuses files, unless they were `seen` in these states, while they are being written, or are empty if they must not be.
    /// Their next change causes another reload.
    async fn are_settled(
        &self,
        states: &FileStates,
        seen: &mut FileStates,
        may_be_empty: bool,
    ) -> Result<(), Rejection> {
        let unseen: FileStates = states.iter().filter(|state| !seen.contains(state)).cloned().collect();
        if unseen.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(SETTLE_TIME).await;
        let now = self.look_at_files(unseen.iter().map(|(path, _)| path.clone()).collect()).await?;
        if let Some(file) = changed_file(&unseen, &now) {
            return Err(is_being_written(file));
        }
        let empty = now.iter().find(|(_, state)| state.is_some_and(|state| state.is_empty()));
        if let (Some((file, _)), false) = (empty, may_be_empty) {
            return Err(format!("{} is empty; write it, or send SIGHUP to read it", file.display()).into());
        }
        seen.extend(unseen);
        Ok(())
    }
}
