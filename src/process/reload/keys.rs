//! The reload of the key file.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout_at};

use super::files::{LOOK_EVERY, Rejection};
use super::watches::key_file;
use super::{KEY_FILE, Reloader};
use crate::admin::ReloadOutcome;
use crate::gateway::{KeyFile, KeySource, NewKeys};
use crate::keys::{KeyFileError, ListedKey, read_key_file};

/// How long the reload of a key file waits for that of gateway.toml where both changed together: the keys may name tiers that
/// are other ones there, and that reload waits until the key file stays the same. This includes the time in which gateway.toml
/// has to stay the same yet. Resolving the names of upstreams may take seconds, and a revoked key must not wait for that.
const CONFIG_FIRST: Duration = Duration::from_millis(400);

/// The same with the time that the key file takes to be read: of 100,000 keys that is 0.3 s, and to put them in force 0.2 s.
const READ_AND_WAIT: Duration = Duration::from_millis(600);

/// For how long it does not wait again after it has waited: a key that was revoked meanwhile has waited once, and its file
/// has to stay the same yet. The moment in which a reload finds nothing new, as after most SIGHUPs, is no wait.
const WAITS_ONCE_WITHIN: Duration = Duration::from_secs(1);
const NO_WAIT: Duration = Duration::from_millis(100);

impl Reloader {
    /// `None`: there is no key file.
    pub(super) async fn reload_keys(&self, requested: bool) -> Option<ReloadOutcome> {
        let begun = Instant::now();
        let mut waited = self.keys_lock.lock().await;
        let path = key_file(&self.gateway.state().config)?;
        let missing = self.missing_lines(&self.watches.keys, vec![path.clone()], requested).await;
        if !missing.is_empty() {
            return Some(ReloadOutcome::rejected(&missing));
        }
        let file = path.display();
        let mut state = self.gateway.state().clone();
        let read = loop {
            let path = path.clone();
            let rejection = |e: KeyFileError| Rejection {
                is_unread: matches!(e, KeyFileError::Unreadable(_)),
                reason: e.to_string(),
            };
            let files = vec![path.clone()];
            let load = move || read_key_file(&path).map_err(rejection);
            let read = self.read_whole(&self.watches.keys, files, load).await;
            if read.is_err() {
                break read;
            }
            self.wait_for_config(begun, &mut waited).await;
            let before = std::mem::replace(&mut state, self.gateway.state().clone());
            match (&before.keys, &state.keys) {
                // The reload of gateway.toml has put a content of a key file in force that may be newer.
                (KeySource::File(before), KeySource::File(now)) if !Arc::ptr_eq(&before.keys, &now.keys) => {}
                _ => break read,
            }
        };
        let keys = match read {
            Ok(keys) => keys,
            Err(rejection) => {
                let outcome = rejection.outcome();
                if requested || !self.admin.reloads.is_known(KEY_FILE, &outcome) {
                    let reason = &rejection.reason;
                    tracing::error!(%file, "key file rejected; the keys read before stay in force\n{reason}");
                }
                return Some(outcome);
            }
        };
        let count = keys.len();
        let is_changed = !matches!(&state.keys, KeySource::File(file) if *file.keys == *keys);
        if key_file(&state.config).as_ref() != Some(&path) {
            return None; // the configuration names another key file by now
        }
        self.gateway.reload((*state.config).clone(), state.origin.clone(), NewKeys::File(self.keys_of_file(keys)));
        tracing::info!(%file, "key file reloaded");
        log_if_empty(&path, count, &state.keys);
        Some(ReloadOutcome::changed(is_changed.then_some("keys.file")))
    }

    /// Waits until the reload of gateway.toml that may have begun, or is about to, has ended: for a moment, and not again soon
    /// after it has `waited`.
    async fn wait_for_config(&self, begun: Instant, waited: &mut Option<Instant>) {
        if waited.is_some_and(|at| at.elapsed() < WAITS_ONCE_WITHIN) {
            return;
        }
        let now = Instant::now();
        let until = (now + CONFIG_FIRST).min(begun + READ_AND_WAIT);
        let config_reloaded = async {
            while self.watches.config.lock().has_unsettled() {
                sleep(LOOK_EVERY).await;
            }
            let _ended = self.in_force.lock().await;
        };
        let _ = timeout_at(until.into(), config_reloaded).await;
        if now.elapsed() > NO_WAIT {
            *waited = Some(Instant::now());
        }
    }

    pub(super) fn keys_of_file(&self, keys: Vec<ListedKey>) -> KeyFile {
        KeyFile::new(keys, self.store.clone())
    }
}

/// Warns of a key file with `keys` keys that replace those of `before`, if it holds none.
pub(super) fn log_if_empty(path: &Path, keys: usize, before: &KeySource) {
    if keys == 0 {
        let removed = if let KeySource::File(file) = before { file.keys.len() } else { 0 };
        tracing::warn!(file = %path.display(), removed, "the key file holds no key, so every request is refused");
    }
}
