use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;

use super::Outcome;
use crate::config::Access;

/// Outcomes that wait for the writer: 0.2 s of 80,000 requests a second, 2 MB. What does not fit
/// is dropped and counted; a request never waits for its log line.
const RING: usize = 16_384;

/// How often the writer looks. It is never woken: that would cost each request several
/// microseconds.
const LOOK: Duration = Duration::from_millis(20);

/// How long the end waits for the last lines to be written.
const PATIENCE: Duration = Duration::from_secs(1);

/// The access log: a bounded ring, emptied by a thread of its own.
#[derive(Debug)]
pub struct AccessLog {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    ring: ArrayQueue<Outcome>,
    dropped: AtomicU64,
    stop: AtomicBool,
    reopen: AtomicBool,
}

impl AccessLog {
    /// Opens the log; `None` where there is to be none.
    pub fn open(access: &Access, json: bool) -> io::Result<Option<Self>> {
        let (path, sink) = match access {
            Access::None => return Ok(None),
            Access::Stderr => (None, Sink::Stderr),
            Access::File(path) => (Some(path.clone()), Sink::File(append(path)?)),
        };
        let shared = Arc::new(Shared {
            ring: ArrayQueue::new(RING),
            dropped: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            reopen: AtomicBool::new(false),
        });
        let theirs = shared.clone();
        let writer = std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || write_all(&theirs, sink, path.as_deref(), json))?;
        Ok(Some(AccessLog { shared, writer: Mutex::new(Some(writer)) }))
    }

    /// Hands an outcome to the writer, or counts it as dropped.
    pub fn record(&self, outcome: Outcome) {
        if self.shared.ring.push(outcome).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens the file anew, after it was moved away (log rotation).
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Release);
    }

    /// Writes what is there and ends the writer. One that cannot write (a pipe that nobody reads)
    /// is left behind.
    pub fn close(&self) {
        self.shared.stop.store(true, Ordering::Release);
        let Some(writer) = self.writer.lock().take() else { return };
        let end = Instant::now() + PATIENCE;
        while !writer.is_finished() {
            if Instant::now() >= end {
                tracing::error!("the access log could not be written to its end");
                return;
            }
            std::thread::sleep(LOOK);
        }
        if writer.join().is_err() {
            tracing::error!("the access log's writer had panicked");
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.close();
    }
}

enum Sink {
    Stderr,
    File(File),
}

impl Sink {
    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        match self {
            Sink::Stderr => io::stderr().write_all(text),
            Sink::File(file) => file.write_all(text),
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    // Who asked and when is the operator's business alone.
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

fn write_all(shared: &Shared, mut sink: Sink, path: Option<&Path>, json: bool) {
    let mut text = String::new();
    let mut failing = false;
    loop {
        // Read before emptying: what is recorded before the stop is written.
        let stop = shared.stop.load(Ordering::Acquire);
        if shared.reopen.swap(false, Ordering::AcqRel)
            && let Some(path) = path
        {
            match append(path) {
                Ok(file) => sink = Sink::File(file),
                Err(error) => tracing::error!(%error, path = %path.display(), "the access log cannot be opened anew"),
            }
        }
        while let Some(outcome) = shared.ring.pop() {
            outcome.write(json, &mut text);
        }
        let dropped = shared.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(dropped, "the access log could not keep up; lines were dropped");
        }
        if !text.is_empty() {
            let written = sink.write(text.as_bytes());
            if let Err(error) = &written
                && !failing
            {
                tracing::error!(%error, "the access log cannot be written; its lines are lost");
            }
            failing = written.is_err();
            text.clear();
        }
        if stop {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
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
