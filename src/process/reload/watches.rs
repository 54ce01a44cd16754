//! Which files are watched: those that the configuration in force names, and while another one is being put in force,
//! those that it names too.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::files::changed_file;
use crate::config::{self, Config, Keys, OriginKind};
use crate::keys::{ListedKey, read_key_file};
use crate::process::watch::{FileStates, FileWatch, look_at};

/// The files whose changes cause a reload.
#[derive(Debug)]
pub(in crate::process) struct Watches {
    /// The path of the configuration file that the command line gives, if it gives one.
    pub(super) config_path: Option<PathBuf>,
    /// `gateway.toml`, and the TLS files for upstreams.
    pub(super) config: Mutex<FileWatch>,
    pub(super) keys: Mutex<FileWatch>,
    pub(super) certificate: Mutex<FileWatch>,
}

impl Watches {
    /// Over the files of a configuration that is about to be put in force; `config_watch` watches its own file already.
    pub(in crate::process) fn new(config_path: Option<PathBuf>, config_watch: FileWatch, config: &Config) -> Self {
        let watches = Watches {
            config_path,
            config: Mutex::new(config_watch),
            keys: Mutex::new(FileWatch::new(key_file(config))),
            certificate: Mutex::new(FileWatch::new(certificate_files(config))),
        };
        watches.config.lock().set_files(watches.config_files(config), None);
        watches
    }

    /// The keys of the key file, if it has changed since the start began and read it: a key that was removed from it
    /// meanwhile is not to be accepted again (guarantee 7).
    ///
    /// # Errors
    /// Why it cannot be read now, with its path.
    pub(in crate::process) fn read_changed_keys(&self) -> Result<Option<Vec<ListedKey>>, String> {
        let mut watch = self.keys.lock();
        let states = look_at(watch.paths());
        let keys = match states.first() {
            Some((path, now)) if states != watch.read() => match now {
                Some(state) if state.is_empty() => return Err(format!("{} is empty", path.display())),
                _ => read_key_file(path).map_err(|e| e.to_string())?,
            },
            _ => return Ok(None),
        };
        watch.reset(states);
        Ok(Some(keys))
    }

    /// Whether `gateway.toml` is another file than the one that the start has read.
    pub(in crate::process) fn config_has_changed(&self) -> bool {
        let now = look_at([self.config_file()]);
        changed_file(&self.config.lock().read(), &now).is_some()
    }

    pub(in crate::process) fn config_file(&self) -> PathBuf {
        config_file(self.config_path.as_deref())
    }

    /// All files that are watched.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        [&self.config, &self.keys, &self.certificate]
            .into_iter()
            .flat_map(|watch| Vec::from_iter(watch.lock().paths()))
            .collect()
    }

    /// `gateway.toml` and the files that are reloaded with it.
    fn config_files(&self, config: &Config) -> Vec<PathBuf> {
        [vec![self.config_file()], upstream_tls_files(config)].concat()
    }

    /// The files that are read for `next`: the TLS files of upstreams, and those of each other part for which it names others
    /// than `running`.
    pub(super) fn files_of(next: &Config, running: &Config) -> Vec<PathBuf> {
        let parts = |config| [Vec::from_iter(key_file(config)), certificate_files(config)];
        let differ = |(next, running): &(Vec<PathBuf>, Vec<PathBuf>)| next != running;
        let others = parts(next).into_iter().zip(parts(running)).filter(differ).flat_map(|(next, _)| next);
        upstream_tls_files(next).into_iter().chain(others).collect()
    }

    /// Watches the files of a configuration, which are about to be read in these states. Until it is in force their change
    /// causes another reload of `gateway.toml`, which may be rejected because of them; none waits for those that are new.
    pub(super) fn add(&self, states: FileStates, running: &Config) {
        let in_force = self.config_files(running);
        let mut watch = self.config.lock();
        watch.set_files(in_force.iter().cloned().chain(states.iter().map(|(path, _)| path.clone())), None);
        watch.reset(states);
        watch.wait_only_for(&in_force);
    }

    /// Watches the files of a configuration that is being put in force. Those that were watched as new files keep their
    /// state, so that a change since they were read is noticed.
    pub(super) fn set_in_force(&self, config: &Config) {
        let mut watch = self.config.lock();
        self.keys.lock().set_files(key_file(config), Some(&watch));
        self.certificate.lock().set_files(certificate_files(config), Some(&watch));
        watch.set_files(self.config_files(config), None);
    }
}

/// The file that the command line gives, or the default one.
pub(in crate::process) fn config_file(config_path: Option<&Path>) -> PathBuf {
    config_path.unwrap_or(Path::new(config::DEFAULT_FILE)).to_owned()
}

pub(super) fn key_file(config: &Config) -> Option<PathBuf> {
    match &config.keys {
        Keys::File(path) => Some(path.clone()),
        Keys::Store | Keys::Origin { .. } => None,
    }
}

fn upstream_tls_files(config: &Config) -> Vec<PathBuf> {
    match &config.origin.kind {
        OriginKind::Http(upstreams) => upstreams.tls.files().cloned().collect(),
        OriginKind::Builtin => Vec::new(),
    }
}

pub(super) fn certificate_files(config: &Config) -> Vec<PathBuf> {
    config.server.tls.iter().flat_map(|tls| [tls.certificate.clone(), tls.private_key.clone()]).collect()
}
