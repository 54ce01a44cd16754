//! `[origin]` and `[keys]` as they are typed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::HumanDuration;
use crate::config::secret::Secret;

const DEFAULT_STORE: &str = "guildgate.db";

/// Requests at the upstreams at once: each holds a connection, and one address has fewer ports than this.
const MAX_IN_FLIGHT: usize = 65_536;

/// How often a read is sent again. More turns an outage of the origin into a flood of requests.
const MAX_RETRIES: u32 = 10;

/// Health checks in a row. More would take minutes to change anything.
const MAX_CHECKS: u32 = 100;

/// `[origin]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OriginFile {
    /// "builtin": the store's own data; "http": a service behind the gateway.
    pub kind: OriginKindFile,
    /// An SQLite file or "postgres://user@host/db"; "env:NAME" or "file:PATH" names where that is kept.
    #[schemars(extend("default" = DEFAULT_STORE))] // a secret's own default is hidden
    pub store: Secret,
    /// URLs of the service, "http://host:port/path" or "https://…", for kind "http"; a request goes to the one with the
    /// fewest requests.
    pub upstreams: Vec<String>,
    /// The Host sent upstream, and the name that an https upstream's certificate must be for; the upstream's own where
    /// it is not given.
    #[schemars(with = "String")]
    pub host: Option<String>,
    /// For a connection to an upstream to be opened, TLS included.
    pub connect_timeout: HumanDuration,
    /// For an upstream's answer to begin; a read then goes to another one, within retries. Off where it is not given.
    #[schemars(with = "HumanDuration")]
    pub first_byte_timeout: Option<HumanDuration>,
    /// For the whole answer, all attempts together.
    pub timeout: HumanDuration,
    /// Requests at all upstreams at once; over it, requests wait for a place.
    #[schemars(range(min = 1, max = MAX_IN_FLIGHT))]
    pub max_in_flight: usize,
    /// How long a request waits for a place, keys in turn, the one that holds fewest first; then 21. "0s": none waits.
    pub queue_timeout: HumanDuration,
    /// How often a read that got no answer is sent again; setPoints never is.
    #[schemars(range(max = MAX_RETRIES))]
    pub retries: u32,
    /// How upstreams are checked; where it is not given, only failed requests put one out. The last one never is.
    #[schemars(with = "HealthFile")]
    pub health: Option<HealthFile>,
    /// For https upstreams: the root certificates, and our own certificate.
    #[schemars(with = "UpstreamTlsFile")]
    pub tls: Option<UpstreamTlsFile>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OriginKindFile {
    Builtin,
    Http,
}

impl Default for OriginFile {
    fn default() -> Self {
        OriginFile {
            kind: OriginKindFile::Builtin,
            store: Secret::new(DEFAULT_STORE),
            upstreams: Vec::new(),
            host: None,
            connect_timeout: HumanDuration::secs(1),
            first_byte_timeout: None,
            timeout: HumanDuration::secs(5),
            max_in_flight: 256,
            queue_timeout: HumanDuration::secs(1),
            retries: 1,
            health: None,
            tls: None,
        }
    }
}

/// `origin.health`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HealthFile {
    /// The path to GET; any answer with a status below 500 passes.
    pub path: String,
    /// How often.
    pub interval: HumanDuration,
    /// Failures in a row that put an upstream out.
    #[schemars(range(min = 1, max = MAX_CHECKS))]
    pub fall: u32,
    /// Successes in a row that bring it back.
    #[schemars(range(min = 1, max = MAX_CHECKS))]
    pub rise: u32,
}

impl Default for HealthFile {
    fn default() -> Self {
        HealthFile { path: "/".to_owned(), interval: HumanDuration::secs(5), fall: 3, rise: 2 }
    }
}

/// `origin.tls`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamTlsFile {
    /// Root certificates for upstreams, a PEM file; where it is not given, those of the system.
    #[schemars(with = "String")]
    pub ca: Option<String>,
    /// Our own certificate chain, a PEM file, for an upstream that asks for one.
    #[schemars(with = "String")]
    pub certificate: Option<String>,
    /// Our certificate's private key, a PEM file.
    #[schemars(with = "String")]
    pub private_key: Option<String>,
    /// The name that the certificates must be for, instead of that of `origin.host` or the upstream.
    #[schemars(with = "String")]
    pub server_name: Option<String>,
}

/// `[keys]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KeysFile {
    /// Where the keys are: in the "store", in a "file", or at the "origin", whose answers prove them.
    pub source: KeySourceFile,
    /// The key file, for source "file": a `[[key]]` for each, with id, digest, guild, tier, scope, expires.
    #[schemars(with = "String")]
    pub file: Option<String>,
    /// For source "origin": how long a usable answer proves a key.
    pub accepted_for: HumanDuration,
    /// For source "origin": how long a refused key is remembered.
    pub refused_for: HumanDuration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeySourceFile {
    Store,
    File,
    Origin,
}

impl Default for KeysFile {
    fn default() -> Self {
        KeysFile {
            source: KeySourceFile::Store,
            file: None,
            accepted_for: HumanDuration::secs(60),
            refused_for: HumanDuration::secs(30),
        }
    }
}
