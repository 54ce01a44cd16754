//! Threads that each have one connection, which they open when they first need it. One queue feeds them all, so that a
//! thread whose disk or server does not respond takes no further job. No thread that serves callers waits for a store.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::StoreError;
use super::conn::{Access, Conn};
use crate::clock::becomes_true;

/// Jobs that may wait. A read takes microseconds where the file is in memory.
const QUEUE: usize = 16_384;

/// How long closing waits for jobs that have begun, of which only a long list takes more than milliseconds.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// Opens a connection to the store.
pub(super) type Opener = Arc<dyn Fn(Access) -> Result<Box<dyn Conn>, StoreError> + Send + Sync>;

/// A job of the queue, which sends its own answer.
type Job = Box<dyn FnOnce(&mut Slot) + Send>;

/// The connection of a thread.
struct Slot {
    opener: Opener,
    conn: Option<Box<dyn Conn>>,
}

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Workers {
    queue: Option<Sender<Job>>,
    threads: Vec<thread::JoinHandle<()>>,
    location: String,
}

impl Workers {
    pub(super) fn start(name: &str, count: usize, opener: &Opener, location: &str) -> Result<Self, StoreError> {
        let (queue, jobs) = bounded(QUEUE);
        let start = |_| {
            let (jobs, slot) = (jobs.clone(), Slot { opener: opener.clone(), conn: None });
            thread::Builder::new().name(name.to_owned()).spawn(move || serve(&jobs, slot))
        };
        let threads = (0..count).map(start).collect::<Result<_, _>>();
        let threads = threads.map_err(|e| StoreError::Failed(format!("no thread for the store's reads: {e}")))?;
        Ok(Workers { queue: Some(queue), threads, location: location.to_owned() })
    }

    /// Runs `job`, and gives up after `within`. It is not begun if nobody waits for it any more, and runs a second time if
    /// its connection had ended.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        within: Duration,
        job: impl Fn(&mut dyn Conn) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let until = Instant::now() + within;
        let (answer, answered) = oneshot::channel();
        let job = Box::new(move |slot: &mut Slot| {
            if !answer.is_closed() {
                let _ = answer.send(slot.run(until, &job));
            }
        });
        let ended = || StoreError::Failed("a read of the store ended midway by a defect".to_owned());
        self.queue.as_ref().ok_or_else(ended)?.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Busy(format!("{}: {QUEUE} reads wait already", self.location)),
            TrySendError::Disconnected(_) => ended(),
        })?;
        match timeout(within, answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(ended())),
            Err(_) => {
                let location = &self.location;
                Err(StoreError::Failed(format!(
                    "{location} could not be read within {within:?}; check its disk or server"
                )))
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue = None;
        // A job whose disk does not respond does not end.
        becomes_true(Instant::now() + ENDS_WITHIN, || self.threads.iter().all(thread::JoinHandle::is_finished));
    }
}

fn serve(jobs: &Receiver<Job>, mut slot: Slot) {
    while let Ok(job) = jobs.recv() {
        // A panic is the defect of one job: its answer is dropped, and so is the connection.
        if catch_unwind(AssertUnwindSafe(|| job(&mut slot))).is_err() {
            slot.conn = None;
        }
    }
}

impl Slot {
    fn run<T>(
        &mut self,
        until: Instant,
        job: &dyn Fn(&mut dyn Conn) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut is_first = true;
        loop {
            let mut conn = self.conn.take().map_or_else(|| (self.opener)(Access::Read), Ok)?;
            conn.set_deadline(until);
            let found = job(&mut *conn);
            if conn.is_usable() {
                self.conn = Some(conn);
            } else if found.is_err() && std::mem::take(&mut is_first) && Instant::now() < until {
                // An idle connection is dead after the server restarted or another took its place.
                continue;
            }
            return found;
        }
    }
}
