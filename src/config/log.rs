//! `[log]`: the process log, the access log, the record of decisions, the audit log, and the export of traces.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file::section;
use super::leaf::{HumanSize, text_type};
use super::origin::Upstream;
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
        #[schemars(extend("format" = "path or off", "default" = ""))]
        pub decisions: Option<PathBuf> = None,
        /// The most that the record and its older file (PATH.1) may take together.
        #[serde(with = "HumanSize")]
        pub decisions_max_size: u64 = 64 << 20,
        /// A path: who changed what by the admin API, as JSON lines; "" for none.
        #[schemars(extend("format" = "path or off", "default" = ""))]
        pub audit: Option<PathBuf> = None,
        /// The URL of an OpenTelemetry collector to which traces are sent (OTLP over HTTP), such as
        /// "http://127.0.0.1:4318"; "" for none.
        #[schemars(extend("format" = "upstream or off", "default" = ""))]
        pub otlp: Option<Upstream> = None,
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

impl Log {
    pub(super) fn check(&self, faults: &mut Faults<'_>) {
        faults.size("log.decisions_max_size", self.decisions_max_size, DECISIONS_SIZE);
        if !(0.0..=1.0).contains(&self.otlp_sample) {
            faults.add("log.otlp_sample", "must be from 0 to 1");
        }
        if self.otlp.is_some() && !cfg!(feature = "otlp") {
            faults.add("log.otlp", "this build has no OTLP export; build with --features otlp");
        } else if self.otlp.as_ref().is_some_and(|url| url.server_name.is_some()) {
            faults.add("log.otlp", "must be an http:// URL such as \"http://127.0.0.1:4318\": https is not offered");
        }
    }

    /// The files that are written, each with its setting.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let access = if let Access::File(file) = &self.access { Some(file) } else { None };
        let files =
            [("log.access", access), ("log.decisions", self.decisions.as_ref()), ("log.audit", self.audit.as_ref())];
        files.into_iter().filter_map(|(setting, file)| Some((setting, file?.as_path())))
    }

    pub fn is_json(&self) -> bool {
        self.format == LogFormat::Json
    }
}

/// Where the access log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
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
