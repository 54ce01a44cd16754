//! Group commit: one thread writes. It takes the writes that are queued, runs all of them in one transaction with one
//! sync of the disk, and answers each caller after the commit.
//!
//! Until its commit is sent, a group that failed has written nothing ([`StoreError::Busy`],
//! [`StoreError::Failed`]). A commit that fails may have happened ([`StoreError::Unknown`]): then the connection is opened
//! anew, and nothing is acknowledged before [`Conn::recover`] has succeeded.
//!
//! The thread alone decides what it begins: no write that has waited for a second, and none that nobody waits for any more.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::conn::Conn;
use super::feed::{self, Changes};
use super::requests::set_points;
use super::workers::Opener;
use super::{Change, GuildId, LIST, MemberId, StoreError};
use crate::clock::{becomes_true, next_multiple_of};

/// Jobs that may wait. At the 50,000 writes a second that a disk does in groups this is a third of a second; a longer
/// queue would only answer later, and hold more memory.
const QUEUE: usize = 16_384;

/// Jobs in one transaction. More gain nothing, the sync being shared by so many already, and each waits for the whole
/// group.
const GROUP: usize = 512;

/// How long a write waits before it begins: for its turn, and for the lock of another process, such as an import's
/// (contract section 2). Its caller's key was looked up before, so this is also how long a revoked key may still write
/// (guarantee 7).
const BEGINS_WITHIN: Duration = Duration::from_secs(1);

/// How long a caller waits, so that a disk that stalls does not hold callers for ever.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Pause before a lock that another process holds is tried again.
const RETRY: Duration = Duration::from_millis(5);

/// How long a server that ends a wait for a lock may take to say so.
const ANSWER: Duration = Duration::from_millis(500);

/// How long a commit may take at a server whose disk is slow.
const COMMIT: Duration = Duration::from_secs(2);

/// How often it is looked whether the thread has ended.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(250);

/// How long closing waits for the writes that are queued: their lock, and their commit.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// What the writer shares with those who read.
#[derive(Debug)]
pub(super) struct Shared {
    /// Marks this store's own points in the change feed; drawn at random.
    node: AtomicI64,
    /// Why the last write failed, if it did and none has succeeded since.
    pub(super) fault: Mutex<Option<String>>,
    /// Notified when something was committed that this process reads from the change feed as well.
    pub(super) committed: Notify,
}

impl Shared {
    pub(super) fn node(&self) -> i64 {
        self.node.load(Ordering::SeqCst)
    }

    /// From now on the change feed tells this process of writes that it began before, too.
    pub(super) fn renew_node(&self) {
        self.node.fetch_add(1, Ordering::SeqCst);
    }

    /// Records whether the store can be written to, and logs it when that changes.
    fn set_fault(&self, fault: Option<String>) {
        let mut now = self.fault.lock();
        match (&*now, &fault) {
            (None, Some(why)) => tracing::error!("the store cannot be written to: {why}"),
            (Some(_), None) => tracing::info!("the store can be written to again"),
            _ => {}
        }
        *now = fault;
    }
}

fn not_begun() -> StoreError {
    StoreError::Busy(format!("it could not be written to within {BEGINS_WITHIN:?}, and nothing was written; try again"))
}

/// Sends jobs to the thread. Dropping it lets the thread finish its queue, and waits for that.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<SyncSender<Job>>,
    thread: JoinHandle<()>,
    pub(super) shared: Arc<Shared>,
}

/// A write in the queue.
struct Job {
    queued: Instant,
    work: Work,
    /// What came of it in the transaction that is not committed yet.
    made: Result<Made, StoreError>,
    answer: oneshot::Sender<Result<Made, StoreError>>,
}

enum Work {
    /// Those of a group are written by one statement.
    Points { guild: GuildId, member: MemberId, amount: i64 },
    /// It runs its own statements, and may run again if the transaction was undone.
    Other(Box<Run>),
}

/// Returns what its caller gets, and the change for followers.
type Run = dyn Fn(&mut dyn Conn) -> Result<(Made, Option<Change>), StoreError> + Send;

/// A value whose type only the caller knows.
type Made = Box<dyn Any + Send>;

impl Writer {
    pub(super) fn start(opener: &Opener) -> Result<Self, StoreError> {
        let node = getrandom::u64().map_err(|e| StoreError::Failed(format!("no random number: {e}")))?;
        let shared = Arc::new(Shared {
            node: AtomicI64::new(node.cast_signed()),
            fault: Mutex::new(None),
            committed: Notify::new(),
        });
        let (queue, jobs) = mpsc::sync_channel(QUEUE);
        let (opener, shared_there) = (opener.clone(), shared.clone());
        let mut thread = Thread { jobs, conn: None, must_recover: false, opener, shared: shared_there };
        let thread = thread::Builder::new().name("store-writer".to_owned()).spawn(move || thread.run());
        let thread = thread.map_err(|e| StoreError::Failed(format!("no thread for the store's writer: {e}")))?;
        Ok(Writer { queue: Some(queue), thread, shared })
    }

    /// Waits until the thread has ended: nothing is written any more.
    pub(super) async fn ended(&self) {
        while !self.thread.is_finished() {
            next_multiple_of(LOOKED_AT_EVERY).await;
        }
    }

    /// Queues a write of points, and waits until it is committed. Answers the member's name. If the caller stops waiting
    /// before it begins, it is not done; afterwards it is.
    pub(super) async fn set_points(&self, guild: GuildId, member: MemberId, amount: i64) -> Result<String, StoreError> {
        self.queue(Work::Points { guild, member, amount }).await
    }

    /// As [`Writer::set_points`], of `work`, which returns its result and the change for followers.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Fn(&mut dyn Conn) -> Result<(T, Option<Change>), StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let run = move |conn: &mut dyn Conn| work(conn).map(|(made, change)| (Box::new(made) as Made, change));
        self.queue(Work::Other(Box::new(run))).await
    }

    async fn queue<T: 'static>(&self, work: Work) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let made = Err(StoreError::Failed("the job was not run".to_owned()));
        let job = Job { queued: Instant::now(), work, made, answer };
        let stopped = || StoreError::Failed("the store's writer has stopped; start the server again".to_owned());
        self.queue.as_ref().ok_or_else(stopped)?.try_send(job).map_err(|e| match e {
            TrySendError::Full(_) => StoreError::Busy(format!("{QUEUE} writes wait already")),
            TrySendError::Disconnected(_) => stopped(),
        })?;
        let Ok(answered) = timeout(ANSWERED_WITHIN, answered).await else {
            self.shared.renew_node();
            return Err(StoreError::Late("the store did not answer a write in time; check its disk".to_owned()));
        };
        let lost = || StoreError::Unknown("the store's writer has stopped; the write may be stored".to_owned());
        answered.map_err(|_| lost())??.downcast().map(|made| *made).map_err(|_| lost())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Without its sender the queue ends: the thread empties it, then stops.
        self.queue = None;
        if !becomes_true(Instant::now() + ENDS_WITHIN, || self.thread.is_finished()) {
            tracing::error!("a write to the store does not end, so its disk may not respond; it is not waited for");
        }
    }
}

impl Job {
    fn answer(self, committed: Result<(), StoreError>) {
        let _ = self.answer.send(committed.and(self.made)); // if nobody waits any more, what was written stays
    }
}

/// The state of the thread.
struct Thread {
    jobs: Receiver<Job>,
    conn: Option<Box<dyn Conn>>,
    /// The outcome of the last commit is unknown.
    must_recover: bool,
    opener: Opener,
    shared: Arc<Shared>,
}

impl Thread {
    fn run(&mut self) {
        while let Ok(job) = self.jobs.recv() {
            self.serve(&mut vec![job]);
        }
    }

    /// Commits the group and what is queued, or answers each job why not; leaves it empty.
    fn serve(&mut self, group: &mut Vec<Job>) {
        loop {
            group.extend(self.jobs.try_iter().take(GROUP.saturating_sub(group.len())));
            let now = Instant::now();
            for job in group.extract_if(.., |job| job.queued + BEGINS_WITHIN <= now) {
                job.answer(Err(not_begun()));
            }
            let Some(first) = group.iter().map(|job| job.queued).min() else { return };
            let committed = self.commit(group, first + BEGINS_WITHIN);
            match &committed {
                // Jobs that were queued meanwhile wait as well, each until its own deadline.
                Err(StoreError::Busy(_)) => {
                    thread::sleep(RETRY);
                    continue;
                }
                Err(error) => self.shared.set_fault(Some(error.to_string())),
                Ok(()) => self.shared.set_fault(None),
            }
            if matches!(committed, Err(StoreError::Unknown(_))) {
                self.shared.renew_node();
            }
            return group.drain(..).for_each(|job| job.answer(committed.clone()));
        }
    }

    /// One transaction, which waits for others' locks until `until`.
    fn commit(&mut self, group: &mut Vec<Job>, until: Instant) -> Result<(), StoreError> {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => (self.opener)(LIST)?,
        };
        conn.set_deadline(until + ANSWER);
        if self.must_recover {
            conn.recover()?;
            self.must_recover = false;
        }
        if let Err(error) = conn.begin(until.saturating_duration_since(Instant::now())) {
            self.conn = Some(conn).filter(|conn| conn.is_usable());
            return Err(error);
        }
        let written = self.write(&mut *conn, group, until);
        conn.set_deadline(Instant::now() + COMMIT);
        if written.is_err() {
            // A connection that fails to undo it is dropped, which undoes it as well.
            if conn.is_usable() && conn.batch("ROLLBACK").is_ok() {
                self.conn = Some(conn);
            }
        } else if let Err(error) = conn.commit() {
            self.must_recover = matches!(error, StoreError::Unknown(_));
            return Err(error);
        } else {
            self.conn = Some(conn);
        }
        if written? {
            self.shared.committed.notify_one();
        }
        Ok(())
    }

    /// Everything of a transaction but its begin and commit. Returns whether this process reads of what was changed.
    fn write(&self, conn: &mut dyn Conn, group: &mut Vec<Job>, until: Instant) -> Result<bool, StoreError> {
        if Instant::now() >= until {
            return Err(not_begun());
        }
        // Read first, so that `renew_node` counts for all jobs whose callers stop waiting meanwhile.
        let node = self.shared.node();
        group.retain(|job| !job.answer.is_closed());
        // Of two writes to one member the later one counts, since they are committed together. Sorted, so that two nodes
        // that write the same members do not deadlock.
        let (mut amounts, mut others) = (BTreeMap::new(), Changes::new());
        for job in &mut *group {
            match &job.work {
                Work::Points { guild, member, amount } => drop(amounts.insert((guild.clone(), *member), *amount)),
                Work::Other(work) => job.made = run(conn, work, &mut others)?,
            }
        }
        let names = set_points(conn, &amounts)?;
        for job in group {
            if let Work::Points { guild, member, .. } = &job.work {
                let name = names.get(&(guild.clone(), *member)).cloned();
                let made = name.map(|name| Box::new(name) as Made);
                job.made = made.ok_or_else(|| StoreError::GuildDeparted(guild.clone()));
            }
        }
        let own: Changes = names.into_keys().map(|(_, member)| Change::Member(member)).collect();
        feed::add(conn, [(node, &own), (feed::NOBODY, &others)])?;
        Ok(!others.is_empty())
    }
}

/// Runs a job in a transaction that others share, and adds what it changed. Where it is refused, it alone is undone.
fn run(conn: &mut dyn Conn, work: &Run, changes: &mut Changes) -> Result<Result<Made, StoreError>, StoreError> {
    conn.batch("SAVEPOINT job")?;
    let made = work(conn);
    if let Err(error) = &made {
        let undone = conn.batch("ROLLBACK TO job");
        // Where that fails, the connection or the whole transaction did, and not this job alone.
        match error {
            StoreError::Busy(_) => return Err(error.clone()),
            StoreError::Failed(_) => undone.map_err(|_| error.clone())?,
            _ => undone?,
        }
    }
    conn.batch("RELEASE job")?;
    Ok(made.map(|(made, change)| {
        changes.extend(change);
        made
    }))
}

/// The members whose points were set, with their names.
pub(super) type Names = HashMap<(GuildId, MemberId), String>;
