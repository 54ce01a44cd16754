//! `[origin]` and `[keys]` as they are typed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::leaf::HumanDuration;
use crate::config::secret::Secret;

/// `[origin]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "origin")]
pub struct OriginFile {
    /// "builtin": the store's own data; "http": a service behind the gateway.
    pub kind: OriginKindFile,
    /// An SQLite file or "postgres://user@host/db"; "env:NAME" or "file:PATH" names where that is kept.
    pub store: Secret,
    /// URLs of the service, "http://host:port/path" or "https://…", for kind "http"; the one with the fewest requests
    /// is asked.
    pub upstreams: Vec<String>,
    /// The Host sent upstream, and the name that an https upstream's certificate must be for; the upstream's own where
    /// it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub host: Option<String>,
    /// For a connection to an upstream to be made, TLS included.
    pub connect_timeout: HumanDuration,
    /// For an upstream's answer to begin; a read then goes to another one, within retries. Off where it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HumanDuration")]
    pub first_byte_timeout: Option<HumanDuration>,
    /// For the whole answer, all attempts together.
    pub timeout: HumanDuration,
    /// Requests at all upstreams at once; over it, requests wait for a place.
    #[schemars(range(min = 1))]
    pub max_in_flight: u64,
    /// How long a request waits for a place, keys in turn, the one that holds fewest first; then 21. "0s": none waits.
    pub queue_timeout: HumanDuration,
    /// How often a read is asked again where nothing was answered; setPoints never is.
    pub retries: u64,
    /// How upstreams are checked; where it is not given, only requests tell who is out. The last one never is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HealthFile")]
    pub health: Option<HealthFile>,
    /// For https upstreams: whom to trust, and who we are.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "UpstreamTlsFile")]
    pub tls: Option<UpstreamTlsFile>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum OriginKindFile {
    Builtin,
    Http,
}

impl Default for OriginFile {
    fn default() -> Self {
        OriginFile {
            kind: OriginKindFile::Builtin,
            store: Secret::new("guildgate.db"),
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
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "health")]
pub struct HealthFile {
    /// What is asked for with GET; any answer with a status below 500 is good.
    pub path: String,
    /// How often.
    pub interval: HumanDuration,
    /// Failures in a row that put an upstream out.
    #[schemars(range(min = 1))]
    pub fall: u64,
    /// Successes in a row that bring it back.
    #[schemars(range(min = 1))]
    pub rise: u64,
}

impl Default for HealthFile {
    fn default() -> Self {
        HealthFile { path: "/".to_owned(), interval: HumanDuration::secs(5), fall: 3, rise: 2 }
    }
}

/// `origin.tls`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "origin_tls")]
pub struct UpstreamTlsFile {
    /// Who may have signed an upstream's certificate, a PEM file; where it is not given, whom the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub ca: Option<String>,
    /// Our own certificate chain, a PEM file, for an upstream that asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub certificate: Option<String>,
    /// Our certificate's private key, a PEM file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub private_key: Option<String>,
    /// The name that the certificates must be for, instead of that of `origin.host` or the upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub server_name: Option<String>,
}

/// `[keys]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
#[schemars(rename = "keys")]
pub struct KeysFile {
    /// Who knows the keys: the "store", a "file", or the "origin" by its answers.
    pub source: KeySource,
    /// The key file, for source "file": a `[[key]]` for each, with id, digest, guild, tier, scope, expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub file: Option<String>,
    /// For source "origin": how long a usable answer proves a key.
    pub accepted_for: HumanDuration,
    /// For source "origin": how long a refused key is remembered.
    pub refused_for: HumanDuration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum KeySource {
    Store,
    File,
    Origin,
}

impl Default for KeysFile {
    fn default() -> Self {
        KeysFile {
            source: KeySource::Store,
            file: None,
            accepted_for: HumanDuration::secs(60),
            refused_for: HumanDuration::secs(30),
        }
    }
}
