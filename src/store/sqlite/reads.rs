//! Which threads read. None is one that serves callers, or hears signals: a read of a file waits for its disk, and a disk
//! may not respond. Requests' reads have threads of their own, so that no list delays them; lists are read on the
//! runtime's threads for blocking work, few at once, and the change feed on its follower's thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};
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

/// A thread whose read takes longer gets no further one while another has one that does not: its disk may not respond.
const HANGS: Duration = Duration::from_millis(100);

/// How long a request waits for its read, as long as for PostgreSQL.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Lists that are read at once, so that a disk that does not respond leaves threads for other work that blocks.
const LISTS: usize = 2;

/// How long a list for an admin may take, and wait for others: of the largest ones, all keys, a million are read in a second
/// or two.
pub(super) const LIST_WITHIN: Duration = Duration::from_secs(10);

/// How long closing waits for reads that have begun, of which only a large list takes more than milliseconds.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// The connections that read, and their threads. Dropping it ends both.
#[derive(Debug)]
pub(super) struct Reads {
    threads: Vec<ReadThread>,
    lists: Arc<Semaphore>,
    /// How long a list may take; `None`: as long as it takes.
    pub(super) lists_within: Option<Duration>,
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
    fn unfinished(&self) -> usize {
        self.unfinished.load(Ordering::Relaxed)
    }

    fn is_behind(&self, now: Tick) -> bool {
        self.unfinished() >= BACKLOG || self.takes_longer(SLOW, now)
    }

    fn takes_longer(&self, than: Duration, now: Tick) -> bool {
        self.unfinished() > 0 && now.since(Tick(self.last.load(Ordering::Relaxed))) > than
    }
}

impl Reads {
    pub(super) fn start(readers: Readers, feed: Feed, path: &Path, clock: Clock) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared { readers, feed: Mutex::new(feed), path: path.to_owned() });
        let threads = (0..THREADS).map(|_| ReadThread::start(&shared, &clock)).collect::<Result<_, _>>()?;
        Ok(Reads { threads, lists: Arc::new(Semaphore::new(LISTS)), lists_within: None, shared, clock })
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
        next_thread(&self.threads, now).ok_or_else(ended)?.queue(job, now)?;
        let answer = timeout(ANSWERS_WITHIN, answered).await;
        let too_slow = |_| {
            let (path, within) = (self.shared.path.display(), ANSWERS_WITHIN.as_secs());
            StoreError::Failed(format!("{path} could not be read within {within} s; check its disk"))
        };
        answer.map_err(too_slow)?.unwrap_or_else(|_| Err(ended()))
    }

    /// Reads a list where it may take long.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.list(|shared| shared.readers.with(read)).await
    }

    /// As [`Reads::run`], for guilds and keys: refuses if the file that was opened is no longer the store.
    pub(super) async fn run_checked<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let checked = |shared: &Shared| {
            shared.feed.lock().still_there()?;
            shared.readers.with(read)
        };
        self.list(checked).await
    }

    async fn list<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Shared) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let read = async {
            let (permit, shared) = (self.lists.clone().acquire_owned().await, self.shared.clone());
            let read = move || {
                let _until_it_ends = permit;
                read(&shared)
            };
            blocking(read).await
        };
        let Some(within) = self.lists_within else { return read.await };
        timeout(within, read).await.unwrap_or_else(|_| {
            let (path, within) = (self.shared.path.display(), within.as_secs());
            Err(StoreError::Failed(format!(
                "{path}: a list could not be read within {within} s; check its disk, or ask for fewer lists at once"
            )))
        })
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

/// The first thread that is not behind, or of those that go on the one with the least to do.
fn next_thread(threads: &[ReadThread], now: Tick) -> Option<&ReadThread> {
    let progress = |thread: &&ReadThread| (thread.progress.takes_longer(HANGS, now), thread.progress.unfinished());
    let quick = threads.iter().find(|thread| !thread.progress.is_behind(now));
    quick.or_else(|| threads.iter().min_by_key(progress))
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc::{Sender, channel};

    use futures_util::poll;

    use super::*;
    use crate::store::sqlite::tests::TestStore;

    /// Reads of a store, by a clock that stands still.
    fn reads() -> (TestStore, Reads) {
        let test = TestStore::new();
        let readers = Readers::open(&test.path()).unwrap();
        let feed = Feed::open(&test.path(), test.store.file.clone(), test.store.node.clone()).unwrap();
        let reads = Reads::start(readers, feed, &test.path(), Clock::manual(0)).unwrap();
        (test, reads)
    }

    /// A read that hangs until the sender is dropped, and what tells that it has begun.
    fn hanging() -> (Sender<()>, Receiver<()>, impl FnOnce(&Readers) -> Result<(), StoreError> + Send) {
        let (until, begins, hang) = hang();
        let read = move |_: &Readers| {
            hang();
            Ok(())
        };
        (until, begins, read)
    }

    /// As [`hanging`], for a list.
    fn hanging_list() -> (Sender<()>, Receiver<()>, impl FnOnce(&Connection) -> rusqlite::Result<()> + Send) {
        let (until, begins, hang) = hang();
        let read = move |_: &Connection| {
            hang();
            Ok(())
        };
        (until, begins, read)
    }

    fn hang() -> (Sender<()>, Receiver<()>, impl FnOnce() + Send) {
        let ((until, hangs), (begun, begins)) = (channel(), channel());
        let hang = move || {
            begun.send(()).unwrap();
            let _: Result<(), _> = hangs.recv();
        };
        (until, begins, hang)
    }

    fn thread(unfinished: usize, ended_ms: u64) -> ReadThread {
        let last = Tick::default().plus(Duration::from_millis(ended_ms));
        let progress = Progress { unfinished: unfinished.into(), last: last.0.into() };
        ReadThread { queue: sync_channel(0).0, progress: Arc::new(progress) }
    }

    #[test]
    fn the_first_thread_that_keeps_up_has_the_next_read_and_one_that_hangs_has_it_last() {
        let now = Tick::default().plus(Duration::from_millis(1000));
        let (idle, quick, slow) = ((0, 0), (1, 999), (1, 998));
        let (full, slow_and_full, hangs) = ((BACKLOG, 1000), (BACKLOG + 1, 990), (1, 899));
        for (threads, next) in [
            ([idle, idle, idle, idle], 0),
            ([quick, idle, idle, idle], 0),
            ([slow, idle, idle, idle], 1),
            ([full, slow, quick, idle], 2),
            ([full, slow_and_full, slow, slow_and_full], 2),
            ([hangs, slow_and_full, full, slow_and_full], 2),
            ([hangs, hangs, hangs, slow_and_full], 3),
            ([(3, 0), (2, 0), (1, 0), (4, 0)], 2),
        ] {
            let made = threads.map(|(unfinished, ended_ms)| thread(unfinished, ended_ms));
            let found = next_thread(&made, now).unwrap();
            assert!(std::ptr::eq(found, &made[next]), "{threads:?}");
        }
    }

    #[tokio::test]
    async fn beside_reads_that_hang_others_are_read_by_the_thread_that_is_left() {
        let (_test, reads) = reads();
        let mut held = Vec::new();
        for _ in 1..THREADS {
            let (until, begins, read) = hanging();
            let mut read = Box::pin(reads.for_request(read));
            assert!(poll!(&mut read).is_pending());
            begins.recv().unwrap();
            held.push((until, read));
            reads.clock.advance(2 * HANGS);
        }
        for n in 0..100 {
            assert_eq!(reads.for_request(move |_| Ok(n)).await.unwrap(), n);
        }
        for (until, read) in held {
            drop(until);
            read.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_read_that_nobody_waits_for_any_more_is_not_begun() {
        let (_test, reads) = reads();
        let (until, begins, read) = hanging();
        let mut first = pin!(reads.for_request(read));
        assert!(poll!(&mut first).is_pending());
        begins.recv().unwrap();
        let (tell, told) = channel();
        let mut given_up = Box::pin(reads.for_request(move |_| {
            tell.send(()).unwrap();
            Ok(())
        }));
        assert!(poll!(&mut given_up).is_pending());
        drop(given_up);
        drop(until);
        first.await.unwrap();
        assert!(told.recv().is_err(), "it was dropped, and not run");
    }

    #[tokio::test]
    async fn a_panic_is_the_defect_of_one_read() {
        let (_test, reads) = reads();
        let panics = reads.for_request::<()>(|_| panic!("a defect that a test put here")).await;
        assert!(matches!(panics, Err(StoreError::Failed(why)) if why.contains("defect")));
        reads.for_request(|_| Ok(())).await.unwrap();
    }

    #[tokio::test]
    async fn with_full_queues_a_read_is_refused_at_once_and_afterwards_all_goes_on() {
        let (_test, reads) = reads();
        let (until, hangs) = channel::<()>();
        let hangs = Arc::new(Mutex::new(hangs));
        for thread in &reads.threads {
            let (begun, begins) = channel();
            let hangs = hangs.clone();
            let hang = move |_: &Readers| {
                begun.send(()).unwrap();
                let _: Result<(), _> = hangs.lock().recv();
            };
            thread.queue(Box::new(hang), Tick(0)).unwrap();
            begins.recv().unwrap();
            for _ in 0..QUEUE {
                thread.queue(Box::new(|_| ()), Tick(0)).unwrap();
            }
        }
        assert!(matches!(reads.for_request(|_| Ok(())).await, Err(StoreError::Busy(_))));
        drop(until);
        let is_idle = || reads.threads.iter().all(|thread| thread.progress.unfinished() == 0);
        assert!(becomes_true(Instant::now() + Duration::from_secs(60), is_idle));
        reads.for_request(|_| Ok(())).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn beside_lists_that_hang_a_list_is_refused_in_time_and_afterwards_lists_are_read_again() {
        let (_test, mut reads) = reads();
        reads.lists_within = Some(LIST_WITHIN);
        let (mut held, mut untils) = (Vec::new(), Vec::new());
        for _ in 0..LISTS {
            let (until, begins, read) = hanging_list();
            let mut list = Box::pin(reads.run(read));
            assert!(poll!(&mut list).is_pending());
            begins.recv().unwrap();
            held.push(list);
            untils.push(until);
        }
        let (tell, told) = channel();
        let mut list = pin!(reads.run(move |_| {
            tell.send(()).unwrap();
            Ok(())
        }));
        assert!(poll!(&mut list).is_pending());
        tokio::time::advance(LIST_WITHIN).await;
        assert!(matches!(list.await, Err(StoreError::Failed(why)) if why.contains("10 s")));
        assert!(told.recv().is_err(), "it had no thread");
        for list in held {
            assert!(list.await.is_err());
        }
        drop(untils);
        reads.run(|_| Ok(())).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_no_admin_waits_for_takes_as_long_as_it_takes() {
        let (_test, reads) = reads();
        let (until, begins, read) = hanging_list();
        let mut load = pin!(reads.run_checked(read));
        assert!(poll!(&mut load).is_pending());
        begins.recv().unwrap();
        tokio::time::advance(2 * LIST_WITHIN).await;
        assert!(poll!(&mut load).is_pending());
        drop(until);
        load.await.unwrap();
    }
}
