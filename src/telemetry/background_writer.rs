//! Carries records from requests to a file: a bounded ring, and a thread that empties it every 20 ms. Pushing never
//! waits, locks or wakes the thread; a record that does not fit is dropped and counted. Generic over the record: the
//! access log, the audit log and the decision record use it. Closing waits one second at most.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;

/// How often the thread empties the ring. Waking it would cost each request several microseconds.
pub(super) const INTERVAL: Duration = Duration::from_millis(20);

/// How long closing waits for the last records to be written.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A ring of records and the thread that writes them.
#[derive(Debug)]
pub struct BackgroundWriter<T> {
    /// What is written, for messages.
    name: &'static str,
    shared: Arc<Shared<T>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared<T> {
    ring: ArrayQueue<T>,
    dropped: AtomicU64,
    stop: AtomicBool,
    reopen: AtomicBool,
}

/// What the thread passes to its function every `INTERVAL`.
#[derive(Debug)]
pub struct Batch<'s, T> {
    ring: &'s ArrayQueue<T>,
    /// Records that did not fit since the last batch.
    pub dropped: u64,
    /// The file may have been moved.
    pub reopen: bool,
    /// This is the last batch.
    pub last: bool,
}

impl<T> Batch<'_, T> {
    /// Takes the records, at most one ring full, so that a batch ends however many come.
    pub fn records(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.ring.pop()).take(self.ring.capacity())
    }
}

impl<T: Send + 'static> BackgroundWriter<T> {
    /// Starts the thread, which calls `write` every `INTERVAL` and once more at the end.
    pub fn start(
        name: &'static str,
        thread: &str,
        capacity: usize,
        mut write: impl FnMut(Batch<'_, T>) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            ring: ArrayQueue::new(capacity),
            dropped: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            reopen: AtomicBool::new(false),
        });
        let theirs = shared.clone();
        let run = move || {
            loop {
                // Read before the ring is emptied, so that everything recorded before the stop is written.
                let last = theirs.stop.load(Ordering::Acquire);
                let dropped = theirs.dropped.swap(0, Ordering::Relaxed);
                if dropped > 0 {
                    tracing::warn!(dropped, "{name} could not keep up; records were dropped");
                }
                let reopen = theirs.reopen.swap(false, Ordering::AcqRel);
                write(Batch { ring: &theirs.ring, dropped, reopen, last });
                if last {
                    return;
                }
                std::thread::sleep(INTERVAL);
            }
        };
        let thread = std::thread::Builder::new().name(thread.into()).spawn(run)?;
        Ok(BackgroundWriter { name, shared, thread: Mutex::new(Some(thread)) })
    }
}

impl<T> BackgroundWriter<T> {
    /// Hands a record to the thread, or counts it as dropped.
    pub fn record(&self, record: T) {
        if self.shared.ring.push(record).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks the thread to open the file again if it was moved.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Release);
    }

    /// Writes what is queued and ends the thread. A thread that cannot write (to a pipe that is not read) is left
    /// running.
    pub fn close(&self) {
        self.shared.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.lock().take() else { return };
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        while !thread.is_finished() {
            if Instant::now() >= deadline {
                tracing::error!("{} could not be written to its end", self.name);
                return;
            }
            std::thread::sleep(INTERVAL);
        }
        if thread.join().is_err() {
            tracing::error!("the thread that writes {} has panicked", self.name);
        }
    }
}

impl<T> Drop for BackgroundWriter<T> {
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
        let (sender, receiver) = mpsc::channel();
        let writer = BackgroundWriter::start("the test's records", "writer-test", 4, move |batch| {
            // The thread waits until the test has filled the ring.
            let _ = held.recv();
            sender.send((batch.dropped, batch.records().collect::<Vec<u32>>(), batch.last)).unwrap();
        })
        .unwrap();
        (0..10).for_each(|n| writer.record(n));
        drop(hold);
        writer.close();
        let batches: Vec<_> = receiver.iter().collect();
        assert_eq!(batches.iter().map(|t| t.0).sum::<u64>(), 6, "{batches:?}");
        assert_eq!(batches.iter().flat_map(|t| t.1.clone()).collect::<Vec<_>>(), [0, 1, 2, 3], "{batches:?}");
        assert_eq!(batches.iter().filter(|t| t.2).count(), 1, "{batches:?}");
    }
}
