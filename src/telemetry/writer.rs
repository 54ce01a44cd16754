//! Carries records from requests to a file: a bounded queue, and a thread that empties it at most every 20 ms. Recording
//! never waits; a record that does not fit is dropped and counted. The access log, the audit log, the process log and
//! the decision record use it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::line_output::LineOutput;
use super::log_limit::UNLIMITED;
use crate::clock::becomes_true;

/// How long the thread lets records of requests gather before it empties the queue. Waking it for each would cost several
/// microseconds.
pub(super) const INTERVAL: Duration = Duration::from_millis(20);

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

/// What the thread does with records.
pub trait Sink<T>: Send + 'static {
    /// How long a record may wait for others that are written with it.
    const DELAY: Duration = Duration::ZERO;

    /// Takes a record. Whether so many have gathered that they are to be written at once.
    fn add(&mut self, record: T) -> bool;

    /// Writes what has gathered. So many records were `dropped` since the last call.
    fn write(&mut self, dropped: u64);

    /// The file may have been moved.
    fn reopen(&mut self) {}
}

impl<T: Send + 'static> BackgroundWriter<T> {
    /// Starts the thread, which has the sink write once a record has come, and once more at the end. It sleeps for
    /// `interval` between two looks at the queue.
    pub fn start<S: Sink<T>>(
        name: &'static str,
        thread: &str,
        (capacity, interval): (usize, Duration),
        mut sink: S,
    ) -> io::Result<Self> {
        let (sender, queue) = sync_channel::<Option<T>>(capacity);
        let flags = Arc::<Flags>::default();
        let theirs = flags.clone();
        let run = move || {
            let (mut so_far, mut gathers_since) = (0, None);
            loop {
                // What has woken the thread for one of these may have been taken before.
                let is_asked = theirs.stop.load(Ordering::SeqCst) || theirs.reopen.load(Ordering::SeqCst);
                let first = if is_asked || gathers_since.is_some() { None } else { queue.recv().ok().flatten() };
                let began = *gathers_since.get_or_insert_with(Instant::now);
                // Read before the queue is emptied, so that everything recorded before the stop is written.
                let last = theirs.stop.load(Ordering::SeqCst);
                if theirs.reopen.swap(false, Ordering::SeqCst) {
                    sink.reopen();
                }
                // At most one queue full, so that the stop is seen however many come.
                for record in first.into_iter().chain(queue.try_iter().take(capacity).flatten()) {
                    if sink.add(record) {
                        sink.write(0);
                    }
                }
                if last || began.elapsed() >= S::DELAY {
                    let dropped = theirs.dropped.swap(0, Ordering::SeqCst);
                    if dropped > 0 {
                        so_far += dropped;
                        tracing::warn!(dropped, so_far, "{name} could not keep up; records were dropped");
                    }
                    sink.write(dropped);
                    gathers_since = None;
                }
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
        limits: (usize, Duration),
        to: LineOutput,
        write_line: impl FnMut(&T, &mut String) + Send + 'static,
    ) -> io::Result<Self> {
        let write_line = Box::new(write_line);
        Self::start(name, thread, limits, LineSink { name, to, write_line, lines: String::new(), count: 0, lost: 0 })
    }
}

/// Appends the line of a record, its end included.
type WriteLine<T> = Box<dyn FnMut(&T, &mut String) + Send>;

/// Writes lines.
struct LineSink<T> {
    name: &'static str,
    to: LineOutput,
    write_line: WriteLine<T>,
    lines: String,
    /// How many `lines` has.
    count: usize,
    /// Since the last that could be written.
    lost: usize,
}

impl<T: 'static> Sink<T> for LineSink<T> {
    fn add(&mut self, record: T) -> bool {
        (self.write_line)(&record, &mut self.lines);
        self.count += 1;
        false
    }

    fn write(&mut self, _: u64) {
        let (name, path) = (self.name, self.to.path());
        match self.to.write(self.lines.as_bytes()) {
            Err(error) if self.count > 0 => {
                if self.lost == 0 {
                    tracing::error!(target: UNLIMITED, %error, path, "{name} cannot be written; its lines are lost");
                }
                self.lost += self.count;
            }
            Ok(()) if self.lost > 0 && self.count > 0 => {
                tracing::warn!(target: UNLIMITED, lost = self.lost, path, "{name} is written again; lines of it are lost");
                self.lost = 0;
            }
            _ => {}
        }
        self.lines.clear();
        self.count = 0;
    }

    fn reopen(&mut self) {
        self.to.reopen(self.name);
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

    /// Writes what is queued and ends the thread. One that cannot write by then (to a pipe that is not read) is left
    /// running.
    pub fn close(&self, deadline: Instant) {
        self.flags.stop.store(true, Ordering::SeqCst);
        self.wake();
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
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    /// Sends on what it has gathered for so many milliseconds, and waits then.
    struct Test<const DELAY: u64>(Vec<u32>, Sender<(u64, Vec<u32>)>, Receiver<()>);

    impl<const DELAY: u64> Sink<u32> for Test<DELAY> {
        const DELAY: Duration = Duration::from_millis(DELAY);

        fn add(&mut self, record: u32) -> bool {
            self.0.push(record);
            false
        }

        fn write(&mut self, dropped: u64) {
            self.1.send((dropped, std::mem::take(&mut self.0))).unwrap();
            let _ = self.2.recv();
        }
    }

    type Started = (BackgroundWriter<u32>, Receiver<(u64, Vec<u32>)>, Sender<()>);

    fn start<const DELAY: u64>() -> Started {
        let ((hold, held), (sender, receiver)) = (mpsc::channel(), mpsc::channel());
        let test = Test::<DELAY>(Vec::new(), sender, held);
        (BackgroundWriter::start("the test's records", "writer-test", (4, INTERVAL), test).unwrap(), receiver, hold)
    }

    #[test]
    fn what_does_not_fit_is_counted_and_what_fits_is_written_before_the_end() {
        let (writer, receiver, hold) = start::<0>();
        writer.record(0);
        assert_eq!(receiver.recv().unwrap(), (0, vec![0]));
        (1..10).for_each(|n| writer.record(n));
        drop(hold);
        writer.close(Instant::now() + CLOSE_TIMEOUT);
        let batches: Vec<_> = receiver.iter().collect();
        assert_eq!(batches.iter().map(|t| t.0).sum::<u64>(), 5, "{batches:?}");
        assert_eq!(batches.iter().flat_map(|t| t.1.clone()).collect::<Vec<_>>(), [1, 2, 3, 4], "{batches:?}");
    }

    #[test]
    fn the_thread_is_woken_by_records_alone_and_lets_them_gather() {
        let (writer, receiver, hold) = start::<200>();
        drop(hold);
        for n in [0, 2] {
            let called = receiver.recv_timeout(5 * INTERVAL);
            assert!(called.is_err(), "it was called without a record: {called:?}");
            writer.record(n);
            std::thread::sleep(2 * INTERVAL); // the second comes later, and is written with the first
            writer.record(n + 1);
            assert_eq!(receiver.recv().unwrap(), (0, vec![n, n + 1]));
        }
    }
}
