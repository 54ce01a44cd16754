//! The store that the configuration names, of either kind. It is an enum and no trait object, whose every call would
//! allocate its future.

use std::io::{BufRead, Write};
use std::sync::Arc;

use super::transfer::{self, ExportError, ImportError, Mode, Progress, Transaction, UncommittedImport};
use super::*;
use crate::config::StoreAt;

/// A store of either kind.
#[derive(Clone, Debug)]
pub enum AnyStore {
    Sqlite(Arc<SqliteStore>),
    Postgres(Arc<PostgresStore>),
}

impl AnyStore {
    /// Opens the store and brings it up to date; makes it if there is none and `if_missing` says so. The error for a
    /// store that cannot be used says what to do about it.
    pub async fn open(at: &StoreAt, if_missing: IfMissing) -> Result<Self, StoreError> {
        Ok(match at {
            StoreAt::Sqlite(path) => {
                SqliteStore::refuse_broken_link(path)?;
                let path = path.clone();
                let settings = Settings { if_missing, ..Settings::default() };
                blocking(move || SqliteStore::open_with(path, settings)).await?.into()
            }
            StoreAt::Postgres(at) => AnyStore::Postgres(Arc::new(PostgresStore::open(at, if_missing).await?)),
        })
    }

    /// The same store once more, as another process would have it: each of the two hears of the other's changes. An
    /// SQLite file is not opened by its name again, since closing it would drop the locks that this process has on it.
    pub async fn open_again(&self, at: &StoreAt) -> Result<Self, StoreError> {
        match (self, at) {
            (AnyStore::Sqlite(store), _) => {
                let store = store.clone();
                Ok(blocking(move || store.open_again()).await?.into())
            }
            (AnyStore::Postgres(_), StoreAt::Postgres(at)) => {
                Ok(AnyStore::Postgres(Arc::new(PostgresStore::open_again(at).await?)))
            }
            (AnyStore::Postgres(_), StoreAt::Sqlite(_)) => AnyStore::open(at, IfMissing::Refuse).await,
        }
    }

    /// Where it is: an absolute path, or a URL without its password.
    pub fn location(&self) -> String {
        match self {
            AnyStore::Sqlite(store) => store.path().display().to_string(),
            AnyStore::Postgres(store) => store.location().to_owned(),
        }
    }

    /// Whether this opening made the store.
    pub fn is_new(&self) -> bool {
        match self {
            AnyStore::Sqlite(store) => store.is_new(),
            AnyStore::Postgres(store) => store.is_new(),
        }
    }

    /// The state of the store. Nothing is made or changed.
    pub async fn state(at: &StoreAt) -> Result<StoreState, StoreError> {
        match at {
            StoreAt::Sqlite(path) => {
                // As in messages of an open store.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                SqliteStore::refuse_broken_link(&path)?;
                SqliteStore::refuse_foreign_wal(&path)?;
                SqliteStore::state(&path)
            }
            StoreAt::Postgres(at) => PostgresStore::state(at).await,
        }
    }
}

impl AnyStore {
    /// Waits until the task or thread that writes to the store has ended, which only a defect causes while it is open.
    /// Every write is refused from then on.
    pub async fn writer_ended(&self) {
        match self {
            AnyStore::Sqlite(store) => store.writer_ended().await,
            AnyStore::Postgres(store) => store.writer_ended().await,
        }
    }

    /// The caller of a write has stopped waiting, and it may still be committed: the change feed tells this process of it
    /// as well. PostgreSQL's writer has deadlines of its own, and does so after them.
    pub fn hear_late_write(&self) {
        if let AnyStore::Sqlite(store) = self {
            store.hear_late_write();
        }
    }

    /// Imports JSON Lines, all but the commit: see [`SqliteStore::import`]. If this is dropped before it is done,
    /// nothing is imported.
    pub async fn import(
        &self,
        source: impl BufRead + Send + 'static,
        mode: Mode,
        mut progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<UncommittedImport<'_>, ImportError> {
        let store = match self {
            AnyStore::Sqlite(store) => store,
            AnyStore::Postgres(store) => return store.import(source, mode, progress).await,
        };
        let file = transfer::staging_file(store.path())?;
        let (importing, staging) = (store.clone(), file.path().to_owned());
        let import = move || importing.import_uncommitted(&staging, source, mode, &mut progress);
        let (imported, conn) = blocking(import).await?;
        let transaction = conn.map_or(Transaction::None, |conn| Transaction::Sqlite(store, conn));
        Ok(UncommittedImport { imported, transaction, _file: file })
    }

    /// Writes everything as JSON Lines: see [`SqliteStore::export`]. A file's export blocks for as long as it takes.
    pub async fn export(&self, to: &mut dyn Write, progress: &mut dyn FnMut(Progress)) -> Result<u64, ExportError> {
        match self {
            AnyStore::Sqlite(store) => store.export(to, progress),
            AnyStore::Postgres(store) => store.export(to, progress).await,
        }
    }
}

/// What opening a store does if there is none (contract section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    /// Makes one: `serve`, `import` and `guild add`.
    Make,
    /// Fails, and names the location: every other command.
    Refuse,
}

/// What is at the location of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// There is none; `serve`, `import` and `guild add` make it.
    Missing,
    /// Its schema is an older version's; the next command that opens it brings it up to date.
    Older,
    /// Its schema is this version's.
    Current,
}

impl From<SqliteStore> for AnyStore {
    fn from(store: SqliteStore) -> Self {
        AnyStore::Sqlite(Arc::new(store))
    }
}

/// Passes each of these calls on to the store of either kind. PostgreSQL's part of a future is boxed: it is large, and
/// would be part of a file's future as well.
macro_rules! forward {
    ($(fn $name:ident$(<$of:ident: $bound:ident>)?(&self $(, $argument:ident: $kind:ty)*) -> $answer:ty;)*) => {
        $(async fn $name$(<$of: $bound>)?(&self $(, $argument: $kind)*) -> $answer {
            match self {
                AnyStore::Sqlite(store) => store.$name$(::<$of>)?($($argument),*).await,
                AnyStore::Postgres(store) => Box::pin(store.$name$(::<$of>)?($($argument),*)).await,
            }
        })*
    };
}

impl Store for AnyStore {
    forward! {
        fn points(&self, guild: &GuildId, member: MemberId) -> Result<i64, StoreError>;
        fn warns(&self, guild: &GuildId, member: MemberId, now: i64) -> Result<Vec<Warn>, StoreError>;
        fn reviews(&self, guild: &GuildId, member: MemberId) -> Result<Vec<Review>, StoreError>;
        fn set_points_unless_cancelled(&self, guild: &GuildId, member: MemberId, amount: i64, cancellation: &Cancellation) -> Result<String, StoreError>;
        fn changes(&self) -> Result<Vec<Change>, StoreError>;
        fn wait_for_changes(&self) -> ();
    }
}

impl Directory for AnyStore {
    forward! {
        fn guilds(&self) -> Result<Vec<GuildRecord>, StoreError>;
        fn keys(&self) -> Result<Vec<KeyRecord>, StoreError>;
        fn keys_page(&self, guild: Option<&GuildId>, after: Option<&str>, limit: usize) -> Result<Vec<KeyRecord>, StoreError>;
        fn key(&self, id: &str) -> Result<Option<KeyRecord>, StoreError>;
        fn add_guild(&self, guild: &GuildId, name: &str) -> Result<(), StoreError>;
        fn rename_guild(&self, guild: &GuildId, name: &str) -> Result<(), StoreError>;
        fn remove_guild(&self, guild: &GuildId) -> Result<RemovedGuild, StoreError>;
        fn set_guild_departed(&self, guild: &GuildId, departed: bool) -> Result<(), StoreError>;
        fn create_key(&self, key: KeyRecord) -> Result<(), StoreError>;
        fn rotate_key(&self, id: &str, digest: Digest, previous_until: Option<i64>, now: i64) -> Result<(), StoreError>;
        fn set_key(&self, id: &str, change: KeyChange) -> Result<(), StoreError>;
        fn revoke_key(&self, id: &str) -> Result<(), StoreError>;
        fn record_last_use(&self, used: Vec<(KeyId, i64)>) -> Result<(), StoreError>;
    }
}

impl Members for AnyStore {
    forward! {
        fn set_member(
            &self, guild: &GuildId, member: MemberId, name: Option<&str>, points: Option<i64>
        ) -> Result<(), StoreError>;
        fn members(&self, guild: &GuildId, after: Option<MemberId>, limit: usize) -> Result<Vec<MemberRecord>, StoreError>;
        fn member(&self, guild: &GuildId, member: MemberId) -> Result<Option<MemberRecord>, StoreError>;
        fn remove_member(&self, guild: &GuildId, member: MemberId) -> Result<(), StoreError>;
        fn notes<N: Note>(
            &self, guild: &GuildId, of: Option<MemberId>, after: Option<i64>, limit: usize
        ) -> Result<Vec<(MemberId, N)>, StoreError>;
        fn add_note<N: Note>(&self, guild: &GuildId, member: MemberId, note: N) -> Result<i64, StoreError>;
        fn put_note<N: Note>(&self, guild: &GuildId, member: MemberId, note: N) -> Result<bool, StoreError>;
        fn remove_note<N: Note>(&self, guild: &GuildId, id: i64) -> Result<(), StoreError>;
    }
}

impl Daily for AnyStore {
    forward! {
        fn add_daily(&self, day: i64, counts: Vec<(KeyId, u64)>) -> Result<Vec<(KeyId, u64)>, StoreError>;
        fn daily(&self, day: i64) -> Result<Vec<(KeyId, u64)>, StoreError>;
        fn reset_day(&self, key: &str, is_known: bool) -> Result<(), StoreError>;
        fn clear_daily(&self, keys: Vec<KeyId>) -> Result<(), StoreError>;
    }
}
