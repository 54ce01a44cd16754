//! The store that the configuration names, of either kind. An enum and no trait object: a read of an
//! SQLite file is a call that never waits, and is to cost no more than that.

use std::io::{BufRead, Write};

use super::transfer::{ExportError, ImportError, Imported, Mode, Progress};
use super::*;
use crate::config::StoreAt;

/// A store of either kind.
#[derive(Debug)]
pub enum AnyStore {
    Sqlite(SqliteStore),
    Postgres(PostgresStore),
}

impl AnyStore {
    /// Opens the store, bringing it up to date, and making it where there is none if `if_missing` says so. One
    /// that cannot be used is named with what to do about it. A file's opening blocks.
    pub async fn open(at: &StoreAt, if_missing: IfMissing) -> Result<Self, StoreError> {
        Ok(match at {
            // Aside: it may wait for others for a minute, and its caller for something else as well.
            StoreAt::Sqlite(path) => {
                SqliteStore::refuse_lone_link(path)?;
                let path = path.clone();
                let settings = Settings { if_missing, ..Settings::default() };
                let opened = tokio::task::spawn_blocking(move || SqliteStore::open_with(path, settings)).await;
                AnyStore::Sqlite(
                    opened.map_err(|e| StoreError::Failed(format!("the store could not be opened: {e}")))??,
                )
            }
            StoreAt::Postgres(at) => AnyStore::Postgres(PostgresStore::open(at, if_missing).await?),
        })
    }

    /// Where it is: an absolute path, or a URL without its password.
    pub fn place(&self) -> String {
        match self {
            AnyStore::Sqlite(store) => store.path().display().to_string(),
            AnyStore::Postgres(store) => store.place().to_owned(),
        }
    }

    /// Whether this opening made the store.
    pub fn is_new(&self) -> bool {
        match self {
            AnyStore::Sqlite(store) => store.is_new(),
            AnyStore::Postgres(store) => store.is_new(),
        }
    }

    /// What there is of the store, found by looking: nothing is made or changed.
    pub async fn look(at: &StoreAt) -> Result<Standing, StoreError> {
        match at {
            StoreAt::Sqlite(path) => {
                // As messages of a store that is open name it.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                SqliteStore::refuse_lone_link(&path)?;
                SqliteStore::refuse_stray_log(&path)?;
                SqliteStore::look(&path)
            }
            StoreAt::Postgres(at) => PostgresStore::look(at).await,
        }
    }
}

impl AnyStore {
    /// Waits until what writes to the store has ended, which only a defect brings about while it is open. Every write
    /// is refused from then on.
    pub async fn writer_ended(&self) {
        match self {
            AnyStore::Sqlite(store) => store.writer_ended().await,
            AnyStore::Postgres(store) => store.writer_ended().await,
        }
    }

    /// Imports JSON Lines: see [`SqliteStore::import`]. A file's import blocks for as long as it takes.
    pub async fn import(
        &self,
        source: impl BufRead,
        mode: Mode,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Imported, ImportError> {
        match self {
            AnyStore::Sqlite(store) => store.import(source, mode, progress),
            AnyStore::Postgres(store) => store.import(source, mode, progress).await,
        }
    }

    /// Writes everything as JSON Lines: see [`SqliteStore::export`].
    pub async fn export(&self, to: &mut dyn Write, progress: &mut dyn FnMut(Progress)) -> Result<u64, ExportError> {
        match self {
            AnyStore::Sqlite(store) => store.export(to, progress),
            AnyStore::Postgres(store) => store.export(to, progress).await,
        }
    }
}

/// What opening a store does where there is none (contract section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    /// Makes one: `serve`, `import` and `guild add`.
    Make,
    /// Names the place: every other command.
    Refuse,
}

/// What is where a store is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing yet; `serve`, `import` and `guild add` make it.
    Missing,
    /// An older version's; the next command that opens it brings it up to date.
    Older,
    /// This version's.
    Usable,
}

impl From<SqliteStore> for AnyStore {
    fn from(store: SqliteStore) -> Self {
        AnyStore::Sqlite(store)
    }
}

/// Asks whichever it is. PostgreSQL's part of a future is boxed: it is large, and a file's callers
/// would carry it along.
macro_rules! ask {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            AnyStore::Sqlite($store) => $call.await,
            AnyStore::Postgres($store) => Box::pin($call).await,
        }
    };
}

impl Store for AnyStore {
    async fn points(&self, guild: &GuildId, member: MemberId) -> Result<i64, StoreError> {
        ask!(self, store => store.points(guild, member))
    }

    async fn warns(&self, guild: &GuildId, member: MemberId, now: i64) -> Result<Vec<Warn>, StoreError> {
        ask!(self, store => store.warns(guild, member, now))
    }

    async fn reviews(&self, guild: &GuildId, member: MemberId) -> Result<Vec<Review>, StoreError> {
        ask!(self, store => store.reviews(guild, member))
    }

    async fn set_points(&self, guild: &GuildId, member: MemberId, amount: i64) -> Result<String, StoreError> {
        ask!(self, store => store.set_points(guild, member, amount))
    }

    async fn changes(&self) -> Result<Vec<Change>, StoreError> {
        ask!(self, store => store.changes())
    }

    async fn stirred(&self) {
        ask!(self, store => store.stirred())
    }
}

impl Directory for AnyStore {
    async fn guilds(&self) -> Result<Vec<GuildRecord>, StoreError> {
        ask!(self, store => store.guilds())
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        ask!(self, store => store.keys())
    }

    async fn add_guild(&self, guild: &GuildId, name: &str) -> Result<(), StoreError> {
        ask!(self, store => store.add_guild(guild, name))
    }

    async fn rename_guild(&self, guild: &GuildId, name: &str) -> Result<(), StoreError> {
        ask!(self, store => store.rename_guild(guild, name))
    }

    async fn remove_guild(&self, guild: &GuildId) -> Result<RemovedGuild, StoreError> {
        ask!(self, store => store.remove_guild(guild))
    }

    async fn set_guild_left(&self, guild: &GuildId, left: bool) -> Result<(), StoreError> {
        ask!(self, store => store.set_guild_left(guild, left))
    }

    async fn create_key(&self, key: KeyRecord) -> Result<(), StoreError> {
        ask!(self, store => store.create_key(key))
    }

    async fn rotate_key(
        &self,
        id: &str,
        digest: Digest,
        previous_until: Option<i64>,
        now: i64,
    ) -> Result<(), StoreError> {
        ask!(self, store => store.rotate_key(id, digest, previous_until, now))
    }

    async fn set_key(&self, id: &str, change: KeyChange) -> Result<(), StoreError> {
        ask!(self, store => store.set_key(id, change))
    }

    async fn revoke_key(&self, id: &str) -> Result<(), StoreError> {
        ask!(self, store => store.revoke_key(id))
    }

    async fn note_last_use(&self, used: Vec<(KeyId, i64)>) -> Result<(), StoreError> {
        ask!(self, store => store.note_last_use(used))
    }
}

impl Members for AnyStore {
    async fn set_member(
        &self,
        guild: &GuildId,
        member: MemberId,
        name: Option<&str>,
        points: Option<i64>,
    ) -> Result<(), StoreError> {
        ask!(self, store => store.set_member(guild, member, name, points))
    }

    async fn members(&self, guild: &GuildId) -> Result<Vec<MemberRecord>, StoreError> {
        ask!(self, store => store.members(guild))
    }

    async fn remove_member(&self, guild: &GuildId, member: MemberId) -> Result<(), StoreError> {
        ask!(self, store => store.remove_member(guild, member))
    }

    async fn add_warn(
        &self,
        guild: &GuildId,
        member: MemberId,
        author: &str,
        reason: &str,
        expires: i64,
    ) -> Result<i64, StoreError> {
        ask!(self, store => store.add_warn(guild, member, author, reason, expires))
    }

    async fn list_warns(&self, guild: &GuildId, of: Option<MemberId>) -> Result<Vec<(MemberId, Warn)>, StoreError> {
        ask!(self, store => store.list_warns(guild, of))
    }

    async fn remove_warn(&self, guild: &GuildId, id: i64) -> Result<(), StoreError> {
        ask!(self, store => store.remove_warn(guild, id))
    }

    async fn add_review(
        &self,
        guild: &GuildId,
        member: MemberId,
        author: &str,
        rating: u8,
        text: &str,
    ) -> Result<i64, StoreError> {
        ask!(self, store => store.add_review(guild, member, author, rating, text))
    }

    async fn list_reviews(&self, guild: &GuildId, of: Option<MemberId>) -> Result<Vec<(MemberId, Review)>, StoreError> {
        ask!(self, store => store.list_reviews(guild, of))
    }

    async fn remove_review(&self, guild: &GuildId, id: i64) -> Result<(), StoreError> {
        ask!(self, store => store.remove_review(guild, id))
    }
}

impl Daily for AnyStore {
    async fn note_daily(&self, day: i64, counts: Vec<(KeyId, u64)>) -> Result<Vec<(KeyId, u64)>, StoreError> {
        ask!(self, store => store.note_daily(day, counts))
    }

    async fn daily(&self, day: i64) -> Result<Vec<(KeyId, u64)>, StoreError> {
        ask!(self, store => store.daily(day))
    }
}
