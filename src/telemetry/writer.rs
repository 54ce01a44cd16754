//! Carries records from requests to a file: a bounded queue, and a thread that empties it at most every 20 ms. Recording
//! never waits; a record that does not fit is dropped and counted. The access log, the audit log, the process log and
//! the decision record use it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::line_output::LineOutput;
use super::log_limit::UNLIMITED;
use crate::clock::becomes_true;

/// How long the thread lets records of requests gather before it empties the queue. Waking it for each would cost several
/// microseconds.
pub(super) const INTERVAL: Duration = Duration::from_millis(20);

/// How often dropped records are logged at most.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// How long the end of a process waits for the last records to be written.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A queue of records and the thread that writes them.
#[derive(Debug)]
pub struct BackgroundWriter<T> {
    /// What is written, for messages.
    name: &'static str,
    /// `None` only wakes the thread. If it does not fit, the thread is awake.
    queue: SyncSender<Option<T>>,
    flags: Arc<Flags>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Flags {
    dropped: AtomicU64,
    stop: AtomicBool,
    reopen: AtomicBool,
}

/// What the thread passes to its function.
#[expect(missing_debug_implementations, reason = "records cannot be shown without taking them")]
pub struct Batch<'r, T> {
    /// At most one queue full, so that a batch ends however many come.
    pub records: &'r mut dyn Iterator<Item = T>,
    /// Records that did not fit since the last batch.
    pub dropped: u64,
    /// The file may have been moved.
    pub reopen: bool,
    /// This is the last batch.
    pub last: bool,
}

impl<T: Send + 'static> BackgroundWriter<T> {
    /// Starts the thread, which calls `write` within `interval` of a record, and once more at the end. `write` returns
    /// after how long it is to be called even if there is no record; `None`: there is no need to.
    pub fn start(
        name: &'static str,
        thread: &str,
        (capacity, interval): (usize, Duration),
        mut write: impl FnMut(&mut Batch<'_, T>) -> Option<Duration> + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, queue) = sync_channel(capacity);
        let flags = Arc::<Flags>::default();
        let theirs = flags.clone();
        let run = move || {
            let (mut untold, mut so_far, mut tell_at, mut again_after) = (0, 0, Instant::now(), None);
            loop {
                // What has woken the thread for one of these may have been taken with the last batch.
                let is_asked = theirs.stop.load(Ordering::SeqCst) || theirs.reopen.load(Ordering::SeqCst);
                let first = if is_asked { None } else { next(&queue, again_after) };
                // Read before the queue is emptied, so that everything recorded before the stop is written.
                let last = theirs.stop.load(Ordering::SeqCst);
                let dropped = theirs.dropped.swap(0, Ordering::SeqCst);
                (untold, so_far) = (untold + dropped, so_far + dropped);
                if untold > 0 && (last || Instant::now() >= tell_at) {
                    tracing::warn!(target: UNLIMITED, dropped = untold, so_far, "{name} could not keep up; records were dropped");
                    (untold, tell_at) = (0, Instant::now() + REPORT_INTERVAL);
                }
                let reopen = theirs.reopen.swap(false, Ordering::SeqCst);
                let mut records = first.into_iter().chain(queue.try_iter().take(capacity).flatten());
                again_after = write(&mut Batch { records: &mut records, dropped, reopen, last });
                if last {
                    return;
                }
                std::thread::sleep(interval);
            }
        };
        let thread = std::thread::Builder::new().name(thread.into()).spawn(run)?;
        Ok(BackgroundWriter { name, queue: sender, flags, thread: Mutex::new(Some(thread)) })
    }

    /// Starts a thread that writes what `write_line` makes of each record, the line's end included. `name` is the
    /// log's, for messages.
    pub fn of_lines(
        name: &'static str,
        thread: &str,
        (capacity, interval): (usize, Duration),
        mut to: LineOutput,
        mut write_line: impl FnMut(&T, &mut String) + Send + 'static,
    ) -> io::Result<Self> {
        let (mut lines, mut lost) = (String::new(), 0);
        Self::start(name, thread, (capacity, interval), move |batch| {
            if batch.reopen {
                to.reopen(name);
            }
            let count = batch.records.map(|record| write_line(&record, &mut lines)).count();
            match to.write(lines.as_bytes()) {
                Err(error) if count > 0 => {
                    if lost == 0 {
                        tracing::error!(target: UNLIMITED, %error, path = to.path(), "{name} cannot be written; its lines are lost");
                    }
                    lost += count;
                }
                Ok(()) if lost > 0 && count > 0 => {
                    tracing::warn!(target: UNLIMITED, lost, path = to.path(), "{name} is written again; lines of it are lost");
                    lost = 0;
                }
                _ => {}
            }
            lines.clear();
            None
        })
    }
}

/// The next record; `None` after this time, or if the thread was woken.
fn next<T>(queue: &Receiver<Option<T>>, within: Option<Duration>) -> Option<T> {
    match within {
        None => queue.recv().ok()?,
        Some(within) => queue.recv_timeout(within).ok()?,
    }
}

impl<T> BackgroundWriter<T> {
    /// Hands a record to the thread, or counts it as dropped.
    pub fn record(&self, record: T) {
        if self.queue.try_send(Some(record)).is_err() {
            self.flags.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Has the thread call its function, because of something other than a record.
    pub(super) fn wake(&self) {
        let _ = self.queue.try_send(None); // a thread whose queue is full is awake
    }

    /// Asks the thread to open the file again if it was moved.
    pub fn reopen(&self) {
        self.flags.reopen.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Has the thread write what is queued and end, and does not wait for it.
    pub fn begin_close(&self) {
        self.flags.stop.store(true, Ordering::SeqCst);
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
        let writer = BackgroundWriter::start("the test's records", "writer-test", (4, INTERVAL), move |batch| {
            sender.send((batch.dropped, batch.records.collect::<Vec<u32>>(), batch.last)).unwrap();
            // After the first record the thread waits until the test has filled the queue.
            let _ = held.recv();
            None
        })
        .unwrap();
        writer.record(0);
        assert_eq!(receiver.recv().unwrap(), (0, vec![0], false));
        (1..10).for_each(|n| writer.record(n));
        drop(hold);
        writer.close(Instant::now() + CLOSE_TIMEOUT);
        let batches: Vec<_> = receiver.iter().collect();
        assert_eq!(batches.iter().map(|t| t.0).sum::<u64>(), 5, "{batches:?}");
        assert_eq!(batches.iter().flat_map(|t| t.1.clone()).collect::<Vec<_>>(), [1, 2, 3, 4], "{batches:?}");
        assert_eq!(batches.iter().filter(|t| t.2).count(), 1, "{batches:?}");
    }

    #[test]
    fn the_thread_is_woken_by_records_alone_and_after_the_time_that_its_function_asked_for() {
        let (sender, receiver) = mpsc::channel();
        let writer = BackgroundWriter::start("the test's records", "writer-test", (4, INTERVAL), move |batch| {
            let records = batch.records.collect::<Vec<u32>>();
            let again = (records == [1]).then_some(INTERVAL);
            sender.send(records).unwrap();
            again
        })
        .unwrap();
        for n in [0, 2, 1] {
            let called = receiver.recv_timeout(5 * INTERVAL);
            assert!(called.is_err(), "it was called without a record: {called:?}");
            writer.record(n);
            assert_eq!(receiver.recv().unwrap(), [n]);
        }
        assert!(receiver.recv().unwrap().is_empty(), "it asked for that");
    }
}
