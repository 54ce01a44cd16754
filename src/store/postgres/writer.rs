//! Group commit for setPoints: one writer takes what is queued, sends it in one transaction, one
//! statement for all, and answers everyone in it after the commit.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use deadpool_postgres::ClientWrapper;
use futures_util::future;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::{Error, Row};

use super::connect::Dialer;
use super::failure::Trouble;
use super::line::Line;
use super::pool::{Params, batch, given_up};
use super::transaction::{COMMIT, NUMBER, begin, numbered};
use super::{LOCK, column, draw_node};
use crate::model::{GuildId, MemberId};
use crate::store::marks::{Marks, PRUNE_EVERY};
use crate::store::{Change, StoreError};

/// Jobs that may wait. A queue that is longer would only answer later, and hold more memory.
const QUEUE: usize = 16_384;

/// Jobs in one transaction. More gain nothing, the commit being shared by so many already, and each
/// waits for the whole group.
const GROUP: usize = 512;

/// Sets members' points, given as three arrays without a member twice; answers who they are by name.
/// Members of guilds that are gone are not among them.
const SET_POINTS: &str = "INSERT INTO member (guild, member, name, points) \
    SELECT g.no, a.member, a.member::text, a.amount \
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS a (guild, member, amount) \
    JOIN guild g ON g.id = a.guild AND NOT g.gone \
    ON CONFLICT (guild, member) DO UPDATE SET points = excluded.points \
    RETURNING (SELECT id FROM guild WHERE no = member.guild), member, name";

type Answer = Result<String, StoreError>;

/// Who was written, and what they are called.
type Names = HashMap<(GuildId, MemberId), String>;

struct Job {
    guild: GuildId,
    member: MemberId,
    amount: i64,
    queued: Instant,
    /// Set by whoever is first: the writer, which will answer, or the caller, who goes away.
    claimed: Arc<AtomicBool>,
    answer: oneshot::Sender<Answer>,
}

/// The way to the writer, whose life ends with it.
#[derive(Debug)]
pub(super) struct Writer {
    queue: mpsc::Sender<Job>,
    dialer: Arc<Dialer>,
}

impl Writer {
    pub(super) fn new(dialer: Arc<Dialer>, node: Arc<AtomicI64>, feed_kept: i64) -> (Self, Desk) {
        let (queue, jobs) = mpsc::channel(QUEUE);
        (Writer { queue, dialer: dialer.clone() }, Desk { jobs, dialer, node, feed_kept, line: Line::default() })
    }

    /// Waits until the writer has ended: nothing is written any more.
    pub(super) async fn ended(&self) {
        self.queue.closed().await;
    }

    /// Queues a write and waits until it is committed, or for as long as a write waits. A caller that
    /// stops waiting harms nothing: what was begun is done all the same.
    pub(super) async fn set_points(&self, guild: GuildId, member: MemberId, amount: i64) -> Answer {
        let (answer, mut told) = oneshot::channel();
        let claimed = Arc::new(AtomicBool::new(false));
        let job = Job { guild, member, amount, queued: Instant::now(), claimed: claimed.clone(), answer };
        let gone = || StoreError::Failed("the store's writer has stopped; start the server again".to_owned());
        self.queue.try_send(job).map_err(|e| match e {
            TrySendError::Full(_) => StoreError::Busy(format!("{QUEUE} writes wait already")),
            TrySendError::Closed(_) => gone(),
        })?;
        match timeout(LOCK, &mut told).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(gone())),
            Err(_) if !claimed.swap(true, Ordering::SeqCst) => Err(late(self.dialer.place())),
            // It is being written; the deadlines of that hold.
            Err(_) => told.await.unwrap_or_else(|_| Err(gone())),
        }
    }
}

fn late(place: &str) -> StoreError {
    StoreError::Busy(format!("{place} could not be written to within {LOCK:?}; nothing was written, try again"))
}

/// The writer's own.
pub(super) struct Desk {
    jobs: mpsc::Receiver<Job>,
    dialer: Arc<Dialer>,
    node: Arc<AtomicI64>,
    feed_kept: i64,
    /// A connection that no reader can use up. What makes it outlives the group that asked for it.
    line: Line,
}

impl Desk {
    /// Until the last way to it is gone and the queue is empty.
    pub(super) async fn run(mut self) {
        let mut group = Vec::with_capacity(GROUP);
        while let Some(first) = self.jobs.recv().await {
            take(&mut group, first);
            self.take_more(&mut group);
            self.serve(&mut group).await;
        }
    }

    fn take_more(&mut self, group: &mut Vec<Job>) {
        while group.len() < GROUP
            && let Ok(job) = self.jobs.try_recv()
        {
            take(group, job);
        }
    }

    /// Tries until the group is written, or each in it has waited for long enough; leaves it empty.
    async fn serve(&mut self, group: &mut Vec<Job>) {
        let mut reconnected = false;
        loop {
            self.send_away_the_late(group);
            let Some(until) = group.iter().map(|job| job.queued + LOCK).min() else { return };
            match self.write(group, until).await {
                Ok(names) => {
                    return group.drain(..).for_each(|job| {
                        let name = names.get(&(job.guild.clone(), job.member)).cloned();
                        // The caller may have gone; what was written stays.
                        let _ = job.answer.send(name.ok_or(StoreError::GuildGone(job.guild)));
                    });
                }
                // Nothing was written. Who came meanwhile waits along, each until its own deadline.
                Err(Stop::Before(trouble)) if trouble.is_lock() || matches!(trouble, Trouble::Late) => {
                    self.take_more(group);
                }
                // A connection that died at rest, as all do when the server starts anew: once more.
                Err(Stop::Before(trouble)) if trouble.is_connections() && !reconnected => reconnected = true,
                Err(Stop::Before(trouble)) => {
                    let line = trouble.told(self.dialer.place());
                    return group.drain(..).for_each(|job| drop(job.answer.send(Err(line.clone()))));
                }
                Err(Stop::Commit(trouble)) => {
                    // Should it have happened, it is another's change to us: what we hold is in doubt.
                    if let Ok(other) = draw_node() {
                        self.node.store(other, Ordering::SeqCst);
                    }
                    let line = trouble.told_of_commit(self.dialer.place());
                    return group.drain(..).for_each(|job| drop(job.answer.send(Err(line.clone()))));
                }
            }
        }
    }

    fn send_away_the_late(&self, group: &mut Vec<Job>) {
        let now = Instant::now();
        for job in group.extract_if(.., |job| job.queued + LOCK <= now) {
            let _ = job.answer.send(Err(late(self.dialer.place())));
        }
    }

    /// One transaction: everything up to the commit by `until`, in one go, and then the commit. Nothing
    /// is written by a server that was never told to commit.
    async fn write(&mut self, group: &[Job], until: Instant) -> Result<Names, Stop> {
        let client = self.line.take(until, || self.dialer.dial_aside()).await.map_err(Stop::Before)?;
        let made = timeout_at(until, self.make(&client, group, until)).await;
        let rows = match made.map_err(|_| Stop::Before(Trouble::Late))? {
            Ok(rows) => rows,
            Err(error) => {
                let trouble = Trouble::Server(error);
                if !trouble.is_connections() && batch(&client, Instant::now() + COMMIT, "ROLLBACK").await.is_ok() {
                    self.line.put_back(client);
                }
                return Err(Stop::Before(trouble));
            }
        };
        let names = rows.iter().map(named).collect::<Result<Names, _>>();
        let names = names.map_err(|e| Stop::Before(Trouble::Own(e)))?;
        let until = Instant::now() + COMMIT;
        let done = timeout_at(until, self.commit(&client, &names)).await;
        done.map_err(|_| Stop::Commit(Trouble::Late))?.map_err(|e| Stop::Commit(Trouble::Server(e)))?;
        if !client.is_followed() {
            return Err(Stop::Commit(given_up()));
        }
        self.line.put_back(client);
        Ok(names)
    }

    /// Everything but the commit. What is polled first is sent first, and nothing waits for an answer
    /// in between.
    async fn make(&self, client: &ClientWrapper, group: &[Job], until: Instant) -> Result<Vec<Row>, Error> {
        // Of two writes to one member the later one counts: they are committed together.
        let mut last = HashMap::with_capacity(group.len());
        for job in group {
            last.insert((job.guild.as_str(), job.member.as_i64()), job.amount);
        }
        let (who, amounts): (Vec<(&str, i64)>, Vec<i64>) = last.into_iter().unzip();
        let (guilds, members): (Vec<&str>, Vec<i64>) = who.into_iter().unzip();
        let set = client.prepare_cached(SET_POINTS).await?;
        // For the commit, which is not to wait for it with the lock in hand.
        client.prepare_cached(NUMBER).await?;
        let begin = begin(until.saturating_duration_since(Instant::now()));
        let values: Params<'_> = &[&guilds, &members, &amounts];
        let (_, rows) = future::try_join(client.batch_execute(&begin), client.query(&set, values)).await?;
        Ok(rows)
    }

    /// Numbers what was changed, and commits. Where the number cannot be given, the server undoes it all.
    async fn commit(&self, client: &ClientWrapper, names: &Names) -> Result<(), Error> {
        let number = client.prepare_cached(NUMBER).await?;
        let mut marks = Marks::default();
        names.keys().for_each(|(_, member)| marks.add(&Change::Member(*member)));
        let node = self.node.load(Ordering::SeqCst);
        let told = async {
            for (kind, ids) in numbered(&marks) {
                client.query(&number, &[&node, &kind, &ids, &self.feed_kept, &PRUNE_EVERY]).await?;
            }
            Ok(())
        };
        future::try_join(told, client.batch_execute("COMMIT")).await.map(drop)
    }
}

fn take(group: &mut Vec<Job>, job: Job) {
    if !job.claimed.swap(true, Ordering::SeqCst) {
        group.push(job);
    }
}

fn named(row: &Row) -> Result<((GuildId, MemberId), String), StoreError> {
    Ok(((super::parsed(row, 0)?, super::member_id(row, 1)?), column(row, 2)?))
}

/// Where a transaction ended.
enum Stop {
    /// Before the commit was sent: nothing was written, nor will be.
    Before(Trouble),
    /// Nobody knows.
    Commit(Trouble),
}
