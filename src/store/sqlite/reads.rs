//! Which threads read. None is one that serves callers, or hears signals: a read of a file waits for its disk, and a disk
//! may not respond. Requests' reads have threads of their own, so that no list delays them; lists are read on the
//! runtime's threads for blocking work, and the change feed on its follower's thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::feed::Feed;
use super::readers::Readers;
use crate::clock::{Clock, Tick, becomes_true};
use crate::store::{Change, StoreError, blocking};

/// Threads for requests' reads: so many reads that are not in memory wait for the disk at once.
const THREADS: usize = 4;

/// Requests' reads that may wait for one of these threads. A read takes microseconds where the file is in memory.
const QUEUE: usize = 4096;

/// How long a thread may take for a read before others get the next ones. Waking one thread for many reads costs less than
/// waking several.
const SLOW: Duration = Duration::from_millis(1);

/// How many reads a thread may have to do before others get the next ones, however quickly it goes on.
const BACKLOG: usize = 64;

/// How long a request waits for its read, as long as for PostgreSQL.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// How long closing waits for reads that have begun, of which only a large list takes more than milliseconds.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// The connections that read, and their threads. Dropping it ends both.
#[derive(Debug)]
pub(super) struct Reads {
    threads: Vec<ReadThread>,
    shared: Arc<Shared>,
    clock: Clock,
}

#[derive(Debug)]
struct Shared {
    readers: Readers,
    feed: Mutex<Feed>,
    path: PathBuf,
}

/// A read of a request, which sends its own answer.
type Job = Box<dyn FnOnce(&Readers) + Send>;

/// A thread for requests' reads.
#[derive(Debug)]
struct ReadThread {
    queue: SyncSender<Job>,
    progress: Arc<Progress>,
}

/// How far a thread is.
#[derive(Debug, Default)]
struct Progress {
    /// Reads that were queued and have not ended.
    unfinished: AtomicUsize,
    /// The tick at which the last one ended, or at which one was queued after a pause.
    last: AtomicU64,
}

impl Progress {
    fn is_behind(&self, now: Tick) -> bool {
        let (unfinished, last) = (self.unfinished.load(Ordering::Relaxed), self.last.load(Ordering::Relaxed));
        unfinished >= BACKLOG || unfinished > 0 && now.since(Tick(last)) > SLOW
    }
}

impl Reads {
    pub(super) fn start(readers: Readers, feed: Feed, path: &Path) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared { readers, feed: Mutex::new(feed), path: path.to_owned() });
        let clock = Clock::system();
        let threads = (0..THREADS).map(|_| ReadThread::start(&shared, &clock)).collect::<Result<_, _>>()?;
        Ok(Reads { threads, shared, clock })
    }

    /// For reads that may block their caller.
    pub(super) fn readers(&self) -> &Readers {
        &self.shared.readers
    }

    /// Reads for a request.
    pub(super) async fn for_request<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Readers) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(move |readers: &Readers| {
            // Nobody waits for the answer of a read that came too late.
            if !answer.is_closed() {
                let _ = answer.send(read(readers));
            }
        });
        let now = self.clock.now();
        self.thread(now).ok_or_else(ended)?.queue(job, now)?;
        match timeout(ANSWERS_WITHIN, answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(ended())),
            Err(_) => {
                let (path, within) = (self.shared.path.display(), ANSWERS_WITHIN.as_secs());
                Err(StoreError::Failed(format!("{path} could not be read within {within} s; check its disk")))
            }
        }
    }

    /// The first thread that is not behind, or the one with the least to do.
    fn thread(&self, now: Tick) -> Option<&ReadThread> {
        let quick = self.threads.iter().find(|thread| !thread.progress.is_behind(now));
        quick.or_else(|| self.threads.iter().min_by_key(|thread| thread.progress.unfinished.load(Ordering::Relaxed)))
    }

    /// Runs `read` where it may take long.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = self.shared.clone();
        blocking(move || shared.readers.with(read)).await
    }

    /// As [`Reads::run`], for guilds and keys: refuses if the file that was opened is no longer the store.
    pub(super) async fn run_checked<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = self.shared.clone();
        let checked = move || {
            shared.feed.lock().still_there()?;
            shared.readers.with(read)
        };
        blocking(checked).await
    }

    /// What others changed since the last call. Blocks.
    pub(super) fn changes(&self) -> Result<Vec<Change>, StoreError> {
        self.shared.feed.lock().changes()
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        self.threads.clear(); // they end when their queues do
        // The connections close after this, before the writer's. If the disk does not respond, they do not close.
        becomes_true(Instant::now() + ENDS_WITHIN, || Arc::strong_count(&self.shared) == 1);
    }
}

impl ReadThread {
    fn start(shared: &Arc<Shared>, clock: &Clock) -> Result<Self, StoreError> {
        let ((queue, jobs), progress) = (sync_channel(QUEUE), Arc::default());
        let (shared, made, clock) = (shared.clone(), Arc::clone(&progress), clock.clone());
        let run = move || serve(&jobs, &shared.readers, &made, &clock);
        let started = std::thread::Builder::new().name("store-reader".to_owned()).spawn(run);
        started.map_err(|e| StoreError::Failed(format!("no thread for the store's reads: {e}")))?;
        Ok(ReadThread { queue, progress })
    }

    fn queue(&self, job: Job, now: Tick) -> Result<(), StoreError> {
        if self.progress.unfinished.fetch_add(1, Ordering::Relaxed) == 0 {
            self.progress.last.store(now.0, Ordering::Relaxed);
        }
        self.queue.try_send(job).map_err(|error| {
            self.progress.unfinished.fetch_sub(1, Ordering::Relaxed);
            match error {
                TrySendError::Full(_) => StoreError::Busy(format!("{} reads wait already", THREADS * QUEUE)),
                TrySendError::Disconnected(_) => ended(),
            }
        })
    }
}

/// Runs each read of the queue.
fn serve(jobs: &Receiver<Job>, readers: &Readers, progress: &Progress, clock: &Clock) {
    while let Ok(job) = jobs.recv() {
        // A panic is the defect of one read: its answer is dropped, and the thread goes on.
        let _ = catch_unwind(AssertUnwindSafe(|| job(readers)));
        progress.last.store(clock.now().0, Ordering::Relaxed);
        progress.unfinished.fetch_sub(1, Ordering::Relaxed);
    }
}

fn ended() -> StoreError {
    StoreError::Failed("a read of the store ended midway by a defect".to_owned())
}
