//! `gateway.toml` as it is typed: every name of contract section 3, with its default, nothing judged yet.
//!
//! The doc comments of the fields are the descriptions in `docs/gateway.schema.json`.

mod origin;
mod traffic;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::origin::{HealthFile, KeySource, KeysFile, OriginFile, OriginKindFile, UpstreamTlsFile};
pub use self::traffic::{
    CacheFile, CandidateFile, LimitsFile, PointsFile, ReviewsFile, StrangersFile, TierFile, WarnsFile,
};
use super::leaf::{HumanDuration, HumanSize};
use super::secret::Secret;

/// The config of Guildgate, the edge gateway for guild data. Every value has a default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(title = "gateway.toml")]
pub struct ConfigFile {
    /// Where callers are listened to, and how much of each is borne.
    pub server: ServerFile,
    /// What answers say beside the data.
    pub answers: AnswersFile,
    /// Who knows the data: the built-in backend or an HTTP service.
    pub origin: OriginFile,
    /// Who may ask.
    pub keys: KeysFile,
    /// How often a key may ask.
    pub limits: LimitsFile,
    /// How long an answer may be given from memory.
    pub cache: CacheFile,
    /// The listener for operators and admins.
    pub admin: AdminFile,
    /// What is written down.
    pub log: LogFile,
    /// Several nodes acting as one.
    pub cluster: ClusterFile,
}

/// `[server]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "server")]
pub struct ServerFile {
    /// TCP addresses as "IP:PORT", or "unix:/run/guildgate.sock".
    pub listen: Vec<String>,
    /// What stands before the operation's name in the path, such as "/v1".
    pub base_path: String,
    /// Worker threads; 0: one per core.
    pub threads: u64,
    /// Connections at once; one over it is closed when it comes.
    #[schemars(range(min = 1))]
    pub max_connections: u64,
    /// Connections at once from one address; 0: no limit.
    pub max_connections_per_address: u64,
    /// For the whole header of a request, first and reused connections alike.
    pub header_timeout: HumanDuration,
    /// For the whole body of a request.
    pub body_timeout: HumanDuration,
    /// For an answer to be taken by the caller.
    pub write_timeout: HumanDuration,
    /// For which a connection may stay open without a request.
    pub idle_timeout: HumanDuration,
    /// For requests under way to end when the server stops.
    pub drain_timeout: HumanDuration,
    /// A Unix socket over which the next `guildgate serve` takes the listeners over; "": off.
    pub handover: String,
    /// The largest body of a request.
    pub max_body: HumanSize,
    /// The largest header of a request.
    pub max_header: HumanSize,
    /// CIDRs whose X-Forwarded-For is believed, read right to left.
    pub trusted_proxies: Vec<String>,
    /// Answers GET with 200 `ok`, 503 while draining; outside base_path; "" turns it off.
    pub health_path: String,
    /// HTTP/1.1 and HTTP/2 over TLS on every TCP address; reloaded when the files change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TlsFile")]
    pub tls: Option<TlsFile>,
}

/// `server.tls`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "tls")]
pub struct TlsFile {
    /// The certificate chain, a PEM file.
    pub certificate: String,
    /// The certificate's private key, a PEM file.
    pub private_key: String,
}

impl Default for ServerFile {
    fn default() -> Self {
        ServerFile {
            listen: vec!["127.0.0.1:8080".to_owned()],
            base_path: String::new(),
            threads: 0,
            max_connections: 10_000,
            max_connections_per_address: 1_000,
            header_timeout: HumanDuration::secs(5),
            body_timeout: HumanDuration::secs(10),
            write_timeout: HumanDuration::secs(15),
            idle_timeout: HumanDuration::secs(60),
            drain_timeout: HumanDuration::secs(10),
            handover: String::new(),
            max_body: HumanSize(4 << 10),
            max_header: HumanSize(16 << 10),
            trusted_proxies: Vec::new(),
            health_path: "/healthz".to_owned(),
            tls: None,
        }
    }
}

/// The headers that answers may carry beside the ones they must: the names of `answers.headers`.
pub const HEADERS: [&str; 4] = ["cache-status", "ratelimit", "request-id", "age"];

/// `[answers]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "answers")]
pub struct AnswersFile {
    /// The name of the service in refusal 03.
    pub service_name: String,
    /// The command that makes a key, in refusal 01.
    pub key_command: String,
    /// "http": a refusal has its own status; "ok": 200, for callers that read bodies only.
    pub error_status: ErrorStatus,
    /// The optional headers that answers carry.
    #[schemars(extend("items" = { "type": "string", "enum": HEADERS }))]
    pub headers: Vec<String>,
}

impl Default for AnswersFile {
    fn default() -> Self {
        AnswersFile {
            service_name: "Guildgate".to_owned(),
            key_command: "/apikey create".to_owned(),
            error_status: ErrorStatus::Http,
            headers: HEADERS.map(str::to_owned).to_vec(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ErrorStatus {
    Http,
    Ok,
}

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "admin")]
pub struct AdminFile {
    /// A TCP address as "IP:PORT"; "" turns it off.
    pub listen: String,
    /// The bearer token, "env:NAME" or "file:PATH"; the file is made at first start if it is missing.
    pub token: Secret,
}

impl Default for AdminFile {
    fn default() -> Self {
        AdminFile { listen: "127.0.0.1:9180".to_owned(), token: Secret::new("file:admin.token") }
    }
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "log")]
pub struct LogFile {
    /// Minimum severity to log: error, warn, info, debug or trace.
    pub level: LevelFile,
    /// "text" or "json".
    pub format: LogFormat,
    /// One line per request: "stderr", "stdout" (or "-"), a path, or "" for none.
    pub access: String,
    /// A path: the record that `limits plan` and `limits suggest` read; "" for none.
    pub decisions: String,
    /// The most that the record and the older half beside it (PATH.1) may take together.
    pub decisions_max_size: HumanSize,
}

impl Default for LogFile {
    fn default() -> Self {
        LogFile {
            level: LevelFile::Info,
            format: LogFormat::Text,
            access: "stderr".to_owned(),
            decisions: String::new(),
            decisions_max_size: HumanSize(64 << 20),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum LevelFile {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum LogFormat {
    Text,
    Json,
}

/// `[cluster]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "cluster")]
pub struct ClusterFile {
    /// A Redis URL, "env:NAME" or "file:PATH": limits shared by all nodes, and word of each other's writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Secret")]
    pub redis: Option<Secret>,
    /// This node's name among the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub node: Option<String>,
}
