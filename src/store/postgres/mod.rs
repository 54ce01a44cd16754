//! The store in PostgreSQL: a pool of connections for what waits for nobody else, one writer for
//! setPoints (group commit), and a numbered feed of changes for other nodes.

mod connect;
mod daily; // what is counted of keys in a day
mod directory; // guilds and keys
mod errand; // import and export
mod failure;
mod feed;
mod home; // the thread on which the connections live
mod hosts; // which server is asked first
mod line; // a connection of one's own
mod lists; // guilds and keys, as lists
mod members; // members, their warns and reviews
mod pool;
mod schema;
mod slots; // a server without room for another connection
#[cfg(test)]
mod tests;
mod tls;
mod transaction;
mod writer;

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::{Change, IfMissing, Standing, Store, StoreError, marks};
use crate::config::PostgresAt;
use crate::model::{GuildId, MemberId, Review, Warn};
use connect::Dialer;
pub(super) use errand::Errand;
use feed::Feed;
use home::Home;
use lists::Lists;
use pool::Pool;
use schema::Prepared;
use writer::Writer;

/// Connections for reads and single changes; the writer, the feed and the lists have one each besides. A
/// query takes a fraction of a millisecond, so sixteen do tens of thousands a second, and five nodes
/// fit into a server's usual hundred connections.
const CONNECTIONS: usize = 16;

/// How long a read may take, a place in the pool and a new connection included; then 21. A caller has
/// better to do than to wait longer, and the server is told to give up as well.
const READ: Duration = Duration::from_secs(2);

/// How long a list may take, such as that of a hundred thousand keys.
const LIST: Duration = Duration::from_secs(4);

/// How long a write waits for another node's, such as an import's (contract section 2).
const LOCK: Duration = Duration::from_secs(2);

const POINTS: &str = "SELECT g.gone, m.points FROM guild g \
    LEFT JOIN member m ON m.guild = g.no AND m.member = $2 WHERE g.id = $1";

// One statement, so one snapshot: a row with a NULL id is a guild whose member has none.
const WARNS: &str = "SELECT w.id, w.author, w.reason, w.expires FROM guild g \
    LEFT JOIN warn w ON w.guild = g.no AND w.member = $2 AND w.expires > $3 \
    WHERE g.id = $1 AND NOT g.gone ORDER BY w.id";

const REVIEWS: &str = "SELECT r.id, r.author, r.rating, r.text FROM guild g \
    LEFT JOIN review r ON r.guild = g.no AND r.member = $2 \
    WHERE g.id = $1 AND NOT g.gone ORDER BY r.id";

/// What may be set about a store; the defaults are those in force.
#[derive(Clone, Copy, Debug)]
struct Settings {
    connections: usize,
    /// Changes kept for others to read; who is further behind is told [`Change::Everything`].
    feed_kept: i64,
    /// What opening does where there is no store.
    if_missing: IfMissing,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { connections: CONNECTIONS, feed_kept: marks::KEPT, if_missing: IfMissing::Make }
    }
}

/// A store in a PostgreSQL database, in the schema `guildgate`. Dropping it finishes the writes that
/// are queued.
#[derive(Debug)]
pub struct PostgresStore {
    // Dropped in this order: the writer's queue ends, and with it the thread.
    writer: Writer,
    pool: Pool,
    lists: Lists,
    feed: Feed,
    node: Arc<AtomicI64>,
    feed_kept: i64,
    /// This opening made it.
    is_new: bool,
    _home: Home,
}

impl PostgresStore {
    /// Connects, bringing the schema up to date, and making it where there is none if `if_missing` says so. A
    /// server that cannot be reached or used is named with what to do about it.
    pub async fn open(at: &PostgresAt, if_missing: IfMissing) -> Result<Self, StoreError> {
        Self::open_with(at, Settings { if_missing, ..Settings::default() }).await
    }

    async fn open_with(at: &PostgresAt, settings: Settings) -> Result<Self, StoreError> {
        let Settings { connections, feed_kept, if_missing } = settings;
        let node = Arc::new(AtomicI64::new(draw_node()?));
        let mut home = Home::start()?;
        let dialer = Arc::new(Dialer::new(at, home.handle())?);
        let (writer, desk) = Writer::new(dialer.clone(), node.clone(), feed_kept);
        home.live(desk.run());
        let noticed = Arc::default();
        let Prepared { ear, newest, is_new } = schema::prepare(&dialer, Arc::clone(&noticed), if_missing).await?;
        let pool = Pool::new(dialer.clone(), connections)?;
        let lists = Lists::new(dialer.clone());
        let feed = Feed::new(dialer, node.clone(), noticed, ear, newest);
        Ok(PostgresStore { writer, pool, lists, feed, node, feed_kept, is_new, _home: home })
    }

    /// The server, as an operator knows it.
    pub fn place(&self) -> &str {
        self.pool.place()
    }

    /// Whether this opening made the store.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Waits until the writer has ended, which only a defect brings about while the store is open.
    pub async fn writer_ended(&self) {
        self.writer.ended().await;
    }

    /// What is there of the store, by a connection that changes nothing.
    pub async fn look(at: &PostgresAt) -> Result<Standing, StoreError> {
        let home = Home::start()?;
        schema::look(&Arc::new(Dialer::new(at, home.handle())?)).await
    }
}

/// Who changes what, as the change feed names it.
fn draw_node() -> Result<i64, StoreError> {
    let node = getrandom::u64().map_err(|e| StoreError::Failed(format!("no random number to be had: {e}")))?;
    Ok(node.cast_signed())
}

/// A column of ours. Another type or NULL in it was put there by another hand.
pub(super) fn column<'r, T: FromSql<'r>>(row: &'r Row, column: usize) -> Result<T, StoreError> {
    row.try_get(column).map_err(|e| StoreError::Failed(format!("a row of the store does not belong there: {e}")))
}

/// A column that holds one of our own texts.
pub(super) fn parsed<T: std::str::FromStr>(row: &Row, at: usize) -> Result<T, StoreError> {
    let text: &str = column(row, at)?;
    text.parse().map_err(|_| StoreError::Failed(format!("'{text}' does not belong into the store")))
}

pub(super) fn member_id(row: &Row, at: usize) -> Result<MemberId, StoreError> {
    let id: i64 = column(row, at)?;
    let member = u64::try_from(id).ok().and_then(MemberId::new);
    member.ok_or_else(|| StoreError::Failed(format!("{id} is no member, and does not belong into the store")))
}

impl Store for PostgresStore {
    async fn points(&self, guild: &GuildId, member: MemberId) -> Result<i64, StoreError> {
        let rows = self.pool.read(POINTS, &[&guild.as_str(), &member.as_i64()]).await?;
        match rows.first() {
            Some(row) if !column::<bool>(row, 0)? => Ok(column::<Option<i64>>(row, 1)?.unwrap_or(0)),
            _ => Err(StoreError::GuildGone(guild.clone())),
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

    async fn set_points(&self, guild: &GuildId, member: MemberId, amount: i64) -> Result<String, StoreError> {
        self.writer.set_points(guild.clone(), member, amount).await
    }

    async fn changes(&self) -> Result<Vec<Change>, StoreError> {
        self.feed.changes().await
    }

    async fn stirred(&self) {
        self.feed.stirred().await;
    }
}

/// The rows of a guild that is there; one with a NULL id says only that it is.
fn of_member<T>(
    guild: &GuildId,
    rows: &[Row],
    each: impl Fn(i64, &Row) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    if rows.is_empty() {
        return Err(StoreError::GuildGone(guild.clone()));
    }
    let found = rows.iter().filter_map(|row| column::<Option<i64>>(row, 0).map(|id| Some((id?, row))).transpose());
    found.map(|found| found.and_then(|(id, row)| each(id, row))).collect()
}

fn rating(row: &Row, at: usize) -> Result<u8, StoreError> {
    let stars: i16 = column(row, at)?;
    u8::try_from(stars).map_err(|_| StoreError::Failed(format!("{stars} is no rating")))
}
