//! Threads that read, and their connections, which are opened when they are first needed. One queue feeds the threads, so
//! that one whose disk or server does not respond takes no further job; the connection that was used last is used next,
//! because its server has everything at hand. No thread that serves callers waits for a store.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, TrySendError, bounded};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::conn::Conn;
use super::{LIST, StoreError};
use crate::clock::becomes_true;

/// Jobs that may wait. A read takes microseconds where the file is in memory.
const QUEUE: usize = 16_384;

/// How long closing waits for jobs that have begun, of which only a long list takes more than milliseconds.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// Opens a connection to the store, whose statements the server ends after this time.
pub(super) type Opener = Arc<dyn Fn(Duration) -> Result<Box<dyn Conn>, StoreError> + Send + Sync>;

/// A job of the queue, which sends its own answer.
type Job = Box<dyn FnOnce() + Send>;

/// The connections of some threads.
struct Conns {
    opener: Opener,
    idle: Mutex<Vec<Box<dyn Conn>>>,
}

/// The threads. They end when this is dropped.
pub(super) struct Workers {
    queue: Option<Sender<Job>>,
    conns: Arc<Conns>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Workers {
    pub(super) fn start(name: &str, count: usize, opener: &Opener) -> Result<Self, StoreError> {
        let (queue, jobs) = bounded::<Job>(QUEUE);
        let conns = Arc::new(Conns { opener: opener.clone(), idle: Mutex::default() });
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
        self.queue.as_ref().ok_or_else(ended)?.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Busy(format!("{QUEUE} reads wait already")),
            TrySendError::Disconnected(_) => ended(),
        })?;
        let silent = || StoreError::Failed("the store was not read in time; check its disk or server".to_owned());
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
            let idle = self.idle.lock().pop();
            let mut conn = idle.map_or_else(|| (self.opener)(LIST), Ok)?;
            conn.set_deadline(until);
            let found = conn.check().and_then(|()| job(&mut *conn));
            if conn.is_usable() {
                self.idle.lock().push(conn);
            } else if found.is_err() && std::mem::take(&mut is_first) && Instant::now() < until {
                // Idle connections are dead after the server restarted or another took its place.
                let _dead = std::mem::take(&mut *self.idle.lock());
                continue;
            }
            return found;
        }
    }
}
