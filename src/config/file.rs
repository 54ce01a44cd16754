//! `gateway.toml` as it is typed: every name of contract section 3, with its type, range and default. Whether the values
//! make sense together is judged in `check`.
//!
//! The doc comments of the fields are the descriptions in `docs/gateway.schema.json`.

mod cluster;
mod origin;
mod traffic;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::cluster::{ClusterFile, WhenAwayFile};
pub use self::origin::{HealthFile, KeySourceFile, KeysFile, OriginFile, OriginKindFile, UpstreamTlsFile};
pub use self::traffic::{CacheFile, CandidateFile, FreshnessFile, LimitsFile, StrangersFile, TierFile};
use super::leaf::{HumanDuration, HumanSize};
use super::secret::Secret;
use super::usable::LogLevel;

/// Threads: far above any machine's cores, far below what starting them would exhaust.
const MAX_THREADS: usize = 1_024;

/// More connections than one client's address and one process can hold open.
const MAX_CONNECTIONS: usize = 10_000_000;

/// The config of Guildgate, the edge gateway for guild data. Every value has a default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "gateway.toml")]
pub struct ConfigFile {
    /// The listeners for callers, and the limits of connections.
    pub server: ServerFile,
    /// What answers contain in addition to the data.
    pub answers: AnswersFile,
    /// Where the data is: in the built-in backend or an HTTP service.
    pub origin: OriginFile,
    /// The keys of callers.
    pub keys: KeysFile,
    /// How often a key may send requests.
    pub limits: LimitsFile,
    /// How long answers are cached.
    pub cache: CacheFile,
    /// The listener for operators and admins.
    pub admin: AdminFile,
    /// The logs.
    pub log: LogFile,
    /// Several nodes that share limits.
    pub cluster: ClusterFile,
}

/// The JSON Schema of `gateway.toml`, which is also what the file is parsed by.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .with_transform(RecursiveTransform(without_noise));
    settings.into_generator().into_root_schema_for::<ConfigFile>().to_value()
}

/// Removes the defaults of sections, which repeat those of their settings, and schemars's own formats, about which editors
/// warn.
fn without_noise(schema: &mut Schema) {
    if schema.get("default").is_some_and(|default| default.is_object() || default.is_null()) {
        schema.remove("default");
    }
    if schema
        .get("format")
        .and_then(Value::as_str)
        .is_some_and(|format| format.starts_with("uint") || format == "double")
    {
        schema.remove("format");
    }
}

/// `[server]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerFile {
    /// TCP addresses as "IP:PORT", or "unix:/run/guildgate.sock".
    pub listen: Vec<String>,
    /// The path before the operation's name, such as "/v1".
    pub base_path: String,
    /// Worker threads; 0: one per core.
    #[schemars(range(max = MAX_THREADS))]
    pub threads: usize,
    /// Connections at once; one more is closed when it is accepted.
    #[schemars(range(min = 1, max = MAX_CONNECTIONS))]
    pub max_connections: usize,
    /// Connections at once from one address; 0: no limit.
    #[schemars(range(max = MAX_CONNECTIONS))]
    pub max_connections_per_address: usize,
    /// For the whole header of a request, on first and on reused connections.
    pub header_timeout: HumanDuration,
    /// For the whole body of a request.
    pub body_timeout: HumanDuration,
    /// For the caller to read each 64 KiB of an answer.
    pub write_timeout: HumanDuration,
    /// For which a connection may stay open without a request.
    pub idle_timeout: HumanDuration,
    /// For requests in flight to end when the server stops.
    pub drain_timeout: HumanDuration,
    /// For which, after SIGTERM, the health path says 503 before the listeners close; "0s": they close at once.
    pub drain_delay: HumanDuration,
    /// A Unix socket over which the next `guildgate serve` takes the listeners over; "": off.
    pub handover: String,
    /// The largest body of a request.
    pub max_body: HumanSize,
    /// The largest header of a request.
    pub max_header: HumanSize,
    /// CIDRs of proxies whose X-Forwarded-For, read right to left, and X-Request-Id are used.
    pub trusted_proxies: Vec<String>,
    /// Answers GET with 200 `ok`, 503 while draining; outside base_path; "" turns it off.
    pub health_path: String,
    /// HTTP/1.1 and HTTP/2 over TLS on every TCP address; reloaded when the files change.
    #[schemars(with = "TlsFile")]
    pub tls: Option<TlsFile>,
}

/// `server.tls` and `admin.tls`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
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
            drain_delay: HumanDuration::secs(0),
            handover: String::new(),
            max_body: HumanSize(4 << 10),
            max_header: HumanSize(16 << 10),
            trusted_proxies: Vec::new(),
            health_path: "/healthz".to_owned(),
            tls: None,
        }
    }
}

/// `[answers]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AnswersFile {
    /// The name of the service in refusal 03.
    pub service_name: String,
    /// The command that creates a key, in refusal 01.
    pub key_command: String,
    /// "http": a refusal has its own status; "ok": 200, for callers that read bodies only.
    pub error_status: ErrorStatus,
    /// The optional headers that answers carry.
    pub headers: Vec<AnswerHeader>,
    /// Origins of pages that may call from a browser, such as `https://shop.example`; "*": every page.
    pub cors_origins: Vec<String>,
}

impl Default for AnswersFile {
    fn default() -> Self {
        AnswersFile {
            service_name: "Guildgate".to_owned(),
            key_command: "/apikey create".to_owned(),
            error_status: ErrorStatus::Http,
            headers: AnswerHeader::ALL.to_vec(),
            cors_origins: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ErrorStatus {
    Http,
    Ok,
}

/// An optional header of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerHeader {
    CacheStatus,
    Ratelimit,
    RequestId,
    Age,
}

impl AnswerHeader {
    const ALL: [AnswerHeader; 4] =
        [AnswerHeader::CacheStatus, AnswerHeader::Ratelimit, AnswerHeader::RequestId, AnswerHeader::Age];
}

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdminFile {
    /// A TCP address as "IP:PORT"; "" turns it off.
    pub listen: String,
    /// Names by which browsers may reach the dashboard, besides `localhost` and the address of `listen`.
    pub hosts: Vec<String>,
    /// The bearer token, "env:NAME" or "file:PATH"; the file is made at first start if it is missing.
    pub token: Secret,
    /// A token that sees everything and changes nothing: "env:NAME" or "file:PATH".
    #[schemars(with = "Secret")]
    pub read_token: Option<Secret>,
    /// A token that writes members, warns and reviews, and does nothing else: "env:NAME" or "file:PATH".
    #[schemars(with = "Secret")]
    pub bot_token: Option<Secret>,
    /// TLS; wanted beyond loopback.
    #[schemars(with = "TlsFile")]
    pub tls: Option<TlsFile>,
    /// Listens beyond loopback without TLS.
    pub plaintext: bool,
}

impl Default for AdminFile {
    fn default() -> Self {
        AdminFile {
            listen: "127.0.0.1:9180".to_owned(),
            hosts: Vec::new(),
            token: Secret::new("file:admin.token"),
            read_token: None,
            bot_token: None,
            tls: None,
            plaintext: false,
        }
    }
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogFile {
    /// Minimum severity to log: error, warn, info, debug or trace.
    pub level: LogLevel,
    /// "text" or "json".
    pub format: LogFormat,
    /// One line per request: "stderr", "stdout" (or "-"), a path, or "" for none.
    pub access: String,
    /// A path: the record that `limits plan` and `limits suggest` read; "" for none.
    pub decisions: String,
    /// The most that the record and its older file (PATH.1) may take together.
    pub decisions_max_size: HumanSize,
    /// A path: who changed what by the admin API, as JSON lines; "" for none.
    pub audit: String,
    /// The URL of an OpenTelemetry collector to which traces are sent (OTLP over HTTP), such as
    /// "http://127.0.0.1:4318"; "" for none.
    pub otlp: String,
    /// The fraction of requests without a `traceparent` that begin a trace of their own; of the others, those are traced
    /// that the caller has sampled.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub otlp_sample: f64,
}

impl Default for LogFile {
    fn default() -> Self {
        LogFile {
            level: LogLevel::Info,
            format: LogFormat::Text,
            access: "stderr".to_owned(),
            decisions: String::new(),
            decisions_max_size: HumanSize(64 << 20),
            audit: String::new(),
            otlp: String::new(),
            otlp_sample: 0.01,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}
