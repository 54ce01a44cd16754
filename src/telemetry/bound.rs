//! A bound on the process's own log: whoever causes its lines, there are only so many of each kind.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::clock::{Clock, Tick};

/// Lines of one kind that may come at once: all that a start or a reload has to say.
const BURST: u32 = 20;

/// In so much time one more may come.
const PERIOD: Duration = Duration::from_secs(10);

/// How often it is said what was left out.
pub(super) const TELLING: Duration = Duration::from_secs(1);

/// The target of what is said of the log itself, which is bounded by [`TELLING`].
pub(super) const OF_THE_LOG: &str = "guildgate::log";

/// These count for themselves what callers cause, and say it once a minute, a line a tier.
const SUMMARIES: &str = "guildgate::gateway::tell";

/// Bytes of a line left out that are shown as an example.
const EXAMPLE: usize = 500;

/// Counts the log's lines by where they stand in the source, which is what makes lines one kind: lets
/// the first [`BURST`] of each through and then one a [`PERIOD`], and counts the others.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    clock: Clock,
    kinds: Arc<Mutex<HashMap<Identifier, Kind>>>,
}

#[derive(Debug)]
struct Kind {
    level: Level,
    /// When the whole burst is back.
    full_at: Tick,
    left_out: u64,
    /// The first that was left out since the last telling.
    example: Option<String>,
}

/// Lines of one kind that are not in the log.
#[derive(Debug, PartialEq, Eq)]
struct LeftOut {
    level: Level,
    count: u64,
    example: String,
}

impl Bound {
    pub(super) fn new(clock: Clock) -> Self {
        Bound { clock, kinds: Arc::default() }
    }

    /// Whether this line goes into the log. If not, it is counted.
    fn lets_through(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        if [OF_THE_LOG, SUMMARIES].contains(&metadata.target()) {
            return true;
        }
        let (kind, now) = (metadata.callsite(), self.clock.now());
        let wants_example = {
            let mut kinds = self.kinds.lock();
            let kind = kinds.entry(kind.clone()).or_insert_with(|| Kind {
                level: *metadata.level(),
                full_at: now,
                left_out: 0,
                example: None,
            });
            let full_at = kind.full_at.max(now).plus(PERIOD);
            if full_at.since(now) <= PERIOD * BURST {
                kind.full_at = full_at;
                return true;
            }
            kind.left_out += 1;
            kind.example.is_none()
        };
        if wants_example {
            // Not under the lock: what is shown may have something to log.
            let mut example = Example::default();
            event.record(&mut example);
            if let Some(kind) = self.kinds.lock().get_mut(&kind) {
                kind.example.get_or_insert(example.line());
            }
        }
        false
    }

    /// What was left out since the last call.
    fn take(&self) -> Vec<LeftOut> {
        let mut kinds = self.kinds.lock();
        let left_out = kinds.values_mut().filter(|kind| kind.left_out > 0).map(|kind| LeftOut {
            level: kind.level,
            count: std::mem::take(&mut kind.left_out),
            example: kind.example.take().unwrap_or_default(),
        });
        left_out.collect()
    }

    /// Says in the log what was left out of it since the last time, a line a kind.
    pub(super) fn tell(&self) {
        for LeftOut { level, count, example } in self.take() {
            /// `$say` is the macro of its level: whoever sees the kind sees this.
            macro_rules! tell {
                ($say:ident) => {
                    tracing::$say!(target: OF_THE_LOG, left_out = count, "… and {count} more like it in the last second: {example}")
                };
            }
            match level {
                Level::ERROR => tell!(error),
                Level::WARN => tell!(warn),
                Level::INFO => tell!(info),
                Level::DEBUG => tell!(debug),
                Level::TRACE => tell!(trace),
            }
        }
    }
}

impl<S: Subscriber> Layer<S> for Bound {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.lets_through(event)
    }
}

/// A line as the text format would show it, cut where it is long.
#[derive(Debug, Default)]
struct Example {
    message: String,
    fields: String,
}

impl Example {
    fn line(mut self) -> String {
        self.message.push_str(&self.fields);
        if self.message.len() > EXAMPLE {
            self.message.truncate(self.message.floor_char_boundary(EXAMPLE));
            self.message.push('…');
        }
        self.message
    }
}

impl Visit for Example {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // A String takes everything.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            // Where a dependency's line stands in its source.
            name if name.starts_with("log.") => Ok(()),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Counts what comes through.
    #[derive(Clone, Debug, Default)]
    struct Seen(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Seen {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What is said with a bounded log: how many lines came through, and what was left out.
    fn bounded(say: impl FnOnce(&Clock, &Bound, &dyn Fn() -> usize)) {
        let (bound, seen) = (Bound::new(Clock::manual(0)), Seen::default());
        let subscriber = tracing_subscriber::registry().with(bound.clone()).with(seen.clone());
        tracing::subscriber::with_default(subscriber, || {
            say(&bound.clock, &bound, &|| seen.0.swap(0, Ordering::Relaxed));
        });
    }

    fn one(n: u32) {
        tracing::warn!(request_id = n, why = %"it is so", "a kind of line");
    }

    #[test]
    fn so_many_lines_of_a_kind_come_at_once_then_one_a_while_and_the_others_are_counted() {
        bounded(|clock, bound, seen| {
            (0..1000).for_each(one);
            assert_eq!(seen(), BURST as usize);
            tracing::error!("another kind");
            assert_eq!(seen(), 1, "which is not left out for the first");
            let example = format!("a kind of line request_id={BURST} why=it is so");
            assert_eq!(bound.take(), [LeftOut { level: Level::WARN, count: 1000 - u64::from(BURST), example }]);
            assert_eq!(bound.take(), []);
            clock.advance(PERIOD * 3);
            (0..10).for_each(one);
            assert_eq!((seen(), bound.take()[0].count), (3, 7));
            clock.advance(PERIOD * 1000);
            (0..100).for_each(one);
            assert_eq!(seen(), BURST as usize);
        });
    }

    #[test]
    fn what_was_left_out_is_told_once_a_kind_and_is_never_left_out_itself() {
        bounded(|_, bound, seen| {
            for _ in 0..100 {
                (0..100).for_each(one);
                bound.tell();
            }
            assert_eq!(seen(), BURST as usize + 100);
            bound.tell();
            assert_eq!(seen(), 0, "there is nothing to tell");
        });
    }

    #[test]
    fn an_example_is_cut_where_it_is_long() {
        let example = |message: String| Example { message, fields: " n=1".into() }.line();
        assert_eq!(example("short".into()), "short n=1");
        let long = example("★".repeat(1000));
        assert!(long.len() <= EXAMPLE + '…'.len_utf8() && long.ends_with("★…"), "{long}");
    }
}
