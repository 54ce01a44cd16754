//! From [`ConfigFile`] to [`Config`]: each value judged, all faults collected, no code below judges again.

mod limits;
mod origin;
mod server;
mod upstreams;

pub use limits::{MAX_TIERS, is_tier_name};

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Notice;
use super::file::{
    AdminFile, AnswersFile, ClusterFile, ConfigFile, ErrorStatus, HEADERS, LevelFile, LogFile, LogFormat,
};
use super::leaf::{HumanDuration, HumanSize, shown};
use super::places::Places;
use super::problem::{Problem, instead};
use super::secret::{Secret, Source};
use super::usable::{Access, Admin, AnswerHeaders, Answers, Config, Decisions, Level, Log};
use crate::wire::Wording;

/// The longest duration. Longer is a slip of the unit, and clocks must be able to add it.
const MAX_DURATION: HumanDuration = HumanDuration::secs(365 * 86_400);

/// The longest of the operator's words in a refusal. A refusal is one short line.
const MAX_WORDS: usize = 256;

/// The record of decisions: from twenty times its largest block to more than any disk has.
const DECISIONS_SIZE: RangeInclusive<u64> = 1 << 20..=1 << 50;

/// Judges values and collects what is wrong with them and what is not in force yet.
pub(super) struct Checker<'t> {
    pub places: Places,
    /// Where relative paths start.
    pub folder: &'t Path,
    /// Looks up an environment variable.
    pub env: &'t dyn Fn(&str) -> Option<String>,
    pub problems: Vec<Problem>,
    pub notices: Vec<Notice>,
}

impl Checker<'_> {
    /// The usable config; it counts only if no problem was found.
    pub fn config(&mut self, file: &ConfigFile) -> Config {
        let config = Config {
            server: self.server(&file.server),
            answers: self.answers(&file.answers),
            origin: self.origin(&file.origin),
            keys: self.keys(&file.keys, &file.origin),
            limits: self.limits(&file.limits),
            cache: self.cache(&file.cache),
            admin: self.admin(&file.admin),
            log: self.log(&file.log),
        };
        self.health_path(&file.server);
        self.cluster(&file.cluster);
        config
    }

    fn fault(&mut self, path: &str, message: impl Into<String>) {
        let problem = self.places.problem(path, message);
        self.problems.push(problem);
    }

    /// Accepted, and said to do nothing: it protects nobody.
    fn notice(&mut self, path: &str, text: &str) {
        self.notices.push(Notice { path: path.to_owned(), text: text.to_owned() });
    }

    /// Refused: who wrote it relies on it.
    fn not_in_force(&mut self, path: &str, why: &str) {
        self.fault(path, format!("`{path}` is not in force yet: {why}"));
    }

    /// A whole number within its bounds; the lower one where it is not.
    fn whole(&mut self, path: &str, value: u64, bounds: RangeInclusive<u64>) -> u64 {
        if !bounds.contains(&value) {
            self.fault(path, format!("must be from {} to {}", bounds.start(), bounds.end()));
            return *bounds.start();
        }
        value
    }

    /// As `whole`, for what counts things in memory.
    fn count(&mut self, path: &str, value: u64, bounds: RangeInclusive<u64>) -> usize {
        usize::try_from(self.whole(path, value, bounds)).unwrap_or(usize::MAX)
    }

    fn size(&mut self, path: &str, value: HumanSize, bounds: RangeInclusive<u64>) -> u64 {
        if !bounds.contains(&value.0) {
            let (low, high) = (HumanSize(*bounds.start()), HumanSize(*bounds.end()));
            self.fault(path, format!("must be from {low} to {high}"));
        }
        value.0
    }

    fn duration(&mut self, path: &str, value: HumanDuration) -> Duration {
        if value.0 > MAX_DURATION.0 {
            self.fault(path, format!("must be at most {MAX_DURATION}"));
        }
        value.0
    }

    /// A duration after which something is given up.
    fn timeout(&mut self, path: &str, value: HumanDuration) -> Duration {
        if value.0.is_zero() {
            self.fault(path, "must not be 0: nothing could be done in time");
        }
        self.duration(path, value)
    }

    /// A file's path, from the config file's folder.
    fn file(&mut self, path: &str, text: &str) -> PathBuf {
        if text.is_empty() || text.contains('\0') {
            self.fault(path, "must be a path");
        }
        self.folder.join(text)
    }

    fn answers(&mut self, file: &AnswersFile) -> Answers {
        Answers {
            wording: Wording {
                service_name: self.words("answers.service_name", &file.service_name),
                key_command: self.words("answers.key_command", &file.key_command),
            },
            errors_as_ok: file.error_status == ErrorStatus::Ok,
            headers: self.headers(&file.headers),
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

    fn headers(&mut self, names: &[String]) -> AnswerHeaders {
        for (i, name) in names.iter().enumerate() {
            let path = format!("answers.headers[{i}]");
            if !HEADERS.contains(&name.as_str()) {
                let free: Vec<&str> = HEADERS.into_iter().filter(|h| !names.iter().any(|name| name == h)).collect();
                self.fault(&path, format!("unknown header {}; {}", shown(name), instead(name, free)));
            } else if names[..i].contains(name) {
                self.fault(&path, format!("`{name}` stands here twice"));
            }
        }
        let [cache_status, ratelimit, request_id, age] = HEADERS.map(|h| names.iter().any(|n| n == h));
        AnswerHeaders { cache_status, ratelimit, request_id, age }
    }

    fn log(&mut self, file: &LogFile) -> Log {
        let max_size = self.size("log.decisions_max_size", file.decisions_max_size, DECISIONS_SIZE);
        let decisions = (!file.decisions.is_empty())
            .then(|| Decisions { path: self.file("log.decisions", &file.decisions), max_size });
        if decisions.is_some() && file.decisions == file.access {
            self.fault("log.decisions", "must be another file than `log.access`");
        }
        Log {
            level: match file.level {
                LevelFile::Error => Level::Error,
                LevelFile::Warn => Level::Warn,
                LevelFile::Info => Level::Info,
                LevelFile::Debug => Level::Debug,
                LevelFile::Trace => Level::Trace,
            },
            json: file.format == LogFormat::Json,
            access: match file.access.as_str() {
                "" => Access::None,
                "stderr" => Access::Stderr,
                "stdout" | "-" => Access::Stdout,
                path => Access::File(self.file("log.access", path)),
            },
            decisions,
        }
    }

    fn admin(&mut self, file: &AdminFile) -> Admin {
        if !file.listen.is_empty() {
            self.tcp_address("admin.listen", &file.listen, &[]);
            self.notice("admin.listen", "not in force yet: the admin listener comes with a later version");
        }
        self.secret("admin.token", &file.token);
        let token_file = match file.token.source() {
            Source::File(path) if !file.listen.is_empty() && !path.is_empty() => Some(self.file("admin.token", path)),
            Source::File(_) | Source::Env(_) | Source::Written(_) => None,
        };
        Admin { token_file }
    }

    fn cluster(&mut self, file: &ClusterFile) {
        if file.redis.is_some() {
            self.not_in_force(
                "cluster.redis",
                "shared limits come with a later version; remove it, and each node limits on its own",
            );
        } else if file.node.is_some() {
            self.notice("cluster.node", "has no effect without `cluster.redis`");
        }
    }

    /// A secret's form; its value is looked up where it is used.
    fn secret(&mut self, path: &str, secret: &Secret) {
        match secret.source() {
            Source::Written("") => self.fault(path, "must not be empty"),
            Source::Env(name) => self.env_name(path, name),
            Source::File("") => self.fault(path, "a path must follow `file:`"),
            Source::Written(_) | Source::File(_) => {}
        }
    }

    fn env_name(&mut self, path: &str, name: &str) {
        if name.is_empty() || name.contains(['=', '\0']) {
            self.fault(path, "the name of an environment variable must follow `env:`");
        }
    }
}
