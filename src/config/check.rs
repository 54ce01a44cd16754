//! From [`ConfigFile`] to [`Config`]: every value is checked against the others, and all faults are collected. No code
//! that uses a [`Config`] checks it again. Of files, it reads only the one that names the store.

mod admin;
mod cluster;
mod cors;
mod limits;
mod origin;
mod server;
mod upstreams;

pub use limits::{MAX_TIERS, is_tier_name};

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;
use http::uri::{Authority, Scheme};

use super::Warning;
use super::file::{AnswerHeader, AnswersFile, ConfigFile, ErrorStatus, LogFile, LogFormat};
use super::leaf::{HumanDuration, HumanSize};
use super::places::Places;
use super::problem::{MAX_PROBLEMS, Problem};
use super::secret::{self, Secret, Source};
use super::usable::{Access, AnswerHeaders, Answers, Config, Decisions, Log, Otlp};
use crate::wire::Wording;

/// Longest text of the operator's in a refusal, in bytes. A refusal is one short line.
const MAX_WORDS: usize = 256;

/// Sizes of the record of decisions: from twenty times its largest block to more than any disk has.
const DECISIONS_SIZE: RangeInclusive<u64> = 1 << 20..=1 << 50;

/// Checks values and collects their faults and warnings.
pub(super) struct Checker<'t> {
    pub places: Places,
    /// Where relative paths start.
    pub folder: &'t Path,
    /// Looks up an environment variable.
    pub env: &'t dyn Fn(&str) -> Option<String>,
    pub problems: Vec<Problem>,
    pub warnings: Vec<Warning>,
    /// Settings whose value in force differs from the file: whole paths, and the store without its password.
    pub resolved: Vec<(String, String)>,
}

impl Checker<'_> {
    /// The usable config; it is valid only if no fault was found.
    pub fn config(&mut self, file: &ConfigFile) -> Config {
        let config = Config {
            server: self.server(&file.server),
            answers: self.answers(&file.answers),
            origin: self.origin(&file.origin),
            keys: self.keys(&file.keys, &file.origin),
            limits: self.limits(&file.limits),
            cache: self.cache(&file.cache),
            admin: self.admin(&file.admin, &file.server),
            log: self.log(&file.log),
            cluster: self.cluster(&file.cluster, &file.origin),
            hash: Default::default(), // made once the values are known to be valid
        };
        self.health_path(&file.server);
        config
    }

    fn fault(&mut self, path: &str, message: impl Into<String>) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(self.places.problem(path, message));
        }
    }

    /// A setting that is accepted and does nothing, because it protects nothing.
    fn warning(&mut self, path: &str, text: &str) {
        self.warnings.push(Warning { path: path.to_owned(), text: text.to_owned() });
    }

    fn size(&mut self, path: &str, value: HumanSize, bounds: RangeInclusive<u64>) -> u64 {
        if !bounds.contains(&value.0) {
            let (low, high) = (HumanSize(*bounds.start()), HumanSize(*bounds.end()));
            self.fault(path, format!("must be from {low} to {high}"));
        }
        value.0
    }

    /// A duration after which something is abandoned.
    fn timeout(&mut self, path: &str, value: HumanDuration) -> Duration {
        if value.0.is_zero() {
            self.fault(path, "must not be 0, since every request would time out");
        }
        value.0
    }

    /// A file's path, from the config file's folder.
    fn file(&mut self, path: &str, text: &str) -> PathBuf {
        // A key that was pasted for its path is shown nowhere.
        if text.is_empty() || text.contains(char::is_control) {
            self.fault(path, "must be a path, not what the file contains");
            return PathBuf::new();
        }
        let file = self.folder.join(text);
        self.resolved.push((path.to_owned(), file.display().to_string()));
        file
    }

    /// The value of a secret, wherever it is.
    fn secret(&mut self, setting: &str, secret: &Secret) -> Result<String, String> {
        match secret.source() {
            Source::Written(text) => secret::clean("its value", text),
            Source::File(name) => secret::read_file(&self.file(setting, name)),
            Source::Env(name) => secret::of_variable(name, (self.env)(name)),
        }
    }

    fn answers(&mut self, file: &AnswersFile) -> Answers {
        Answers {
            wording: Wording {
                service_name: self.words("answers.service_name", &file.service_name),
                key_command: self.words("answers.key_command", &file.key_command),
            },
            errors_as_ok: file.error_status == ErrorStatus::Ok,
            headers: AnswerHeaders {
                cache_status: file.headers.contains(&AnswerHeader::CacheStatus),
                ratelimit: file.headers.contains(&AnswerHeader::Ratelimit),
                request_id: file.headers.contains(&AnswerHeader::RequestId),
                age: file.headers.contains(&AnswerHeader::Age),
            },
            cors_origins: self.cors_origins(&file.cors_origins),
        }
    }

    fn words(&mut self, path: &str, words: &str) -> String {
        if words.contains(char::is_control) {
            self.fault(path, "must be one line without control characters, since a refusal is one line");
        }
        if words.len() > MAX_WORDS {
            self.fault(path, format!("must be at most {MAX_WORDS} bytes long"));
        }
        words.to_owned()
    }

    fn log(&mut self, file: &LogFile) -> Log {
        let max_size = self.size("log.decisions_max_size", file.decisions_max_size, DECISIONS_SIZE);
        let decisions = (!file.decisions.is_empty())
            .then(|| Decisions { path: self.file("log.decisions", &file.decisions), max_size });
        if decisions.is_some() && file.decisions == file.access {
            self.fault("log.decisions", "must not be the file of `log.access`");
        }
        let audit = (!file.audit.is_empty()).then(|| self.file("log.audit", &file.audit));
        if audit.is_some() && [&file.access, &file.decisions].contains(&&file.audit) {
            self.fault("log.audit", "must not be the file of another log");
        }
        Log {
            level: file.level,
            json: file.format == LogFormat::Json,
            access: match file.access.as_str() {
                "" => Access::None,
                "stderr" | "/dev/stderr" | "/proc/self/fd/2" => Access::Stderr,
                "stdout" | "-" | "/dev/stdout" | "/proc/self/fd/1" => Access::Stdout,
                path => Access::File(self.file("log.access", path)),
            },
            decisions,
            audit,
            otlp: self.otlp(file),
        }
    }

    fn otlp(&mut self, file: &LogFile) -> Option<Otlp> {
        if file.otlp.is_empty() {
            return None;
        }
        if !cfg!(feature = "otlp") {
            self.fault("log.otlp", "this build has no OTLP export; build with --features otlp");
        } else if !is_plain_http(&file.otlp) {
            self.fault(
                "log.otlp",
                "must be a collector's URL such as \"http://127.0.0.1:4318\" (https is not offered)",
            );
        }
        let endpoint = format!("{}/v1/traces", file.otlp.trim_end_matches('/'));
        Some(Otlp { endpoint, sample: file.otlp_sample })
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
