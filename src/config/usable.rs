//! The configuration as the rest of the code uses it: every value is checked, and no code below checks it again.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::redis::RedisAt;
use super::store::StoreAt;
use crate::model::PerRate;
use crate::wire::{Kind, Operation, Wording};

/// Everything `gateway.toml` says (contract section 3), with its defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub server: Server,
    pub answers: Answers,
    pub origin: Origin,
    pub keys: Keys,
    pub limits: Limits,
    pub cache: Cache,
    pub admin: Admin,
    pub log: Log,
    /// `None`: this node shares nothing with others.
    pub cluster: Option<Cluster>,
    pub hash: ConfigHash,
}

/// Identifies a configuration: 12 hexadecimal digits of a hash of its values, without secrets. The access log and `why`
/// compare it. The nodes of a cluster compare that of their key file, too.
#[derive(Clone, Copy)]
pub struct ConfigHash([u8; 12]);

impl ConfigHash {
    /// The first digits of the SHA-256 of this text.
    pub fn of(text: &str) -> Self {
        let digest = Sha256::digest(text);
        let digit = |at: usize| b"0123456789abcdef"[usize::from(digest[at / 2] >> (4 * (1 - at % 2)) & 15)];
        ConfigHash(std::array::from_fn(digit))
    }
}

impl Default for ConfigHash {
    fn default() -> Self {
        ConfigHash([b'0'; 12])
    }
}

impl fmt::Display for ConfigHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|digit| fmt::Write::write_char(f, char::from(*digit)))
    }
}

/// Always: a configuration is compared by its values, and the hash is of how they are written.
impl PartialEq for ConfigHash {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for ConfigHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    pub listen: Vec<Listen>,
    /// Empty, or begins with a slash and does not end in one.
    pub base_path: String,
    /// At least 1; the file's 0 is replaced by the number of cores.
    pub threads: usize,
    pub max_connections: usize,
    /// `None`: no limit.
    pub max_connections_per_address: Option<usize>,
    pub header_timeout: Duration,
    pub body_timeout: Duration,
    pub write_timeout: Duration,
    pub idle_timeout: Duration,
    pub drain_timeout: Duration,
    /// Zero: off.
    pub drain_delay: Duration,
    /// The socket over which another process takes the listeners over; `None`: off.
    pub handover: Option<PathBuf>,
    /// Bytes.
    pub max_body: usize,
    /// Bytes.
    pub max_header: usize,
    pub trusted_proxies: Vec<IpNet>,
    /// `None`: off.
    pub health_path: Option<String>,
    /// `None`: every listener is plain HTTP/1.1.
    pub tls: Option<CertificateFiles>,
}

/// The suffix of the name under which `server.handover` is made before it is renamed.
pub const HANDOVER_SUFFIX: &str = ".new";

/// A certificate chain and its private key, two PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    pub certificate: PathBuf,
    pub private_key: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    pub wording: Wording,
    /// `error_status = "ok"`: every refusal is sent with status 200.
    pub errors_as_ok: bool,
    pub headers: AnswerHeaders,
    pub cors_origins: CorsOrigins,
}

/// The origins of pages that may call from a browser (`[answers] cors_origins`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsOrigins {
    /// "*" is listed.
    pub any: bool,
    /// As browsers send them.
    pub listed: Vec<String>,
}

impl CorsOrigins {
    /// The value of `Access-Control-Allow-Origin` for a page of this origin; `None`: it must not read the answer.
    pub fn allow(&self, origin: &[u8]) -> Option<&str> {
        if self.any {
            return (!origin.is_empty()).then_some("*");
        }
        self.listed.iter().map(String::as_str).find(|listed| listed.as_bytes() == origin)
    }
}

/// Which of the optional headers answers carry (`[answers] headers`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHeaders {
    pub cache_status: bool,
    pub ratelimit: bool,
    pub request_id: bool,
    pub age: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    pub kind: OriginKind,
    /// Opened with an HTTP origin only if it holds the keys or the daily counts; see [`Config::needs_store`].
    pub store: StoreAt,
}

#[derive(Clone, Debug, PartialEq)]
pub enum OriginKind {
    Builtin,
    Http(Box<Upstreams>),
}

/// An HTTP origin: one service at one or more upstreams.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstreams {
    /// At least one, in the file's order, no two equal.
    pub list: Vec<Upstream>,
    /// For each connection, TLS included.
    pub connect_timeout: Duration,
    /// From a request's last byte to its answer's first; `None`: only `timeout` counts.
    pub first_byte_timeout: Option<Duration>,
    /// For all attempts of one request.
    pub timeout: Duration,
    /// At all upstreams together.
    pub max_in_flight: usize,
    /// The longest wait for one of these; zero: requests do not wait.
    pub queue_timeout: Duration,
    pub retries: u32,
    /// `None`: there are no health checks.
    pub health: Option<Health>,
    pub tls: UpstreamTls,
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

/// How upstreams are checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// Begins with a slash.
    pub path: String,
    pub interval: Duration,
    /// Failures in a row that eject an upstream; at least 1.
    pub fall: u32,
    /// Successes in a row that restore it; at least 1.
    pub rise: u32,
}

/// The files of TLS to upstreams.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpstreamTls {
    /// Root certificates for upstreams; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// Our own certificate, for an upstream that asks for one.
    pub identity: Option<CertificateFiles>,
}

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

#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    pub default_tier: Arc<Tier>,
    /// All tiers, the default one among them, in order of name.
    pub tiers: Vec<Arc<Tier>>,
    /// Count and report, refuse nothing.
    pub shadow: bool,
    pub strangers: Rate,
}

impl Limits {
    /// What is said wherever somebody looks while the limits refuse nothing.
    pub fn shadow_warning(&self) -> Option<&'static str> {
        const OPEN: &str = "limits.shadow is true: no request is refused for a limit, each is only counted; remove it from \
            gateway.toml to refuse them";
        self.shadow.then_some(OPEN)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    pub name: String,
    pub main: Rate,
    /// setPoints, counted in addition.
    pub write: Option<Rate>,
    /// Requests in a UTC day.
    pub daily: Option<u64>,
    /// Requests in flight at once.
    pub in_flight: Option<u32>,
    /// Counted in addition to `main`; refuses nothing.
    pub candidate: Option<Rate>,
}

impl Tier {
    /// A tier with one limit.
    pub fn new(name: &str, main: Rate) -> Self {
        Tier { name: name.to_owned(), main, write: None, daily: None, in_flight: None, candidate: None }
    }

    /// Its rates, in the order of [`Limit::RATES`](crate::model::Limit::RATES).
    pub fn rates(&self) -> PerRate<Option<Rate>> {
        [Some(self.main), self.write]
    }
}

/// A GCRA rate: one request each `period`, and `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Nanoseconds per request, rounded up so that no window holds more than the file says; at least 1.
    pub period_ns: u64,
    pub burst: NonZeroU32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    /// Bytes.
    pub max_size: u64,
    /// By [`Operation::index`]; nothing of a write is cached.
    pub freshness: [Freshness; Operation::COUNT],
}

impl Cache {
    /// For how long answers to a read may be used.
    pub fn of(&self, read: Operation) -> Freshness {
        self.freshness[read.index()]
    }
}

/// The reads, each with the name of its section in `[cache]` and what is in force where that says nothing.
pub fn cached_reads() -> impl Iterator<Item = (Operation, &'static str, Freshness)> {
    Operation::ALL.into_iter().filter_map(|operation| match operation.row().kind {
        Kind::Read { section, ttl, stale_if_error, .. } => {
            Some((operation, section, Freshness { ttl, stale_if_error, ..Freshness::NONE }))
        }
        Kind::Write { .. } => None,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    pub ttl: Duration,
    pub stale_while_revalidate: Duration,
    pub stale_if_error: Duration,
}

impl Freshness {
    /// For an answer that is not cached.
    pub const NONE: Freshness =
        Freshness { ttl: Duration::ZERO, stale_while_revalidate: Duration::ZERO, stale_if_error: Duration::ZERO };
}

#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// `None`: off.
    pub listener: Option<AdminListener>,
}

/// The listener for operators and admins.
#[derive(Clone, Debug, PartialEq)]
pub struct AdminListener {
    pub address: SocketAddr,
    /// Names by which browsers may reach the dashboard.
    pub hosts: Vec<String>,
    /// Its file is made at the first start.
    pub token: TokenSource,
    /// Of a token that changes nothing.
    pub read_token: Option<TokenSource>,
    /// Of a token that writes members, warns and reviews only.
    pub bot_token: Option<TokenSource>,
    /// `None`: plain HTTP.
    pub tls: Option<CertificateFiles>,
}

/// Where a token of the admin listener is.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// The token itself.
    Value(String),
    /// It is read at the start.
    File(PathBuf),
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenSource::Value(_) => f.write_str("Value(…)"),
            TokenSource::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    pub level: LogLevel,
    pub json: bool,
    pub access: Access,
    /// `None`: decisions are not recorded.
    pub decisions: Option<Decisions>,
    /// `None`: changes by the admin API are not recorded.
    pub audit: Option<PathBuf>,
    /// `None`: traces are not exported.
    pub otlp: Option<Otlp>,
}

/// What several nodes share (`[cluster]`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    pub redis: RedisAt,
    /// This node's name.
    pub node: String,
    /// The beginning of all names in Redis.
    pub prefix: String,
    /// How long a request waits for Redis.
    pub timeout: Duration,
    pub when_away: WhenAway,
    /// With [`WhenAway::Share`]: by how many nodes a limit is divided at least; at least 1.
    pub nodes: u32,
    /// With an HTTP origin, whose nodes tell each other of writes: how many replicas must have a notice before a write
    /// is answered. `None`: the nodes hear of writes by the store's change feed.
    pub replicas: Option<u32>,
}

/// What limits a key while Redis is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenAway {
    /// Each node its part of the limit.
    Share,
    /// Each node the whole limit.
    Local,
    /// Nothing is admitted: 21.
    Refuse,
}

/// Where traces are exported to (`log.otlp`).
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// The collector's endpoint for traces, `{log.otlp}/v1/traces`.
    pub endpoint: String,
    /// The fraction of requests without a `traceparent` that begin a trace.
    pub sample: f64,
}

/// Where decisions are recorded (`log.decisions`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decisions {
    pub path: PathBuf,
    /// Bytes of the record and its older file together.
    pub max_size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    None,
    Stderr,
    Stdout,
    File(PathBuf),
}

impl Server {
    /// Whether a request is for the health path, which is outside the order of refusals.
    pub fn is_health(&self, method: &[u8], path: &[u8]) -> bool {
        let here = self.health_path.as_ref().is_some_and(|health| health.as_bytes() == path);
        here && matches!(method, b"GET" | b"HEAD")
    }
}

impl Config {
    /// Whether the store is opened (contract section 3, `[origin] store`).
    pub fn needs_store(&self) -> bool {
        self.keys == Keys::Store || self.origin.kind == OriginKind::Builtin || self.limits.counts_days()
    }

    /// Refuses commands about guilds where the server opens no store: it would see nothing of them.
    ///
    /// # Errors
    /// Why it opens none.
    pub fn must_have_store(&self) -> Result<(), &'static str> {
        if self.needs_store() { Ok(()) } else { Err(NO_STORE) }
    }

    /// Refuses commands and requests about keys that are not in the store.
    ///
    /// # Errors
    /// Where they are.
    pub fn must_store_keys(&self) -> Result<(), &'static str> {
        match self.keys {
            Keys::Store => Ok(()),
            Keys::File(_) => Err("the keys are in the key file (keys.file); change them there"),
            Keys::Origin { .. } => Err("only the origin knows the keys (keys.source = \"origin\")"),
        }
    }

    /// Refuses commands and requests about members, warns and reviews that are not in the store.
    ///
    /// # Errors
    /// Where they are.
    pub fn must_store_members(&self) -> Result<(), &'static str> {
        match self.origin.kind {
            OriginKind::Builtin => Ok(()),
            OriginKind::Http(_) => Err("members, warns and reviews are the HTTP origin's (origin.kind = \"http\"); \
                 change them there"),
        }
    }
}

/// Why a server has no store.
pub const NO_STORE: &str =
    "this configuration has no store: the origin is an HTTP service and the keys are not in the store";

impl Upstream {
    /// Its address; `None` where its name has to be resolved.
    pub fn address(&self) -> Option<SocketAddr> {
        self.name.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, self.port))
    }
}

/// As a URL, always with a port.
impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Upstream { name, port, path, .. } = self;
        let scheme = if self.server_name.is_some() { "https" } else { "http" };
        match name.contains(':') {
            true => write!(f, "{scheme}://[{name}]:{port}{path}"),
            false => write!(f, "{scheme}://{name}:{port}{path}"),
        }
    }
}

impl UpstreamTls {
    /// The files it names.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let identity = self.identity.iter().flat_map(|i| [&i.certificate, &i.private_key]);
        self.ca.iter().chain(identity)
    }
}

impl Limits {
    /// Whether a tier counts requests by the day, which a store keeps across restarts.
    pub fn counts_days(&self) -> bool {
        self.tiers.iter().any(|tier| tier.daily.is_some())
    }

    /// The tier of this name; the default one where there is none of this name or no name is given.
    pub fn tier(&self, name: Option<&str>) -> &Arc<Tier> {
        let found = name.and_then(|n| self.tiers.iter().find(|t| t.name == n));
        found.unwrap_or(&self.default_tier)
    }
}
