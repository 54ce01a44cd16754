//! The access log: one line for each request, to a file, stdout or stderr, as text or JSON. A request only pushes its
//! outcome into a bounded ring and never waits; a thread writes. Outcomes that do not fit are dropped and counted.
//! After a log rotation the file is opened anew on request. What stands in a line is in `outcome`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::Outcome;
use super::spool::{Spool, Turn};
use crate::config::Access;

/// Outcomes that wait for the writer: 0.2 s of 80,000 requests a second, 2 MB.
const RING: usize = 16_384;

/// The access log: a line a request.
#[derive(Debug)]
pub struct AccessLog(Spool<Outcome>);

impl AccessLog {
    /// Opens the log; `None` where there is to be none.
    pub fn open(access: &Access, json: bool) -> io::Result<Option<Self>> {
        let (path, sink) = match access {
            Access::None => return Ok(None),
            Access::Stderr => (None, Sink::Stderr),
            Access::Stdout => (None, Sink::Stdout),
            Access::File(path) => (Some(path.clone()), Sink::File(append(path)?)),
        };
        let mut lines = Lines { sink, path, json, text: String::new(), failing: false };
        Spool::start(("the access log", "access-log"), RING, move |turn| lines.write(turn)).map(AccessLog).map(Some)
    }

    /// Hands an outcome to the writer, or counts it as dropped.
    pub fn record(&self, outcome: Outcome) {
        self.0.record(outcome);
    }

    /// Opens the file anew, after it was moved away (log rotation).
    pub fn reopen(&self) {
        self.0.reopen();
    }

    /// Writes what is there and ends the writer, waiting no longer than a second.
    pub fn close(&self) {
        self.0.close();
    }
}

enum Sink {
    Stderr,
    Stdout,
    File(File),
}

impl Sink {
    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        match self {
            Sink::Stderr => io::stderr().write_all(text),
            // A line is sent when it is written: standard output may be a file or a pipe.
            Sink::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(text)?;
                out.flush()
            }
            Sink::File(file) => file.write_all(text),
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    // Who asked and when is the operator's business alone.
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

/// What the writer's thread holds.
struct Lines {
    sink: Sink,
    path: Option<PathBuf>,
    json: bool,
    text: String,
    failing: bool,
}

impl Lines {
    fn write(&mut self, turn: Turn<'_, Outcome>) {
        if let (true, Some(path)) = (turn.reopen, &self.path) {
            match append(path) {
                Ok(file) => self.sink = Sink::File(file),
                Err(error) => tracing::error!(%error, path = %path.display(), "the access log cannot be opened anew"),
            }
        }
        for outcome in turn.records() {
            outcome.write(self.json, &mut self.text);
        }
        if self.text.is_empty() {
            return;
        }
        let written = self.sink.write(self.text.as_bytes());
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
