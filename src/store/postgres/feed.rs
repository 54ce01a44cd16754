//! The change feed. Each transaction adds what it changed to the table `change`, numbered without a gap; other
//! nodes read it by number. `NOTIFY` only makes them read sooner: they read several times a second in any case,
//! so that a lost notice delays a change and loses none.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use deadpool_postgres::ClientWrapper as Client;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Row;

use super::column;
use super::connector::Session;
use super::dedicated::DedicatedConnection;
use super::error::CallError;
use super::pool::{Pool, rows};
use crate::store::change_set::ChangeSet;
use crate::store::{Change, StoreError};

/// When to read again without a notice. With [`ANSWER`] and the follower's own step it stays well within the
/// second that guarantees 2 and 7 allow.
const INTERVAL: Duration = Duration::from_millis(150);

/// The shortest time between two reads, so that many commits at once take one read.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// How long a read may take before the feed counts as lost.
const ANSWER: Duration = Duration::from_millis(600);

/// Changes read at once; a follower that is further behind gets [`Change::Everything`]. At 512 members each they
/// are 8 MiB.
const READ_AT_ONCE: i64 = 2048;

/// From the newest back. Where the oldest of them is not the last one known, some were missed.
const SINCE: &str = "SELECT seq, node, kind, CASE WHEN seq > $1 THEN members END FROM change \
    WHERE seq >= $1 ORDER BY seq DESC LIMIT $2";

const NEWEST: &str = "SELECT seq, node FROM change ORDER BY seq DESC LIMIT 1";

/// A change's number, and the node that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Newest {
    pub(super) seq: i64,
    pub(super) node: i64,
}

/// Reads the changes that other nodes make.
#[derive(Debug)]
pub(super) struct Feed {
    node: Arc<AtomicI64>,
    notices: Arc<Notify>,
    location: String,
    position: Mutex<Position>,
}

#[derive(Debug)]
struct Position {
    connection: DedicatedConnection,
    /// The newest change read; `None` where there has been none. It counts for the connection that it was read
    /// on: a new one may lead to another server, such as a standby that took over without the last commits and
    /// gives their numbers to others.
    last: Option<Newest>,
}

impl Feed {
    /// Starts after the change `last`, on a connection that notifies `notices` of commits.
    pub(super) fn new(
        pool: &Pool,
        node: Arc<AtomicI64>,
        notices: Arc<Notify>,
        session: Session,
        last: Option<Newest>,
    ) -> Self {
        let mut connection = DedicatedConnection::new(pool.clone(), Some(notices.clone()));
        connection.put_back(session);
        let position = Mutex::new(Position { connection, last });
        Feed { node, notices, location: pool.location().to_owned(), position }
    }

    /// Waits for a notice, or until it is time to read in any case.
    pub(super) async fn wait_for_changes(&self) {
        sleep(MIN_INTERVAL).await;
        let _ = timeout(INTERVAL, self.notices.notified()).await;
    }

    pub(super) async fn changes(&self) -> Result<Vec<Change>, StoreError> {
        let mut position = self.position.lock().await;
        self.read(&mut position).await.map_err(|error| error.into_store_error(&self.location))
    }

    async fn read(&self, position: &mut Position) -> Result<Vec<Change>, CallError> {
        let session = position.connection.take(Instant::now() + ANSWER).await?;
        let changes = self.read_on(&session, position).await?;
        position.connection.put_back(session);
        Ok(changes)
    }

    async fn read_on(&self, client: &Client, position: &mut Position) -> Result<Vec<Change>, CallError> {
        let until = Instant::now() + ANSWER;
        if position.connection.is_new {
            position.last = newest(client, until).await?;
            position.connection.is_new = false;
            return Ok(vec![Change::Everything]);
        }
        let last = &mut position.last;
        let from = last.map_or(0, |last| last.seq);
        let found = rows(client, until, SINCE, &[&from, &READ_AT_ONCE]).await?;
        let (Some(first), Some(end)) = (found.first(), found.last()) else {
            let Some(_) = last else { return Ok(Vec::new()) };
            // The newest row is never pruned: the store was put back to an earlier state.
            *last = newest(client, until).await?;
            return Ok(vec![Change::Everything]);
        };
        let (newest, oldest) = (Newest::of(first)?, Newest::of(end)?);
        // Without a last one, number 1 is the first; it is missed only where it was pruned.
        let is_complete = last.map_or(oldest.seq == 1, |last| oldest == last);
        let (own, mut changes) = (self.node.load(Ordering::SeqCst), ChangeSet::default());
        for row in &found {
            let change = Newest::of(row)?;
            if change.seq > from && change.node != own {
                let members: Option<&[u8]> = column(row, 3)?;
                changes.add_row(column::<i16>(row, 2)?.into(), members.unwrap_or_default());
            }
        }
        *last = Some(newest);
        Ok(changes.into_changes(!is_complete))
    }
}

/// The newest change there is.
pub(super) async fn newest(client: &Client, until: Instant) -> Result<Option<Newest>, CallError> {
    let found = rows(client, until, NEWEST, &[]).await?;
    Ok(found.first().map(Newest::of).transpose()?)
}

impl Newest {
    fn of(row: &Row) -> Result<Self, StoreError> {
        Ok(Newest { seq: column(row, 0)?, node: column(row, 1)? })
    }
}
