//! Sets up the process's own log on stderr, as `[log]` says, and limits what dependencies may write to it. A thread
//! writes, and lines are dropped and counted if stderr is not read, so that no request waits for stderr. The rate of
//! each kind of line is bounded in `bound`. Called once, by `serve`.

use std::io;

use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::bound::{Bound, OF_THE_LOG, TELLING};
use crate::clock::Clock;
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

/// Targets of dependencies, and the least that is logged of them. What callers or a store can make one say
/// without end, the gateway says itself where an operator needs it; and h2 and tokio_postgres quote what
/// callers sent. Pingora and refinery speak of their own life at info: their worries are wanted.
const DEPENDENCIES: [(&str, LevelFilter); 12] = [
    ("h2", LevelFilter::OFF),
    ("rustls", LevelFilter::ERROR),
    ("tokio_rustls", LevelFilter::ERROR),
    ("hyper", LevelFilter::ERROR),
    ("hyper_util", LevelFilter::ERROR),
    ("tokio_postgres", LevelFilter::ERROR),
    ("deadpool", LevelFilter::ERROR),
    ("deadpool_postgres", LevelFilter::ERROR),
    ("pingora_core", LevelFilter::WARN),
    ("pingora_runtime", LevelFilter::WARN),
    ("refinery_core", LevelFilter::WARN),
    ("refinery", LevelFilter::WARN),
];

/// The process's own log, as long as this is held. Dropping it says what was left out last and writes
/// what is left, waiting no longer than a second.
#[derive(Debug)]
pub struct OwnLog {
    bound: Bound,
    _writer: WorkerGuard,
}

impl Drop for OwnLog {
    fn drop(&mut self) {
        self.bound.tell();
    }
}

/// Sends the process's own log (not the access log) to stderr, as `[log]` says, by a thread of its
/// own. Lines of one kind are bounded by rate, whoever causes them.
pub fn init(log: &Log) -> OwnLog {
    let level = match log.level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let quiet = DEPENDENCIES.map(|(target, most)| (target, most.min(level)));
    let filter = Targets::new().with_default(level).with_targets(quiet);
    let (writer, guard) = NonBlockingBuilder::default().buffered_lines_limit(LINES).lossy(true).finish(io::stderr());
    let (bound, dropped) = (Bound::new(Clock::system()), writer.error_counter());
    let registry = tracing_subscriber::registry().with(filter).with(bound.clone());
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let set = if log.json {
        registry.with(layer.json()).try_init()
    } else {
        registry.with(layer.with_ansi(false).with_target(false)).try_init()
    };
    // Only a process that starts twice has one already; the first serves it on.
    if set.is_ok() {
        let telling = bound.clone();
        let tell = move || tell_of_the_log(&telling, &dropped);
        if let Err(error) = std::thread::Builder::new().name("log-bound".into()).spawn(tell) {
            tracing::error!(%error, "no thread could be started that says what is left out of this log");
        }
    }
    OwnLog { bound, _writer: guard }
}

/// Says once a second what is not in the log: lines of a kind that came too often, and lines that stderr did not
/// take. Ends with the process.
fn tell_of_the_log(bound: &Bound, dropped: &ErrorCounter) {
    let mut told = 0;
    loop {
        std::thread::sleep(TELLING);
        bound.tell();
        let so_far = dropped.dropped_lines();
        if so_far > told {
            let lines = so_far - told;
            tracing::warn!(target: OF_THE_LOG, lines, "stderr was not read fast enough; lines of this log were dropped");
            // If this one was dropped too, it is said again.
            if dropped.dropped_lines() == so_far {
                told = so_far;
            }
        }
    }
}
