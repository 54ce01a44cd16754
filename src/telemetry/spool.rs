//! Carries records from requests to a file: a bounded ring, and a thread that empties it every 20 ms. Pushing never
//! waits, locks or wakes the thread; a record that does not fit is dropped and counted. Generic over the record: the
//! access log and the decision record both use it. Closing waits one second at most.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;

/// How often the writer looks. It is never woken: that would cost each request several
/// microseconds.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// How long the end waits for the last records to be written.
const PATIENCE: Duration = Duration::from_secs(1);

/// Records on their way to a file: a bounded ring, emptied by a thread of its own. What does not
/// fit is dropped and counted; a request never waits for what is written down about it.
#[derive(Debug)]
pub(super) struct Spool<T> {
    /// What is written, in the words of the log.
    what: &'static str,
    shared: Arc<Shared<T>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared<T> {
    ring: ArrayQueue<T>,
    dropped: AtomicU64,
    stop: AtomicBool,
    reopen: AtomicBool,
}

/// One look of the writer.
pub(super) struct Turn<'s, T> {
    ring: &'s ArrayQueue<T>,
    /// Records that did not fit since the last turn.
    pub(super) dropped: u64,
    /// The file may have been moved away.
    pub(super) reopen: bool,
    /// There will be no other turn.
    pub(super) last: bool,
}

impl<T> Turn<'_, T> {
    /// What was recorded, at most one ring full of it, so that a turn ends however much comes.
    pub(super) fn records(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.ring.pop()).take(self.ring.capacity())
    }
}

impl<T: Send + 'static> Spool<T> {
    /// Starts the writer, a thread of this name; `turn` is called every 20 ms, and once more at the end.
    pub(super) fn start(
        (what, thread): (&'static str, &str),
        capacity: usize,
        mut turn: impl FnMut(Turn<'_, T>) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            ring: ArrayQueue::new(capacity),
            dropped: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            reopen: AtomicBool::new(false),
        });
        let theirs = shared.clone();
        let write = move || {
            loop {
                // Read before emptying: what is recorded before the stop is written.
                let last = theirs.stop.load(Ordering::Acquire);
                let dropped = theirs.dropped.swap(0, Ordering::Relaxed);
                if dropped > 0 {
                    tracing::warn!(dropped, "{what} could not keep up; records were dropped");
                }
                let reopen = theirs.reopen.swap(false, Ordering::AcqRel);
                turn(Turn { ring: &theirs.ring, dropped, reopen, last });
                if last {
                    return;
                }
                std::thread::sleep(LOOK);
            }
        };
        let writer = std::thread::Builder::new().name(thread.into()).spawn(write)?;
        Ok(Spool { what, shared, writer: Mutex::new(Some(writer)) })
    }
}

impl<T> Spool<T> {
    /// Hands a record to the writer, or counts it as dropped.
    pub(super) fn record(&self, record: T) {
        if self.shared.ring.push(record).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lets the writer see that the file may have been moved away.
    pub(super) fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Release);
    }

    /// Writes what is there and ends the writer. One that cannot write (a pipe that nobody reads)
    /// is left behind.
    pub(super) fn close(&self) {
        self.shared.stop.store(true, Ordering::Release);
        let Some(writer) = self.writer.lock().take() else { return };
        let end = Instant::now() + PATIENCE;
        while !writer.is_finished() {
            if Instant::now() >= end {
                tracing::error!("{} could not be written to its end", self.what);
                return;
            }
            std::thread::sleep(LOOK);
        }
        if writer.join().is_err() {
            tracing::error!("the writer of {} had panicked", self.what);
        }
    }
}

impl<T> Drop for Spool<T> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_does_not_fit_is_counted_and_what_fits_is_written_before_the_end() {
        let (hold, held) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let spool = Spool::start(("the test's records", "spool-test"), 4, move |turn| {
            // The writer stands still until the test has filled the ring.
            let _ = held.recv();
            tell.send((turn.dropped, turn.records().collect::<Vec<u32>>(), turn.last)).unwrap();
        })
        .unwrap();
        (0..10).for_each(|n| spool.record(n));
        drop(hold);
        spool.close();
        let turns: Vec<_> = told.iter().collect();
        assert_eq!(turns.iter().map(|t| t.0).sum::<u64>(), 6, "{turns:?}");
        assert_eq!(turns.iter().flat_map(|t| t.1.clone()).collect::<Vec<_>>(), [0, 1, 2, 3], "{turns:?}");
        assert_eq!(turns.iter().filter(|t| t.2).count(), 1, "{turns:?}");
    }
}
