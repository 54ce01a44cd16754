//! Guilds, keys and members on disk (contract section 1 "Built-in backend", guarantee 1), in an SQLite
//! file or in PostgreSQL: one set of traits, one suite of tests, the same meaning.

mod answers; // how long they may get
mod any;
mod marks;
mod postgres;
mod records;
mod refusals; // what both kinds say
mod sqlite;
pub mod transfer; // import and export: JSON Lines
pub mod under_way; // files that are not whole yet

#[cfg(test)]
mod suite;

use std::future::Future;

use crate::model::{Digest, GuildId, KeyId, MemberId, Review, Scope, Warn};

pub use any::{AnyStore, IfMissing, Standing};
pub use postgres::PostgresStore;
pub use records::*;
pub use sqlite::{Copied, Flaw, Report, Restored, Settings, SqliteStore};

/// What callers' requests ask of a store. What it answers is committed; a write that it acknowledged
/// survives kill -9 and power loss (guarantee 1).
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

    /// Sets a member's points, making the member (named by its id) if need be; answers its name.
    /// Durable when it answers. [`StoreError::Busy`] means that nothing was written.
    fn set_points(
        &self,
        guild: &GuildId,
        member: MemberId,
        amount: i64,
    ) -> impl Future<Output = Result<String, StoreError>> + Send;

    /// What others changed since the last call, or since the store was opened: everything committed
    /// before the call is in it. Changes made through this very object are not told. An error says that
    /// the feed is lost for now; it answers, one or the other, within a fraction of a second.
    fn changes(&self) -> impl Future<Output = Result<Vec<Change>, StoreError>> + Send;

    /// Waits until [`Store::changes`] is worth asking again: a fraction of a second at most.
    fn stirred(&self) -> impl Future<Output = ()> + Send;
}

/// Guilds and keys: what the book of keys is made of.
pub trait Directory {
    /// Every guild, those the bot has left among them, by id.
    fn guilds(&self) -> impl Future<Output = Result<Vec<GuildRecord>, StoreError>> + Send;

    /// Every key, by id.
    fn keys(&self) -> impl Future<Output = Result<Vec<KeyRecord>, StoreError>> + Send;

    /// Adds a guild; one that exists is refused.
    fn add_guild(&self, guild: &GuildId, name: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Calls a guild by another name; one that is not there is refused.
    fn rename_guild(&self, guild: &GuildId, name: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Removes a guild with its members, warns, reviews and keys; one that is not there is refused. Added again,
    /// it has none of them, and ids of warns and reviews begin at 1. Others are told [`Change::Everything`], since
    /// answers held from before must not be given under the same id.
    fn remove_guild(&self, guild: &GuildId) -> impl Future<Output = Result<RemovedGuild, StoreError>> + Send;

    /// Notes that the bot left a guild, or came back to it; a guild not in the store is refused.
    fn set_guild_left(&self, guild: &GuildId, left: bool) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Keeps a key. Refused: an id or a digest that is taken, a guild not in the store.
    fn create_key(&self, key: KeyRecord) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Gives a key another secret. The one it had works until the Unix second `previous_until`; it
    /// is gone at once where that is `None` or not after `now`. A secret that an earlier rotation
    /// left is gone at once in any case: a key has two at most. Refused: a key that is not there
    /// or has expired, a digest that is taken.
    fn rotate_key(
        &self,
        id: &str,
        digest: Digest,
        previous_until: Option<i64>,
        now: i64,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Changes what is given of a key; one that is not there is refused.
    fn set_key(&self, id: &str, change: KeyChange) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Removes a key, both its secrets with it; one that is not there is refused.
    fn revoke_key(&self, id: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Notes when keys were last used (Unix seconds). Nobody's answers depend on it, so no change
    /// is told to others; a key that is gone meanwhile is passed over.
    fn note_last_use(&self, used: Vec<(KeyId, i64)>) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Members, their warns and reviews, one record at a time. They may be changed while the bot is
/// away from the guild: only the callers' own operations end in 03 then.
pub trait Members {
    /// Sets what is given of a member's name and points, making the member if need be.
    fn set_member(
        &self,
        guild: &GuildId,
        member: MemberId,
        name: Option<&str>,
        points: Option<i64>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// A guild's members in ascending id order.
    fn members(&self, guild: &GuildId) -> impl Future<Output = Result<Vec<MemberRecord>, StoreError>> + Send;

    /// Removes a member with its warns and reviews; one that is not there is refused.
    fn remove_member(&self, guild: &GuildId, member: MemberId) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Warns a member, making it if need be; answers the warn's id, the guild's highest + 1.
    fn add_warn(
        &self,
        guild: &GuildId,
        member: MemberId,
        author: &str,
        reason: &str,
        expires: i64,
    ) -> impl Future<Output = Result<i64, StoreError>> + Send;

    /// A guild's warns, expired ones too, or those of one of its members: by member, then by id.
    fn list_warns(
        &self,
        guild: &GuildId,
        of: Option<MemberId>,
    ) -> impl Future<Output = Result<Vec<(MemberId, Warn)>, StoreError>> + Send;

    /// Takes a warn back; one that is not there is refused.
    fn remove_warn(&self, guild: &GuildId, id: i64) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Reviews a member, making it if need be; answers the review's id, the guild's highest + 1.
    fn add_review(
        &self,
        guild: &GuildId,
        member: MemberId,
        author: &str,
        rating: u8,
        text: &str,
    ) -> impl Future<Output = Result<i64, StoreError>> + Send;

    /// A guild's reviews, or those of one of its members: by member, then by id.
    fn list_reviews(
        &self,
        guild: &GuildId,
        of: Option<MemberId>,
    ) -> impl Future<Output = Result<Vec<(MemberId, Review)>, StoreError>> + Send;

    /// Removes a review; one that is not there is refused.
    fn remove_review(&self, guild: &GuildId, id: i64) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// What is counted of each key in a UTC day, kept across restarts (contract section 3, `daily`).
pub trait Daily {
    /// Adds so many to each key's count of `day` (days since the Unix epoch, UTC); answers the
    /// totals in the same order. Where the stored day is the one after, it is that one that is
    /// added to. A key need not be in the store. Nobody's answers depend on it, so no change is
    /// told to others.
    fn note_daily(
        &self,
        day: i64,
        counts: Vec<(KeyId, u64)>,
    ) -> impl Future<Output = Result<Vec<(KeyId, u64)>, StoreError>> + Send;

    /// What is counted of each key on `day`, by the rules of [`Daily::note_daily`]; keys of which
    /// nothing is are left out.
    fn daily(&self, day: i64) -> impl Future<Output = Result<Vec<(KeyId, u64)>, StoreError>> + Send;
}
