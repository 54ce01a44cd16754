//! Reads the parts that are due, each as a whole or not at all, and puts those without a fault in force in one swap.

use std::fmt::Display;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::prepare::{Needs, Prepared};
use super::{InForce, Part, PartState, Reloader, on_thread};
use crate::admin::{ConfigInForce, ReloadFault, ReloadOutcome};
use crate::config::{self, Config, LoadError, Loaded};
use crate::gateway::{KeyFile, KeySource, NewKeys, State};
use crate::keys::{KeyFileError, read_key_file};
use crate::origin::Origin;
use crate::process::preflight::Inputs;
use crate::process::watch::look;
use crate::tls::Certificate;

/// What is to be in force next.
struct Next {
    config: Arc<Config>,
    origin: Arc<Origin>,
    keys: NewKeys,
    /// Where `config` comes from, if it is another one, and which of its settings take effect after a restart.
    loaded: Option<(Loaded, Vec<String>)>,
}

/// What became of a part, or its faults. `None`: it waits.
pub(super) type Outcome = Result<Option<ReloadOutcome>, Vec<ReloadFault>>;

impl Reloader {
    /// Reloads these parts. `prepared`: what `gateway.toml` has waited for.
    pub(super) async fn reload(&mut self, parts: [bool; 3], prepared: Option<Result<Prepared, String>>) {
        let running = self.gateway.state().clone();
        let (config, origin) = (running.config.clone(), running.origin.clone());
        let mut next = Next { config, origin, keys: NewKeys::Unchanged, loaded: None };
        let mut outcomes = [Ok(None), Ok(None), Ok(None)];
        if parts[0] {
            outcomes[0] = self.read_config(&running, &mut next, prepared).await;
            if let Ok(None) = outcomes[0] {
                self.watch.forget(&self.in_force.file);
            }
        }
        // Where `gateway.toml` names another key file or TLS pair, that was read with it.
        if parts[1] && next.config.keys == running.config.keys {
            outcomes[1] = self.read_keys(&running, &mut next).await;
        }
        if parts[2] && next.config.server.tls == running.config.server.tls {
            outcomes[2] = self.read_certificate(&running).await;
        }
        let has_other_keys = !matches!(next.keys, NewKeys::Unchanged);
        if has_other_keys || next.loaded.is_some() {
            self.gateway.reload(next.config, next.origin, next.keys);
        }
        if has_other_keys {
            warn_if_empty(&self.gateway.state().keys, &running.keys);
        }
        if let Some((loaded, after_restart)) = next.loaded {
            self.config_in_force(loaded, &after_restart);
        }
        for (part, outcome) in Part::ALL.into_iter().zip(outcomes) {
            self.tell(part, outcome);
        }
    }

    /// Reads files as a whole: they must stand still before, and be the same after. `None`: they are read once they do.
    async fn read<T: Send + 'static>(
        &mut self,
        files: Vec<PathBuf>,
        read: impl FnOnce() -> Result<T, Vec<ReloadFault>> + Send + 'static,
    ) -> Result<Option<T>, Vec<ReloadFault>> {
        let asked_at = self.parts.iter().any(|part| part.is_asked).then_some(self.asked.at);
        let Some(before) = self.watch.readable(&files, asked_at) else { return Ok(None) };
        let read_on_thread = move || {
            let is_pipe = |file: &&PathBuf| file.metadata().is_ok_and(|file| file.file_type().is_fifo());
            let content = match files.iter().find(is_pipe) {
                Some(pipe) => Err(fault(format!("{} is a pipe, which is not read again", pipe.display()))),
                None => read(),
            };
            (content, look(files))
        };
        match on_thread(read_on_thread).await {
            Some((content, after)) if after == before => {
                self.watch.take(before);
                content.map(Some)
            }
            _ => Ok(None),
        }
    }

    async fn read_config(
        &mut self,
        running: &State,
        next: &mut Next,
        prepared: Option<Result<Prepared, String>>,
    ) -> Outcome {
        let (file, has_file) = (self.in_force.file.clone(), self.in_force.has_file);
        let load = move || {
            config::load(has_file.then_some(&*file)).map_err(|e| match e {
                LoadError::Missing(file) => fault(format!("{} is missing", file.display())),
                LoadError::Problems(problems) => ReloadFault::of_file(&problems),
                other => fault(other),
            })
        };
        self.named.clear();
        let Some(loaded) = self.read(vec![self.in_force.file.clone()], load).await? else { return Ok(None) };
        let mut reloaded = running.config.reloaded(loaded.config.clone(), self.store.is_some());
        self.named = files_named(&reloaded.config, &running.config);
        let files = [vec![self.in_force.file.clone()], self.named.clone()].concat();
        let (of, config, before) = (loaded.clone(), reloaded.config.clone(), running.config.clone());
        let read_inputs = move || Inputs::read(&of, &config, Some(&before), Vec::new());
        let Some(inputs) = self.read(files, read_inputs).await? else { return Ok(None) };
        let needs = Needs::of(&reloaded.config, &inputs, running, self.store.as_ref());
        let Some(prepared) = needs.met_by(prepared.transpose().map_err(fault)?.unwrap_or_default()) else {
            self.preparing = Some(tokio::spawn(needs.prepare(self.gateway.clone())));
            return Ok(None);
        };
        if let Some(origin) = prepared.origin {
            next.origin = Arc::new(Origin::Http(origin));
            if !reloaded.changed.contains(&"origin") {
                reloaded.changed.push("origin.tls");
            }
        }
        if let Some(keys) = inputs.keys {
            next.keys = NewKeys::File(KeyFile::new(keys, self.store.clone()));
            self.replaced(Part::Keys);
        } else if let Some(keys) = prepared.keys {
            next.keys = NewKeys::Store(keys);
        }
        if let Some(certificate) = inputs.certificate {
            self.show(certificate);
            self.replaced(Part::Certificate);
        }
        self.named.clear();
        next.config = Arc::new(reloaded.config);
        next.loaded = Some((loaded, reloaded.after_restart.clone()));
        let changed = reloaded.changed.into_iter().map(str::to_owned).collect();
        Ok(Some(ReloadOutcome { changed, after_restart: reloaded.after_restart, ..ReloadOutcome::default() }))
    }

    async fn read_keys(&mut self, running: &State, next: &mut Next) -> Outcome {
        let Some(file) = Part::Keys.files(&running.config).pop() else { return Ok(None) };
        let read = move || {
            read_key_file(&file).map_err(|e| match e {
                KeyFileError::Faults(problems) => ReloadFault::of_file(&problems),
                KeyFileError::Unusable(why) => fault(why),
            })
        };
        let Some(keys) = self.read(Part::Keys.files(&running.config), read).await? else { return Ok(None) };
        let is_same = matches!(&running.keys, KeySource::File(file) if *file.keys == *keys);
        next.keys = NewKeys::File(KeyFile::new(keys, self.store.clone()));
        Ok(Some(ReloadOutcome::changed((!is_same).then_some(Part::Keys.name()))))
    }

    async fn read_certificate(&mut self, running: &State) -> Outcome {
        let Some(pair) = running.config.server.tls.clone() else { return Ok(None) };
        let load = move || Certificate::load("server.tls", &pair).map_err(fault);
        let Some(certificate) = self.read(Part::Certificate.files(&running.config), load).await? else {
            return Ok(None);
        };
        Ok(Some(ReloadOutcome::changed(self.show(certificate).then_some(Part::Certificate.name()))))
    }

    /// Shows new connections this certificate. Whether it is another one.
    fn show(&self, certificate: Certificate) -> bool {
        certificate.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        self.tls.as_ref().is_some_and(|tls| tls.replace(certificate))
    }

    /// What is in force of a part comes from other files now than those that were rejected.
    fn replaced(&mut self, part: Part) {
        self.parts[part as usize] = PartState::default();
        self.admin.reloads.replaced(part.name());
    }

    fn config_in_force(&mut self, loaded: Loaded, after_restart: &[String]) {
        for warning in loaded.warnings.iter().filter(|warning| !self.in_force.warnings.contains(warning)) {
            tracing::warn!("{warning}");
        }
        // At each reload, unlike the warnings: who reads the log from there must see that the gate is open.
        loaded.config.limits.shadow_warning().inspect(|warning| tracing::warn!("{warning}"));
        let (file, has_file) = (self.in_force.file.clone(), loaded.path.is_some());
        self.in_force = InForce { file, has_file, warnings: loaded.warnings.clone() };
        *self.admin.config.write() = ConfigInForce { loaded: Arc::new(loaded), after_restart: after_restart.to_vec() };
        self.admin.reloads.accept(self.gateway.clock().unix());
    }
}

/// The one fault of a part, without a location.
fn fault(why: impl Display) -> Vec<ReloadFault> {
    vec![ReloadFault::new(why)]
}

/// The files that are read with a `gateway.toml`: the TLS files of its upstreams, and those of each other part for which it
/// names others than those in force.
fn files_named(next: &Config, running: &Config) -> Vec<PathBuf> {
    let is_read = |part: &Part| *part == Part::Config || part.files(next) != part.files(running);
    Part::ALL.into_iter().filter(is_read).flat_map(|part| part.files(next)).collect()
}

/// Warns of a key file without keys in the place of `before`.
fn warn_if_empty(now: &KeySource, before: &KeySource) {
    let count = |keys: &KeySource| if let KeySource::File(file) = keys { file.keys.len() } else { 0 };
    if matches!(now, KeySource::File(_)) && count(now) == 0 {
        tracing::warn!(removed = count(before), "the key file holds no key, so every request is refused");
    }
}
