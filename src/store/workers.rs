//! Threads that read, and their connections, which are opened when they are first needed. One queue feeds the threads, so
//! that one whose disk or server does not respond takes no further job; the connection that was used last is used next,
//! because its server has everything at hand. No thread that serves callers waits for a store.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::conn::Conn;
use super::{LIST, StoreError};
use crate::clock::becomes_true;

/// Jobs that may wait. A read takes microseconds where the file is in memory.
const QUEUE: usize = 16_384;

/// The name of the thread that reads the feed.
pub(super) const FEED: &str = "store-feed";

/// How often it is looked for another server in the place of one that has become read-only.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long closing waits for jobs that have begun, of which only a long list takes more than milliseconds.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// Opens a connection, whose statements the server ends after this time.
type Open = dyn Fn(Duration) -> Result<Box<dyn Conn>, StoreError> + Send + Sync;

/// Opens connections to the store.
pub(super) struct Opener {
    pub(super) open: Box<Open>,
    /// How often a connection was opened that leads. Older ones are dropped before they are used again: they may lead to a
    /// server that goes on while another one has taken its place.
    led: AtomicU64,
}

impl Opener {
    pub(super) fn new(
        open: impl Fn(Duration) -> Result<Box<dyn Conn>, StoreError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Opener { open: Box::new(open), led: AtomicU64::new(0) })
    }

    /// As [`Opener::open`], of a connection that leads: whoever reads goes where it goes, before it has written anything.
    pub(super) fn open_leading(&self, longest: Duration) -> Result<Box<dyn Conn>, StoreError> {
        let conn = (self.open)(longest)?;
        self.led.fetch_add(1, Ordering::SeqCst);
        Ok(conn)
    }
}

/// A job of the queue, which sends its own answer.
type Job = Box<dyn FnOnce() + Send>;

/// The connections of some threads.
struct Conns {
    opener: Arc<Opener>,
    /// Each with the value of [`Opener::led`] when it was opened.
    idle: Mutex<Vec<(u64, Box<dyn Conn>)>>,
    /// They read the feed, four times a second, and see first that their server has become read-only.
    are_of_feed: bool,
    /// A thread looks for another server.
    looks: Arc<AtomicBool>,
}

/// The threads. They end when this is dropped.
pub(super) struct Workers {
    queue: Option<Sender<Job>>,
    conns: Arc<Conns>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Workers {
    pub(super) fn start(name: &str, count: usize, opener: &Arc<Opener>) -> Result<Self, StoreError> {
        let (queue, jobs) = bounded::<Job>(QUEUE);
        let (are_of_feed, looks) = (name == FEED, Arc::default());
        let conns = Arc::new(Conns { opener: opener.clone(), idle: Mutex::default(), are_of_feed, looks });
        let start = |_| {
            let jobs = jobs.clone();
            // A panic is the defect of one job: its answer is dropped, and so is its connection.
            let serve = move || jobs.iter().for_each(|job| drop(catch_unwind(AssertUnwindSafe(job))));
            thread::Builder::new().name(name.to_owned()).spawn(serve)
        };
        let threads = (0..count).map(start).collect::<Result<_, _>>();
        let threads = threads.map_err(|e| StoreError::Failed(format!("no thread for the store's reads: {e}")))?;
        Ok(Workers { queue: Some(queue), conns, threads })
    }

    /// Runs `job`, and gives up after `within`. It is not begun if nobody waits for it any more, and runs a second time if
    /// its connection had ended.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        within: Duration,
        job: impl Fn(&mut dyn Conn) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let until = Instant::now() + within;
        let ((answer, answered), conns) = (oneshot::channel(), self.conns.clone());
        let job = Box::new(move || {
            if !answer.is_closed() {
                let _ = answer.send(conns.run(until, &job));
            }
        });
        let ended = || StoreError::Failed("a read of the store ended midway by a defect".to_owned());
        let full = |_| StoreError::Busy(format!("{QUEUE} reads wait already"));
        self.queue.as_ref().ok_or_else(ended)?.try_send(job).map_err(full)?;
        timeout(within, answered).await.map_err(|_| silent())?.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue = None;
        // A job whose disk does not respond does not end.
        becomes_true(Instant::now() + ENDS_WITHIN, || self.threads.iter().all(thread::JoinHandle::is_finished));
    }
}

impl Conns {
    fn run<T>(&self, until: Instant, job: &dyn Fn(&mut dyn Conn) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut is_first = true;
        loop {
            let (led, mut conn) = self.take()?;
            if Instant::now() >= until {
                // It took so long to connect. The next job finds the connection.
                self.idle.lock().push((led, conn));
                return Err(silent());
            }
            conn.set_deadline(until);
            if self.are_of_feed && conn.is_read_only() {
                self.look_for_another();
            }
            let found = conn.check().and_then(|()| job(&mut *conn));
            if conn.is_usable() {
                self.idle.lock().push((led, conn));
            } else if found.is_err() && std::mem::take(&mut is_first) && Instant::now() < until {
                // Idle connections are dead after the server restarted or another took its place.
                let _dead = std::mem::take(&mut *self.idle.lock());
                continue;
            }
            return found;
        }
    }

    /// An idle connection, or a new one.
    fn take(&self) -> Result<(u64, Box<dyn Conn>), StoreError> {
        let led = self.opener.led.load(Ordering::SeqCst);
        let idle = {
            let mut idle = self.idle.lock();
            idle.retain(|(then, _)| *then == led);
            idle.pop()
        };
        idle.map_or_else(|| Ok((led, (self.opener.open)(LIST)?)), Ok)
    }

    /// Looks whether another server has taken the place of one that has become read-only, while reads go on at this one. Once
    /// there is one, all connections are made anew.
    fn look_for_another(&self) {
        if self.looks.swap(true, Ordering::SeqCst) {
            return;
        }
        let (opener, looks) = (self.opener.clone(), self.looks.clone());
        let look = move || {
            drop(opener.open_leading(LIST));
            thread::sleep(LOOK_EVERY);
            looks.store(false, Ordering::SeqCst);
        };
        if thread::Builder::new().name("store-look".to_owned()).spawn(look).is_err() {
            self.looks.store(false, Ordering::SeqCst);
        }
    }
}

fn silent() -> StoreError {
    StoreError::Failed("the store was not read in time; check its disk or server".to_owned())
}
