//! The access log: one line for each request, to a file, stdout or stderr, as text or JSON. A request only pushes its
//! outcome into a bounded queue and never waits; a thread writes. Outcomes that do not fit are dropped and counted.
//! `access_line` has the format of a line.

use std::io;

use super::AccessLine;
use super::line_output::LineOutput;
use super::writer::{BackgroundWriter, INTERVAL};
use crate::config::Access;

/// Outcomes that wait for the writer: 0.2 s of 80,000 requests a second, 3 MB.
const QUEUE: usize = 16_384;

/// The access log.
pub type AccessLog = BackgroundWriter<AccessLine>;

impl AccessLog {
    /// Opens the log; `None` if `access` turns it off.
    pub fn open(access: &Access, json: bool) -> io::Result<Option<Self>> {
        let output = match access {
            Access::None => return Ok(None),
            Access::Stderr => LineOutput::stream(io::stderr()),
            Access::Stdout => LineOutput::stream(io::stdout()),
            Access::File(path) => LineOutput::file(path)?,
        };
        let write_line = move |line: &AccessLine, lines: &mut String| line.write(json, lines);
        BackgroundWriter::of_lines("the access log", "access-log", (QUEUE, INTERVAL), output, write_line).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::access_line::tests::example;

    fn outcome(status: u16) -> AccessLine {
        AccessLine { operation: None, status, code: None, ..example() }
    }

    #[test]
    fn every_outcome_recorded_before_the_close_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let log = AccessLog::open(&Access::File(path.clone()), false).unwrap().unwrap();
        (0..100).for_each(|n| log.record(outcome(n)));
        drop(log);
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
