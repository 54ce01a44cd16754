//! Checks what the configuration names on this machine: files, folders, sockets and addresses. `serve` and `check` do
//! so in the same way and before anything else, so that what one refuses the other refuses too (exit code 2). Nothing
//! is made or changed.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Access as Permission, access};

use super::ProcessError;
use crate::admin::Tokens;
use crate::config::secret::Source;
use crate::config::{Config, Keys, Listen, Loaded, OriginKind, PemFile, PostgresTls, SettingFault, StoreAt};
use crate::files::folder_of;
use crate::keys::{KeyFileError, ListedKey, read_key_file};
use crate::model::hide_keys;
use crate::origin;
use crate::telemetry::decisions;
use crate::tls::Certificate;

/// What the files that the configuration names contain.
#[derive(Debug, Default)]
pub struct Inputs {
    /// The certificate for callers, where `server.tls` is set.
    pub certificate: Option<Certificate>,
    /// The certificate of the admin listener, where `admin.tls` is set.
    pub admin_certificate: Option<Certificate>,
    /// TLS to upstreams, where one uses it.
    pub upstream_tls: Option<origin::Tls>,
    /// The keys of the key file, where there is one.
    pub keys: Option<Vec<ListedKey>>,
}

impl Inputs {
    /// What the operator should know of these files, and need not change.
    pub fn warnings(&self, config: &Config) -> Vec<String> {
        let certificates = [&self.certificate, &self.admin_certificate].into_iter().flatten();
        let mut warnings: Vec<String> = certificates.flat_map(|certificate| certificate.warnings.clone()).collect();
        warnings.extend(config.admin.listener().into_iter().flat_map(Tokens::warnings));
        warnings.extend(self.keys.iter().flat_map(|keys| key_warnings(config, keys)));
        warnings
    }
}

/// The warnings about a list of keys: that a key file has none, and the keys whose tier does not exist.
pub fn key_warnings(config: &Config, keys: &[ListedKey]) -> Vec<String> {
    let limits = &config.limits;
    let of_tier = keys.iter().filter_map(|key| {
        let tier = key.tier.as_ref().filter(|tier| !limits.tiers.iter().any(|known| *known.name == ***tier))?;
        let (tier, default) = (hide_keys(tier), &limits.default_tier.name);
        Some(format!("key {}: its tier '{tier}' is not in [limits.tiers]; it gets '{default}'", key.id))
    });
    let empty = match &config.keys {
        Keys::File(path) if keys.is_empty() => {
            Some(format!("{}: the key file holds no key, so every request is refused", path.display()))
        }
        _ => None,
    };
    empty.into_iter().chain(of_tier).collect()
}

/// Checks everything that the configuration names, and reads its files.
///
/// # Errors
/// Every fault, as [`ProcessError::Unusable`].
pub fn check(loaded: &Loaded) -> Result<Inputs, ProcessError> {
    let (config, mut faults, mut inputs, mut key_faults) = (&loaded.config, Vec::new(), Inputs::default(), None);
    check_server(config, &mut faults);
    check_store(config, &mut faults);
    faults.extend(config.log.files().filter_map(|(setting, path)| not_writable(setting, path)));
    if let Some(Err(error)) = config.log.decisions.as_deref().map(decisions::check) {
        faults.push(SettingFault::new("log.decisions", error.to_string()));
    }
    if let Some(admin) = config.admin.listener() {
        faults.extend(Tokens::faults(admin));
        if let Source::File(path) = admin.token.source()
            && !Path::new(path).exists()
        {
            faults.extend(not_writable("admin.token", Path::new(path)));
        }
        inputs.admin_certificate =
            admin.tls.as_ref().and_then(|pair| keep(Certificate::load("admin.tls", pair), &mut faults));
    }
    if let OriginKind::Http(upstreams) = &config.origin.kind {
        inputs.upstream_tls = keep(origin::Tls::load(upstreams), &mut faults).flatten();
    }
    inputs.certificate =
        config.server.tls.as_ref().and_then(|pair| keep(Certificate::load("server.tls", pair), &mut faults));
    if let Keys::File(path) = &config.keys {
        match read_key_file(path) {
            Ok(keys) => inputs.keys = Some(keys),
            Err(KeyFileError::Unusable(why)) => faults.push(SettingFault::new("keys.file", why)),
            Err(KeyFileError::Faults(found)) => key_faults = Some(found.to_string()),
        }
    }
    let faults = (!faults.is_empty()).then(|| loaded.faults(&faults).to_string());
    let lines: Vec<String> = faults.into_iter().chain(key_faults).collect();
    if lines.is_empty() { Ok(inputs) } else { Err(ProcessError::Unusable(lines.join("\n"))) }
}

fn keep<T>(read: Result<T, SettingFault>, faults: &mut Vec<SettingFault>) -> Option<T> {
    read.map_err(|fault| faults.push(fault)).ok()
}

/// The addresses and the sockets that the server makes.
fn check_server(config: &Config, faults: &mut Vec<SettingFault>) {
    let server =
        config.server.listen.iter().enumerate().map(|(i, listen)| (format!("server.listen[{i}]"), listen.clone()));
    let admin = config.admin.listener().map(|listener| ("admin.listen".to_owned(), Listen::Tcp(listener.address)));
    let handover = config.server.handover.iter().map(|path| ("server.handover".to_owned(), Listen::Unix(path.clone())));
    for (setting, listen) in server.chain(admin).chain(handover) {
        let fault = match &listen {
            // On any port: that another process or user has this one is no fault of the configuration.
            Listen::Tcp(address) => TcpListener::bind((address.ip(), 0)).err().and_then(|error| {
                let is_other = error.kind() == io::ErrorKind::AddrNotAvailable;
                is_other.then(|| format!("{address} is no address of this machine: {error}"))
            }),
            Listen::Unix(path) => missing_folder(path).or_else(|| {
                let is_other = fs::symlink_metadata(path).is_ok_and(|file| !file.file_type().is_socket());
                is_other.then(|| format!("{} exists and is not a socket; name another path", path.display()))
            }),
        };
        faults.extend(fault.map(|why| SettingFault::new(&setting, why)));
    }
}

/// What the store's own opening does not check.
fn check_store(config: &Config, faults: &mut Vec<SettingFault>) {
    let fault = match &config.origin.store {
        _ if !config.needs_store() => None,
        StoreAt::Sqlite(path) => missing_folder(path),
        StoreAt::Postgres(at) => match &at.tls {
            PostgresTls::Verified { roots: Some(roots), .. } => {
                PemFile::read("sslrootcert", roots).and_then(|file| file.roots()).err().map(|fault| fault.to_string())
            }
            _ => None,
        },
    };
    faults.extend(fault.map(|why| SettingFault::new("origin.store", why)));
}

fn missing_folder(path: &Path) -> Option<String> {
    let folder = folder_of(path);
    let (path, shown) = (path.display(), folder.display());
    (!folder.is_dir()).then(|| format!("the folder of {path} does not exist; make it (mkdir -p {shown})"))
}

/// Why the server cannot write the file of this setting.
fn not_writable(setting: &str, path: &Path) -> Option<SettingFault> {
    let (of, written) = if path.exists() { ("", path.to_owned()) } else { ("the folder of ", folder_of(path)) };
    let denied = || {
        let error = io::Error::from(access(&written, Permission::WRITE_OK).err()?);
        Some(format!("{of}{} cannot be written: {error}; see its owner and its mode", path.display()))
    };
    let folder = || path.is_dir().then(|| format!("{} is a folder; name a file in it", path.display()));
    let fault = missing_folder(path).or_else(folder).or_else(denied);
    fault.map(|why| SettingFault::new(setting, why))
}
