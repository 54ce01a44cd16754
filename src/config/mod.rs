//! `gateway.toml`: a section is one file here, with its settings as they are typed, their defaults, descriptions and
//! bounds, and its `check` for what concerns several of them. Where what the rest of the code uses is another form, the
//! section has a second type, which its `check` makes.
//!
//! `parse` reads the text along the schema and finds every fault of form, then each section's `check` judges the values;
//! both collect in `problem::Faults`, each fault with its line and column. `report` prints what is in force.

mod admin;
mod answers;
mod cache;
mod cluster;
pub mod expires; // when something ends, as typed
mod file;
#[cfg(test)]
mod fuzz;
pub mod leaf;
mod limits;
mod log;
mod origin;
mod parse;
mod pass;
mod pem;
mod problem;
mod redis;
mod reload;
mod report;
mod roots;
pub mod secret;
mod server;
mod store;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use self::problem::Faults;

pub use self::admin::AdminListener;
pub use self::answers::{AnswerHeader, Answers, ErrorStatus};
pub use self::cache::{Cache, Freshness, cached_reads};
pub use self::cluster::{Cluster, WhenAway};
pub use self::file::{Config, ConfigHash, NO_STORE, schema};
pub(crate) use self::leaf::{is_name, shown};
pub use self::limits::{Limits, MAX_TIERS, Rate, Tier, TierFile};
pub use self::log::{Access, Log, LogFormat, LogLevel};
pub use self::origin::{Health, Keys, Origin, OriginKind, Upstream, UpstreamTls, Upstreams};
pub use self::pass::Pass;
pub use self::pem::{PemFile, pair_fault};
pub(crate) use self::problem::{MAX_PROBLEMS, Places, below, instead};
pub use self::problem::{Problem, Problems, SettingFault};
pub use self::redis::{HostPort, RedisAt, RedisServers};
pub use self::reload::Reloaded;
pub use self::report::report;
pub use self::roots::{Roots, client_tls, system_roots, tls_fault, unreadable_roots};
pub use self::server::{CertificateFiles, HANDOVER_SUFFIX, Listen, Server, is_trusted};
pub use self::store::{PostgresAt, PostgresTls, StoreAt};
use crate::files::read_at_most;

/// The config file where none is named.
pub const DEFAULT_FILE: &str = "gateway.toml";

/// Largest config file that is read. A thousand tiers fit; a file of data named by mistake does not.
const MAX_FILE: u64 = 1 << 20;

/// A config that may be put in force.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: Config,
    /// What the operator should know and need not change.
    pub warnings: Vec<SettingFault>,
    /// The file it came from; `None`: there is no file, and these are the defaults.
    pub path: Option<PathBuf>,
    /// The name of the file in messages.
    name: String,
    /// Where in the file each setting stands.
    places: Places,
    /// The values in force by their names in the file. No secret is in it.
    pub in_force: toml::Table,
}

impl Loaded {
    /// The values in force as TOML, with the defaults and without secrets.
    pub fn toml(&self) -> String {
        toml::to_string(&self.in_force).unwrap_or_default() // a table of TOML can be written as TOML
    }

    /// Whether the file names this setting.
    pub fn is_given(&self, setting: &str) -> bool {
        self.places.is_given(setting)
    }

    /// These faults with their places in the file.
    pub fn faults(&self, faults: &[SettingFault]) -> Problems {
        let mut list: Vec<_> = faults.iter().map(|f| self.places.problem(&f.setting, None, &f.message)).collect();
        list.sort_by_key(|p| (p.line, p.column));
        Problems { name: self.name.clone(), list }
    }

    /// Where a tier's limit is set, as `gateway.toml:37`; `None` if the file does not set it. Without a tier: the limit
    /// of addresses.
    pub fn location_of_limit(&self, tier: Option<&str>, limit: &str) -> Option<String> {
        let table = tier.map_or("limits.strangers".to_owned(), |tier| format!("limits.tiers.{}", problem::bare(tier)));
        let path = format!("{table}.{limit}");
        let at = self.places.problem(&path, None, "");
        self.places.is_given(&path).then(|| format!("{}:{}", self.name, at.line))
    }
}

/// Why there is no config; each is exit 2 (contract section 2).
#[derive(Debug, Error)]
pub enum LoadError {
    #[error("there is no config file {}; name one with --config, or leave it out for the defaults", .0.display())]
    Missing(PathBuf),
    #[error("{} {why}", path.display())]
    Unusable { path: PathBuf, why: String },
    #[error(transparent)]
    Problems(#[from] Problems),
}

/// Reads the config: the named file, or else `gateway.toml` in the current folder if there is one, or else the
/// defaults (contract section 3).
///
/// # Errors
/// A named file that is missing, a file that cannot be read, or every fault that the file has.
pub fn load(named: Option<&Path>) -> Result<Loaded, LoadError> {
    let path = named.unwrap_or(Path::new(DEFAULT_FILE));
    let text = match read_text(path) {
        Err(LoadError::Missing(_)) if named.is_none() => return Ok(load_str("", Path::new(""), DEFAULT_FILE)?),
        text => text?,
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let loaded = load_str(&text, folder, &path.display().to_string())?;
    Ok(Loaded { path: Some(path.to_owned()), ..loaded })
}

/// Reads a config from text. Relative paths in it start at `folder`; its faults begin with `name`.
///
/// # Errors
/// Every fault that the text has.
pub fn load_str(text: &str, folder: &Path, name: &str) -> Result<Loaded, Problems> {
    load_with(text, folder, name, &|variable| std::env::var(variable).ok())
}

/// As [`load_str`], with the caller's environment variables.
fn load_with(text: &str, folder: &Path, name: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Loaded, Problems> {
    let (mut file, mut faults) = parse::parse(text, folder, env);
    let config = file.as_mut().map(|file| file.check(&mut faults));
    let Faults { places, mut list, warnings, .. } = faults;
    match (file, config) {
        (Some(file), Some(mut config)) if list.is_empty() => {
            let in_force = report::in_force(&file, &config);
            config.hash = report::hash(&in_force);
            Ok(Loaded { config, warnings, path: None, name: name.to_owned(), places, in_force })
        }
        _ => {
            list.sort_by_key(|problem| (problem.line, problem.column));
            Err(Problems { name: name.to_owned(), list })
        }
    }
}

fn read_text(path: &Path) -> Result<String, LoadError> {
    let unusable = |why: String| LoadError::Unusable { path: path.to_owned(), why };
    let bytes =
        fs::File::open(path).and_then(|file| read_at_most(file, MAX_FILE)).map_err(|cause| match cause.kind() {
            // A link to a file that is not there is a fault, and no reason for the defaults.
            io::ErrorKind::NotFound if path.symlink_metadata().is_err() => LoadError::Missing(path.to_owned()),
            _ => unusable(format!("cannot be read: {cause}")),
        })?;
    let bytes = bytes.ok_or_else(|| unusable("is larger than 1 MiB; is it a config file?".to_owned()))?;
    String::from_utf8(bytes).map_err(|fault| unusable(format!("is not UTF-8 text: {fault}")))
}
