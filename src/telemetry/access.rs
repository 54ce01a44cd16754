//! The access log: one line for each request, to a file, stdout or stderr, as text or JSON. A request only pushes its
//! outcome into a bounded ring and never waits; a thread writes. Outcomes that do not fit are dropped and counted.
//! `outcome` has the format of a line.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::Outcome;
use super::background_writer::{BackgroundWriter, Batch};
use crate::config::Access;

/// Outcomes that wait for the writer: 0.2 s of 80,000 requests a second, 3 MB.
const RING: usize = 16_384;

/// The access log.
#[derive(Debug)]
pub struct AccessLog(BackgroundWriter<Outcome>);

impl AccessLog {
    /// Opens the log; `None` if `access` turns it off.
    pub fn open(access: &Access, json: bool) -> io::Result<Option<Self>> {
        let (path, output): (_, Box<dyn Write + Send>) = match access {
            Access::None => return Ok(None),
            Access::Stderr => (None, Box::new(io::stderr())),
            Access::Stdout => (None, Box::new(io::stdout())),
            Access::File(path) => (Some(path.clone()), Box::new(append(path)?)),
        };
        let mut lines = LineWriter { output, path, json, text: String::new(), failing: false };
        let write = move |batch: Batch<'_, Outcome>| lines.write(&batch);
        BackgroundWriter::start("the access log", "access-log", RING, write).map(AccessLog).map(Some)
    }

    /// Hands an outcome to the writer, or counts it as dropped.
    pub fn record(&self, outcome: Outcome) {
        self.0.record(outcome);
    }

    /// Opens the file again, after a log rotation has moved it.
    pub fn reopen(&self) {
        self.0.reopen();
    }

    /// Writes what is queued and ends the writer. Waits for it one second at most.
    pub fn close(&self) {
        self.0.close();
    }
}

fn append(path: &Path) -> io::Result<File> {
    // The log says who called and when, so other users must not read it.
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

/// The state of the writing thread.
struct LineWriter {
    output: Box<dyn Write + Send>,
    path: Option<PathBuf>,
    json: bool,
    text: String,
    failing: bool,
}

impl LineWriter {
    fn write(&mut self, batch: &Batch<'_, Outcome>) {
        if let (true, Some(path)) = (batch.reopen, &self.path) {
            match append(path) {
                Ok(file) => self.output = Box::new(file),
                Err(error) => tracing::error!(%error, path = %path.display(), "the access log cannot be reopened"),
            }
        }
        for outcome in batch.records() {
            outcome.write(self.json, &mut self.text);
        }
        if self.text.is_empty() {
            return;
        }
        // Standard output is flushed, so that a line is never delayed.
        let written = self.output.write_all(self.text.as_bytes()).and_then(|()| self.output.flush());
        if let Err(error) = &written
            && !self.failing
        {
            tracing::error!(%error, "the access log cannot be written; its lines are lost");
        }
        self.failing = written.is_err();
        self.text.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wire::RequestId;

    fn outcome(status: u16) -> Outcome {
        Outcome {
            unix_ms: 0,
            client: [127, 0, 0, 1].into(),
            operation: None,
            status,
            code: None,
            key: None,
            cache: None,
            over_limit: None,
            over_candidate: false,
            took: Duration::ZERO,
            id: RequestId::random(),
            tier: None,
            upstream: None,
            upstream_took: None,
            config: Default::default(),
        }
    }

    #[test]
    fn every_outcome_recorded_before_the_close_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let log = AccessLog::open(&Access::File(path.clone()), false).unwrap().unwrap();
        (0..100).for_each(|n| log.record(outcome(n)));
        log.close();
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text.lines().count(), 100);
        assert!(text.lines().nth(99).unwrap().contains(" - 99 - "), "{text}");
    }

    #[test]
    fn a_log_that_cannot_be_opened_says_so() {
        let nowhere = Access::File("/nonexistent/access.log".into());
        assert!(AccessLog::open(&nowhere, false).is_err());
        assert!(AccessLog::open(&Access::None, false).unwrap().is_none());
    }
}
