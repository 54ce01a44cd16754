//! Limits the rate of each kind of line in the process log, so that callers, strangers or an origin cannot fill a
//! disk. Lines are of one kind if the same place in the source logs them. Suppressed lines are counted, and the count
//! is logged once a second with one of them as an example.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::layer::Context;

use crate::clock::{Clock, Tick};

/// Lines of one kind that may come at once, enough for a start or a reload.
const BURST: u32 = 20;

/// The time after which one more may come.
const PERIOD: Duration = Duration::from_secs(10);

/// Anybody may connect and send requests, so of each kind that callers cause one line may come in this time.
const CALLER_PERIOD: Duration = Duration::from_secs(1);

/// The field of all lines that a request causes, and the target of those that a connection causes.
const REQUEST_FIELD: &str = "request_id";
const CONNECTION_TARGET: &str = "guildgate::edge::";

/// How often suppressed lines are reported.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The target of reports about the logs themselves, each of which comes once in [`REPORT_INTERVAL`] and is not limited here.
pub(super) const LOG_TARGET: &str = "guildgate::log";

/// What a reload took up is not limited either, and what it leaves to a restart. Its errors are limited, since files that cannot be read
/// are read again and again.
const RELOADS: &str = "guildgate::process::reload";

/// The longest example, in bytes.
const MAX_EXAMPLE: usize = 500;

/// Passes the first [`BURST`] lines of each kind and then one each [`PERIOD`], or one each [`CALLER_PERIOD`] if callers
/// cause them, and counts the others.
#[derive(Clone, Debug)]
pub(super) struct LogRateLimit {
    clock: Clock,
    kinds: Arc<Mutex<HashMap<Identifier, Kind>>>,
    /// Tells the thread that reports that a line has come, which may be missing from the log.
    line_came: SyncSender<()>,
}

#[derive(Debug)]
struct Kind {
    level: Level,
    /// When the whole burst is available again.
    full_at: Tick,
    /// Since the last report, and since the start.
    suppressed: u64,
    so_far: u64,
    /// The first line suppressed since the last report.
    example: Option<String>,
}

/// Lines of one kind that are not in the process log.
#[derive(Debug, PartialEq, Eq)]
struct Suppressed {
    level: Level,
    count: u64,
    so_far: u64,
    example: String,
}

impl LogRateLimit {
    /// The receiver gets a message after each line, but for those that come while one is waiting.
    pub(super) fn new(clock: Clock) -> (Self, Receiver<()>) {
        let (line_came, lines) = sync_channel(1);
        (LogRateLimit { clock, kinds: Arc::default(), line_came }, lines)
    }

    /// Whether this line is logged. If not, it is counted.
    fn allows(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        let is_of_reload = metadata.target().starts_with(RELOADS) && *metadata.level() != Level::ERROR;
        if is_of_reload || metadata.target() == LOG_TARGET {
            return true;
        }
        let (callsite, now) = (metadata.callsite(), self.clock.now());
        {
            let mut kinds = self.kinds.lock();
            let level = *metadata.level();
            let kind = kinds.entry(callsite.clone()).or_insert(Kind {
                level,
                full_at: now,
                suppressed: 0,
                so_far: 0,
                example: None,
            });
            let is_of_caller =
                metadata.fields().field(REQUEST_FIELD).is_some() || metadata.target().starts_with(CONNECTION_TARGET);
            let (burst, period) = if is_of_caller { (1, CALLER_PERIOD) } else { (BURST, PERIOD) };
            let full_at = kind.full_at.max(now).plus(period);
            if full_at.since(now) <= period * burst {
                kind.full_at = full_at;
                return true;
            }
            kind.suppressed += 1;
            kind.so_far += 1;
            if kind.example.is_some() {
                return false;
            }
        }
        // Formatted without the lock, since a value's formatting may log something.
        let mut line = String::new();
        // A String takes every write.
        let _ = DefaultFields::new().format_fields(Writer::new(&mut line), event);
        if let Some(kind) = self.kinds.lock().get_mut(&callsite) {
            kind.example.get_or_insert(shortened(line));
        }
        false
    }

    /// What was suppressed since the last call.
    fn take(&self) -> Vec<Suppressed> {
        let mut kinds = self.kinds.lock();
        let suppressed = kinds.values_mut().filter(|kind| kind.suppressed > 0).map(|kind| Suppressed {
            level: kind.level,
            count: std::mem::take(&mut kind.suppressed),
            so_far: kind.so_far,
            example: kind.example.take().unwrap_or_default(),
        });
        suppressed.collect()
    }

    /// Logs what was suppressed since the last report, one line a kind and at its level.
    pub(super) fn report(&self) {
        for Suppressed { level, count, so_far, example } in self.take() {
            macro_rules! report {
                ($log:ident) => {
                    tracing::$log!(target: LOG_TARGET, left_out = count, so_far, "… and {count} more like it in the last second: {example}")
                };
            }
            match level {
                Level::ERROR => report!(error),
                Level::WARN => report!(warn),
                Level::INFO => report!(info),
                Level::DEBUG => report!(debug),
                Level::TRACE => report!(trace),
            }
        }
    }
}

impl<S: Subscriber> Layer<S> for LogRateLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let allows = self.allows(event);
        // It fails where a message is waiting already, or nobody reports.
        let _ = self.line_came.try_send(());
        allows
    }
}

fn shortened(mut line: String) -> String {
    if line.len() > MAX_EXAMPLE {
        line.truncate(line.floor_char_boundary(MAX_EXAMPLE));
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Counts the lines that are logged.
    #[derive(Clone, Debug, Default)]
    struct Logged(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Logged {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Runs `test` with a limited log and a function that returns how many lines were logged since its last call.
    fn limited(test: impl FnOnce(&LogRateLimit, &dyn Fn() -> usize)) {
        let (limit, logged) = (LogRateLimit::new(Clock::manual(0)).0, Logged::default());
        let subscriber = tracing_subscriber::registry().with(limit.clone()).with(logged.clone());
        tracing::subscriber::with_default(subscriber, || {
            test(&limit, &|| logged.0.swap(0, Ordering::Relaxed));
        });
    }

    fn log_one(n: u32) {
        tracing::warn!(n, why = %"it is so", "a kind of line");
    }

    #[test]
    fn a_kind_has_a_burst_and_a_rate_and_its_other_lines_are_counted() {
        limited(|limit, logged| {
            (0..1000).for_each(log_one);
            assert_eq!(logged(), BURST as usize);
            tracing::error!("another kind");
            assert_eq!(logged(), 1, "kinds are limited apart");
            let example = format!("a kind of line n={BURST} why=it is so");
            let count = 1000 - u64::from(BURST);
            assert_eq!(limit.take(), [Suppressed { level: Level::WARN, count, so_far: count, example }]);
            assert_eq!(limit.take(), []);
            limit.clock.advance(PERIOD * 3);
            (0..10).for_each(log_one);
            let suppressed = limit.take().remove(0);
            assert_eq!((logged(), suppressed.count, suppressed.so_far), (3, 7, count + 7));
            limit.clock.advance(PERIOD * 1000);
            (0..100).for_each(log_one);
            assert_eq!(logged(), BURST as usize);
        });
    }

    #[test]
    fn of_lines_that_callers_cause_one_of_each_kind_is_logged_in_a_second() {
        limited(|limit, logged| {
            let of_request = |n: u32| tracing::warn!(request_id = n, "a kind of line");
            let of_connection = |n: u32| tracing::warn!(target: "guildgate::edge::accept", n, "a kind of line");
            let kinds: [&dyn Fn(u32); 2] = [&of_request, &of_connection];
            for log in kinds {
                for _ in 0..2 {
                    (0..10).for_each(log);
                    assert_eq!((logged(), limit.take()[0].count), (1, 9));
                    limit.clock.advance(CALLER_PERIOD * 3);
                }
            }
        });
    }

    #[test]
    fn what_a_reload_took_up_is_always_logged_and_its_errors_are_limited() {
        limited(|limit, logged| {
            let of_reload =
                |n: u32| tracing::warn!(target: "guildgate::process::reload::config", n, "what needs a restart");
            (0..100).for_each(of_reload);
            assert_eq!((logged(), limit.take()), (100, Vec::new()));
            let failed = |n: u32| tracing::error!(target: "guildgate::process::reload::keys", n, "it cannot be read");
            (0..100).for_each(failed);
            assert_eq!(logged(), BURST as usize);
        });
    }

    #[test]
    fn suppressed_lines_are_reported_once_a_kind_and_reports_are_never_suppressed() {
        limited(|limit, logged| {
            for _ in 0..100 {
                (0..100).for_each(log_one);
                limit.report();
            }
            assert_eq!(logged(), BURST as usize + 100);
            limit.report();
            assert_eq!(logged(), 0, "nothing was suppressed");
        });
    }

    #[test]
    fn a_long_example_is_shortened() {
        assert_eq!(shortened("short".into()), "short");
        let long = shortened("★".repeat(1000));
        assert!(long.len() <= MAX_EXAMPLE + '…'.len_utf8() && long.ends_with("★…"), "{long}");
    }
}
