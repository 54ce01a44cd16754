//! `[origin]` and `[keys]`: the kind of origin, the store, the upstreams with their URLs, health checks and TLS, and the
//! source of keys. No message shows a URL, which may hold a password.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_rustls::rustls::pki_types::ServerName;

use super::file::section;
use super::leaf::{HumanDuration, Timeout, text_type, whole_path};
use super::problem::Faults;
use super::redis::HostPort;
use super::secret::Secret;
use super::server::{CertificateFiles, url_path};
use super::store::{PostgresAt, StoreAt};

const DEFAULT_STORE: &str = "guildgate.db";

/// Requests at the upstreams at once: each holds a connection, and one address has fewer ports than this.
const MAX_IN_FLIGHT: usize = 65_536;

/// How often a read is sent again. More turns an outage of the origin into a flood of requests.
const MAX_RETRIES: u32 = 10;

/// Health checks in a row. More would take minutes to change anything.
const MAX_CHECKS: u32 = 100;

/// The most upstreams of one service. For more, one name with many addresses is simpler.
const MAX_UPSTREAMS: usize = 64;

/// The fault of a text that is no URL of a service.
const NO_URL: &str = "is not a service's URL; write http://host:port or http://host:port/path, or https://…";

section! {
    /// `[origin]`
    pub struct OriginFile {
        /// "builtin": the store's own data; "http": a service behind the gateway.
        pub kind: OriginKindFile = OriginKindFile::Builtin,
        /// An SQLite file or "postgres://user@host/db"; "env:NAME" or "file:PATH" names where that is kept.
        #[schemars(extend("default" = DEFAULT_STORE))] // a secret's own default is hidden
        pub store: Secret = Secret::new(DEFAULT_STORE),
        #[serde(flatten)]
        pub upstreams: Upstreams = Upstreams::default(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OriginKindFile {
    Builtin,
    Http,
}

section! {
    /// An HTTP origin: one service at one or more upstreams.
    pub struct Upstreams {
        /// URLs of the service, "http://host:port/path" or "https://…", for kind "http"; a request goes to the one with the
        /// fewest requests.
        #[serde(rename = "upstreams")]
        #[schemars(extend("uniqueItems" = true))]
        pub list: Vec<Upstream> = Vec::new(),
        /// The Host sent upstream, and the name that an https upstream's certificate must be for; the upstream's own where
        /// it is not given.
        pub host: Option<String> = None,
        /// For a connection to an upstream to be opened, TLS included.
        #[serde(with = "Timeout")]
        pub connect_timeout: Duration = Duration::from_secs(1),
        /// For an upstream's answer to begin; a read then goes to another one, within retries. Off where it is not given.
        pub first_byte_timeout: Option<Timeout> = None,
        /// For the whole answer, all attempts together.
        #[serde(with = "Timeout")]
        pub timeout: Duration = Duration::from_secs(5),
        /// Requests at all upstreams at once; over it, requests wait for a place.
        #[schemars(range(min = 1, max = MAX_IN_FLIGHT))]
        pub max_in_flight: usize = 256,
        /// How long a request waits for a place, keys in turn, the one that holds fewest first; then 21. "0s": none waits.
        #[serde(with = "HumanDuration")]
        pub queue_timeout: Duration = Duration::from_secs(1),
        /// How often a read that got no answer is sent again; setPoints never is.
        #[schemars(range(max = MAX_RETRIES))]
        pub retries: u32 = 1,
        /// How upstreams are checked; where it is not given, only failed requests put one out. While all are out, all are asked.
        pub health: Option<Health> = None,
        /// For https upstreams: the root certificates, and our own certificate.
        pub tls: UpstreamTls = UpstreamTls::default(),
    }
}

section! {
    /// `origin.health`
    pub struct Health {
        /// The path to GET; any answer with a status below 500 passes.
        pub path: String = "/".to_owned(),
        /// How often.
        #[serde(with = "Timeout")]
        pub interval: Duration = Duration::from_secs(5),
        /// Failures in a row that put an upstream out.
        #[schemars(range(min = 1, max = MAX_CHECKS))]
        pub fall: u32 = 3,
        /// Successes in a row that bring it back.
        #[schemars(range(min = 1, max = MAX_CHECKS))]
        pub rise: u32 = 2,
    }
}

section! {
    /// `origin.tls`
    pub struct UpstreamTls {
        /// Root certificates for upstreams, a PEM file; where it is not given, those of the system.
        #[schemars(extend("format" = "path"))]
        pub ca: Option<PathBuf> = None,
        /// Our own certificate chain, a PEM file, for an upstream that asks for one.
        #[schemars(extend("format" = "path"))]
        certificate: Option<PathBuf> = None,
        /// Our certificate's private key, a PEM file.
        #[schemars(extend("format" = "path"))]
        private_key: Option<PathBuf> = None,
        /// The name that the certificates must be for, instead of that of `origin.host` or the upstream.
        server_name: Option<String> = None,
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    pub kind: OriginKind,
    /// Opened with an HTTP origin only if it holds the keys or the daily counts; see [`super::Config::needs_store`].
    pub store: StoreAt,
}

#[derive(Clone, Debug, PartialEq)]
pub enum OriginKind {
    Builtin,
    Http(Box<Upstreams>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// A name to be resolved, or an address without brackets.
    pub name: String,
    pub port: u16,
    /// Empty, or begins with a slash and does not end in one.
    pub path: String,
    /// The `Host` sent to it.
    pub host: String,
    /// The name that its certificate must be for; `None`: no TLS.
    pub server_name: Option<String>,
}

impl OriginFile {
    pub(super) fn check(&mut self, faults: &mut Faults<'_>) -> Origin {
        self.upstreams.check(faults);
        let has_upstreams = !self.upstreams.list.is_empty();
        let kind = match self.kind {
            OriginKindFile::Builtin => OriginKind::Builtin,
            OriginKindFile::Http => OriginKind::Http(Box::new(self.upstreams.clone())),
        };
        if kind != OriginKind::Builtin && !has_upstreams {
            faults.add("origin.upstreams", "kind \"http\" needs one, such as [\"http://10.0.0.7:3000\"]");
        } else if kind == OriginKind::Builtin && has_upstreams && !faults.has("origin.kind") {
            let text = "needs `origin.kind` \"http\": the built-in backend has no upstreams";
            faults.add("origin.upstreams", text);
        }
        let store = faults.secret(&self.store).and_then(|text| store_at(faults, &text));
        let store = store.map_err(|why| faults.add("origin.store", why));
        let store = store.unwrap_or(StoreAt::Sqlite(PathBuf::new())); // never used: there is a fault
        Origin { kind, store }
    }
}

/// The store that a text names. A store's URL is in no message, since it may hold a password.
fn store_at(faults: &mut Faults<'_>, text: &str) -> Result<StoreAt, String> {
    if PostgresAt::is_meant(text) {
        let at = PostgresAt::parse(text, faults.folder)?;
        if at.is_unverified_remote() {
            let text = "the server's certificate is not verified; add sslmode=verify-full to verify it";
            faults.warn("origin.store", text);
        }
        return Ok(StoreAt::Postgres(Box::new(at)));
    }
    if text.contains("://") || text.split_once('@').is_some_and(|(user, _)| user.contains(':')) {
        return Err("must be the path of an SQLite file, or a postgres:// URL".to_owned());
    }
    if text == ":memory:" {
        // SQLite would take it and lose every setPoints that was answered with success.
        return Err("must be a file: data in memory is lost at exit".to_owned());
    }
    Ok(StoreAt::Sqlite(whole_path(text, faults.folder)?.into()))
}

impl Upstreams {
    fn check(&mut self, faults: &mut Faults<'_>) {
        let host = self.host.as_deref().and_then(|host| HostPort::read(host, 0));
        if self.host.is_some() && host.is_none() {
            faults.add("origin.host", "must be a host's name or address, with or without a port");
        }
        // The name that all certificates must be for, where it is not each upstream's own.
        let (named_by, server_name) = match (&self.tls.server_name, host) {
            (Some(name), _) => ("origin.tls.server_name", Some(name.clone())),
            (None, Some(host)) => ("origin.host", Some(host.host)),
            (None, None) => ("origin.upstreams", None),
        };
        if self.list.len() > MAX_UPSTREAMS {
            let more = "use one name with several addresses, each of which gets requests";
            faults.add("origin.upstreams", format!("must be at most {MAX_UPSTREAMS}; {more}"));
        }
        for upstream in &mut self.list {
            upstream.host = self.host.as_ref().unwrap_or(&upstream.host).clone();
            if let Some(name) = &mut upstream.server_name {
                *name = server_name.as_ref().unwrap_or(name).clone();
                if ServerName::try_from(name.as_str()).is_err() {
                    faults.add(named_by, "is not a name that a certificate can be for; set `origin.tls.server_name`");
                }
            }
        }
        let has_tls = self.list.is_empty() || self.list.iter().any(|upstream| upstream.server_name.is_some());
        if faults.places.is_given("origin.tls") && !has_tls {
            faults.warn("origin.tls", "has no effect without an https upstream");
        }
        if self.tls.certificate.is_some() != self.tls.private_key.is_some() {
            faults.add("origin.tls", "needs both `certificate` and `private_key`, or neither");
        }
        if let Some(Health { path, .. }) = &self.health {
            let fault = if path.is_empty() { Err("must begin with `/`".to_owned()) } else { url_path(path) };
            fault.unwrap_or_else(|why| faults.add("origin.health.path", why));
        }
    }
}

impl FromStr for Upstream {
    type Err = String;

    /// Reads `http[s]://host[:port][/path]`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or(NO_URL)?;
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("must not have a user or password; the caller's key is sent instead".to_owned());
        }
        if path.contains(['?', '#']) {
            return Err("must not have a query or fragment; the operation's name is appended to the path".to_owned());
        }
        let is_https = scheme == "https";
        let HostPort { host: name, port } = HostPort::read(authority, if is_https { 443 } else { 80 })
            .filter(|_| is_https || scheme == "http")
            .ok_or(NO_URL)?;
        url_path(path)?;
        Ok(Upstream {
            port,
            path: path.trim_end_matches('/').to_owned(),
            host: authority.strip_suffix(if is_https { ":443" } else { ":80" }).unwrap_or(authority).to_owned(),
            server_name: is_https.then(|| name.clone()),
            name,
        })
    }
}

text_type!(Upstream, "upstream");

impl Upstream {
    /// Its address; `None` where its name has to be resolved.
    pub fn address(&self) -> Option<SocketAddr> {
        self.name.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, self.port))
    }
}

/// As a URL, always with a port.
impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.server_name.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", HostPort { host: self.name.clone(), port: self.port }, self.path)
    }
}

impl UpstreamTls {
    /// Our own certificate, for an upstream that asks for one.
    pub fn identity(&self) -> Option<CertificateFiles> {
        let (certificate, private_key) = (self.certificate.clone()?, self.private_key.clone()?);
        Some(CertificateFiles { certificate, private_key })
    }

    /// The files it names.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.ca, &self.certificate, &self.private_key].into_iter().flatten()
    }
}

section! {
    /// `[keys]`
    pub struct KeysFile {
        /// Where the keys are: in the "store", in a "file", or at the "origin", whose answers prove them.
        pub source: KeySource = KeySource::Store,
        /// The key file, for source "file": a `[[key]]` for each, with id, digest, guild, tier, scope, expires.
        #[schemars(extend("format" = "path"))]
        pub file: Option<PathBuf> = None,
        /// For source "origin": how long a usable answer proves a key.
        #[serde(with = "Timeout")]
        pub accepted_for: Duration = Duration::from_secs(60),
        /// For source "origin": how long a refused key is remembered.
        #[serde(with = "HumanDuration")]
        pub refused_for: Duration = Duration::from_secs(30),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeySource {
    Store,
    File,
    Origin,
}

/// Where the keys are.
#[derive(Clone, Debug, PartialEq)]
pub enum Keys {
    Store,
    File(PathBuf),
    /// Only the origin knows them: a key is proven by an answer to it.
    Origin {
        /// How long a usable answer proves a key.
        accepted_for: Duration,
        /// How long 02 is remembered.
        refused_for: Duration,
    },
}

impl KeysFile {
    pub(super) fn check(&self, faults: &mut Faults<'_>, origin: OriginKindFile) -> Keys {
        let &KeysFile { source, accepted_for, refused_for, .. } = self;
        if self.file.is_some() && source != KeySource::File {
            faults.warn("keys.file", "has no effect unless `keys.source` is \"file\"");
        }
        match (source, &self.file) {
            (KeySource::Store, _) => Keys::Store,
            (KeySource::File, Some(keys)) => Keys::File(keys.clone()),
            (KeySource::File, None) => {
                faults.add("keys.file", "`keys.source` \"file\" needs it: the path of the key file");
                Keys::Store // never used: there is a fault
            }
            (KeySource::Origin, _) => {
                if origin == OriginKindFile::Builtin {
                    let why = "the built-in backend needs keys from the store or a file; use \"store\" or \"file\"";
                    faults.add("keys.source", format!("\"origin\" needs `origin.kind` \"http\": {why}"));
                }
                Keys::Origin { accepted_for, refused_for }
            }
        }
    }
}
