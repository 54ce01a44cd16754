//! Guilds, keys and members on disk (contract section 1 "Built-in backend", guarantee 1), in an SQLite
//! file or in PostgreSQL: one set of traits and one suite of tests for both. No other module opens a store.

mod answers; // how long an answer may be
mod any;
mod cancellation; // of writes that wait for their turn
mod change_set;
mod note; // warns and reviews
mod postgres;
mod records;
mod refusals; // messages of both kinds
mod sqlite;
pub mod temp_file; // removed when dropped, or by the next command
pub mod transfer; // import and export: JSON Lines

#[cfg(test)]
pub(crate) mod suite;

use std::future::Future;

use crate::model::{Digest, GuildId, KeyId, MemberId, Review, Scope, Warn};

pub use any::{AnyStore, IfMissing, StoreState};
pub use cancellation::Cancellation;
pub use note::{Note, NoteRow};
pub use postgres::PostgresStore;
pub use records::*;
pub use sqlite::{Copied, PendingRestore, Report, Restored, Settings, SqliteStore};

/// How every SQLite file begins.
pub const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The suffixes of the files that SQLite keeps next to a database that it writes to.
pub const SQLITE_FILES: [&str; 3] = ["-wal", "-shm", "-journal"];

/// The operations of callers' requests. Reads return committed data; an acknowledged write survives kill -9 and power
/// loss (guarantee 1).
pub trait Store: Directory + Members + Daily + Send + Sync + 'static {
    /// A member's points; 0 where the guild does not know the member.
    fn points(&self, guild: &GuildId, member: MemberId) -> impl Future<Output = Result<i64, StoreError>> + Send;

    /// A member's warns whose `expires` is after `now` (Unix seconds), in ascending id order.
    fn warns(
        &self,
        guild: &GuildId,
        member: MemberId,
        now: i64,
    ) -> impl Future<Output = Result<Vec<Warn>, StoreError>> + Send;

    /// A member's reviews in ascending id order.
    fn reviews(
        &self,
        guild: &GuildId,
        member: MemberId,
    ) -> impl Future<Output = Result<Vec<Review>, StoreError>> + Send;

    /// Sets a member's points, and makes the member (named by its id) if there is none; returns its name.
    /// Durable when it answers. [`StoreError::Busy`] means that nothing was written.
    fn set_points(
        &self,
        guild: &GuildId,
        member: MemberId,
        amount: i64,
    ) -> impl Future<Output = Result<String, StoreError>> + Send {
        async move { self.set_points_unless_cancelled(guild, member, amount, &Cancellation::default()).await }
    }

    /// As [`Store::set_points`]. Cancelled before its turn among all writers, it writes nothing.
    fn set_points_unless_cancelled(
        &self,
        guild: &GuildId,
        member: MemberId,
        amount: i64,
        cancellation: &Cancellation,
    ) -> impl Future<Output = Result<String, StoreError>> + Send;

    /// Returns what others changed since the last call, or since the store was opened: everything committed
    /// before the call, except changes made through this object. An error means that the feed
    /// is lost for now. It returns within a fraction of a second, but for a file whose disk does not respond: that blocks
    /// its thread.
    fn changes(&self) -> impl Future<Output = Result<Vec<Change>, StoreError>> + Send;

    /// Waits until there may be changes: a fraction of a second at most.
    fn wait_for_changes(&self) -> impl Future<Output = ()> + Send;
}

/// Guilds and keys, of which the key table is made.
pub trait Directory {
    /// Every guild by id, including departed ones.
    fn guilds(&self) -> impl Future<Output = Result<Vec<GuildRecord>, StoreError>> + Send;

    /// Every key, by id.
    fn keys(&self) -> impl Future<Output = Result<Vec<KeyRecord>, StoreError>> + Send;

    /// The keys of a guild, or all, by id: so many after the id `after`.
    fn keys_page(
        &self,
        guild: Option<&GuildId>,
        after: Option<&str>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<KeyRecord>, StoreError>> + Send;

    /// The key of this id.
    fn key(&self, id: &str) -> impl Future<Output = Result<Option<KeyRecord>, StoreError>> + Send;

    /// Adds a guild. Refused: one that exists.
    fn add_guild(&self, guild: &GuildId, name: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Renames a guild. Refused: one that does not exist.
    fn rename_guild(&self, guild: &GuildId, name: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Removes a guild with its members, warns, reviews and keys. If it is added again, it has none of them, and ids
    /// of warns and reviews begin at 1. Followers read [`Change::Everything`], since answers cached before must not be
    /// given for a new guild of the same id. Refused: one that does not exist.
    fn remove_guild(&self, guild: &GuildId) -> impl Future<Output = Result<RemovedGuild, StoreError>> + Send;

    /// Records that a guild has departed (the bot has left it), or is back. Refused: one that does not exist.
    fn set_guild_departed(
        &self,
        guild: &GuildId,
        departed: bool,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Adds a key. Refused: an id or a digest that is taken, a guild that does not exist.
    fn create_key(&self, key: KeyRecord) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Gives a key another secret. The present one works until the Unix second `previous_until`; it ends at
    /// once if that is `None` or not after `now`. The secret before an earlier rotation ends at once in any
    /// case: a key has two at most. Refused: a key that does not exist or has expired, a digest that is taken.
    fn rotate_key(
        &self,
        id: &str,
        digest: Digest,
        previous_until: Option<i64>,
        now: i64,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Changes the given fields of a key. Refused: one that does not exist.
    fn set_key(&self, id: &str, change: KeyChange) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Removes a key with both its secrets. Refused: one that does not exist.
    fn revoke_key(&self, id: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Records when keys were last used (Unix seconds). No answer depends on it, so followers do not read it
    /// as a change; a key that was removed meanwhile is skipped.
    fn record_last_use(&self, used: Vec<(KeyId, i64)>) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Members, their warns and reviews, one record at a time. They may be changed while the bot is away from
/// the guild: only the callers' operations are answered with 03 then.
pub trait Members {
    /// Sets the given fields of a member, and makes the member if there is none.
    fn set_member(
        &self,
        guild: &GuildId,
        member: MemberId,
        name: Option<&str>,
        points: Option<i64>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// So many of a guild's members after the id `after`, in ascending id order.
    fn members(
        &self,
        guild: &GuildId,
        after: Option<MemberId>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<MemberRecord>, StoreError>> + Send;

    /// A member of a guild.
    fn member(
        &self,
        guild: &GuildId,
        member: MemberId,
    ) -> impl Future<Output = Result<Option<MemberRecord>, StoreError>> + Send;

    /// Removes a member with its warns and reviews. Refused: one that does not exist.
    fn remove_member(&self, guild: &GuildId, member: MemberId) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// So many of a guild's warns or reviews, or of one member's, after the id `after`, by id; expired ones too.
    fn notes<N: Note>(
        &self,
        guild: &GuildId,
        of: Option<MemberId>,
        after: Option<i64>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(MemberId, N)>, StoreError>> + Send;

    /// Adds a warn or review, whatever its own id, and the member if there is none; returns the id that it got, the
    /// guild's highest + 1.
    fn add_note<N: Note>(
        &self,
        guild: &GuildId,
        member: MemberId,
        note: N,
    ) -> impl Future<Output = Result<i64, StoreError>> + Send;

    /// Puts a warn or review under its id, making the member if need be; replaces the member's one of that id.
    /// Answers whether there was none. Refused: the id of another member's.
    fn put_note<N: Note>(
        &self,
        guild: &GuildId,
        member: MemberId,
        note: N,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Removes a warn or review. Refused: one that does not exist.
    fn remove_note<N: Note>(&self, guild: &GuildId, id: i64) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// How many requests of each key were counted in a UTC day, kept across restarts (contract section 3, `daily`).
pub trait Daily {
    /// Adds to each key's count of `day` (days since the Unix epoch, UTC); returns the totals in the same
    /// order. If the stored day is the next one, adds to that. A key need not be in the store. No answer
    /// depends on it, so followers do not read it as a change.
    fn add_daily(
        &self,
        day: i64,
        counts: Vec<(KeyId, u64)>,
    ) -> impl Future<Output = Result<Vec<(KeyId, u64)>, StoreError>> + Send;

    /// Each key's count of `day`, by the rules of [`Daily::add_daily`]; keys without one are left out.
    fn daily(&self, day: i64) -> impl Future<Output = Result<Vec<(KeyId, u64)>, StoreError>> + Send;

    /// Gives a key its whole day back; followers are told ([`Change::DayReset`]). Refused: a key that is neither in the
    /// store nor counted, unless it `is_known`: the store learns of a key of a key file with its first count.
    fn reset_day(&self, key: &str, is_known: bool) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Sets the counts of these keys to 0, for a follower that was told of their reset and may have added to them since.
    fn clear_daily(&self, keys: Vec<KeyId>) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The value of LIMIT; SQL counts up to [`i64::MAX`].
fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Runs `work` on a thread where it may block. If this is dropped, `work` goes on, and its result is dropped.
pub(crate) async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<StoreError> + Send + 'static,
{
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| StoreError::Failed(format!("the work ended midway: {e}")))?
}
