use std::io;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{Level, Log};

/// Lines that wait for stderr; what does not fit is dropped. A stderr that nobody reads must not
/// stop the gateway.
const LINES: usize = 4096;

/// The line that says that `url` is served, where `log.format` is `json`. It is written whatever `log.level`
/// says.
pub fn ready_as_json(url: &str, unix_ms: i64) -> String {
    let timestamp = jiff::Timestamp::from_millisecond(unix_ms).unwrap_or_default();
    let url = serde_json::Value::from(url);
    format!("{{\"timestamp\":\"{timestamp:.3}\",\"level\":\"INFO\",\"ready\":{url}}}\n")
}

/// Sends the process's own log (not the access log) to stderr, as `[log]` says, by a thread of its
/// own. Dropping what is returned writes what is left, waiting no longer than a second.
pub fn init(log: &Log) -> WorkerGuard {
    let level = match log.level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    // Pingora and refinery speak of their own life at info; an operator wants their worries. Those
    // of h2 and tokio_postgres quote what callers sent.
    let quiet = ["pingora_core", "pingora_runtime", "refinery_core", "refinery", "h2", "tokio_postgres", "deadpool"]
        .map(|c| (c, LevelFilter::WARN.min(level)));
    let filter = Targets::new().with_default(level).with_targets(quiet);
    let (writer, guard) = NonBlockingBuilder::default().buffered_lines_limit(LINES).lossy(true).finish(io::stderr());
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let set = if log.json {
        registry.with(layer.json()).try_init()
    } else {
        registry.with(layer.with_ansi(false).with_target(false)).try_init()
    };
    // Only a process that starts twice has one already; the first serves it on.
    let _ = set;
    guard
}
