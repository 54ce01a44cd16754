//! Shows the progress of an import or export on stderr: a bar on a terminal, and a line a second elsewhere.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

use super::files::Extent;
use crate::clock::{Clock, Tick};
use crate::store::transfer::{self, Progress};

/// Between two lines: the log of an import of hours stays readable.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// A bar for so many bytes; `None` if stderr is no terminal.
pub(in crate::cli) fn byte_bar(total: u64) -> Option<ProgressBar> {
    io::stderr().is_terminal().then(|| ProgressBar::new(total).with_style(style(BYTES)))
}

const BYTES: &str = "{prefix}{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left {msg}";
const RECORDS: &str = "{prefix}{bar:30} {human_pos}/{human_len} records, {per_sec}, {eta} left";
const NO_END: &str = "{prefix}{spinner} {human_pos} records, {per_sec}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Shows the progress of each phase by itself, since they differ in speed.
pub(super) struct Meter {
    bar: Option<ProgressBar>,
    /// The file that is read.
    file: Option<Extent>,
    clock: Clock,
    phase: Option<Phase>,
}

#[derive(Clone, Copy)]
struct Phase {
    doing: transfer::Phase,
    began: Tick,
    said: Tick,
}

/// How much of a phase is done, and how much there is.
struct Share {
    done: u64,
    of: u64,
}

impl Meter {
    pub(super) fn new(file: Option<Extent>) -> Self {
        let bar = io::stderr().is_terminal().then(ProgressBar::no_length);
        Meter { bar, file, clock: Clock::system(), phase: None }
    }

    pub(super) fn show(&mut self, progress: Progress) {
        if self.bar.is_some() {
            self.draw(progress);
        } else if let Some(line) = self.line(progress) {
            let _ = writeln!(io::stderr(), "{line}"); // nobody may be listening
        }
    }

    /// The present phase, and whether it has just begun.
    fn phase(&mut self, doing: transfer::Phase) -> (Phase, bool) {
        match self.phase {
            Some(phase) if phase.doing == doing => (phase, false),
            _ => {
                let now = self.clock.now();
                let phase = Phase { doing, began: now, said: now };
                self.phase = Some(phase);
                (phase, true)
            }
        }
    }

    fn draw(&mut self, progress: Progress) {
        let (_, begins) = self.phase(progress.phase);
        let Some(bar) = &self.bar else { return };
        let file = self.file.as_ref().filter(|_| progress.phase == transfer::Phase::Reading);
        if begins {
            bar.reset();
            bar.set_prefix(format!("{} ", doing(progress.phase)));
            let (template, length) = match (file, progress.of) {
                (Some(file), _) => (BYTES, Some(file.size)),
                (None, Some(records)) => (RECORDS, Some(records)),
                (None, None) => (NO_END, None),
            };
            bar.set_style(style(template));
            length.map_or_else(|| bar.unset_length(), |length| bar.set_length(length));
        }
        if file.is_some() {
            bar.set_message(format!("({} records)", progress.records));
        }
        bar.set_position(file.map_or(progress.records, |file| file.read.load(Ordering::Relaxed)));
        if begins {
            bar.force_draw();
        }
    }

    /// The line that is due, if one is.
    fn line(&mut self, progress: Progress) -> Option<String> {
        let (phase, _) = self.phase(progress.phase);
        let now = self.clock.now();
        if now.since(phase.said) < LINE_EVERY {
            return None;
        }
        self.phase = Some(Phase { said: now, ..phase });
        let taken = now.since(phase.began).as_secs_f64();
        let rate = progress.records as f64 / taken;
        let of = progress.of.map(|of| format!(" of {of}")).unwrap_or_default();
        let left = self.share(progress).filter(|share| share.done > 0).map(|share| {
            let seconds = taken * share.of.saturating_sub(share.done) as f64 / share.done as f64;
            format!(", {:#} left", HumanDuration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
        });
        let done = match progress.phase {
            transfer::Phase::Reading => "read",
            transfer::Phase::Sending => "sent",
            transfer::Phase::Applying => "applied",
            transfer::Phase::Writing => "written",
        };
        Some(format!("{}{of} records {done}, {rate:.0}/s{}", progress.records, left.unwrap_or_default()))
    }

    fn share(&self, progress: Progress) -> Option<Share> {
        let file = self.file.as_ref().filter(|_| progress.phase == transfer::Phase::Reading);
        let file = file.map(|file| Share { done: file.read.load(Ordering::Relaxed), of: file.size });
        file.or_else(|| progress.of.map(|of| Share { done: progress.records, of }))
    }
}

fn doing(doing: transfer::Phase) -> &'static str {
    match doing {
        transfer::Phase::Reading => "reading",
        transfer::Phase::Sending => "sending",
        transfer::Phase::Applying => "applying",
        transfer::Phase::Writing => "writing",
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn without_a_terminal_a_line_a_second_tells_the_rate_and_what_is_left() {
        let clock = Clock::manual(0);
        let read = Arc::new(AtomicU64::new(0));
        let file = Some(Extent { read: read.clone(), size: 1000 });
        let mut meter = Meter { bar: None, file, clock: clock.clone(), phase: None };
        let mut said = Vec::new();
        // Four updates a second, at a quarter of the speed of the next phase.
        for update in 0..=8 {
            read.store(update * 20, Ordering::Relaxed);
            said.extend(meter.line(Progress { records: update * 5, bytes: 9999, ..Progress::default() }));
            clock.advance(Duration::from_millis(250));
        }
        assert_eq!(said, ["20 records read, 20/s, 12s left", "40 records read, 20/s, 11s left"]);
        said.clear();
        for update in 0..=4 {
            let progress =
                Progress { phase: transfer::Phase::Applying, records: update * 100, of: Some(900), bytes: 0 };
            said.extend(meter.line(progress));
            clock.advance(Duration::from_millis(250));
        }
        assert_eq!(said, ["400 of 900 records applied, 400/s, 1s left"]);
        meter.file = None;
        meter.line(Progress::default());
        clock.advance(Duration::from_secs(2));
        let endless = meter.line(Progress { records: 10, ..Progress::default() });
        assert_eq!(endless.unwrap(), "10 records read, 5/s");
    }
}
