//! Guilds, keys and members on disk (contract section 1 "Built-in backend", guarantee 1).

mod records;
mod sqlite;
pub mod transfer; // import and export: JSON Lines

#[cfg(test)]
mod suite;

use std::future::Future;

use crate::model::{Digest, GuildId, KeyId, MemberId, Review, Scope, Warn};

pub use records::*;
pub use sqlite::{Copied, Flaw, Report, Settings, SqliteStore};

/// A place where guilds, keys and members are kept. What it answers is committed; a write that it
/// acknowledged survives kill -9 and power loss (guarantee 1).
pub trait Store: Send + Sync + 'static {
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

    /// Every guild, those the bot has left among them.
    fn guilds(&self) -> impl Future<Output = Result<Vec<GuildRecord>, StoreError>> + Send;

    /// Every key.
    fn keys(&self) -> impl Future<Output = Result<Vec<KeyRecord>, StoreError>> + Send;

    /// What others changed since the last call, or since the store was opened; made to be called
    /// several times a second. Changes made through this very object are not told.
    fn changes(&self) -> impl Future<Output = Result<Vec<Change>, StoreError>> + Send;
}
