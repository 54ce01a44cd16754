//! Sets up the process log on stderr, as `[log]` says, and limits what dependencies may write to it. A thread writes, and
//! lines are dropped and counted if stderr is not read, so that no request waits for stderr. `log_limit` bounds how many
//! lines each place writes. Called once, by `serve`.

use std::fmt::{self, Debug};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use tracing::field::Field;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::line_output::LineOutput;
use super::log_limit::LogLimit;
use super::writer::BackgroundWriter;
use crate::clock::Clock;
use crate::config::Log;

/// Lines that wait for stderr; what does not fit is dropped. A stderr that is not read must not stop the gateway.
const LINES: usize = 4096;

/// The line that announces that `url` is served, for `log.format = "json"`. It is written at every `log.level`.
pub fn ready_as_json(url: &str, unix_ms: i64) -> String {
    let timestamp = DateTime::from_timestamp_millis(unix_ms).unwrap_or_default();
    let timestamp = timestamp.to_rfc3339_opts(SecondsFormat::Millis, true);
    let url = serde_json::Value::from(url);
    format!("{{\"timestamp\":\"{timestamp}\",\"level\":\"INFO\",\"ready\":{url}}}\n")
}

/// Targets of dependencies, and the minimum severity that is logged of each. Callers or a store can cause many of their
/// lines without end, and the gateway logs itself what an operator needs of those; h2 and tokio_postgres quote what
/// callers sent, and so does Pingora, which also calls it an error that a kept connection is not free at once, for which it
/// opens another.
const DEPENDENCIES: [(&str, LevelFilter); 10] = [
    ("h2", LevelFilter::OFF),
    ("rustls", LevelFilter::ERROR),
    ("tokio_rustls", LevelFilter::ERROR),
    ("hyper", LevelFilter::ERROR),
    ("hyper_util", LevelFilter::ERROR),
    ("tokio_postgres", LevelFilter::ERROR),
    ("pingora_core", LevelFilter::OFF),
    ("pingora_proxy", LevelFilter::OFF),
    ("pingora_runtime", LevelFilter::WARN),
    ("redis", LevelFilter::ERROR),
];

/// The process log.
pub type ProcessLog = BackgroundWriter<Vec<u8>>;

/// Takes one line in one write.
struct LineTo(Arc<ProcessLog>);

impl Write for LineTo {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.record(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends the process log (what is reported with `tracing`) to stderr, as `[log]` says.
///
/// # Errors
/// The thread that writes it could not be started.
pub fn init(log: &Log) -> io::Result<Arc<ProcessLog>> {
    let levels = [LevelFilter::ERROR, LevelFilter::WARN, LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE];
    let level = levels[log.level as usize];
    let quiet = DEPENDENCIES.map(|(target, minimum)| (target, minimum.min(level)));
    let filter = Targets::new().with_default(level).with_targets(quiet);
    let stderr = LineOutput::stream(io::stderr());
    let add = |line: &Vec<u8>, lines: &mut String| lines.push_str(&String::from_utf8_lossy(line));
    let process_log = ProcessLog::of_lines("the process log", "process-log", (LINES, Duration::ZERO), stderr, add)?;
    let process_log = Arc::new(process_log);
    let registry = tracing_subscriber::registry().with(filter).with(LogLimit::new(Clock::system()));
    let to = process_log.clone();
    let layer = tracing_subscriber::fmt::layer().with_writer(move || LineTo(to.clone()));
    // A second start in one process keeps the log of the first.
    let _ = if log.is_json() {
        registry.with(layer.json()).try_init()
    } else {
        registry.with(layer.with_ansi(false).with_target(false).fmt_fields(debug_fn(write_field))).try_init()
    };
    Ok(process_log)
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

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

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
}
