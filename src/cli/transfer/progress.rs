//! Shows the progress of an import or export on stderr: a bar on a terminal, otherwise a line each second.

use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

use super::files::BytesRead;
use crate::cli::output::print_to_stderr;
use crate::clock::{Clock, Tick};
use crate::store::{Phase, Progress};

/// Between two lines, so that the log of a long import stays readable.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

const BYTES: &str = "{prefix}{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left {msg}";
const RECORDS: &str = "{prefix}{bar:30} {human_pos}/{human_len} records, {per_sec}, {eta} left";
const UNKNOWN_TOTAL: &str = "{prefix}{spinner} {human_pos} records, {per_sec}";

/// A bar for this many bytes. It is hidden if stderr is no terminal, and cleared when it is dropped.
pub(in crate::cli) fn byte_bar(total: u64) -> ProgressBar {
    ProgressBar::new(total).with_style(style(BYTES))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Shows the progress of each phase separately, since they differ in speed.
pub(super) struct ProgressDisplay {
    bar: ProgressBar,
    /// The file that is imported.
    file: Option<BytesRead>,
    clock: Clock,
    phase: Option<Phase>,
    phase_began: Tick,
    line_printed: Tick,
}

impl ProgressDisplay {
    pub(super) fn new(file: Option<BytesRead>) -> Self {
        Self::with(ProgressBar::no_length(), file, Clock::system())
    }

    fn with(bar: ProgressBar, file: Option<BytesRead>, clock: Clock) -> Self {
        ProgressDisplay { bar, file, clock, phase: None, phase_began: Tick(0), line_printed: Tick(0) }
    }

    pub(super) fn show(&mut self, progress: Progress) {
        if !self.bar.is_hidden() {
            self.draw(progress);
        } else if let Some(line) = self.line(progress) {
            print_to_stderr(line);
        }
    }

    /// Returns whether this phase has just begun.
    fn begins(&mut self, phase: Phase) -> bool {
        let begins = self.phase != Some(phase);
        if begins {
            let now = self.clock.now();
            (self.phase, self.phase_began, self.line_printed) = (Some(phase), now, now);
        }
        begins
    }

    /// The file, while it is read.
    fn file(&self, progress: Progress) -> Option<&BytesRead> {
        self.file.as_ref().filter(|_| progress.phase == Phase::Reading)
    }

    /// How much of the phase is done, and how much there is: bytes while a file is read, otherwise records.
    fn position(&self, progress: Progress) -> (u64, Option<u64>) {
        let file = self.file(progress).map(|file| (file.count.load(Ordering::Relaxed), Some(file.size)));
        file.unwrap_or((progress.records, progress.of))
    }

    fn draw(&mut self, progress: Progress) {
        let begins = self.begins(progress.phase);
        let (position, total) = self.position(progress);
        let is_file = self.file(progress).is_some();
        if begins {
            self.bar.reset();
            self.bar.set_prefix(format!("{} ", names(progress.phase).0));
            let template = if is_file { BYTES } else { total.map_or(UNKNOWN_TOTAL, |_| RECORDS) };
            self.bar.set_style(style(template));
            total.map_or_else(|| self.bar.unset_length(), |total| self.bar.set_length(total));
        }
        if is_file {
            self.bar.set_message(format!("({} records)", progress.records));
        }
        self.bar.set_position(position);
        if begins {
            self.bar.force_draw();
        }
    }

    /// The line to print, if [`LINE_INTERVAL`] has passed since the last one.
    fn line(&mut self, progress: Progress) -> Option<String> {
        self.begins(progress.phase);
        let now = self.clock.now();
        if now.since(self.line_printed) < LINE_INTERVAL {
            return None;
        }
        self.line_printed = now;
        let elapsed = now.since(self.phase_began).as_secs_f64();
        let rate = progress.records as f64 / elapsed;
        let of = progress.of.map(|of| format!(" of {of}")).unwrap_or_default();
        let left = match self.position(progress) {
            (done @ 1.., Some(total)) => {
                let seconds = elapsed * total.saturating_sub(done) as f64 / done as f64;
                let left = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
                format!(", {:#} left", HumanDuration(left))
            }
            _ => String::new(),
        };
        Some(format!("{}{of} records {}, {rate:.0}/s{left}", progress.records, names(progress.phase).1))
    }
}

/// What a phase is called while it runs, and in a count of what is done.
fn names(phase: Phase) -> (&'static str, &'static str) {
    match phase {
        Phase::Reading => ("reading", "read"),
        Phase::Applying => ("applying", "applied"),
        Phase::Writing => ("writing", "written"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn without_a_terminal_a_line_each_second_shows_the_rate_and_the_time_left() {
        let clock = Clock::manual(0);
        let count = Arc::new(AtomicU64::new(0));
        let file = Some(BytesRead { count: count.clone(), size: 1000 });
        let mut display = ProgressDisplay::with(ProgressBar::hidden(), file, clock.clone());
        let mut lines = Vec::new();
        // Four updates a second, at a quarter of the speed of the next phase.
        for update in 0..=8 {
            count.store(update * 20, Ordering::Relaxed);
            lines.extend(display.line(Progress { records: update * 5, bytes: 9999, ..Progress::default() }));
            clock.advance(Duration::from_millis(250));
        }
        assert_eq!(lines, ["20 records read, 20/s, 12s left", "40 records read, 20/s, 11s left"]);
        lines.clear();
        for update in 0..=4 {
            let progress = Progress { phase: Phase::Applying, records: update * 100, of: Some(900), bytes: 0 };
            lines.extend(display.line(progress));
            clock.advance(Duration::from_millis(250));
        }
        assert_eq!(lines, ["400 of 900 records applied, 400/s, 1s left"]);
        display.file = None;
        display.line(Progress::default());
        clock.advance(Duration::from_secs(2));
        let without_total = display.line(Progress { records: 10, ..Progress::default() });
        assert_eq!(without_total.unwrap(), "10 records read, 5/s");
    }
}
