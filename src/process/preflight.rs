//! Checks what the configuration names on this machine: files, folders, sockets and addresses. `serve` and `check` do
//! so in the same way and before anything else, so that what one refuses the other refuses too (exit code 2). Nothing
//! is made or changed.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access as Permission, PROC_SUPER_MAGIC, access, statfs};
use socket2::{Domain, Socket, Type};

use super::ProcessError;
use crate::admin::Tokens;
use crate::config::{
    Access, AdminListener, Config, Keys, Listen, Loaded, OriginKind, PemFile, PostgresTls, SettingFault, StoreAt,
    TokenSource,
};
use crate::edge::NOT_PERMITTED;
use crate::keys::{KeyFileError, ListedKey, read_key_file};
use crate::origin;
use crate::telemetry::decisions::{RecordError, RecordReader};
use crate::tls::Certificate;

/// The type of /sys, as statfs(2) returns it.
const SYSFS_MAGIC: rustix::fs::FsWord = 0x6265_6572;

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

/// Why the files cannot be used.
#[derive(Debug)]
pub struct UnusableInputs {
    /// A line for each fault.
    pub reason: String,
    /// A file could not be read, which may pass by itself.
    pub is_unread: bool,
}

impl Inputs {
    /// Reads the files of `config`, which was loaded from `loaded`. `running` is the configuration in force, if there
    /// is one: the certificate and the key file are read only where their settings differ from it, because a change of
    /// their content is another reload.
    ///
    /// # Errors
    /// Every fault, `faults` included, a line each, with its place in the configuration or in the key file.
    pub(super) fn read(
        loaded: &Loaded,
        config: &Config,
        running: Option<&Config>,
        mut faults: Vec<SettingFault>,
    ) -> Result<Inputs, UnusableInputs> {
        let (mut inputs, mut key_faults) = (Inputs::default(), None);
        if let Some(files) = &config.server.tls
            && running.is_none_or(|running| running.server.tls.as_ref() != Some(files))
        {
            inputs.certificate = Certificate::load("server.tls", files).map_err(|fault| faults.push(fault)).ok();
        }
        // The admin listener is set up at the start only.
        if let (Some(listener), None) = (&config.admin.listener, running) {
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
                Err(KeyFileError::Unreadable(why)) => {
                    faults.push(SettingFault { is_unread: true, ..SettingFault::new("keys.file", why) });
                }
                Err(KeyFileError::Unusable(why)) => faults.push(SettingFault::new("keys.file", why)),
                Err(KeyFileError::Faults(found)) => key_faults = Some(found.to_string()),
            }
        }
        let is_unread = faults.iter().any(|fault| fault.is_unread);
        let faults = (!faults.is_empty()).then(|| loaded.faults(&faults).to_string());
        let lines: Vec<String> = faults.into_iter().chain(key_faults).collect();
        if lines.is_empty() { Ok(inputs) } else { Err(UnusableInputs { reason: lines.join("\n"), is_unread }) }
    }
}

/// Checks everything that the configuration names, and reads its files.
///
/// # Errors
/// Every fault, as [`ProcessError::Unusable`].
pub fn check(loaded: &Loaded) -> Result<Inputs, ProcessError> {
    let config = &loaded.config;
    let mut faults = Vec::new();
    let outputs = outputs(config);
    for output in &outputs {
        faults.extend(output.fault().map(|why| SettingFault::new(&output.setting, why)));
    }
    for (setting, address) in tcp_addresses(config) {
        // That another process or user has the port is no fault of the configuration.
        if let Err(error) = bind(SocketAddr::new(address.ip(), 0))
            && error.kind() == io::ErrorKind::AddrNotAvailable
        {
            faults.push(SettingFault::new(&setting, format!("{address} is no address of this machine: {error}")));
        }
    }
    if let (true, StoreAt::Postgres(at)) = (config.needs_store(), &config.origin.store)
        && let PostgresTls::Verified { roots: Some(roots), .. } = &at.tls
        && let Err(fault) = PemFile::read("sslrootcert", roots).and_then(|file| file.roots())
    {
        faults.push(SettingFault { setting: "origin.store".to_owned(), message: fault.to_string(), ..fault });
    }
    add_shared_files(loaded, &outputs, &mut faults);
    Inputs::read(loaded, config, None, faults).map_err(|unusable| ProcessError::Unusable(unusable.reason))
}

/// Checks that this user may listen on the ports. `check` alone does so: `serve` may receive the sockets from its
/// predecessor, and reports the same fault where it binds them. Sockets are bound without listening, in a way that lets
/// others bind the same port.
///
/// # Errors
/// Every port that is not permitted, as [`ProcessError::Unusable`].
pub fn check_ports(loaded: &Loaded) -> Result<(), ProcessError> {
    let is_forbidden = |address| bind(address).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
    let forbidden = tcp_addresses(&loaded.config).filter(|(_, address)| is_forbidden(*address));
    let faults: Vec<SettingFault> = forbidden
        .map(|(setting, address)| SettingFault::new(&setting, format!("cannot listen on {address}: {NOT_PERMITTED}")))
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(ProcessError::Unusable(loaded.faults(&faults).to_string())) }
}

/// A file or socket that the server writes or makes.
struct Output<'c> {
    setting: String,
    path: &'c Path,
    kind: OutputKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputKind {
    /// An SQLite file. The store itself checks everything but the folder.
    Store,
    File,
    DecisionRecord,
    Socket,
}

fn outputs(config: &Config) -> Vec<Output<'_>> {
    let mut outputs = Vec::new();
    let mut add = |setting: &str, path, kind| outputs.push(Output { setting: setting.to_owned(), path, kind });
    if let (true, StoreAt::Sqlite(path)) = (config.needs_store(), &config.origin.store) {
        add("origin.store", path, OutputKind::Store);
    }
    if let Access::File(path) = &config.log.access {
        add("log.access", path, OutputKind::File);
    }
    if let Some(decisions) = &config.log.decisions {
        add("log.decisions", &decisions.path, OutputKind::DecisionRecord);
    }
    for (i, listen) in config.server.listen.iter().enumerate() {
        if let Listen::Unix(path) = listen {
            add(&format!("server.listen[{i}]"), path, OutputKind::Socket);
        }
    }
    if let Some(path) = &config.server.handover {
        add("server.handover", path, OutputKind::Socket);
    }
    if let Some(path) = &config.log.audit {
        add("log.audit", path, OutputKind::File);
    }
    if let Some(AdminListener { token: TokenSource::File(path), .. }) = &config.admin.listener
        && !path.exists()
    {
        add("admin.token", path, OutputKind::File);
    }
    outputs
}

fn tcp_addresses(config: &Config) -> impl Iterator<Item = (String, SocketAddr)> {
    let admin = config.admin.listener.iter().map(|listener| ("admin.listen".to_owned(), listener.address));
    let server = config.server.listen.iter().enumerate().filter_map(|(i, listen)| match listen {
        Listen::Tcp(address) => Some((format!("server.listen[{i}]"), *address)),
        Listen::Unix(_) => None,
    });
    server.chain(admin)
}

impl Output<'_> {
    /// Why it cannot be made or written.
    fn fault(&self) -> Option<String> {
        let path = self.path;
        missing_folder(path).or_else(|| match self.kind {
            OutputKind::Store => None,
            OutputKind::File => not_writable(path),
            OutputKind::DecisionRecord => not_writable(path).or_else(|| other_than_record(path)),
            OutputKind::Socket => {
                let is_other = fs::symlink_metadata(path).is_ok_and(|file| !file.file_type().is_socket());
                is_other.then(|| format!("{} exists and is not a socket; name another path", path.display()))
            }
        })
    }
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
    let written = if path.exists() { path } else { folder_of(path) };
    let shown = written.display();
    // Every user may write to folders of /proc and /sys, but no file can be made there.
    let is_kernel = || statfs(written).is_ok_and(|fs| [PROC_SUPER_MAGIC, SYSFS_MAGIC].contains(&fs.f_type));
    if !path.exists() && is_kernel() {
        return Some(format!("{shown} cannot hold it: no file can be made there"));
    }
    let error = access(written, Permission::WRITE_OK).err()?;
    Some(format!("{shown} cannot be written: {}", io::Error::from(error)))
}

/// Why the server cannot append to an existing file as its record of decisions. It moves a damaged record away by
/// itself.
fn other_than_record(path: &Path) -> Option<String> {
    let file = fs::metadata(path).ok()?;
    if !file.is_file() {
        return Some(format!("{} is not a file", path.display()));
    }
    let mut reader = RecordReader::new(BufReader::new(File::open(path).ok()?), file.len(), path);
    match reader.next_block() {
        Err(error @ (RecordError::OtherKind(_) | RecordError::OtherVersion { .. })) => Some(error.to_string()),
        _ => None,
    }
}

/// Adds a fault for each output that another setting names too: the content of one of them would be lost.
fn add_shared_files(loaded: &Loaded, outputs: &[Output<'_>], faults: &mut Vec<SettingFault>) {
    let config = &loaded.config;
    let mut inputs: Vec<(&str, &Path)> = Vec::new();
    inputs.extend(loaded.path.iter().map(|path| ("this file", path.as_path())));
    if let Keys::File(path) = &config.keys {
        inputs.push(("`keys.file`", path));
    }
    if let Some(tls) = &config.server.tls {
        inputs.push(("`server.tls.certificate`", &tls.certificate));
        inputs.push(("`server.tls.private_key`", &tls.private_key));
    }
    if let OriginKind::Http(upstreams) = &config.origin.kind {
        inputs.extend(upstreams.tls.files().map(|path| ("`origin.tls`", path.as_path())));
    }
    let mut named: Vec<(String, PathBuf)> =
        inputs.into_iter().map(|(setting, path)| (setting.to_owned(), canonical(path))).collect();
    for output in outputs {
        let path = canonical(output.path);
        let has_fault = faults.iter().any(|fault| fault.setting == output.setting);
        if let Some((other, _)) = named.iter().find(|(_, other)| *other == path)
            && !has_fault
        {
            let why = format!("{} is {other} already; name another file", path.display());
            faults.push(SettingFault::new(&output.setting, why));
        }
        named.push((format!("`{}`", output.setting), path));
    }
}

/// The same path for every way to write it, whether or not the file exists.
fn canonical(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| {
        let folder = fs::canonicalize(folder_of(path)).unwrap_or_else(|_| folder_of(path).to_owned());
        path.file_name().map_or_else(|| path.to_owned(), |name| folder.join(name))
    })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Binds the address without listening on it, and lets others bind it too.
fn bind(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
