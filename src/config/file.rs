//! `gateway.toml` as a whole: its sections as they are typed ([`ConfigFile`]), its schema, and the configuration that the
//! rest of the code uses ([`Config`]).

use std::fmt;
use std::num::ParseIntError;
use std::path::Path;
use std::str::FromStr;

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::DEFAULT_FILE;
use super::admin::AdminListener;
use super::answers::Answers;
use super::cache::Cache;
use super::cluster::{Cluster, ClusterFile};
use super::leaf::text_type;
use super::limits::{Limits, LimitsFile};
use super::log::Log;
use super::origin::{Keys, KeysFile, Origin, OriginFile, OriginKind, Upstream};
use super::pass::Pass;
use super::problem::Faults;
use super::secret::Source;
use super::server::{Listen, Server};
use super::store::StoreAt;
use crate::files::with_suffix;

/// The config of Guildgate, the edge gateway for guild data. Every value has a default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(title = "gateway.toml")]
pub(super) struct ConfigFile {
    /// The listeners for callers, and the limits of connections.
    pub server: Server,
    /// What answers contain in addition to the data.
    pub answers: Answers,
    /// Where the data is: in the built-in backend or an HTTP service.
    pub origin: OriginFile,
    /// Which requests that are no operation go on to an HTTP origin.
    pub pass: Pass,
    /// The keys of callers.
    pub keys: KeysFile,
    /// How often a key may send requests.
    pub limits: LimitsFile,
    /// How long answers are cached.
    pub cache: Cache,
    /// The listener for operators and admins.
    pub admin: AdminListener,
    /// The logs.
    pub log: Log,
    /// Several nodes that share limits.
    pub cluster: ClusterFile,
}

impl ConfigFile {
    /// The usable configuration; it is valid only if no fault was found.
    pub fn check(&mut self, faults: &mut Faults<'_>) -> Config {
        self.server.check(faults);
        self.answers.check(faults);
        self.cache.check(faults);
        self.log.check(faults);
        let origin = self.origin.check(faults);
        let keys = self.keys.check(faults, self.origin.kind);
        self.pass.check(faults, &origin.kind, &keys);
        let limits = self.limits.check(faults);
        self.admin.check(faults, &self.server);
        let cluster = self.cluster.check(faults, self.origin.kind);
        self.check_log_files(faults, &origin);
        if let OriginKind::Http(upstreams) = &origin.kind {
            let mut addresses = upstreams.list.iter().filter_map(Upstream::address).map(Listen::Tcp);
            if addresses.any(|at| self.server.listen.contains(&at)) {
                faults.add("origin.upstreams", "names an address of `server.listen`, so this server would ask itself");
            }
        }
        let ConfigFile { server, answers, pass, cache, admin, log, .. } = self.clone();
        // The hash is made once the values are known to be valid.
        Config { server, answers, origin, pass, keys, limits, cache, admin, log, cluster, hash: ConfigHash::default() }
    }
}

impl ConfigFile {
    /// A log is appended to, which would damage a file of another use.
    fn check_log_files(&self, faults: &mut Faults<'_>, origin: &Origin) {
        let store = if let StoreAt::Sqlite(file) = &origin.store { Some(file.as_path()) } else { None };
        let token = if let Source::File(file) = self.admin.token.source() { Some(Path::new(file)) } else { None };
        let older = self.log.decisions.as_ref().map(|file| with_suffix(file, ".1"));
        let mut used = vec![store, token, self.keys.file.as_deref(), older.as_deref()];
        for (setting, log) in self.log.files() {
            if used.contains(&Some(log)) || log.ends_with(DEFAULT_FILE) {
                faults.add(setting, "has another use, which lines of a log would damage; name another file");
            }
            used.push(Some(log));
        }
    }
}

/// The JSON Schema of `gateway.toml`, for editors.
pub fn schema() -> Value {
    let mut schema = full_schema();
    // The defaults of sections repeat those of their settings, and editors warn about formats that they do not know.
    let without_noise = |schema: &mut Schema| {
        if schema.get("default").is_some_and(|default| default.is_object() || default.is_null()) {
            schema.remove("default");
        }
        schema.remove("format");
    };
    RecursiveTransform(without_noise).transform(&mut schema);
    schema.to_value()
}

/// The schema that the file is parsed by: it says which strings are read in which way (`format`), too.
pub(super) fn full_schema() -> Schema {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .with_transform(RecursiveTransform(strict));
    settings.into_generator().into_root_schema_for::<ConfigFile>()
}

/// A table has no other names than its own, and TOML has no null: what is optional may be left out.
fn strict(schema: &mut Schema) {
    if schema.get("properties").is_some() {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
    if let Some(Value::Array(types)) = schema.get("type") {
        let not_null = types.iter().find(|name| *name != "null").cloned();
        schema.insert("type".to_owned(), not_null.unwrap_or_default());
    }
}

/// A section as it is typed: each setting with its description in the schema, its bounds and its default.
macro_rules! section {
    ($(#[$about:meta])* pub struct $Name:ident {
        $($(#[$of:meta])* $vis:vis $name:ident: $Type:ty = $default:expr,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(default)]
        pub struct $Name { $($(#[$of])* $vis $name: $Type,)* }

        impl Default for $Name {
            fn default() -> Self {
                $Name { $($name: $default,)* }
            }
        }
    };
}
pub(super) use section;

/// Everything `gateway.toml` says (contract section 3), with its defaults filled in. Every value is checked, and no code
/// that uses it checks it again.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub server: Server,
    pub answers: Answers,
    pub origin: Origin,
    pub pass: Pass,
    pub keys: Keys,
    pub limits: Limits,
    pub cache: Cache,
    pub admin: AdminListener,
    pub log: Log,
    /// `None`: this node shares nothing with others.
    pub cluster: Option<Cluster>,
    pub hash: ConfigHash,
}

/// Why a server has no store.
pub const NO_STORE: &str =
    "this configuration has no store: the origin is an HTTP service and the keys are not in the store";

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

/// Identifies what a configuration answers, refuses and keeps: the first 12 hexadecimal digits of the SHA-256 of its
/// `[answers]`, `[limits]` and `[cache]`. The access log and `why` compare it, and so do the nodes of a cluster. The nodes
/// compare that of their key file, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigHash(u64);

impl ConfigHash {
    pub fn of(text: &str) -> Self {
        ConfigHash(Sha256::digest(text).iter().take(6).fold(0, |hash, byte| hash << 8 | u64::from(*byte)))
    }
}

impl fmt::Display for ConfigHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}", self.0)
    }
}

impl FromStr for ConfigHash {
    type Err = ParseIntError;

    fn from_str(digits: &str) -> Result<Self, ParseIntError> {
        u64::from_str_radix(digits, 16).map(ConfigHash)
    }
}

text_type!(ConfigHash, "config hash");
