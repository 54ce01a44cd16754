//! Group commit: one thread writes. It takes the writes that are queued, runs all of them in one transaction with one
//! sync of the disk, and answers each caller after the commit.
//!
//! Until its commit is sent, a group that failed has written nothing ([`StoreError::Busy`], [`StoreError::Unreachable`],
//! [`StoreError::Failed`]). A commit that fails may have happened ([`StoreError::Unknown`]): then the connection is opened
//! anew, and nothing is acknowledged before [`Conn::recover`] has succeeded.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

use super::conn::{Access, Conn};
use super::feed::{self, Changes};
use super::requests::set_points;
use super::workers::Opener;
use super::{Change, GuildId, MemberId, StoreError};
use crate::clock::becomes_true;

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

/// Pause before a lock that another process holds is tried again.
const RETRY: Duration = Duration::from_millis(5);

/// How long a server that ends a wait for a lock may take to say so.
const ANSWER: Duration = Duration::from_millis(500);

/// How long a commit may take at a server whose disk is slow.
const COMMIT: Duration = Duration::from_secs(2);

/// How often it is tried whether a store that could not be written to can be again, while nobody writes.
const PROBE: Duration = Duration::from_secs(1);

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
    fn set_fault(&self, location: &str, fault: Option<String>) {
        let mut now = self.fault.lock();
        match (&*now, &fault) {
            (None, Some(why)) => tracing::error!("{location} cannot be written to: {why}"),
            (Some(_), None) => tracing::info!("{location} can be written to again"),
            _ => {}
        }
        *now = fault;
    }
}

/// Sends jobs to the thread. Dropping it lets the thread finish its queue, and waits for that.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<SyncSender<Job>>,
    thread: JoinHandle<()>,
    /// Closed when the thread has ended, in whatever way.
    alive: watch::Receiver<()>,
    pub(super) shared: Arc<Shared>,
}

/// A write in the queue.
struct Job {
    queued: Instant,
    work: Work,
}

enum Work {
    /// Those of a group are written by one statement.
    Points {
        guild: GuildId,
        member: MemberId,
        amount: i64,
        answer: oneshot::Sender<Result<String, StoreError>>,
    },
    Other(Box<dyn Other>),
}

/// A write that runs its own statements.
trait Other: Send {
    /// Runs it in a transaction that others share, and adds what it changed. It may run again, if that transaction was
    /// undone.
    fn run(&mut self, conn: &mut dyn Conn, changes: &mut Changes) -> Result<(), StoreError>;
    /// Answers the caller: what [`Other::run`] made, or why the group was not committed.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

struct Task<T, F> {
    work: F,
    made: Option<Result<T, StoreError>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: Fn(&mut dyn Conn) -> Result<(T, Option<Change>), StoreError> + Send> Other for Task<T, F> {
    fn run(&mut self, conn: &mut dyn Conn, changes: &mut Changes) -> Result<(), StoreError> {
        conn.batch("SAVEPOINT job")?;
        let made = (self.work)(conn);
        if let Err(error) = &made {
            let undone = conn.batch("ROLLBACK TO job");
            // Where that fails, the connection or the whole transaction did, and not this job alone.
            match error {
                StoreError::Busy(_) | StoreError::Unreachable(_) => return Err(error.clone()),
                StoreError::Failed(_) => undone.map_err(|_| error.clone())?,
                _ => undone?,
            }
        }
        conn.batch("RELEASE job")?;
        self.made = Some(made.map(|(made, change)| {
            changes.extend(change);
            made
        }));
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let answer = match (committed, self.made) {
            // The job's own refusal is answered, whatever happened to the others.
            (_, Some(Err(refusal))) => Err(refusal),
            (Err(error), _) => Err(error),
            (Ok(()), made) => made.unwrap_or_else(|| Err(StoreError::Failed("the job was not run".to_owned()))),
        };
        let _ = self.answer.send(answer); // if nobody waits any more, what was written stays
    }
}

impl Writer {
    pub(super) fn start(opener: &Opener, location: &str, feed_kept: i64) -> Result<Self, StoreError> {
        let node =
            getrandom::u64().map_err(|e| StoreError::Failed(format!("the system gives no random number: {e}")))?;
        let shared = Arc::new(Shared {
            node: AtomicI64::new(node.cast_signed()),
            fault: Mutex::new(None),
            committed: Notify::new(),
        });
        let (queue, jobs) = mpsc::sync_channel(QUEUE);
        let mut thread = Thread {
            jobs,
            conn: None,
            must_recover: false,
            commits: 0,
            feed_kept,
            opener: opener.clone(),
            location: location.to_owned(),
            shared: shared.clone(),
        };
        let (ends_with_thread, alive) = watch::channel(());
        let run = move || {
            let _alive = ends_with_thread;
            thread.run();
        };
        let thread = thread::Builder::new().name("store-writer".to_owned()).spawn(run);
        let thread = thread.map_err(|e| StoreError::Failed(format!("no thread for the store's writer: {e}")))?;
        Ok(Writer { queue: Some(queue), thread, alive, shared })
    }

    /// Waits until the thread has ended: nothing is written any more.
    pub(super) async fn ended(&self) {
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
    }

    /// Queues a write of points, and waits until it is committed. Answers the member's name.
    pub(super) async fn set_points(&self, guild: GuildId, member: MemberId, amount: i64) -> Result<String, StoreError> {
        self.queue(|answer| Work::Points { guild, member, amount, answer }).await
    }

    /// Queues `work`, which returns its result and the change for followers, and waits until it is committed. If the caller
    /// stops waiting, it is done all the same.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Fn(&mut dyn Conn) -> Result<(T, Option<Change>), StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.queue(|answer| Work::Other(Box::new(Task { work, made: None, answer }))).await
    }

    async fn queue<T>(
        &self,
        work: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Work,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job = Job { queued: Instant::now(), work: work(answer) };
        let stopped = || StoreError::Failed("the store's writer has stopped; start the server again".to_owned());
        self.queue.as_ref().ok_or_else(stopped)?.try_send(job).map_err(|e| match e {
            TrySendError::Full(_) => StoreError::Busy(format!("{QUEUE} writes wait already")),
            TrySendError::Disconnected(_) => stopped(),
        })?;
        let lost = "the store's writer has stopped; what it was writing may be stored";
        answered.await.unwrap_or_else(|_| Err(StoreError::Unknown(lost.to_owned())))
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

/// The state of the thread.
struct Thread {
    jobs: Receiver<Job>,
    conn: Option<Box<dyn Conn>>,
    /// The outcome of the last commit is unknown.
    must_recover: bool,
    commits: i64,
    feed_kept: i64,
    opener: Opener,
    location: String,
    shared: Arc<Shared>,
}

impl Thread {
    fn run(&mut self) {
        let mut group = Vec::with_capacity(GROUP);
        loop {
            let is_faulty = self.shared.fault.lock().is_some();
            let first = match is_faulty {
                true => self.jobs.recv_timeout(PROBE),
                false => self.jobs.recv().map_err(RecvTimeoutError::from),
            };
            match first {
                Ok(job) => group.push(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.take_queued(&mut group);
            self.serve(&mut group);
        }
    }

    fn take_queued(&self, group: &mut Vec<Job>) {
        group.extend(self.jobs.try_iter().take(GROUP - group.len().min(GROUP)));
    }

    /// Commits the group, or answers each job why not; leaves it empty. An empty group only tries whether the store can be
    /// written to.
    fn serve(&mut self, group: &mut Vec<Job>) {
        let (is_probe, mut reconnected) = (group.is_empty(), false);
        loop {
            let now = Instant::now();
            for job in group.extract_if(.., |job| job.queued + BEGINS_WITHIN <= now) {
                let why = format!(
                    "{} could not be written to within {BEGINS_WITHIN:?}, because another process or an \
                     earlier write holds it; nothing was written, try again",
                    self.location
                );
                job.work.answer(Err(StoreError::Busy(why)), &HashMap::new());
            }
            if group.is_empty() && !is_probe {
                return;
            }
            let until = group.iter().map(|job| job.queued + BEGINS_WITHIN).min().unwrap_or(now + BEGINS_WITHIN);
            let error = match self.commit(group, until) {
                Ok(names) => {
                    self.shared.set_fault(&self.location, None);
                    return group.drain(..).for_each(|job| job.work.answer(Ok(()), &names));
                }
                // Jobs that were queued meanwhile wait as well, each until its own deadline.
                Err(StoreError::Busy(_)) if !is_probe => {
                    thread::sleep(RETRY);
                    self.take_queued(group);
                    continue;
                }
                // Once: a server that does not answer has used up the time.
                Err(StoreError::Unreachable(_))
                    if Instant::now() < until && !std::mem::replace(&mut reconnected, true) =>
                {
                    continue;
                }
                Err(error) => error,
            };
            if !matches!(error, StoreError::Busy(_)) {
                self.shared.set_fault(&self.location, Some(error.to_string()));
            }
            if matches!(error, StoreError::Unknown(_)) {
                self.shared.renew_node();
            }
            return group.drain(..).for_each(|job| job.work.answer(Err(error.clone()), &HashMap::new()));
        }
    }

    /// One transaction, which waits for others' locks until `until`. Returns the names of the members whose points were set.
    fn commit(&mut self, group: &mut [Job], until: Instant) -> Result<Names, StoreError> {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => self.opener.open(Access::Write)?,
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
        let written = self.write(&mut *conn, group);
        conn.set_deadline(Instant::now() + COMMIT);
        let (names, is_heard) = match written {
            Ok(written) => written,
            Err(error) => {
                // A connection that fails to undo it is dropped, which undoes it as well.
                if conn.is_usable() && conn.batch("ROLLBACK").is_ok() {
                    self.conn = Some(conn);
                }
                return Err(error);
            }
        };
        if let Err(error) = conn.commit() {
            self.must_recover = matches!(error, StoreError::Unknown(_));
            return Err(error);
        }
        self.conn = Some(conn);
        self.commits += 1;
        if is_heard {
            self.shared.committed.notify_one();
        }
        Ok(names)
    }

    /// Everything of a transaction but its begin and commit. Returns the members' names too, and whether this process reads
    /// of what was changed.
    fn write(&self, conn: &mut dyn Conn, group: &mut [Job]) -> Result<(Names, bool), StoreError> {
        // Read first, so that `renew_node` counts for all jobs whose callers stop waiting meanwhile.
        let node = self.shared.node();
        // Of two writes to one member the later one counts, since they are committed together. Sorted, so that two nodes
        // that write the same members do not deadlock.
        let mut amounts = BTreeMap::new();
        let mut others = Changes::default();
        for job in group.iter_mut() {
            match &mut job.work {
                Work::Points { guild, member, amount, .. } => drop(amounts.insert((guild.clone(), *member), *amount)),
                Work::Other(work) => work.run(conn, &mut others)?,
            }
        }
        let names = set_points(conn, &amounts)?;
        let mut own = Changes::default();
        names.keys().for_each(|(_, member)| own.extend([Change::Member(*member)]));
        if amounts.is_empty() && group.is_empty() {
            own = Changes::probe();
        }
        feed::add(conn, [(node, &own), (feed::NOBODY, &others)], self.feed_kept, self.commits)?;
        Ok((names, !others.is_empty()))
    }
}

/// The members whose points were set, with their names.
pub(super) type Names = HashMap<(GuildId, MemberId), String>;

impl Work {
    fn answer(self, committed: Result<(), StoreError>, names: &Names) {
        match self {
            Work::Points { guild, member, answer, .. } => {
                let name = committed.and_then(|()| {
                    let name = names.get(&(guild.clone(), member)).cloned();
                    name.ok_or(StoreError::GuildDeparted(guild))
                });
                let _ = answer.send(name); // as above
            }
            Work::Other(work) => work.answer(committed),
        }
    }
}
