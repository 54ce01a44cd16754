//! Group commit for setPoints: one task takes the writes that are queued, sends them in one transaction with one
//! statement for all, and answers their callers after the commit.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use deadpool_postgres::ClientWrapper as Client;
use futures_util::future;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::{Error, Row};

use super::dedicated::DedicatedConnection;
use super::error::CallError;
use super::pool::{Params, Pool, batch};
use super::transaction::{COMMIT, NUMBER, begin, change_rows};
use super::{LOCK, column, draw_node};
use crate::model::{GuildId, MemberId};
use crate::store::change_set::{ChangeSet, PRUNE_EVERY};
use crate::store::{Cancellation, Change, StoreError};

/// Jobs that may wait. A longer queue would only answer later, and hold more memory.
const QUEUE: usize = 16_384;

/// Jobs in one transaction. More gain nothing, since so many share the commit already, and each waits for the
/// whole group.
const GROUP: usize = 512;

/// Sets members' points, given as three arrays in which no member is named twice; returns the members' names. It
/// leaves out members of guilds that are missing or departed.
const SET_POINTS: &str = "INSERT INTO member (guild, member, name, points) \
    SELECT g.no, a.member, a.member::text, a.amount \
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS a (guild, member, amount) \
    JOIN guild g ON g.id = a.guild AND NOT g.gone \
    ON CONFLICT (guild, member) DO UPDATE SET points = excluded.points \
    RETURNING (SELECT id FROM guild WHERE no = member.guild), member, name";

type Answer = Result<String, StoreError>;

/// The members that were written, and their names.
type Names = HashMap<(GuildId, MemberId), String>;

struct Job {
    guild: GuildId,
    member: MemberId,
    amount: i64,
    queued: Instant,
    cancellation: Cancellation,
    answer: oneshot::Sender<Answer>,
}

/// Queues writes for the writer task, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    queue: mpsc::Sender<Job>,
    location: String,
}

impl Writer {
    pub(super) fn new(pool: &Pool, node: Arc<AtomicI64>, feed_kept: i64) -> (Self, WriterTask) {
        let (queue, jobs) = mpsc::channel(QUEUE);
        let location = pool.location().to_owned();
        let connection = DedicatedConnection::new(pool.clone(), None);
        (Writer { queue, location: location.clone() }, WriterTask { jobs, location, node, feed_kept, connection })
    }

    /// Waits until the writer task has ended: nothing is written any more.
    pub(super) async fn ended(&self) {
        self.queue.closed().await;
    }

    /// Queues a write and waits until it is committed, or until [`LOCK`] has passed before it was begun. A write
    /// that was not cancelled is finished also when its caller stops waiting.
    pub(super) async fn set_points(
        &self,
        guild: GuildId,
        member: MemberId,
        amount: i64,
        cancellation: Cancellation,
    ) -> Answer {
        let (answer, mut answered) = oneshot::channel();
        let job = Job { guild, member, amount, queued: Instant::now(), cancellation: cancellation.clone(), answer };
        let stopped = || StoreError::Failed("the store's writer has stopped; start the server again".to_owned());
        self.queue.try_send(job).map_err(|e| match e {
            TrySendError::Full(_) => StoreError::Busy(format!("{QUEUE} writes wait already")),
            TrySendError::Closed(_) => stopped(),
        })?;
        let answer = match timeout(LOCK, &mut answered).await {
            Ok(answer) => answer,
            Err(_) => {
                cancellation.cancel_unless(|| Err(not_in_time(&self.location)))?;
                answered.await // it is being committed, which has a deadline of its own
            }
        };
        answer.unwrap_or_else(|_| Err(StoreError::of_lost_writer()))
    }
}

fn not_in_time(location: &str) -> StoreError {
    StoreError::Busy(format!("{location} could not be written to within {LOCK:?}; nothing was written, try again"))
}

/// Writes what is queued.
pub(super) struct WriterTask {
    jobs: mpsc::Receiver<Job>,
    location: String,
    node: Arc<AtomicI64>,
    feed_kept: i64,
    connection: DedicatedConnection,
}

impl WriterTask {
    /// Runs until the [`Writer`] is dropped and the queue is empty.
    pub(super) async fn run(mut self) {
        let mut group = Vec::with_capacity(GROUP);
        while let Some(first) = self.jobs.recv().await {
            group.push(first);
            self.take_queued(&mut group);
            self.write_group(&mut group).await;
        }
    }

    fn take_queued(&mut self, group: &mut Vec<Job>) {
        while group.len() < GROUP
            && let Ok(job) = self.jobs.try_recv()
        {
            group.push(job);
        }
    }

    /// Tries until the group is written, or each job in it has waited for [`LOCK`]; leaves it empty.
    async fn write_group(&mut self, group: &mut Vec<Job>) {
        let mut reconnected = false;
        loop {
            refuse_cancelled(group);
            self.refuse_expired(group);
            let Some(until) = group.iter().map(|job| job.queued + LOCK).min() else { return };
            match self.write(group, until).await {
                Ok(names) => {
                    return group.drain(..).for_each(|job| {
                        let name = names.get(&(job.guild.clone(), job.member)).cloned();
                        // The caller may have stopped waiting; the write stays.
                        let _ = job.answer.send(name.ok_or(StoreError::GuildDeparted(job.guild)));
                    });
                }
                // Nothing was written. Jobs queued meanwhile join the group, each until its own deadline.
                Err(WriteError::NotWritten(error))
                    if error.is_lock_timeout() || matches!(error, CallError::Timeout) =>
                {
                    self.take_queued(group);
                }
                Err(WriteError::Cancelled) => {}
                // An idle connection is dead after the server restarted or another took its place: once more.
                Err(WriteError::NotWritten(error)) if error.is_disconnect() && !reconnected => reconnected = true,
                Err(WriteError::NotWritten(error)) => return refuse(group, &error.into_store_error(&self.location)),
                Err(WriteError::Unknown(error)) => {
                    // It may have happened. Under another node number the feed reports it to us as well.
                    if let Ok(node) = draw_node() {
                        self.node.store(node, Ordering::SeqCst);
                    }
                    return refuse(group, &error.into_unknown_outcome(&self.location));
                }
            }
        }
    }

    fn refuse_expired(&self, group: &mut Vec<Job>) {
        let now = Instant::now();
        for job in group.extract_if(.., |job| job.queued + LOCK <= now) {
            let _ = job.answer.send(Err(not_in_time(&self.location)));
        }
    }

    /// One transaction: everything but the commit by `until`, and then the commit, at which the writes begin. A server
    /// that was never told to commit writes nothing.
    async fn write(&mut self, group: &[Job], until: Instant) -> Result<Names, WriteError> {
        let client = self.connection.take(until).await.map_err(WriteError::NotWritten)?;
        let set = timeout_at(until, self.set(&client, group, until)).await;
        let set = set.map_or(Err(CallError::Timeout), |set| set.map_err(CallError::Server));
        let names = set.and_then(|rows| Ok(rows.iter().map(name_of_member).collect::<Result<Names, _>>()?));
        let names = match names.map_err(WriteError::NotWritten) {
            Ok(names) if begin_all(group) => names,
            refused => {
                let error = refused.err().unwrap_or(WriteError::Cancelled);
                if error.leaves_usable_connection() && batch(&client, Instant::now() + COMMIT, "ROLLBACK").await.is_ok()
                {
                    self.connection.put_back(client);
                }
                return Err(error);
            }
        };
        let done = timeout(COMMIT, self.commit(&client, &names)).await;
        let done = done.map_or(Err(CallError::Timeout), |done| done.map_err(CallError::Server));
        done.map_err(WriteError::Unknown)?;
        self.connection.put_back(client);
        Ok(names)
    }

    /// Everything but the commit. The statements are sent in the order in which they are polled, without waiting
    /// for answers in between.
    async fn set(&self, client: &Client, group: &[Job], until: Instant) -> Result<Vec<Row>, Error> {
        // Of two writes to one member the later one counts, since they are committed together.
        let mut last = HashMap::with_capacity(group.len());
        for job in group {
            last.insert((job.guild.as_str(), job.member.as_i64()), job.amount);
        }
        let (who, amounts): (Vec<(&str, i64)>, Vec<i64>) = last.into_iter().unzip();
        let (guilds, members): (Vec<&str>, Vec<i64>) = who.into_iter().unzip();
        let set = client.prepare_cached(SET_POINTS).await?;
        // Prepared now, so that the commit does not hold the lock for longer.
        client.prepare_cached(NUMBER).await?;
        let begin = begin(until.saturating_duration_since(Instant::now()));
        let values: Params<'_> = &[&guilds, &members, &amounts];
        let (_, rows) = future::try_join(client.batch_execute(&begin), client.query(&set, values)).await?;
        Ok(rows)
    }

    /// Adds the change to the feed, and commits. Where the first fails, the server undoes all of it.
    async fn commit(&self, client: &Client, names: &Names) -> Result<(), Error> {
        let number = client.prepare_cached(NUMBER).await?;
        let mut changes = ChangeSet::default();
        names.keys().for_each(|(_, member)| changes.add(&Change::Member(*member)));
        let node = self.node.load(Ordering::SeqCst);
        let added = async {
            for (kind, ids) in change_rows(&changes) {
                client.query(&number, &[&node, &kind, &ids, &self.feed_kept, &PRUNE_EVERY]).await?;
            }
            Ok(())
        };
        future::try_join(added, client.batch_execute("COMMIT")).await.map(drop)
    }
}

/// Answers and removes the writes that were cancelled.
fn refuse_cancelled(group: &mut Vec<Job>) {
    for job in group.extract_if(.., |job| job.cancellation.is_cancelled()) {
        let _ = job.answer.send(Err(StoreError::of_cancelled_write()));
    }
}

/// Begins all writes of the group, or none if one was cancelled.
fn begin_all(group: &[Job]) -> bool {
    let is_whole = group.iter().all(|job| job.cancellation.begin());
    if !is_whole {
        group.iter().for_each(|job| job.cancellation.requeue());
    }
    is_whole
}

/// Answers each job of the group with the same error.
fn refuse(group: &mut Vec<Job>, error: &StoreError) {
    group.drain(..).for_each(|job| drop(job.answer.send(Err(error.clone()))));
}

fn name_of_member(row: &Row) -> Result<((GuildId, MemberId), String), StoreError> {
    Ok(((super::parsed(row, 0)?, super::member_id(row, 1)?), column(row, 2)?))
}

enum WriteError {
    /// It came before the commit was sent: nothing was written, nor will be.
    NotWritten(CallError),
    /// Writes of the group were cancelled: nothing was written, and the others are written without them.
    Cancelled,
    /// The commit was sent, and may have happened.
    Unknown(CallError),
}

impl WriteError {
    fn leaves_usable_connection(&self) -> bool {
        match self {
            WriteError::Cancelled => true,
            WriteError::NotWritten(error) => !error.is_disconnect() && !matches!(error, CallError::Timeout),
            WriteError::Unknown(_) => false,
        }
    }
}
