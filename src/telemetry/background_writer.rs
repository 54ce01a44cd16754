//! Carries records from requests to a file: a bounded ring, and a thread that empties it at most every 20 ms. Pushing
//! never waits or locks; the first record after a batch wakes the thread, and a record that does not fit is dropped and
//! counted. Generic over the record: the access log, the audit log and the decision record use it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;

use super::log_rate_limit::{LOG_TARGET, REPORT_INTERVAL};
use super::wakeup::Wakeup;
use crate::clock::becomes_true;

/// How long the thread lets records gather before it empties the ring. Waking it for each would cost several
/// microseconds.
pub(super) const INTERVAL: Duration = Duration::from_millis(20);

/// How long the end of a process waits for the last records to be written.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

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
    wakeup: Wakeup,
}

/// What the thread passes to its function.
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
    /// Starts the thread, which calls `write` within `INTERVAL` of a record, and once more at the end. `write` returns
    /// after how long it is to be called even if there is no record; `None`: there is no need to.
    pub fn start(
        name: &'static str,
        thread: &str,
        capacity: usize,
        mut write: impl FnMut(Batch<'_, T>) -> Option<Duration> + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            ring: ArrayQueue::new(capacity),
            dropped: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            reopen: AtomicBool::new(false),
            wakeup: Wakeup::new(),
        });
        let theirs = shared.clone();
        let run = move || {
            let (mut untold, mut so_far, mut tell_at) = (0, 0, Instant::now());
            loop {
                theirs.wakeup.clear();
                // Read before the ring is emptied, so that everything recorded before the stop is written.
                let last = theirs.stop.load(Ordering::SeqCst);
                let dropped = theirs.dropped.swap(0, Ordering::SeqCst);
                (untold, so_far) = (untold + dropped, so_far + dropped);
                if untold > 0 && (last || Instant::now() >= tell_at) {
                    tracing::warn!(target: LOG_TARGET, dropped = untold, so_far, "{name} could not keep up; records were dropped");
                    (untold, tell_at) = (0, Instant::now() + REPORT_INTERVAL);
                }
                let reopen = theirs.reopen.swap(false, Ordering::SeqCst);
                let again_after = write(Batch { ring: &theirs.ring, dropped, reopen, last });
                if last {
                    return;
                }
                let tell_after = (untold > 0).then_some(REPORT_INTERVAL);
                theirs.wakeup.wait(again_after.into_iter().chain(tell_after).min());
                std::thread::sleep(INTERVAL);
            }
        };
        let thread = std::thread::Builder::new().name(thread.into()).spawn(run)?;
        shared.wakeup.set_thread(thread.thread().clone());
        Ok(BackgroundWriter { name, shared, thread: Mutex::new(Some(thread)) })
    }
}

impl<T> BackgroundWriter<T> {
    /// Hands a record to the thread, or counts it as dropped.
    pub fn record(&self, record: T) {
        if self.shared.ring.push(record).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::SeqCst);
        }
        self.wake();
    }

    /// Has the thread call its function, because of something other than a record.
    pub(super) fn wake(&self) {
        self.shared.wakeup.wake();
    }

    /// Asks the thread to open the file again if it was moved.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Has the thread write what is queued and end, and does not wait for it.
    pub fn begin_close(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Writes what is queued and ends the thread. One that cannot write by then (to a pipe that is not read) is left
    /// running.
    pub fn close(&self, deadline: Instant) {
        self.begin_close();
        let Some(thread) = self.thread.lock().take() else { return };
        if !becomes_true(deadline, || thread.is_finished()) {
            tracing::error!("{} could not be written to its end", self.name);
        } else if thread.join().is_err() {
            tracing::error!("the thread that writes {} has panicked", self.name);
        }
    }
}

impl<T> Drop for BackgroundWriter<T> {
    fn drop(&mut self) {
        self.close(Instant::now() + CLOSE_TIMEOUT);
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
            None
        })
        .unwrap();
        (0..10).for_each(|n| writer.record(n));
        drop(hold);
        writer.close(Instant::now() + CLOSE_TIMEOUT);
        let batches: Vec<_> = receiver.iter().collect();
        assert_eq!(batches.iter().map(|t| t.0).sum::<u64>(), 6, "{batches:?}");
        assert_eq!(batches.iter().flat_map(|t| t.1.clone()).collect::<Vec<_>>(), [0, 1, 2, 3], "{batches:?}");
        assert_eq!(batches.iter().filter(|t| t.2).count(), 1, "{batches:?}");
    }

    #[test]
    fn the_thread_is_woken_by_each_record_after_a_pause_and_not_without_one() {
        let (sender, receiver) = mpsc::channel();
        let writer = BackgroundWriter::start("the test's records", "writer-test", 4, move |batch| {
            sender.send(batch.records().collect::<Vec<u32>>()).unwrap();
            None
        })
        .unwrap();
        for n in 0..3 {
            assert_eq!(receiver.recv().unwrap(), if n == 0 { vec![] } else { vec![n] });
            let more = receiver.recv_timeout(5 * INTERVAL);
            assert!(more.is_err(), "it was called without a record: {more:?}");
            writer.record(n + 1);
        }
        assert_eq!(receiver.recv().unwrap(), [3]);
    }

    #[test]
    fn the_thread_calls_again_after_the_time_that_its_function_asked_for() {
        let (sender, receiver) = mpsc::channel();
        let _writer = BackgroundWriter::<u32>::start("the test's records", "writer-test", 4, move |_| {
            let _ = sender.send(()); // the test may have ended
            Some(INTERVAL)
        })
        .unwrap();
        (0..3).for_each(|_| receiver.recv().unwrap());
    }
}
