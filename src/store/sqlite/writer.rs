//! Group commit: one thread writes. It waits for the first job, takes what else is queued, runs it
//! all in one transaction with one fsync, and answers everyone after the commit.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{oneshot, watch};

use super::open_file::OpenFile;
use super::{failure, feed, lineage, open};
use crate::clock::{Clock, Tick};
use crate::store::marks::Marks;
use crate::store::{Change, StoreError};

/// Jobs that may wait. At the 50,000 writes a second that a disk does in groups this is a third of
/// a second; a queue that is longer would only answer later, and hold more memory.
const QUEUE: usize = 16_384;

/// Jobs in one transaction. More gain nothing, the fsync being shared by so many already, and each
/// waits for the whole group.
const GROUP: usize = 512;

/// How long one try for the write lock lasts before the deadlines of the waiting are looked at.
const LOCK_SLICE: Duration = Duration::from_millis(20);

/// How long closing waits for the lock that emptying the WAL needs; another process can do it later.
const CLOSING_BUSY: Duration = Duration::from_millis(200);

/// How many statements of a job write, and so whether it needs a savepoint to be undone alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writes {
    /// One: SQLite undoes a failed statement by itself.
    Once,
    Several,
}

/// A job in the queue: run in a transaction that others share, answered after its commit.
trait Job: Send {
    fn queued(&self) -> Tick;
    /// Runs it, and notes what it changed. An error is the whole group's: the disk or the file
    /// failed, and the transaction with it. What the job alone got wrong it keeps to itself.
    fn run(&mut self, conn: &Connection, path: &Path, marks: &mut Marks) -> Result<(), StoreError>;
    /// Answers the caller: what came of it, or the fault that the whole group met.
    fn answer(self: Box<Self>, fault: Option<StoreError>);
}

struct Task<T, F> {
    queued: Tick,
    writes: Writes,
    work: Option<F>,
    made: Option<Result<T, StoreError>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

/// What a job's closure says: what it made, or its own refusal, or what SQLite said.
pub(super) enum Fault {
    Own(StoreError),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Fault::Sqlite(error)
    }
}

impl<T: Send, F: FnOnce(&Connection) -> Result<(T, Option<Change>), Fault> + Send> Job for Task<T, F> {
    fn queued(&self) -> Tick {
        self.queued
    }

    fn run(&mut self, conn: &Connection, path: &Path, marks: &mut Marks) -> Result<(), StoreError> {
        let Some(work) = self.work.take() else { return Ok(()) };
        let made = match self.writes {
            Writes::Once => work(conn),
            Writes::Several => alone(conn, work).map_err(|e| failure::of(path, &e))?,
        };
        self.made = Some(match made {
            Ok((made, change)) => {
                change.iter().for_each(|change| marks.add(change));
                Ok(made)
            }
            Err(Fault::Own(error)) => Err(error),
            Err(Fault::Sqlite(error)) => {
                let told = failure::of(path, &error);
                if conn.is_autocommit() || failure::is_the_files(&error) {
                    return Err(told);
                }
                Err(told)
            }
        });
        Ok(())
    }

    fn answer(self: Box<Self>, fault: Option<StoreError>) {
        let answer = match (fault, self.made) {
            // What the job refused of itself stands, whatever became of its neighbours.
            (_, Some(Err(own))) => Err(own),
            (Some(fault), _) => Err(fault),
            (None, Some(made)) => made,
            (None, None) => Err(StoreError::Failed("the job was not run".to_owned())),
        };
        // The caller may have gone; what was written stays.
        let _ = self.answer.send(answer);
    }
}

/// Runs `work` in a savepoint: all of it stays, or nothing. The outer error is the savepoint's own,
/// with which nobody can say what stays.
fn alone<T>(
    conn: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, Fault>,
) -> rusqlite::Result<Result<T, Fault>> {
    conn.prepare_cached("SAVEPOINT job")?.execute([])?;
    let made = work(conn);
    // Some errors roll everything back, the savepoint with it.
    if conn.is_autocommit() {
        return Ok(made);
    }
    if made.is_err() {
        conn.prepare_cached("ROLLBACK TO job")?.execute([])?;
    }
    conn.prepare_cached("RELEASE job")?.execute([])?;
    Ok(made)
}

/// The way to the writing thread. Dropping it lets the thread finish its queue, and waits for it.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<SyncSender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread has ended, however it did.
    alive: watch::Receiver<()>,
    clock: Clock,
}

/// How this store writes.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub path: PathBuf,
    pub file: OpenFile,
    pub node: i64,
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
    /// `settled` tells whether what a crash left is in the file.
    pub(super) fn start(plan: Plan, settled: bool) -> Result<Self, StoreError> {
        let told = |e| failure::of(&plan.path, &e);
        let conn = open::writable(&plan.path).map_err(told)?;
        // It is remembered by SQLite, and so tells another file that is copied over this one from a commit.
        lineage::now(&conn).map_err(told)?;
        let (queue, jobs) = mpsc::sync_channel(QUEUE);
        let clock = Clock::system();
        let desk = Desk { plan, clock: clock.clone(), jobs, conn: settled.then_some(conn), settled };
        let (ends_with_thread, alive) = watch::channel(());
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                let _alive = ends_with_thread;
                desk.run();
            })
            .map_err(|e| StoreError::Failed(format!("no thread for the store's writer: {e}")))?;
        Ok(Writer { queue: Some(queue), thread: Some(thread), alive, clock })
    }

    /// Waits until the thread has ended: nothing is written any more.
    pub(super) async fn ended(&self) {
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
    }

    /// Queues `work`, which says what it made and what others must hear of it, and waits until it is committed.
    /// `work` only runs its own statements: the transaction is the group's. A caller that stops
    /// waiting harms nothing: the job is done all the same.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        writes: Writes,
        work: impl FnOnce(&Connection) -> Result<(T, Option<Change>), Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, told) = oneshot::channel();
        let queued = self.clock.now();
        let task = Task { queued, writes, work: Some(work), made: None, answer };
        let gone = || StoreError::Failed("the store's writer has stopped; start the server again".to_owned());
        let queue = self.queue.as_ref().ok_or_else(gone)?;
        queue.try_send(Box::new(task)).map_err(|e| match e {
            TrySendError::Full(_) => StoreError::Busy(format!("{QUEUE} writes wait already")),
            TrySendError::Disconnected(_) => gone(),
        })?;
        told.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Without its sender the queue ends: the thread empties it, then stops.
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The writing thread's own.
struct Desk {
    plan: Plan,
    clock: Clock,
    jobs: Receiver<Box<dyn Job>>,
    /// `None` after a failure, and after a start on a full disk, until the store could be opened anew
    /// ([`renewed`]): nothing is acknowledged before.
    conn: Option<Connection>,
    /// What a crash left is in the file: what is written after it is not behind a gap.
    settled: bool,
}

type Group = Vec<Box<dyn Job>>;

impl Desk {
    fn run(mut self) {
        let mut group: Group = Vec::with_capacity(GROUP);
        while let Ok(first) = self.jobs.recv() {
            group.push(first);
            group.extend(self.jobs.try_iter().take(GROUP - 1));
            self.serve(&mut group);
        }
        if let Some(conn) = self.conn {
            // What is in the log is not written into another file.
            if let Err(error) = self.plan.file.check_at_end(&conn) {
                tracing::error!(%error, "the store's log is left as it is");
                let _ = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
                return;
            }
            let _ = conn.busy_timeout(CLOSING_BUSY);
            // Not needed for durability: it spares the next start the reading of the WAL.
            let _ = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }

    /// Waits for the write lock while anyone still may, then does the group; leaves it empty.
    fn serve(&mut self, group: &mut Group) {
        loop {
            self.send_away_the_late(group);
            let Some(wait) = self.next_wait(group) else { return };
            match self.commit(group, wait) {
                Ok(()) => return group.drain(..).for_each(|job| job.answer(None)),
                // Who came meanwhile waits along, each until a deadline of its own.
                Err(Trouble::Locked) => group.extend(self.jobs.try_iter().take(GROUP - group.len())),
                Err(Trouble::Failed(line)) => {
                    // Before the answers, so that what is refused stays undone whatever comes next.
                    if self.conn.is_none() {
                        self.conn = renewed(&self.plan, LOCK_SLICE, &mut self.settled).ok();
                    }
                    return group.drain(..).for_each(|job| job.answer(Some(StoreError::Failed(line.clone()))));
                }
            }
        }
    }

    fn deadline(&self, job: &dyn Job) -> Tick {
        job.queued().plus(self.plan.busy_wait)
    }

    fn send_away_the_late(&self, group: &mut Group) {
        let now = self.clock.now();
        for job in group.extract_if(.., |job| self.deadline(job.as_ref()) <= now) {
            let (path, wait) = (self.plan.path.display(), self.plan.busy_wait);
            let line = format!("{path} could not be had for writing within {wait:?}; nothing was written, try again");
            job.answer(Some(StoreError::Busy(line)));
        }
    }

    /// How long to try for the lock: a slice, or less if the first deadline comes sooner.
    fn next_wait(&self, group: &Group) -> Option<Duration> {
        let now = self.clock.now();
        group.iter().map(|job| self.deadline(job.as_ref()).since(now)).min().map(|wait| wait.min(LOCK_SLICE))
    }

    /// One transaction. `Locked` comes only from its beginning, when no job has run.
    fn commit(&mut self, group: &mut Group, wait: Duration) -> Result<(), Trouble> {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => renewed(&self.plan, wait, &mut self.settled)?,
        };
        // It is kept where that is refused: one opened anew would take the other file for the store.
        if let Err(error) = self.plan.file.check(&conn) {
            self.conn = Some(conn);
            return Err(Trouble::Failed(error.to_string()));
        }
        let told = |e| Trouble::of(&self.plan.path, &e);
        let result = conn.busy_timeout(wait).map_err(told).and_then(|()| transact(&mut conn, group, &self.plan));
        // A connection that failed is dropped here.
        if matches!(result, Ok(()) | Err(Trouble::Locked)) {
            self.conn = Some(conn);
        }
        result
    }
}

/// Why a transaction did not come about.
enum Trouble {
    /// Another process holds the lock: nothing was tried.
    Locked,
    Failed(String),
}

impl Trouble {
    fn of(path: &Path, error: &rusqlite::Error) -> Self {
        if failure::is_busy(error) { Trouble::Locked } else { Trouble::Failed(failure::line(path, error)) }
    }
}

/// Opens the store anew after a failure. A commit whose fsync failed may lie in the WAL, whole: nobody
/// reads it there, but a start after a crash would. So a commit of our own is put in its place, whose
/// fsync is one of pages just written; that of what the kernel gave up before would succeed, and mean
/// nothing. What was committed earlier was synced then, and stands before it.
fn renewed(plan: &Plan, wait: Duration, settled: &mut bool) -> Result<Connection, Trouble> {
    let path = &plan.path;
    let told = |e| Trouble::of(path, &e);
    let mut conn = open::writable(path).map_err(told)?;
    plan.file.check(&conn).map_err(|e| Trouble::Failed(e.to_string()))?;
    conn.busy_timeout(wait).map_err(told)?;
    *settled = *settled || open::is_settled(&conn).map_err(told)?;
    if !*settled {
        return Err(Trouble::Locked);
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(told)?;
    lineage::mark(&tx).map_err(told)?;
    // SQLite syncs the folder that has the WAL's name in it, but passes over that failing.
    open::sync_folder(path).map_err(|e| Trouble::Failed(e.to_string()))?;
    tx.commit().map_err(|e| Trouble::Failed(failure::line(path, &e)))?;
    tracing::info!("the store was opened anew, and can be written to");
    Ok(conn)
}

fn transact(conn: &mut Connection, group: &mut Group, plan: &Plan) -> Result<(), Trouble> {
    let begun = conn.transaction_with_behavior(TransactionBehavior::Immediate);
    let tx = begun.map_err(|e| Trouble::of(&plan.path, &e))?;
    let mut marks = Marks::default();
    let changes = tx.total_changes();
    for job in group {
        // The neighbours' work is rolled back with it.
        job.run(&tx, &plan.path, &mut marks).map_err(|e| Trouble::Failed(e.to_string()))?;
    }
    let changed = tx.total_changes() != changes;
    let done = feed::write(&marks, &tx, plan.node, plan.feed_kept)
        .and_then(|()| if changed { lineage::mark(&tx) } else { Ok(()) })
        .and_then(|()| tx.commit());
    // Never `Locked`: the jobs have run, and run once.
    done.map_err(|e| Trouble::Failed(failure::line(&plan.path, &e)))
}
