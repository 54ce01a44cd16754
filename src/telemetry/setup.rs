//! Sets up the process log on stderr, as `[log]` says, and limits what dependencies may write to it. A thread
//! writes, and lines are dropped and counted if stderr is not read, so that no request waits for stderr. The rate of
//! each kind of line is bounded in `log_rate_limit`. Called once, by `serve`.

use std::fmt::{self, Debug};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::field::Field;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::line_writer::LineOutput;
use super::log_rate_limit::{LOG_TARGET, LogRateLimit, REPORT_INTERVAL};
use crate::clock::{Clock, becomes_true};
use crate::config::{Log, LogLevel};

/// Lines that wait for stderr; what does not fit is dropped. A stderr that is not read must not stop the gateway.
const LINES: usize = 4096;

/// The line that announces that `url` is served, for `log.format = "json"`. It is written at every `log.level`.
pub fn ready_as_json(url: &str, unix_ms: i64) -> String {
    let timestamp = jiff::Timestamp::from_millisecond(unix_ms).unwrap_or_default();
    let url = serde_json::Value::from(url);
    format!("{{\"timestamp\":\"{timestamp:.3}\",\"level\":\"INFO\",\"ready\":{url}}}\n")
}

/// Targets of dependencies, and the minimum severity that is logged of each. Callers or a store can cause many of their
/// lines without end, and the gateway logs itself what an operator needs of those; h2 and tokio_postgres quote what
/// callers sent. Pingora and refinery log their normal operation at info.
const DEPENDENCIES: [(&str, LevelFilter); 11] = [
    ("h2", LevelFilter::OFF),
    ("rustls", LevelFilter::ERROR),
    ("tokio_rustls", LevelFilter::ERROR),
    ("hyper", LevelFilter::ERROR),
    ("hyper_util", LevelFilter::ERROR),
    ("tokio_postgres", LevelFilter::ERROR),
    ("pingora_core", LevelFilter::WARN),
    ("pingora_runtime", LevelFilter::WARN),
    ("refinery_core", LevelFilter::WARN),
    ("refinery", LevelFilter::WARN),
    ("redis", LevelFilter::ERROR),
];

/// The process log, until it is closed.
#[derive(Debug)]
pub struct ProcessLog {
    rate_limit: LogRateLimit,
    writer: Mutex<Option<WorkerGuard>>,
}

impl ProcessLog {
    /// Logs which lines were suppressed last and writes what is queued, within this time. On a thread of its own, since
    /// a writer that could not do so says it on stdout, which may have no reader either.
    pub fn close(&self, within: Duration) {
        let (rate_limit, writer) = (self.rate_limit.clone(), self.writer.lock().take());
        let close = move || {
            rate_limit.report();
            drop(writer);
        };
        if let Ok(thread) = std::thread::Builder::new().spawn(close) {
            becomes_true(Instant::now() + within, || thread.is_finished());
        }
    }
}

/// Sends the process log (what is reported with `tracing`) to stderr, as `[log]` says.
pub fn init(log: &Log) -> ProcessLog {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let quiet = DEPENDENCIES.map(|(target, minimum)| (target, minimum.min(level)));
    let filter = Targets::new().with_default(level).with_targets(quiet);
    let lost = Arc::default();
    let stderr = Stderr { output: LineOutput::stream(io::stderr()), lost: Arc::clone(&lost), failed: 0 };
    let (writer, guard) = NonBlockingBuilder::default().buffered_lines_limit(LINES).lossy(true).finish(stderr);
    let ((rate_limit, lines), dropped) = (LogRateLimit::new(Clock::system()), writer.error_counter());
    let registry = tracing_subscriber::registry().with(filter).with(rate_limit.clone());
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let set = if log.is_json() {
        registry.with(layer.json()).try_init()
    } else {
        registry.with(layer.with_ansi(false).with_target(false).fmt_fields(debug_fn(write_field))).try_init()
    };
    // A second start in one process keeps the log of the first.
    if set.is_ok() {
        let reported = rate_limit.clone();
        let report = move || report_missing_lines(&reported, &dropped, &lost, &lines);
        if let Err(error) = std::thread::Builder::new().name("log-rate-limit".into()).spawn(report) {
            tracing::error!(%error, "the thread that counts suppressed log lines could not be started");
        }
    }
    ProcessLog { rate_limit, writer: Mutex::new(Some(guard)) }
}

/// Writes a field of a line of text. A record is one line, whatever it quotes, and a value with blanks is quoted.
fn write_field(out: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let text = format!("{value:?}");
    match field.name() {
        "message" => text.chars().try_for_each(|c| match c {
            c if c.is_control() => write!(out, "{}", c.escape_default()),
            c => out.write_char(c),
        }),
        name if name.starts_with("log.") => Ok(()), // where a dependency's record was made
        name if text.starts_with('"') || !text.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            write!(out, " {name}={text}")
        }
        name => write!(out, " {name}={text:?}"),
    }
}

/// Stderr, which counts the lines that could not be written (its disk is full), once others can.
struct Stderr {
    output: LineOutput,
    lost: Arc<AtomicUsize>,
    /// Those since the last line that could be written.
    failed: usize,
}

impl Write for Stderr {
    /// Writes one line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.failed += 1;
        self.output.write(line)?;
        self.lost.fetch_add(self.failed - 1, Ordering::Relaxed);
        self.failed = 0;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // each line is flushed
    }
}

/// Logs, at most once a second and only after lines have come, which of them are missing from the log: those of a kind
/// that came too often, and those that stderr did not take. Ends with the process.
fn report_missing_lines(rate_limit: &LogRateLimit, dropped: &ErrorCounter, lost: &AtomicUsize, lines: &Receiver<()>) {
    let mut reported = 0;
    while lines.recv().is_ok() {
        std::thread::sleep(REPORT_INTERVAL);
        rate_limit.report();
        let so_far = dropped.dropped_lines() + lost.load(Ordering::Relaxed);
        if so_far > reported {
            let lines = so_far - reported;
            tracing::warn!(target: LOG_TARGET, lines, so_far, "stderr was not read fast enough, or its disk was full; lines of this log were dropped");
            reported = so_far; // if this line was dropped too, it counts in the next one
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_record_is_one_line_of_text_whose_values_with_blanks_are_quoted() {
        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<u8>>>);

        impl Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().write(bytes)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let layer = layer.with_ansi(false).with_target(false).without_time().fmt_fields(debug_fn(write_field));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let (file, other) = ("/a b/c\nd", "/a");
            tracing::warn!(%file, %other, text = "e", count = 1, "two\nlines\u{1b}");
        });
        let text = String::from_utf8(lines.0.lock().clone()).unwrap();
        assert_eq!(text, " WARN two\\nlines\\u{1b} file=\"/a b/c\\nd\" other=/a text=\"e\" count=1\n");
    }

    #[test]
    fn lines_that_a_full_disk_does_not_take_are_counted_when_it_has_room_again() {
        struct Disk(Arc<AtomicBool>);

        impl Write for Disk {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if self.0.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let (is_full, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let output = LineOutput::stream(Disk(is_full.clone()));
        let mut stderr = Stderr { output, lost: lost.clone(), failed: 0 };
        for full in [false, true, true, true] {
            is_full.store(full, Ordering::Relaxed);
            assert_eq!(stderr.write_all(b"a line\n").is_err(), full);
        }
        assert_eq!(lost.load(Ordering::Relaxed), 0);
        is_full.store(false, Ordering::Relaxed);
        for _ in 0..2 {
            stderr.write_all(b"a line\n").unwrap();
            assert_eq!(lost.load(Ordering::Relaxed), 3);
        }
    }
}
