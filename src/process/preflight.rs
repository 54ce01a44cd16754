//! Checks what the configuration names on this machine: files, folders, sockets and addresses. `serve` and `check` do
//! so in the same way and before anything else, so that what one refuses the other refuses too (exit code 2). Nothing
//! is made or changed.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Access as Permission, access};

use super::ProcessError;
use crate::admin::{ReloadFault, Tokens};
use crate::config::secret::Source;
use crate::config::{Access, Config, Keys, Listen, Loaded, OriginKind, PemFile, PostgresTls, SettingFault, StoreAt};
use crate::files::folder_of;
use crate::keys::{KeyFileError, ListedKey, read_key_file};
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
        if let (Keys::File(path), Some([])) = (&config.keys, self.keys.as_deref()) {
            warnings.push(format!("{}: the key file holds no key, so every request is refused", path.display()));
        }
        warnings
    }
}

impl Inputs {
    /// Reads the files of `config`, which was loaded from `loaded`. `running` is the configuration in force, if there
    /// is one: the certificate and the key file are read only where their settings differ from it, because a change of
    /// their content is another reload.
    ///
    /// # Errors
    /// Every fault, `faults` included, with its place in the configuration or in the key file.
    pub(super) fn read(
        loaded: &Loaded,
        config: &Config,
        running: Option<&Config>,
        mut faults: Vec<SettingFault>,
    ) -> Result<Inputs, Vec<ReloadFault>> {
        let (mut inputs, mut key_faults) = (Inputs::default(), Vec::new());
        if let Some(files) = &config.server.tls
            && running.is_none_or(|running| running.server.tls.as_ref() != Some(files))
        {
            inputs.certificate = Certificate::load("server.tls", files).map_err(|fault| faults.push(fault)).ok();
        }
        // The admin listener is set up at the start only.
        if let (Some(listener), None) = (config.admin.listener(), running) {
            faults.extend(Tokens::faults(listener));
            let certificate = listener.tls.as_ref().map(|files| Certificate::load("admin.tls", files)).transpose();
            inputs.admin_certificate = certificate.map_err(|fault| faults.push(fault)).ok().flatten();
        }
        if let OriginKind::Http(upstreams) = &config.origin.kind {
            inputs.upstream_tls = origin::Tls::load(upstreams).map_err(|fault| faults.push(fault)).ok().flatten();
        }
        if let Keys::File(path) = &config.keys
            && running.is_none_or(|running| running.keys != config.keys)
        {
            match read_key_file(path) {
                Ok(keys) => inputs.keys = Some(keys),
                Err(KeyFileError::Unusable(why)) => faults.push(SettingFault::new("keys.file", why)),
                Err(KeyFileError::Faults(found)) => key_faults = ReloadFault::of_file(&found),
            }
        }
        let faults = [ReloadFault::of_file(&loaded.faults(&faults)), key_faults].concat();
        if faults.is_empty() { Ok(inputs) } else { Err(faults) }
    }
}

/// Checks everything that the configuration names, and reads its files.
///
/// # Errors
/// Every fault, as [`ProcessError::Unusable`].
pub fn check(loaded: &Loaded) -> Result<Inputs, ProcessError> {
    let config = &loaded.config;
    let mut faults = faults_of_outputs(config);
    for (setting, address) in tcp_addresses(config) {
        // On any port: that another process or user has this one is no fault of the configuration.
        if let Err(error) = TcpListener::bind((address.ip(), 0))
            && error.kind() == io::ErrorKind::AddrNotAvailable
        {
            faults.push(SettingFault::new(&setting, format!("{address} is no address of this machine: {error}")));
        }
    }
    if let (true, StoreAt::Postgres(at)) = (config.needs_store(), &config.origin.store)
        && let PostgresTls::Verified { roots: Some(roots), .. } = &at.tls
        && let Err(fault) = PemFile::read("sslrootcert", roots).and_then(|file| file.roots())
    {
        faults.push(SettingFault { setting: "origin.store".to_owned(), message: fault.to_string() });
    }
    let lines = |faults: Vec<ReloadFault>| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    Inputs::read(loaded, config, None, faults).map_err(|faults| ProcessError::Unusable(lines(faults)))
}

fn tcp_addresses(config: &Config) -> impl Iterator<Item = (String, SocketAddr)> {
    let admin = config.admin.listener().into_iter().map(|listener| ("admin.listen".to_owned(), listener.address));
    let server = config.server.listen.iter().enumerate().filter_map(|(i, listen)| match listen {
        Listen::Tcp(address) => Some((format!("server.listen[{i}]"), *address)),
        Listen::Unix(_) => None,
    });
    server.chain(admin)
}

/// Why the files and sockets that the server makes or writes cannot be.
fn faults_of_outputs(config: &Config) -> Vec<SettingFault> {
    let mut faults = Vec::new();
    let mut check = |setting: &str, path: &Path, fault: fn(&Path) -> Option<String>| {
        let fault = missing_folder(path).or_else(|| fault(path));
        faults.extend(fault.map(|why| SettingFault::new(setting, why)));
    };
    if let (true, StoreAt::Sqlite(path)) = (config.needs_store(), &config.origin.store) {
        check("origin.store", path, |_| None); // the store itself checks the rest
    }
    if let Access::File(path) = &config.log.access {
        check("log.access", path, not_writable);
    }
    if let Some(path) = &config.log.decisions {
        check("log.decisions", path, |path| {
            not_writable(path).or_else(|| decisions::check(path).err().map(|error| error.to_string()))
        });
    }
    for (i, listen) in config.server.listen.iter().enumerate() {
        if let Listen::Unix(path) = listen {
            check(&format!("server.listen[{i}]"), path, other_than_socket);
        }
    }
    if let Some(path) = &config.server.handover {
        check("server.handover", path, other_than_socket);
    }
    if let Some(path) = &config.log.audit {
        check("log.audit", path, not_writable);
    }
    if let Some(Source::File(path)) = config.admin.listener().map(|listener| listener.token.source())
        && !Path::new(path).exists()
    {
        check("admin.token", Path::new(path), not_writable);
    }
    faults
}

fn missing_folder(path: &Path) -> Option<String> {
    let folder = folder_of(path);
    let (path, shown) = (path.display(), folder.display());
    (!folder.is_dir()).then(|| format!("the folder of {path} does not exist; make it (mkdir -p {shown})"))
}

fn not_writable(path: &Path) -> Option<String> {
    if path.is_dir() {
        return Some(format!("{} is a folder; name a file in it", path.display()));
    }
    let written = if path.exists() { path.to_owned() } else { folder_of(path) };
    let error = access(&written, Permission::WRITE_OK).err()?;
    Some(format!("{} cannot be written: {}", written.display(), io::Error::from(error)))
}

fn other_than_socket(path: &Path) -> Option<String> {
    let is_other = fs::symlink_metadata(path).is_ok_and(|file| !file.file_type().is_socket());
    is_other.then(|| format!("{} exists and is not a socket; name another path", path.display()))
}
