//! Checks `[server]`: listeners, paths, sizes and proxies.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;

use ipnet::IpNet;

use super::Checker;
use crate::config::file::{ServerFile, TlsFile};
use crate::config::leaf::shown;
use crate::config::usable::{CertificateFiles, HANDOVER_SUFFIX, Listen, Server};
use crate::wire::Operation;

/// Largest body that may be allowed. The longest legal form is 60 bytes; this is slack for unknown parameters.
const MAX_BODY: u64 = 1 << 20;

/// Smallest header limit. Less would refuse browsers and proxies, whose headers alone come to some hundred bytes.
const MIN_HEADER: u64 = 1 << 10;

/// Largest header limit. Each connection may use that much memory.
const MAX_HEADER: u64 = 1 << 20;

/// Longest path of a Unix socket: the kernel's address has 108 bytes, and the last one is zero.
const MAX_SOCKET_PATH: usize = 107;

impl Checker<'_> {
    pub(super) fn server(&mut self, file: &ServerFile) -> Server {
        let per_address = file.max_connections_per_address;
        let max_body = self.size("server.max_body", file.max_body, 1..=MAX_BODY);
        let max_header = self.size("server.max_header", file.max_header, MIN_HEADER..=MAX_HEADER);
        let listen = self.listen(&file.listen);
        Server {
            tls: file.tls.as_ref().map(|tls| self.tls(tls, &listen)),
            base_path: self.base_path(&file.base_path),
            threads: match file.threads {
                0 => thread::available_parallelism().map_or(1, NonZeroUsize::get),
                threads => threads,
            },
            max_connections: file.max_connections,
            max_connections_per_address: (per_address != 0).then_some(per_address),
            header_timeout: self.timeout("server.header_timeout", file.header_timeout),
            body_timeout: self.timeout("server.body_timeout", file.body_timeout),
            write_timeout: self.timeout("server.write_timeout", file.write_timeout),
            idle_timeout: self.timeout("server.idle_timeout", file.idle_timeout),
            drain_timeout: self.timeout("server.drain_timeout", file.drain_timeout),
            drain_delay: file.drain_delay.0,
            handover: (!file.handover.is_empty()).then(|| self.handover(&file.handover, &listen)),
            max_body: usize::try_from(max_body).unwrap_or(usize::MAX),
            max_header: usize::try_from(max_header).unwrap_or(usize::MAX),
            trusted_proxies: self.trusted_proxies(&file.trusted_proxies),
            health_path: (!file.health_path.is_empty()).then(|| file.health_path.clone()),
            listen,
        }
    }

    fn listen(&mut self, listens: &[String]) -> Vec<Listen> {
        if listens.is_empty() {
            self.fault("server.listen", "needs an address, such as \"127.0.0.1:8080\"");
        }
        let mut found = Vec::new();
        for (i, text) in listens.iter().enumerate() {
            let path = format!("server.listen[{i}]");
            let listen = match text.strip_prefix("unix:") {
                Some(socket) => Listen::Unix(self.socket(&path, socket)),
                None => match self.tcp_address(&path, text) {
                    Some(address) => Listen::Tcp(address),
                    None => continue,
                },
            };
            // Port 0 asks for any free port: twice is two of them.
            let any_port = matches!(&listen, Listen::Tcp(address) if address.port() == 0);
            if !any_port && found.contains(&listen) {
                self.fault(&path, format!("{} is listed twice", shown(text)));
                continue;
            }
            found.push(listen);
        }
        found
    }

    fn tls(&mut self, file: &TlsFile, listens: &[Listen]) -> CertificateFiles {
        if !listens.is_empty() && listens.iter().all(|listen| matches!(listen, Listen::Unix(_))) {
            self.fault("server.tls", "needs a TCP address in `server.listen`; Unix sockets have no TLS");
        }
        self.certificate_files("server.tls", file)
    }

    /// The files of `setting`, such as `server.tls`.
    pub(super) fn certificate_files(&mut self, setting: &str, file: &TlsFile) -> CertificateFiles {
        CertificateFiles {
            certificate: self.file(&format!("{setting}.certificate"), &file.certificate),
            private_key: self.file(&format!("{setting}.private_key"), &file.private_key),
        }
    }

    fn socket(&mut self, path: &str, text: &str) -> PathBuf {
        if text.is_empty() {
            self.fault(path, "a path must follow `unix:`");
            return PathBuf::new();
        }
        let socket = self.file(path, text);
        self.resolved.push((path.to_owned(), format!("unix:{}", socket.display())));
        self.socket_length(path, &socket, MAX_SOCKET_PATH);
        socket
    }

    fn socket_length(&mut self, path: &str, socket: &Path, most: usize) {
        if socket.as_os_str().len() > most {
            self.fault(path, format!("must be at most {most} bytes long, folder included"));
        }
    }

    fn handover(&mut self, text: &str, listens: &[Listen]) -> PathBuf {
        let path = "server.handover";
        let socket = self.file(path, text);
        self.socket_length(path, &socket, MAX_SOCKET_PATH - HANDOVER_SUFFIX.len());
        if listens.contains(&Listen::Unix(socket.clone())) {
            self.fault(path, "must not be a socket of `server.listen`");
        }
        socket
    }

    pub(super) fn tcp_address(&mut self, path: &str, text: &str) -> Option<SocketAddr> {
        let address = text.parse();
        if address.is_err() {
            let examples = "\"127.0.0.1:8080\", \"[::1]:8080\" or, for every address, \"0.0.0.0:8080\"";
            self.fault(path, format!("{} is not an address; write IP:PORT, such as {examples}", shown(text)));
        }
        address.ok()
    }

    fn base_path(&mut self, text: &str) -> String {
        let path = "server.base_path";
        if !text.is_empty() && (!text.starts_with('/') || text.ends_with('/')) {
            self.fault(path, "must be empty, or begin with `/` and not end in `/`, such as \"/v1\"");
        }
        self.url_path(path, text);
        text.to_owned()
    }

    /// The health path must not be an operation's path, since it is compared first. `drain_delay` needs one.
    pub(super) fn health_path(&mut self, file: &ServerFile) {
        let (path, text) = ("server.health_path", file.health_path.as_str());
        if !text.is_empty() && !text.starts_with('/') {
            self.fault(path, "must be empty or begin with `/`, such as \"/healthz\"");
        }
        self.url_path(path, text);
        let operation = text.strip_prefix(file.base_path.as_str()).and_then(|rest| rest.strip_prefix('/'));
        if operation.is_some_and(|name| Operation::ALL.iter().any(|o| o.name() == name)) {
            self.fault(path, "is the path of an operation");
        }
        if text.is_empty() && !file.drain_delay.0.is_zero() {
            self.warning("server.drain_delay", "has no use without `server.health_path`, where it is seen");
        }
    }

    /// Paths are compared byte for byte, so one that no caller can send would never match.
    pub(super) fn url_path(&mut self, path: &str, text: &str) {
        if let Some(bad) = text.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '?' | '#')) {
            self.fault(path, format!("must not contain {}; write it percent-encoded", shown(&bad.to_string())));
        }
    }

    fn trusted_proxies(&mut self, texts: &[String]) -> Vec<IpNet> {
        let mut found = Vec::new();
        for (i, text) in texts.iter().enumerate() {
            // A single address is a network of one.
            match text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)) {
                Ok(net) => found.push(net),
                Err(_) => {
                    let message = format!("{} is not a CIDR; write one such as \"10.0.0.0/8\"", shown(text));
                    self.fault(&format!("server.trusted_proxies[{i}]"), message);
                }
            }
        }
        found
    }
}
