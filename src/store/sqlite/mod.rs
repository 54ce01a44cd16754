//! The store in an SQLite file: one writing thread (group commit), readers that do not wait for
//! it, and a numbered feed of changes for other processes.

mod access; // whose the files are
mod backup; // store backup
mod checks; // what tables demand of their rows
mod daily; // what is counted of keys in a day
mod directory; // guilds and keys
mod failure;
pub(super) mod feed;
pub(super) mod lineage; // which log belongs to which file
mod look; // without changing anything
mod members; // members, their warns and reviews
pub(super) mod open;
mod open_file; // is it still the store?
mod readers;
mod restore; // store restore
mod schema; // is it the one we make?
#[cfg(test)]
pub(in crate::store) mod tests;
mod text; // is it UTF-8?
mod verify; // store verify
mod writer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, params};

use super::{Change, IfMissing, Standing, Store, StoreError, marks, refusals, under_way};
use crate::model::{GuildId, MemberId, Review, Warn};
pub use backup::Copied;
use feed::Feed;
use open::Prepared;
use readers::Readers;
use writer::{Fault, Plan, Writer, Writes};

pub use restore::Restored;
pub use verify::{Flaw, Report};

pub(super) use failure::of as file_failure;

/// How long a write waits for another process's lock, such as an import's (contract section 2).
pub const BUSY_WAIT: Duration = Duration::from_secs(2);

/// How often a follower asks what others changed. Guarantee 7 allows a second; a look costs a few
/// microseconds.
const POLL: Duration = Duration::from_millis(100);

const SET_POINTS: &str = "INSERT INTO member (guild, member, name, points) \
    SELECT no, ?2, ?3, ?4 FROM guild WHERE id = ?1 AND gone = 0 \
    ON CONFLICT (guild, member) DO UPDATE SET points = excluded.points RETURNING name";

/// What may be set about a store; the defaults are the contract's.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a write waits for another process's lock, from its queueing on.
    pub busy_wait: Duration,
    /// Changes kept for others to read; who is further behind is told [`Change::Everything`].
    pub feed_kept: i64,
    /// What opening does where there is no store.
    pub if_missing: IfMissing,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { busy_wait: BUSY_WAIT, feed_kept: marks::KEPT, if_missing: IfMissing::Make }
    }
}

/// A store in an SQLite file. Dropping it finishes the writes that are queued.
#[derive(Debug)]
pub struct SqliteStore {
    // Dropped in this order: the writer's connection closes last and so tidies the WAL away.
    feed: Mutex<Feed>,
    readers: Readers,
    writer: Writer,
    path: PathBuf,
    node: i64,
    feed_kept: i64,
    /// What a crash left was in the file when the store was opened.
    settled: bool,
    /// This opening made it.
    is_new: bool,
}

impl SqliteStore {
    /// Opens the store, making the file (mode 0600) and bringing its schema up to date if need be.
    /// A file that cannot be used is named with what to do about it. Blocks.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, Settings::default())
    }

    /// As [`SqliteStore::open`], with settings of one's own.
    pub fn open_with(path: impl AsRef<Path>, settings: Settings) -> Result<Self, StoreError> {
        // Absolute, so that no name has a meaning of its own to SQLite, as ":memory:" has.
        let path = std::path::absolute(path.as_ref())
            .map_err(|e| StoreError::Failed(format!("'{}' is no name for a store: {e}", path.as_ref().display())))?;
        // First: it may be what fills the disk.
        under_way::remove_leftovers(&path, under_way::STAGED);
        let Prepared { conn, file, settled, is_new } = open::prepare(&path, settings.if_missing)?;
        if !settled {
            tracing::warn!(
                "the disk of {} is full: what is in its -wal has no room in the file; reads go on, and until there is \
                 room writes are refused",
                path.display()
            );
        }
        let node = getrandom::u64().map_err(|e| StoreError::Failed(format!("no random number to be had: {e}")))?;
        let node = node.cast_signed();
        let Settings { busy_wait, feed_kept, .. } = settings;
        let plan = Plan { path: path.clone(), file: file.clone(), node, busy_wait, feed_kept };
        let writer = Writer::start(plan, settled)?;
        let readers = Readers::open(&path)?;
        let feed = Mutex::new(Feed::open(&path, file, node)?);
        drop(conn);
        Ok(SqliteStore { feed, readers, writer, path, node, feed_kept, settled, is_new })
    }

    /// What there is of the store at `path`, found by looking: an older one is brought up to date by
    /// [`SqliteStore::open`], and not by looking.
    pub fn look(path: &Path) -> Result<Standing, StoreError> {
        if !path.metadata().is_ok_and(|file| file.len() > 0) {
            return Ok(Standing::Missing);
        }
        Ok(if open::is_up_to_date(path)? { Standing::Usable } else { Standing::Older })
    }

    /// Refuses where there is no file at all.
    pub fn must_exist(path: &Path) -> Result<(), StoreError> {
        if path.exists() { Ok(()) } else { Err(refusals::no_store(path.display())) }
    }

    /// Copies the store at `from` to `to`, as it is at one moment, while others may go on writing to it
    /// (its WAL grows by what they write). `to` is replaced whole or not at all, and never a store in
    /// use. Answers the copy's size in bytes. Blocks.
    pub fn backup(from: &Path, to: &Path, told: &mut dyn FnMut(Copied)) -> Result<u64, StoreError> {
        backup::backup(from, to, told)
    }

    /// Puts a copy of the backup `from` in the place of the store at `store`; what was there is set aside by another
    /// name, together with its log. Refused while a process has the store open, and where `from` is not sound. Blocks.
    pub fn restore(from: &Path, store: &Path, told: &mut dyn FnMut(Copied)) -> Result<Restored, StoreError> {
        restore::restore(from, store, told)
    }

    /// Looks at all of the store at `path` for what is wrong with it, and changes nothing. Blocks, for
    /// as long as reading the whole file takes.
    pub fn verify(path: &Path) -> Result<Report, StoreError> {
        verify::verify(path)
    }

    /// Whether this opening made the store.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Waits until the writing thread has ended, which only a defect brings about while the store is open.
    pub async fn writer_ended(&self) {
        self.writer.ended().await;
    }

    /// The store's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who changed it, as the change feed names this opening of the store.
    pub(super) fn node(&self) -> i64 {
        self.node
    }

    pub(super) fn feed_kept(&self) -> i64 {
        self.feed_kept
    }

    /// Before a connection of one's own writes: sees to it that what a crash left is in the file.
    pub(super) fn settle(&self, conn: &Connection) -> Result<(), StoreError> {
        if self.settled || open::is_settled(conn).map_err(|e| failure::of(&self.path, &e))? {
            return Ok(());
        }
        Err(StoreError::Busy(format!("another process is reading from {}; try again", self.path.display())))
    }

    /// Runs `work` in the writer's transaction, all of it or nothing.
    async fn write<T: Send + 'static>(
        &self,
        mark: Change,
        work: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.writer.run(Writes::Several, move |conn| work(conn).map(|made| (made, Some(mark)))).await
    }
}

impl Store for SqliteStore {
    async fn points(&self, guild: &GuildId, member: MemberId) -> Result<i64, StoreError> {
        self.readers.points(guild, member)
    }

    async fn warns(&self, guild: &GuildId, member: MemberId, now: i64) -> Result<Vec<Warn>, StoreError> {
        self.readers.warns(guild, member, now)
    }

    async fn reviews(&self, guild: &GuildId, member: MemberId) -> Result<Vec<Review>, StoreError> {
        self.readers.reviews(guild, member)
    }

    async fn set_points(&self, guild: &GuildId, member: MemberId, amount: i64) -> Result<String, StoreError> {
        let guild = guild.clone();
        let set = move |conn: &Connection| {
            let name = member.to_string();
            conn.prepare_cached(SET_POINTS)?
                .query_row(params![guild.as_str(), member.as_i64(), name, amount], |row| row.get(0))
                .optional()?
                .map(|name| (name, Some(Change::Member(member))))
                .ok_or(Fault::Own(StoreError::GuildGone(guild)))
        };
        self.writer.run(Writes::Once, set).await
    }

    async fn changes(&self) -> Result<Vec<Change>, StoreError> {
        self.feed.lock().changes()
    }

    async fn stirred(&self) {
        tokio::time::sleep(POLL).await;
    }
}
