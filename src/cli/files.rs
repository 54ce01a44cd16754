//! What the configuration names on this machine: files, folders, sockets and addresses. `check` and `serve` look at them
//! in the same way, before anything is done, so that what one refuses the other refuses too (exit 2).

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access as May, PROC_SUPER_MAGIC, access, statfs};
use socket2::{Domain, Socket, Type};

use crate::config::{Access, Config, Decisions, Keys, Listen, Loaded, OriginKind, PostgresTls, SettingFault, StoreAt};
use crate::edge::{Certificate, NOT_PERMITTED};
use crate::keys::{KeyFileError, Listed, read_key_file};
use crate::origin::Tls;
use crate::telemetry::decisions::{RecordError, RecordReader};

/// What statfs(2) says of /sys.
const SYSFS_MAGIC: rustix::fs::FsWord = 0x6265_6572;

/// What was read of the files.
pub(super) struct Files {
    /// What callers are shown, where `server.tls` is set.
    pub(super) certificate: Option<Certificate>,
    /// TLS to upstreams, where one is reached by it.
    pub(super) upstream_tls: Option<Tls>,
    /// The keys of the key file, where there is one.
    pub(super) keys: Option<Vec<Listed>>,
}

/// Looks at all that is named, and makes nothing.
///
/// # Errors
/// Every fault, a line each, with its place in the configuration or in the key file.
pub(super) fn look(loaded: &Loaded) -> Result<Files, String> {
    let config = &loaded.config;
    let mut faults = Faults::default();
    faults.store(config);
    faults.logs(config);
    faults.listeners(config);
    if let Some(token) = &config.admin.token_file {
        faults.made("admin.token", token);
    }
    faults.shared(loaded);
    let certificate = config.server.tls.as_ref().and_then(|files| faults.kept(Certificate::load(files)));
    let upstream_tls = match &config.origin.kind {
        OriginKind::Http(upstreams) => faults.kept(Tls::load(upstreams)).flatten(),
        OriginKind::Builtin => None,
    };
    let mut faults_in_keys = None;
    let keys = match &config.keys {
        Keys::File(path) => match read_key_file(path) {
            Ok(keys) => Some(keys),
            Err(KeyFileError::Unreadable(why)) => {
                faults.add("keys.file", why);
                None
            }
            Err(KeyFileError::Faults(found)) => {
                faults_in_keys = Some(found.to_string());
                None
            }
        },
        Keys::Store | Keys::Origin { .. } => None,
    };
    let faults = (!faults.0.is_empty()).then(|| loaded.faults(&faults.0).to_string());
    let told: Vec<String> = faults.into_iter().chain(faults_in_keys).collect();
    if told.is_empty() { Ok(Files { certificate, upstream_tls, keys }) } else { Err(told.join("\n")) }
}

/// Whether this user may listen on the ports. It is asked by `check` alone: `serve` may be given the sockets by the
/// server before it, and says the same where it binds them. Nobody is disturbed: what is bound here is not listened on,
/// and lets others bind it as well.
///
/// # Errors
/// Every port that is not for this user, a line each, with its place in the configuration.
pub(super) fn may_listen(loaded: &Loaded) -> Result<(), String> {
    let mut faults = Faults::default();
    for (i, listen) in loaded.config.server.listen.iter().enumerate() {
        if let Listen::Tcp(address) = listen
            && let Err(error) = bound(*address)
            && error.kind() == io::ErrorKind::PermissionDenied
        {
            faults.add(&format!("server.listen[{i}]"), format!("cannot listen on {address}: {NOT_PERMITTED}"));
        }
    }
    if faults.0.is_empty() { Ok(()) } else { Err(loaded.faults(&faults.0).to_string()) }
}

#[derive(Default)]
struct Faults(Vec<SettingFault>);

impl Faults {
    fn add(&mut self, setting: &str, message: impl Into<String>) {
        self.0.push(SettingFault::new(setting, message));
    }

    fn kept<T>(&mut self, read: Result<T, SettingFault>) -> Option<T> {
        read.map_err(|fault| self.0.push(fault)).ok()
    }

    fn store(&mut self, config: &Config) {
        match &config.origin.store {
            _ if !config.needs_store() => {}
            StoreAt::Sqlite(path) => {
                // What else may be wrong with it is a matter of the store, and not of the configuration.
                if let Some(fault) = no_folder(path) {
                    self.add("origin.store", fault);
                }
            }
            StoreAt::Postgres(at) => {
                if let PostgresTls::Verified { roots: Some(roots), .. } = &at.tls
                    && let Err(error) = File::open(roots)
                {
                    self.add("origin.store", format!("sslrootcert: {} cannot be read: {error}", roots.display()));
                }
            }
        }
    }

    fn logs(&mut self, config: &Config) {
        if let Access::File(path) = &config.log.access {
            self.made("log.access", path);
        }
        if let Some(Decisions { path, .. }) = &config.log.decisions
            && self.made("log.decisions", path)
        {
            self.record(path);
        }
    }

    /// A record of decisions is gone on with, if it is one. A damaged one is put aside by who writes it.
    fn record(&mut self, path: &Path) {
        let Ok(there) = fs::metadata(path) else { return };
        if !there.is_file() {
            self.add("log.decisions", format!("{} is not a file", path.display()));
            return;
        }
        let read = File::open(path).map(|file| RecordReader::new(BufReader::new(file), there.len(), path).next_block());
        if let Ok(Err(error @ (RecordError::OtherKind(_) | RecordError::OtherVersion { .. }))) = read {
            self.add("log.decisions", error.to_string());
        }
    }

    /// A file that is made where there is none. False: there is a fault.
    fn made(&mut self, setting: &str, path: &Path) -> bool {
        let fault = no_folder(path).or_else(|| {
            if path.is_dir() {
                return Some(format!("{} is a folder; name a file in it", path.display()));
            }
            let written = if path.exists() { path } else { folder_of(path) };
            if !path.exists() && holds_no_files(written) {
                return Some(format!("{} cannot hold it: nobody makes files there", written.display()));
            }
            access(written, May::WRITE_OK)
                .err()
                .map(|error| format!("{} cannot be written: {}", written.display(), io::Error::from(error)))
        });
        let is_good = fault.is_none();
        if let Some(fault) = fault {
            self.add(setting, fault);
        }
        is_good
    }

    fn listeners(&mut self, config: &Config) {
        for (i, listen) in config.server.listen.iter().enumerate() {
            let setting = format!("server.listen[{i}]");
            match listen {
                Listen::Unix(path) => self.socket(&setting, path),
                Listen::Tcp(address) => {
                    if let Err(error) = has_address(*address) {
                        self.add(&setting, format!("{address} is no address of this machine: {error}"));
                    }
                }
            }
        }
        if let Some(path) = &config.server.handover {
            self.socket("server.handover", path);
        }
    }

    fn socket(&mut self, setting: &str, path: &Path) {
        let is_other = fs::symlink_metadata(path).is_ok_and(|there| !there.file_type().is_socket());
        let fault = no_folder(path)
            .or_else(|| is_other.then(|| format!("{} is there, and is no socket; name another path", path.display())));
        if let Some(fault) = fault {
            self.add(setting, fault);
        }
    }

    /// What one setting writes no other may name: the other's content would be lost.
    fn shared(&mut self, loaded: &Loaded) {
        let config = &loaded.config;
        let mut written: Vec<(String, PathBuf)> = Vec::new();
        let mut add = |setting: &str, path: &Path| written.push((setting.to_owned(), plain(path)));
        if let (true, StoreAt::Sqlite(path)) = (config.needs_store(), &config.origin.store) {
            add("origin.store", path);
        }
        if let Access::File(path) = &config.log.access {
            add("log.access", path);
        }
        if let Some(Decisions { path, .. }) = &config.log.decisions {
            add("log.decisions", path);
        }
        for (i, listen) in config.server.listen.iter().enumerate() {
            if let Listen::Unix(path) = listen {
                add(&format!("server.listen[{i}]"), path);
            }
        }
        if let Some(path) = &config.server.handover {
            add("server.handover", path);
        }
        if let Some(path) = &config.admin.token_file {
            add("admin.token", path);
        }
        let mut named: Vec<(String, PathBuf)> = Vec::new();
        let mut read = |setting: &str, path: &Path| named.push((setting.to_owned(), plain(path)));
        if let Some(path) = &loaded.path {
            read("this file", path);
        }
        if let Keys::File(path) = &config.keys {
            read("keys.file", path);
        }
        if let Some(tls) = &config.server.tls {
            read("server.tls.certificate", &tls.certificate);
            read("server.tls.private_key", &tls.private_key);
        }
        if let OriginKind::Http(upstreams) = &config.origin.kind {
            upstreams.tls.files().for_each(|path| read("origin.tls", path));
        }
        for (i, (setting, path)) in written.iter().enumerate() {
            if self.0.iter().any(|fault| fault.setting == *setting) {
                continue;
            }
            if let Some((other, _)) = written[..i].iter().chain(&named).find(|(_, other)| other == path) {
                let other = if other == "this file" { other.clone() } else { format!("`{other}`") };
                self.add(setting, format!("{} is {other} already; name another file", path.display()));
            }
        }
    }
}

/// Without what leads nowhere in it, so that two ways to write a path are the same.
fn plain(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| {
        let folder = fs::canonicalize(folder_of(path)).unwrap_or_else(|_| folder_of(path).to_owned());
        path.file_name().map_or_else(|| path.to_owned(), |name| folder.join(name))
    })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn no_folder(path: &Path) -> Option<String> {
    let folder = folder_of(path);
    let (path, shown) = (path.display(), folder.display());
    (!folder.is_dir()).then(|| format!("the folder of {path} does not exist; make it (mkdir -p {shown})"))
}

/// Whether it is of /proc or /sys, where every user's right to write means nothing.
fn holds_no_files(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|there| [PROC_SUPER_MAGIC, SYSFS_MAGIC].contains(&there.f_type))
}

/// Whether this machine has the address. That somebody listens there already, a server of ours perhaps, or that another
/// user may and this one may not, is no fault of the configuration.
fn has_address(address: SocketAddr) -> io::Result<()> {
    match bound(SocketAddr::new(address.ip(), 0)) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// A socket that has the address for itself as little as can be.
fn bound(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
