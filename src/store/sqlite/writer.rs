//! Group commit: one thread writes. It waits for the first job, takes the others that are queued, runs
//! all of them in one transaction with one fsync, and answers each caller after the commit.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{oneshot, watch};

use super::failure::{self, Failure};
use super::open_file::OpenFile;
use super::{feed, lineage, open};
use crate::clock::{Clock, Tick, becomes_true};
use crate::files::{follow_links, sync_folder_of};
use crate::store::change_set::ChangeSet;
use crate::store::{Change, StoreError};

/// Jobs that may wait. At the 50,000 writes a second that a disk does in groups this is a third of
/// a second; a queue that is longer would only answer later, and hold more memory.
const QUEUE: usize = 16_384;

/// Jobs in one transaction. More gain nothing, the fsync being shared by so many already, and each
/// waits for the whole group.
const GROUP: usize = 512;

/// How long one try for the write lock lasts before the deadlines of the jobs are checked.
const LOCK_SLICE: Duration = Duration::from_millis(20);

/// How long closing waits for the lock that emptying the WAL needs; another process can do it later.
const CLOSING_BUSY: Duration = Duration::from_millis(200);

/// How long closing waits for the writes that are queued, which takes them two seconds for their lock and their commit.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// How many statements of a job write: with several it needs a savepoint, so that it can be undone alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writes {
    /// One: SQLite undoes a failed statement by itself.
    Once,
    Several,
}

/// A job in the queue: run in a transaction that others share, answered after its commit.
trait Job: Send {
    fn queued(&self) -> Tick;
    /// Runs it, and adds what it changed. An error fails the whole group: the disk or the file failed, so the
    /// transaction did too. A refusal of this job alone is kept for its answer.
    fn run(&mut self, conn: &Connection, path: &Path, changes: &mut ChangeSet) -> Result<(), StoreError>;
    /// Answers the caller: the job's result, or the error of the whole group.
    fn answer(self: Box<Self>, fault: Option<StoreError>);
}

struct Task<T, F> {
    queued: Tick,
    writes: Writes,
    work: Option<F>,
    outcome: Option<Result<T, StoreError>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnOnce(&Connection) -> Result<(T, Option<Change>), Failure> + Send> Job for Task<T, F> {
    fn queued(&self) -> Tick {
        self.queued
    }

    fn run(&mut self, conn: &Connection, path: &Path, changes: &mut ChangeSet) -> Result<(), StoreError> {
        let Some(work) = self.work.take() else { return Ok(()) };
        let outcome = match self.writes {
            Writes::Once => work(conn),
            Writes::Several => in_savepoint(conn, work).map_err(|e| failure::of(path, &e))?,
        };
        self.outcome = Some(match outcome {
            Ok((answer, change)) => {
                change.iter().for_each(|change| changes.add(change));
                Ok(answer)
            }
            Err(Failure::Sqlite(error)) if conn.is_autocommit() || failure::is_file_error(&error) => {
                return Err(failure::of(path, &error));
            }
            Err(refusal) => Err(refusal.at(path)),
        });
        Ok(())
    }

    fn answer(self: Box<Self>, fault: Option<StoreError>) {
        let answer = match (fault, self.outcome) {
            // The job's own refusal is answered, whatever happened to the others.
            (_, Some(Err(refusal))) => Err(refusal),
            (Some(fault), _) => Err(fault),
            (None, Some(outcome)) => outcome,
            (None, None) => Err(StoreError::Failed("the job was not run".to_owned())),
        };
        // The caller may have stopped waiting; what was written stays.
        let _ = self.answer.send(answer);
    }
}

/// Runs `work` in a savepoint: all of it stays, or nothing. The outer error: the statements of the savepoint failed,
/// and it is not known what stays.
fn in_savepoint<T>(
    conn: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, Failure>,
) -> rusqlite::Result<Result<T, Failure>> {
    conn.prepare_cached("SAVEPOINT job")?.execute([])?;
    let outcome = work(conn);
    // Some errors roll everything back, the savepoint with it.
    if conn.is_autocommit() {
        return Ok(outcome);
    }
    if outcome.is_err() {
        conn.prepare_cached("ROLLBACK TO job")?.execute([])?;
    }
    conn.prepare_cached("RELEASE job")?.execute([])?;
    Ok(outcome)
}

/// Sends jobs to the writing thread. Dropping it lets the thread finish its queue, and waits for it.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<SyncSender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread has ended, in whatever way.
    alive: watch::Receiver<()>,
    clock: Clock,
}

/// Where and how a store is written to.
#[derive(Clone, Debug)]
pub(super) struct WriterSettings {
    pub path: PathBuf,
    pub file: OpenFile,
    pub node: Arc<AtomicI64>,
    /// How long a job waits for another process's lock, from its queueing on.
    pub busy_wait: Duration,
    /// Changes kept in the feed.
    pub feed_kept: i64,
}

impl std::fmt::Debug for dyn Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Job")
    }
}

impl Writer {
    /// `is_checkpointed` tells whether what a crash left in the WAL is in the file.
    pub(super) fn start(settings: WriterSettings, is_checkpointed: bool) -> Result<Self, StoreError> {
        let failed = |e| failure::of(&settings.path, &e);
        let conn = open::writable(&settings.path).map_err(failed)?;
        // Reads the header now: otherwise SQLite would take another file copied over this one for a new commit.
        lineage::of_newest_commit(&conn).map_err(failed)?;
        let (queue, jobs) = mpsc::sync_channel(QUEUE);
        let clock = Clock::system();
        let writer = WriterThread {
            settings,
            clock: clock.clone(),
            jobs,
            conn: is_checkpointed.then_some(conn),
            is_checkpointed,
        };
        let (ends_with_thread, alive) = watch::channel(());
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                let _alive = ends_with_thread;
                writer.run();
            })
            .map_err(|e| StoreError::Failed(format!("no thread for the store's writer: {e}")))?;
        Ok(Writer { queue: Some(queue), thread: Some(thread), alive, clock })
    }

    /// Waits until the thread has ended: nothing is written any more.
    pub(super) async fn ended(&self) {
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
    }

    /// Queues `work`, which returns its result and the change for the followers, and waits until it is committed.
    /// `work` only runs its own statements: the transaction is the group's. If the caller stops waiting, the job
    /// is done all the same.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        writes: Writes,
        work: impl FnOnce(&Connection) -> Result<(T, Option<Change>), Failure> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let queued = self.clock.now();
        let task = Task { queued, writes, work: Some(work), outcome: None, answer };
        let stopped = || StoreError::Failed("the store's writer has stopped; start the server again".to_owned());
        let queue = self.queue.as_ref().ok_or_else(stopped)?;
        queue.try_send(Box::new(task)).map_err(|e| match e {
            TrySendError::Full(_) => StoreError::Busy(format!("{QUEUE} writes wait already")),
            TrySendError::Disconnected(_) => stopped(),
        })?;
        answered.await.unwrap_or_else(|_| Err(StoreError::of_lost_writer()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Without its sender the queue ends: the thread empties it, then stops.
        self.queue = None;
        let thread = self.thread.take();
        if !becomes_true(Instant::now() + ENDS_WITHIN, || thread.as_ref().is_none_or(JoinHandle::is_finished)) {
            tracing::error!("a write to the store does not end, so its disk may not respond; it is not waited for");
        }
    }
}

/// The state of the writing thread.
struct WriterThread {
    settings: WriterSettings,
    clock: Clock,
    jobs: Receiver<Box<dyn Job>>,
    /// `None` after a failure, and after a start on a full disk, until the store could be opened again
    /// ([`reopen`]): nothing is acknowledged before.
    conn: Option<Connection>,
    /// What a crash left in the WAL is in the file, so that no later commit follows one that is cut off.
    is_checkpointed: bool,
}

type Group = Vec<Box<dyn Job>>;

impl WriterThread {
    fn run(mut self) {
        let mut group: Group = Vec::with_capacity(GROUP);
        while let Ok(first) = self.jobs.recv() {
            group.push(first);
            group.extend(self.jobs.try_iter().take(GROUP - 1));
            self.serve(&mut group);
        }
        if let Some(conn) = self.conn {
            // The WAL must not be written into another file.
            if let Err(error) = self.settings.file.check_at_end(&conn) {
                tracing::error!(%error, "the store's write-ahead log is left as it is");
                let _ = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
                return;
            }
            let _ = conn.busy_timeout(CLOSING_BUSY);
            // Not needed for durability: the next start need not read the WAL.
            let _ = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }

    /// Waits for the write lock until the last deadline, then commits the group; leaves it empty.
    fn serve(&mut self, group: &mut Group) {
        loop {
            self.refuse_late(group);
            let Some(wait) = self.next_wait(group) else { return };
            match self.commit(group, wait) {
                Ok(()) => return group.drain(..).for_each(|job| job.answer(None)),
                // Jobs that were queued meanwhile wait as well, each until its own deadline.
                Err(CommitError::Locked) => group.extend(self.jobs.try_iter().take(GROUP - group.len())),
                Err(CommitError::Failed(line)) => {
                    // Before the answers: it overwrites the failed commit in the WAL, so that no write that is answered
                    // as failed appears after a crash.
                    if self.conn.is_none() {
                        self.conn = reopen(&self.settings, LOCK_SLICE, &mut self.is_checkpointed).ok();
                    }
                    return group.drain(..).for_each(|job| job.answer(Some(StoreError::Failed(line.clone()))));
                }
            }
        }
    }

    fn deadline(&self, job: &dyn Job) -> Tick {
        job.queued().plus(self.settings.busy_wait)
    }

    fn refuse_late(&self, group: &mut Group) {
        let now = self.clock.now();
        for job in group.extract_if(.., |job| self.deadline(job.as_ref()) <= now) {
            let (path, wait) = (self.settings.path.display(), self.settings.busy_wait);
            let line = format!(
                "{path} was locked for {wait:?}, by another process or by a write that does not end; nothing was written, \
                 try again"
            );
            job.answer(Some(StoreError::Busy(line)));
        }
    }

    /// How long to try for the lock: a slice, or less if the first deadline comes sooner.
    fn next_wait(&self, group: &Group) -> Option<Duration> {
        let now = self.clock.now();
        group.iter().map(|job| self.deadline(job.as_ref()).since(now)).min().map(|wait| wait.min(LOCK_SLICE))
    }

    /// One transaction. Only its beginning answers `Locked`, when no job has run.
    fn commit(&mut self, group: &mut Group, wait: Duration) -> Result<(), CommitError> {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => reopen(&self.settings, wait, &mut self.is_checkpointed)?,
        };
        // If that is refused, the connection is kept: a new one would open the other file.
        if let Err(error) = self.settings.file.check(&conn) {
            self.conn = Some(conn);
            return Err(CommitError::Failed(error.to_string()));
        }
        let failed = |e| CommitError::of(&self.settings.path, &e);
        let result = conn.busy_timeout(wait).map_err(failed).and_then(|()| transact(&mut conn, group, &self.settings));
        // A connection that failed is dropped here.
        if matches!(result, Ok(()) | Err(CommitError::Locked)) {
            self.conn = Some(conn);
        }
        result
    }
}

/// Why a group was not committed.
enum CommitError {
    /// Another process holds the lock: nothing was tried.
    Locked,
    Failed(String),
}

impl CommitError {
    fn of(path: &Path, error: &rusqlite::Error) -> Self {
        if failure::is_busy(error) { CommitError::Locked } else { CommitError::Failed(failure::line(path, error)) }
    }
}

/// Opens the store again after a failure. A commit whose fsync failed may be complete in the WAL: nobody
/// reads it there now, but a start after a crash would. So a commit of our own overwrites it. After a failed fsync the
/// kernel may drop the pages, and a second fsync of them succeeds without writing; pages that were just written are
/// written. What was committed earlier was synced then, and is before it in the WAL.
fn reopen(settings: &WriterSettings, wait: Duration, is_checkpointed: &mut bool) -> Result<Connection, CommitError> {
    let path = &settings.path;
    let failed = |e| CommitError::of(path, &e);
    let mut conn = open::writable(path).map_err(failed)?;
    settings.file.check(&conn).map_err(|e| CommitError::Failed(e.to_string()))?;
    conn.busy_timeout(wait).map_err(failed)?;
    *is_checkpointed = *is_checkpointed || open::checkpoint(&conn).map_err(failed)?;
    if !*is_checkpointed {
        return Err(CommitError::Locked);
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    lineage::advance(&tx).map_err(failed)?;
    // SQLite syncs the folder that has the WAL's name in it, but ignores that failing.
    let synced = follow_links(path).and_then(|file| sync_folder_of(&file));
    synced.map_err(|e| CommitError::Failed(failure::of_io(path, &e).to_string()))?;
    tx.commit().map_err(|e| CommitError::Failed(failure::line(path, &e)))?;
    tracing::info!("the store was opened again, and can be written to");
    Ok(conn)
}

fn transact(conn: &mut Connection, group: &mut Group, settings: &WriterSettings) -> Result<(), CommitError> {
    let begun = conn.transaction_with_behavior(TransactionBehavior::Immediate);
    let tx = begun.map_err(|e| CommitError::of(&settings.path, &e))?;
    let mut changes = ChangeSet::default();
    let rows_before = tx.total_changes();
    // Read before the jobs run, so that `hear_late_write` counts for all of them whose callers stop waiting meanwhile.
    let node = settings.node.load(Ordering::SeqCst);
    for job in group {
        // The others' work is rolled back with it.
        job.run(&tx, &settings.path, &mut changes).map_err(|e| CommitError::Failed(e.to_string()))?;
    }
    let done = feed::write(&changes, &tx, node, settings.feed_kept)
        // A row of the feed alone is a change, too.
        .and_then(|()| if tx.total_changes() != rows_before { lineage::advance(&tx) } else { Ok(()) })
        .and_then(|()| tx.commit());
    // Never `Locked`: the jobs have run, and run once.
    done.map_err(|e| CommitError::Failed(failure::line(&settings.path, &e)))
}
