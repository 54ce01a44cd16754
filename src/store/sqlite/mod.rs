//! The store in an SQLite file: one writing thread (group commit), readers that do not wait for
//! it, and a numbered feed of changes for other processes.

mod access; // which files this user may use
mod backup; // store backup
mod commit_events; // when others may have committed
mod daily; // requests of each key in a day
mod directory; // guilds and keys
mod failure;
pub(super) mod feed;
mod inspect; // reading without changing anything
pub(super) mod lineage; // which WAL belongs to which file
mod members; // members, their warns and reviews
pub(super) mod open;
mod open_file; // whether the open files are still the store's
mod readers; // reads of requests, and the connections that read
mod reads; // which threads read
mod restore; // store restore
#[cfg(test)]
pub(in crate::store) mod tests;
mod verify; // store verify
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::{Cancellation, Change, IfMissing, Store, StoreError, StoreState, change_set, refusals, temp_file};
use crate::clock::Clock;
use crate::model::{GuildId, MemberId, Review, Warn};
pub use backup::Copied;
use commit_events::CommitEvents;
use failure::Failure;
use feed::Feed;
use open::Prepared;
use open_file::OpenFile;
use readers::Readers;
use reads::Reads;
use writer::{Writer, WriterSettings, Writes};

pub use restore::{PendingRestore, Restored};
pub use verify::Report;

pub(super) use directory::parsed;
pub(super) use failure::of as file_failure;
pub(super) use members::member_id;

/// How long a write waits for another process's lock, such as an import's (contract section 2).
pub const BUSY_WAIT: Duration = Duration::from_secs(2);

const SET_POINTS: &str = "INSERT INTO member (guild, member, name, points) \
    SELECT no, ?2, ?3, ?4 FROM guild WHERE id = ?1 AND gone = 0 \
    ON CONFLICT (guild, member) DO UPDATE SET points = excluded.points RETURNING name";

/// How a store is opened and written to; the defaults are the contract's.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a write waits for another process's lock, from its queueing on.
    pub busy_wait: Duration,
    /// Changes kept for followers to read; one that is further behind reads [`Change::Everything`].
    pub feed_kept: i64,
    /// What opening does where there is no store.
    pub if_missing: IfMissing,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { busy_wait: BUSY_WAIT, feed_kept: change_set::KEPT, if_missing: IfMissing::Make }
    }
}

/// A store in an SQLite file. Dropping it finishes the writes that are queued.
#[derive(Debug)]
pub struct SqliteStore {
    // Dropped in this order: the writer's connection closes last, and removes the WAL.
    reads: Reads,
    commits: CommitEvents,
    writer: Writer,
    path: PathBuf,
    file: OpenFile,
    node: Arc<AtomicI64>,
    busy_wait: Duration,
    feed_kept: i64,
    /// What a crash left in the WAL was in the file when the store was opened.
    is_checkpointed: bool,
    /// Opening made it.
    is_new: bool,
}

impl SqliteStore {
    /// Opens the store, making the file (mode 0600) and bringing its schema up to date if need be.
    /// The error for a file that cannot be used says what to do about it. Blocks.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, Settings::default())
    }

    /// As [`SqliteStore::open`], with settings of one's own.
    pub fn open_with(path: impl AsRef<Path>, settings: Settings) -> Result<Self, StoreError> {
        // Absolute, so that no name has a special meaning to SQLite, as ":memory:" has.
        let path = std::path::absolute(path.as_ref())
            .map_err(|e| StoreError::Failed(format!("'{}' is no name for a store: {e}", path.as_ref().display())))?;
        // First, since these may fill the disk.
        temp_file::remove_leftovers(&path, temp_file::STAGED);
        let Prepared { conn, file, is_checkpointed, is_new } = open::prepare(&path, settings.if_missing)?;
        if !is_checkpointed {
            tracing::warn!(
                "the disk of {} is full: the file has no room for what is in its -wal; reads go on, and writes are \
                 refused until there is room",
                path.display()
            );
        }
        let Settings { busy_wait, feed_kept, .. } = settings;
        let store = Self::connect(path, file, (busy_wait, feed_kept), is_checkpointed)?;
        drop(conn);
        Ok(SqliteStore { is_new, ..store })
    }

    /// Connections of their own to the store that this one has open, and a place of their own in the change feed. Blocks.
    pub(super) fn open_again(&self) -> Result<Self, StoreError> {
        let waits = (self.busy_wait, self.feed_kept);
        let mut store = Self::connect(self.path.clone(), self.file.clone(), waits, self.is_checkpointed)?;
        store.reads.lists_within = Some(reads::LIST_WITHIN);
        Ok(store)
    }

    fn connect(
        path: PathBuf,
        file: OpenFile,
        (busy_wait, feed_kept): (Duration, i64),
        is_checkpointed: bool,
    ) -> Result<Self, StoreError> {
        let node =
            getrandom::u64().map_err(|e| StoreError::Failed(format!("the system gives no random number: {e}")))?;
        let node = Arc::new(AtomicI64::new(node.cast_signed()));
        let settings =
            WriterSettings { path: path.clone(), file: file.clone(), node: node.clone(), busy_wait, feed_kept };
        let writer = Writer::start(settings, is_checkpointed)?;
        let readers = Readers::open(&path)?;
        let feed = Feed::open(&path, file.clone(), node.clone())?;
        Ok(SqliteStore {
            reads: Reads::start(readers, feed, &path, Clock::system())?,
            commits: CommitEvents::of(file.wal()),
            writer,
            path,
            file,
            node,
            busy_wait,
            feed_kept,
            is_checkpointed,
            is_new: false,
        })
    }

    /// The state of the store at `path`. Changes nothing.
    pub fn state(path: &Path) -> Result<StoreState, StoreError> {
        if !path.metadata().is_ok_and(|file| file.len() > 0) {
            return Ok(StoreState::Missing);
        }
        Ok(if open::is_up_to_date(path)? { StoreState::Current } else { StoreState::Older })
    }

    /// Refuses a missing store. A broken link, or a write-ahead log without its file, is reported with the message of
    /// `serve`.
    pub fn must_exist(path: &Path) -> Result<(), StoreError> {
        if path.exists() {
            return Ok(());
        }
        Self::refuse_broken_link(path)?;
        lineage::refuse_foreign_wal(path)?;
        Err(refusals::no_store(path.display()))
    }

    /// Whether this opening made the store.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Waits until the writing thread has ended, which only a defect causes while the store is open.
    pub async fn writer_ended(&self) {
        self.writer.ended().await;
    }

    /// The store's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who made a change, in the change feed: drawn at each opening of the store.
    pub(super) fn node(&self) -> i64 {
        self.node.load(Ordering::SeqCst)
    }

    /// The caller of a write has stopped waiting, and it may still be committed: under another number the feed tells this
    /// store of it as well.
    pub fn hear_late_write(&self) {
        self.node.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn feed_kept(&self) -> i64 {
        self.feed_kept
    }

    /// Makes sure that what a crash left in the WAL is in the file, before `conn` writes.
    pub(super) fn ensure_checkpointed(&self, conn: &Connection) -> Result<(), StoreError> {
        if self.is_checkpointed || open::checkpoint(conn).map_err(|e| failure::of(&self.path, &e))? {
            return Ok(());
        }
        Err(StoreError::Busy(format!("another process is reading from {}; try again", self.path.display())))
    }

    /// Runs `work` in the writer's transaction, all of it or nothing.
    async fn write<T: Send + 'static>(
        &self,
        mark: Change,
        work: impl FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.writer.run(Writes::Several, move |conn| work(conn).map(|made| (made, Some(mark)))).await
    }
}

impl Store for SqliteStore {
    async fn points(&self, guild: &GuildId, member: MemberId) -> Result<i64, StoreError> {
        let guild = guild.clone();
        self.reads.for_request(move |readers| readers.points(&guild, member)).await
    }

    async fn warns(&self, guild: &GuildId, member: MemberId, now: i64) -> Result<Vec<Warn>, StoreError> {
        let guild = guild.clone();
        self.reads.for_request(move |readers| readers.warns(&guild, member, now)).await
    }

    async fn reviews(&self, guild: &GuildId, member: MemberId) -> Result<Vec<Review>, StoreError> {
        let guild = guild.clone();
        self.reads.for_request(move |readers| readers.reviews(&guild, member)).await
    }

    async fn set_points_unless_cancelled(
        &self,
        guild: &GuildId,
        member: MemberId,
        amount: i64,
        cancellation: &Cancellation,
    ) -> Result<String, StoreError> {
        let (guild, cancellation) = (guild.clone(), cancellation.clone());
        let set = move |conn: &Connection| {
            if !cancellation.begin() {
                return Err(Failure::Store(StoreError::of_cancelled_write()));
            }
            let name = member.to_string();
            conn.prepare_cached(SET_POINTS)?
                .query_row(params![guild.as_str(), member.as_i64(), name, amount], |row| row.get(0))
                .optional()?
                .map(|name| (name, Some(Change::Member(member))))
                .ok_or(Failure::Store(StoreError::GuildDeparted(guild)))
        };
        self.writer.run(Writes::Once, set).await
    }

    async fn changes(&self) -> Result<Vec<Change>, StoreError> {
        self.reads.changes()
    }

    async fn wait_for_changes(&self) {
        self.commits.next().await;
    }
}
