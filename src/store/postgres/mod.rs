//! The store in PostgreSQL: a pool of connections for reads and single changes, one writer for setPoints (group
//! commit), and a numbered feed of changes for other nodes.

mod bulk; // sessions for import and export
mod connector;
mod daily;
mod dedicated; // the connections that readers cannot use up
mod directory;
mod error;
mod feed;
mod members;
mod pool;
mod runtime;
mod schema;
#[cfg(test)]
mod tests;
mod tls;
mod transaction; // a single change
mod writer; // setPoints

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::{Cancellation, Change, IfMissing, Store, StoreError, StoreState, change_set};
use crate::config::PostgresAt;
use crate::model::{GuildId, MemberId, Review, Warn};
pub(super) use bulk::BulkSession;
use connector::Connector;
use dedicated::DedicatedConnection;
use feed::Feed;
use pool::Pool;
use runtime::StoreRuntime;
use schema::Prepared;
use writer::Writer;

/// Connections of the pool. The writer, the feed and the lists have another one each. A query takes a fraction of a
/// millisecond, so that sixteen do tens of thousands a second, and five nodes fit into the hundred connections that
/// a server usually allows.
const CONNECTIONS: usize = 16;

/// Those of a store that is opened once more in the same process.
const FEW_CONNECTIONS: usize = 2;

/// How long a read may take, with the wait for a connection; then the answer is 21.
const READ: Duration = Duration::from_secs(2);

/// How long a list may take, such as one of a hundred thousand keys. The server ends longer statements.
const LIST: Duration = Duration::from_secs(4);

/// How long a write waits for the write of another node, such as an import (contract section 2).
const LOCK: Duration = Duration::from_secs(2);

const POINTS: &str = "SELECT g.gone, m.points FROM guild g \
    LEFT JOIN member m ON m.guild = g.no AND m.member = $2 WHERE g.id = $1";

// One statement, so that it is one snapshot: a row with a NULL id is a guild whose member has none.
const WARNS: &str = "SELECT w.id, w.author, w.reason, w.expires FROM guild g \
    LEFT JOIN warn w ON w.guild = g.no AND w.member = $2 AND w.expires > $3 \
    WHERE g.id = $1 AND NOT g.gone ORDER BY w.id";

const REVIEWS: &str = "SELECT r.id, r.author, r.rating, r.text FROM guild g \
    LEFT JOIN review r ON r.guild = g.no AND r.member = $2 \
    WHERE g.id = $1 AND NOT g.gone ORDER BY r.id";

/// Settings of a store, which only tests change.
#[derive(Clone, Copy, Debug)]
struct Settings {
    connections: usize,
    /// Changes kept; a node that is further behind gets [`Change::Everything`].
    feed_kept: i64,
    /// What opening does where there is no store.
    if_missing: IfMissing,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { connections: CONNECTIONS, feed_kept: change_set::KEPT, if_missing: IfMissing::Make }
    }
}

/// A store in a PostgreSQL database, in the schema `guildgate`. Dropping it finishes the queued writes.
#[derive(Debug)]
pub struct PostgresStore {
    // Dropped in this order: the end of the queue ends the writer task, for which the runtime waits.
    writer: Writer,
    pool: Pool,
    /// For the lists of keys and guilds.
    lists: Mutex<DedicatedConnection>,
    feed: Feed,
    /// Identifies this node's changes in the feed.
    node: Arc<AtomicI64>,
    feed_kept: i64,
    /// This opening made it.
    is_new: bool,
    _runtime: StoreRuntime,
}

impl PostgresStore {
    /// Connects, and brings the schema up to date, or makes it if `if_missing` says so.
    ///
    /// # Errors
    /// Why the server cannot be reached or used, and what to do.
    pub async fn open(at: &PostgresAt, if_missing: IfMissing) -> Result<Self, StoreError> {
        Self::open_with(at, Settings { if_missing, ..Settings::default() }).await
    }

    /// Opens a store that this process has open already, for an admin's few requests.
    ///
    /// # Errors
    /// As [`PostgresStore::open`].
    pub async fn open_again(at: &PostgresAt) -> Result<Self, StoreError> {
        let settings = Settings { connections: FEW_CONNECTIONS, if_missing: IfMissing::Refuse, ..Settings::default() };
        Self::open_with(at, settings).await
    }

    async fn open_with(at: &PostgresAt, settings: Settings) -> Result<Self, StoreError> {
        let Settings { connections, feed_kept, if_missing } = settings;
        let node = Arc::new(AtomicI64::new(draw_node()?));
        let runtime = StoreRuntime::start()?;
        let connector = Arc::new(Connector::new(at, runtime.handle().clone())?);
        let notices = Arc::default();
        let Prepared { session, newest, is_new } =
            schema::prepare(&connector, Arc::clone(&notices), if_missing).await?;
        let pool = Pool::new(connector, connections)?;
        let (writer, task) = Writer::new(&pool, node.clone(), feed_kept);
        runtime.spawn_to_its_end(task.run());
        let lists = Mutex::new(DedicatedConnection::new(pool.clone(), None));
        let feed = Feed::new(&pool, node.clone(), notices, session, newest);
        Ok(PostgresStore { writer, pool, lists, feed, node, feed_kept, is_new, _runtime: runtime })
    }

    /// The server as messages name it.
    pub fn location(&self) -> &str {
        self.pool.location()
    }

    /// Whether this opening made the store.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Waits until the writer task has ended. While the store is open, only a defect ends it.
    pub async fn writer_ended(&self) {
        self.writer.ended().await;
    }

    /// The state of the store. Nothing is made or changed.
    pub async fn state(at: &PostgresAt) -> Result<StoreState, StoreError> {
        let runtime = StoreRuntime::start()?;
        schema::state(&Arc::new(Connector::new(at, runtime.handle().clone())?)).await
    }
}

/// A number that identifies a node's changes in the feed.
fn draw_node() -> Result<i64, StoreError> {
    let node = getrandom::u64().map_err(|e| StoreError::Failed(format!("cannot get a random number: {e}")))?;
    Ok(node.cast_signed())
}

/// A column of our tables. Another type or NULL there was written by another program.
pub(super) fn column<'r, T: FromSql<'r>>(row: &'r Row, column: usize) -> Result<T, StoreError> {
    row.try_get(column).map_err(|e| StoreError::Failed(format!("the store holds an invalid row: {e}")))
}

/// A text column, parsed.
pub(super) fn parsed<T: std::str::FromStr>(row: &Row, at: usize) -> Result<T, StoreError> {
    let text: &str = column(row, at)?;
    text.parse().map_err(|_| StoreError::Failed(format!("the store holds the invalid text '{text}'")))
}

pub(super) fn member_id(row: &Row, at: usize) -> Result<MemberId, StoreError> {
    let id: i64 = column(row, at)?;
    let member = u64::try_from(id).ok().and_then(MemberId::new);
    member.ok_or_else(|| StoreError::Failed(format!("the store holds the invalid member id {id}")))
}

impl Store for PostgresStore {
    async fn points(&self, guild: &GuildId, member: MemberId) -> Result<i64, StoreError> {
        let rows = self.pool.read(POINTS, &[&guild.as_str(), &member.as_i64()]).await?;
        match rows.first() {
            Some(row) if !column::<bool>(row, 0)? => Ok(column::<Option<i64>>(row, 1)?.unwrap_or(0)),
            _ => Err(StoreError::GuildDeparted(guild.clone())),
        }
    }

    async fn warns(&self, guild: &GuildId, member: MemberId, now: i64) -> Result<Vec<Warn>, StoreError> {
        let rows = self.pool.read(WARNS, &[&guild.as_str(), &member.as_i64(), &now]).await?;
        of_member(guild, &rows, |id, row| {
            Ok(Warn { id, author: column(row, 1)?, reason: column(row, 2)?, expires: column(row, 3)? })
        })
    }

    async fn reviews(&self, guild: &GuildId, member: MemberId) -> Result<Vec<Review>, StoreError> {
        let rows = self.pool.read(REVIEWS, &[&guild.as_str(), &member.as_i64()]).await?;
        of_member(guild, &rows, |id, row| {
            Ok(Review { id, author: column(row, 1)?, rating: rating(row, 2)?, text: column(row, 3)? })
        })
    }

    async fn set_points_unless_cancelled(
        &self,
        guild: &GuildId,
        member: MemberId,
        amount: i64,
        cancellation: &Cancellation,
    ) -> Result<String, StoreError> {
        self.writer.set_points(guild.clone(), member, amount, cancellation.clone()).await
    }

    async fn changes(&self) -> Result<Vec<Change>, StoreError> {
        self.feed.changes().await
    }

    async fn wait_for_changes(&self) {
        self.feed.wait_for_changes().await;
    }
}

/// The values of a member's rows. A row with a NULL id only says that the guild exists.
fn of_member<T>(
    guild: &GuildId,
    rows: &[Row],
    each: impl Fn(i64, &Row) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    if rows.is_empty() {
        return Err(StoreError::GuildDeparted(guild.clone()));
    }
    let found = rows.iter().filter_map(|row| column::<Option<i64>>(row, 0).map(|id| Some((id?, row))).transpose());
    found.map(|found| found.and_then(|(id, row)| each(id, row))).collect()
}

fn rating(row: &Row, at: usize) -> Result<u8, StoreError> {
    let stars: i16 = column(row, at)?;
    u8::try_from(stars).map_err(|_| StoreError::Failed(format!("the store holds the invalid rating {stars}")))
}
