//! Limits how many lines each place in the source may write to the process log, so that callers, strangers or an origin
//! cannot fill a disk. The lines that are left out are counted, and the count precedes the next line of that place.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::clock::{Clock, Tick};

/// Lines of one place in one [`WINDOW`]: enough for a start or a reload.
const LINES: u64 = 20;
const WINDOW: Duration = Duration::from_secs(20);

/// The target of lines that are not limited, since nobody but an operator can cause many: what a reload took up, and what
/// is told of the logs themselves, at most once a second.
pub const UNLIMITED: &str = "guildgate::report";

/// Passes the first [`LINES`] lines of each place in a [`WINDOW`].
#[derive(Debug)]
pub(super) struct LogLimit {
    clock: Clock,
    places: Mutex<HashMap<Identifier, Window>>,
}

#[derive(Debug)]
struct Window {
    ends: Tick,
    lines: u64,
}

impl LogLimit {
    pub(super) fn new(clock: Clock) -> Self {
        LogLimit { clock, places: Mutex::default() }
    }

    /// Counts a line. `None`: it is left out; otherwise how many were left out in the window before.
    fn admit(&self, place: Identifier) -> Option<u64> {
        let now = self.clock.now();
        let mut places = self.places.lock();
        let window = places.entry(place).or_insert(Window { ends: now.plus(WINDOW), lines: 0 });
        let mut left_out = 0;
        if now >= window.ends {
            left_out = window.lines.saturating_sub(LINES);
            *window = Window { ends: now.plus(WINDOW), lines: 0 };
        }
        window.lines += 1;
        (window.lines <= LINES).then_some(left_out)
    }
}

impl<S: Subscriber> Layer<S> for LogLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if metadata.target() == UNLIMITED {
            return true;
        }
        let admitted = self.admit(metadata.callsite());
        if let Some(left_out @ 1..) = admitted {
            tracing::warn!(target: UNLIMITED, left_out, "… and {left_out} lines such as the next one");
        }
        admitted.is_some()
    }
}

#[cfg(test)]
mod tests {
    use tracing::Callsite;
    use tracing::callsite::DefaultCallsite;
    use tracing::field::FieldSet;
    use tracing::metadata::Kind;
    use tracing::{Level, Metadata};

    use super::*;

    macro_rules! place {
        () => {{
            static PLACE: DefaultCallsite = DefaultCallsite::new(&METADATA);
            static METADATA: Metadata<'static> = Metadata::new(
                "a line",
                "guildgate",
                Level::WARN,
                None,
                None,
                None,
                FieldSet::new(&[], Identifier(&PLACE)),
                Kind::EVENT,
            );
            PLACE.metadata().callsite()
        }};
    }

    #[test]
    fn a_place_has_so_many_lines_in_a_window_and_the_next_one_is_told_how_many_were_left_out() {
        let limit = LogLimit::new(Clock::manual(0));
        let (one, other) = (place!(), place!());
        let admitted = |place: &Identifier, lines: u64| -> Vec<u64> {
            (0..lines).filter_map(|_| limit.admit(place.clone())).collect()
        };
        assert_eq!(admitted(&one, 1000), [0; LINES as usize]);
        assert_eq!(admitted(&other, 3), [0; 3], "places are limited apart");
        limit.clock.advance(WINDOW);
        assert_eq!(admitted(&one, 2), [1000 - LINES, 0]);
        limit.clock.advance(WINDOW * 9);
        assert_eq!(admitted(&one, 1), [0]);
    }
}
