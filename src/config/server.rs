//! `[server]`: listeners, limits of connections, timeouts, sizes and proxies.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file::section;
use super::leaf::{HumanDuration, HumanSize, Timeout, shown, text_type};
use super::problem::Faults;
use crate::wire::Operation;

/// Threads: far above any machine's cores, far below what starting them would exhaust.
const MAX_THREADS: usize = 1_024;

/// More connections than one client's address and one process can hold open.
const MAX_CONNECTIONS: usize = 10_000_000;

/// Largest body that may be allowed. The longest legal form is 60 bytes; this is slack for unknown parameters.
const MAX_BODY: u64 = 1 << 20;

/// Smallest header limit. Less would refuse browsers and proxies, whose headers alone come to some hundred bytes.
const MIN_HEADER: u64 = 1 << 10;

/// Largest header limit. Each connection may use that much memory.
const MAX_HEADER: u64 = 1 << 20;

/// The suffix of the name under which `server.handover` is made before it is renamed.
pub const HANDOVER_SUFFIX: &str = ".new";

section! {
    /// `[server]`
    pub struct Server {
        /// TCP addresses as "IP:PORT", or "unix:/run/guildgate.sock".
        #[schemars(extend("uniqueItems" = true))]
        pub listen: Vec<Listen> = vec![Listen::Tcp(([127, 0, 0, 1], 8080).into())],
        /// The path before the operation's name, such as "/v1".
        pub base_path: String = String::new(),
        /// Worker threads; 0: one per core.
        #[schemars(range(max = MAX_THREADS))]
        pub threads: usize = 0,
        /// Connections at once; one more is closed when it is accepted.
        #[schemars(range(min = 1, max = MAX_CONNECTIONS))]
        pub max_connections: usize = 10_000,
        /// Connections at once from one address; 0: no limit.
        #[schemars(range(max = MAX_CONNECTIONS))]
        pub max_connections_per_address: usize = 1_000,
        /// For the whole header of a request, on first and on reused connections.
        #[serde(with = "Timeout")]
        pub header_timeout: Duration = Duration::from_secs(5),
        /// For the whole body of a request.
        #[serde(with = "Timeout")]
        pub body_timeout: Duration = Duration::from_secs(10),
        /// For the caller to read each 64 KiB of an answer.
        #[serde(with = "Timeout")]
        pub write_timeout: Duration = Duration::from_secs(15),
        /// For which a connection may stay open without a request.
        #[serde(with = "Timeout")]
        pub idle_timeout: Duration = Duration::from_secs(60),
        /// For requests in flight to end when the server stops.
        #[serde(with = "Timeout")]
        pub drain_timeout: Duration = Duration::from_secs(10),
        /// For which, after SIGTERM, the health path says 503 before the listeners close; "0s": they close at once.
        #[serde(with = "HumanDuration")]
        pub drain_delay: Duration = Duration::ZERO,
        /// A Unix socket over which the next `guildgate serve` takes the listeners over; "": off.
        #[schemars(extend("format" = "socket or off", "default" = ""))]
        pub handover: Option<PathBuf> = None,
        /// The largest body of a request.
        #[serde(with = "HumanSize")]
        pub max_body: usize = 4 << 10,
        /// The largest header of a request.
        #[serde(with = "HumanSize")]
        pub max_header: usize = 16 << 10,
        /// CIDRs of proxies whose X-Forwarded-For, read right to left, and X-Request-Id are used.
        #[schemars(with = "Vec<String>", extend("items" = { "type": "string", "format": "cidr" }))]
        pub trusted_proxies: Vec<IpNet> = Vec::new(),
        /// Whether connections of `trusted_proxies` begin with a PROXY header (version 1 or 2), which names the caller's
        /// address; others are closed.
        pub proxy_protocol: bool = false,
        /// Answers GET with 200 `ok`, 503 while draining; outside base_path; "" turns it off.
        pub health_path: String = "/healthz".to_owned(),
        /// HTTP/1.1 and HTTP/2 over TLS on every TCP address; reloaded when the files change.
        pub tls: Option<CertificateFiles> = None,
    }
}

/// A certificate chain and its private key, two PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CertificateFiles {
    /// The certificate chain, a PEM file.
    #[schemars(extend("format" = "path"))]
    pub certificate: PathBuf,
    /// The certificate's private key, a PEM file.
    #[schemars(extend("format" = "path"))]
    pub private_key: PathBuf,
}

impl Server {
    pub(super) fn check(&mut self, faults: &mut Faults<'_>) {
        if self.threads == 0 {
            self.threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        }
        faults.size("server.max_body", self.max_body as u64, 1..=MAX_BODY);
        faults.size("server.max_header", self.max_header as u64, MIN_HEADER..=MAX_HEADER);
        if self.listen.is_empty() {
            faults.add("server.listen", "needs an address, such as \"127.0.0.1:8080\"");
        }
        for (i, listen) in self.listen.iter().enumerate() {
            if let Some(all) = listen.covered_by(&self.listen) {
                let why = format!("{all} takes every address of this port; leave one of them out");
                faults.add(&format!("server.listen[{i}]"), why);
            }
        }
        if self.trusted_proxies.iter().any(|net| net.prefix_len() == 0) {
            let text = "trusts every address, so each caller can name any client; name the proxies alone";
            faults.warn("server.trusted_proxies", text);
        }
        if self.proxy_protocol && self.trusted_proxies.is_empty() && !faults.has("server.trusted_proxies") {
            let why = "needs `server.trusted_proxies`, since the connections of all others are closed";
            faults.add("server.proxy_protocol", why);
        }
        if !self.listen.is_empty() && self.tls.is_some() && self.listen.iter().all(|l| matches!(l, Listen::Unix(_))) {
            faults.add("server.tls", "needs a TCP address in `server.listen`; Unix sockets have no TLS");
        }
        url_path(&self.base_path).unwrap_or_else(|why| faults.add("server.base_path", why));
        if self.base_path.ends_with('/') {
            faults.add("server.base_path", "must not end in `/`; write it as \"/v1\"");
        }
        let health = "server.health_path";
        url_path(&self.health_path).unwrap_or_else(|why| faults.add(health, why));
        // The health path is compared first.
        let operation = self.health_path.strip_prefix(&self.base_path).and_then(|rest| rest.strip_prefix('/'));
        if operation.is_some_and(|name| Operation::ALL.iter().any(|o| o.name() == name)) {
            faults.add(health, "is the path of an operation");
        }
    }

    /// Whether a request is for the health path, which is outside the order of refusals.
    pub fn is_health(&self, method: &[u8], path: &[u8]) -> bool {
        !path.is_empty() && self.health_path.as_bytes() == path && matches!(method, b"GET" | b"HEAD")
    }
}

/// Refuses what no caller and no upstream can be sent as a path; an empty one is none. Paths are compared byte for byte.
pub(super) fn url_path(text: &str) -> Result<(), String> {
    if !text.is_empty() && !text.starts_with('/') {
        return Err("must begin with `/`, such as \"/v1\"".to_owned());
    }
    match text.chars().find(|c| !c.is_ascii_graphic() || "?#<>`".contains(*c)) {
        Some(bad) => Err(format!("must not contain {}; write it percent-encoded", shown(&bad.to_string()))),
        None => Ok(()),
    }
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Listen {
    /// The one of `all` that listens on every address of this one's port, this one too.
    pub(super) fn covered_by<'a>(&self, all: &'a [Listen]) -> Option<&'a Listen> {
        let Listen::Tcp(this) = self else { return None };
        let covers = |other: &SocketAddr| {
            let is_same_port = other != this && other.port() == this.port() && this.port() != 0;
            is_same_port && other.ip().is_unspecified() && other.is_ipv4() == this.is_ipv4()
        };
        all.iter().find(|other| matches!(other, Listen::Tcp(other) if covers(other)))
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("a path must follow `unix:`".to_owned()),
            Some(path) => Ok(Listen::Unix(path.into())),
            None => tcp_address(text).map(Listen::Tcp),
        }
    }
}

pub(super) fn tcp_address(text: &str) -> Result<SocketAddr, String> {
    let examples = "\"127.0.0.1:8080\", \"[::1]:8080\" or, for every address, \"0.0.0.0:8080\"";
    text.parse().map_err(|_| format!("{} is not an address; write IP:PORT, such as {examples}", shown(text)))
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

text_type!(Listen, "listen");

/// Whether the peer is a trusted proxy, whose `X-Forwarded-For` is used.
pub fn is_trusted(peer: Option<IpAddr>, trusted: &[IpNet]) -> bool {
    !trusted.is_empty() && peer.is_none_or(|peer| trusted.iter().any(|net| net.contains(&peer.to_canonical())))
}
