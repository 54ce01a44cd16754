//! `[log]`: the process log, the access log, the record of decisions, the audit log, and the export of traces.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, Scheme};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file::section;
use super::leaf::{HumanSize, off, text_type};
use super::problem::Faults;

/// Sizes of the record of decisions: from twenty times its largest block to more than any disk has.
const DECISIONS_SIZE: RangeInclusive<u64> = 1 << 20..=1 << 50;

section! {
    /// `[log]`
    pub struct Log {
        /// Minimum severity to log: error, warn, info, debug or trace.
        pub level: LogLevel = LogLevel::Info,
        /// "text" or "json".
        pub format: LogFormat = LogFormat::Text,
        /// One line per request: "stderr", "stdout" (or "-"), a path, or "" for none.
        pub access: Access = Access::Stderr,
        /// A path: the record that `limits plan` and `limits suggest` read; "" for none.
        #[serde(with = "off")]
        #[schemars(with = "String", extend("format" = "path or off"))]
        pub decisions: Option<PathBuf> = None,
        /// The most that the record and its older file (PATH.1) may take together.
        #[serde(with = "HumanSize")]
        pub decisions_max_size: u64 = 64 << 20,
        /// A path: who changed what by the admin API, as JSON lines; "" for none.
        #[serde(with = "off")]
        #[schemars(with = "String", extend("format" = "path or off"))]
        pub audit: Option<PathBuf> = None,
        /// The URL of an OpenTelemetry collector to which traces are sent (OTLP over HTTP), such as
        /// "http://127.0.0.1:4318"; "" for none.
        pub otlp: String = String::new(),
        /// The fraction of requests without a `traceparent` that begin a trace of their own; of the others, those are traced
        /// that the caller has sampled.
        #[schemars(range(min = 0.0, max = 1.0))]
        pub otlp_sample: f64 = 0.01,
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// Where traces are exported to (`log.otlp`).
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// The collector's endpoint for traces, `{log.otlp}/v1/traces`.
    pub endpoint: String,
    /// The fraction of requests without a `traceparent` that begin a trace.
    pub sample: f64,
}

impl Log {
    pub(super) fn check(&self, faults: &mut Faults<'_>) {
        faults.size("log.decisions_max_size", self.decisions_max_size, DECISIONS_SIZE);
        let is_access = |file: &PathBuf| self.access == Access::File(file.clone());
        if self.decisions.as_ref().is_some_and(is_access) {
            faults.add("log.decisions", "must not be the file of `log.access`");
        }
        if self.audit.as_ref().is_some_and(is_access) || (self.audit.is_some() && self.audit == self.decisions) {
            faults.add("log.audit", "must not be the file of another log");
        }
        if self.otlp.is_empty() {
        } else if !cfg!(feature = "otlp") {
            faults.add("log.otlp", "this build has no OTLP export; build with --features otlp");
        } else if !is_plain_http(&self.otlp) {
            let text = "must be a collector's URL such as \"http://127.0.0.1:4318\" (https is not offered)";
            faults.add("log.otlp", text);
        }
    }

    pub fn is_json(&self) -> bool {
        self.format == LogFormat::Json
    }

    /// `None`: traces are not exported.
    pub fn otlp(&self) -> Option<Otlp> {
        let endpoint = format!("{}/v1/traces", self.otlp.trim_end_matches('/'));
        (!self.otlp.is_empty()).then_some(Otlp { endpoint, sample: self.otlp_sample })
    }
}

/// Whether this is http://host, with or without a port and a path, and nothing else.
fn is_plain_http(url: &str) -> bool {
    let parsed = url.parse::<Uri>().ok().filter(|_| !url.contains(['?', '#', '@']));
    parsed.is_some_and(|url| {
        let has_server = |a: &Authority| !a.host().is_empty() && (a.host() == a.as_str() || a.port_u16().is_some());
        url.scheme() == Some(&Scheme::HTTP) && url.authority().is_some_and(has_server)
    })
}

/// Where the access log is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Access {
    None,
    Stderr,
    Stdout,
    File(PathBuf),
}

impl FromStr for Access {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "" => Access::None,
            "stderr" | "/dev/stderr" | "/proc/self/fd/2" => Access::Stderr,
            "stdout" | "-" | "/dev/stdout" | "/proc/self/fd/1" => Access::Stdout,
            path => Access::File(path.into()),
        })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Access::None => Ok(()),
            Access::Stderr => f.write_str("stderr"),
            Access::Stdout => f.write_str("stdout"),
            Access::File(path) => path.display().fmt(f),
        }
    }
}

text_type!(Access, "access");
