mod daily;
mod feed;
mod key_life;
mod opening;
mod records;
mod writing;

use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::store::suite::{Seed, guild, member, store_suite};

/// A store in a folder of its own.
pub(in crate::store) struct World {
    pub(in crate::store) store: SqliteStore,
    pub(in crate::store) folder: TempDir,
}

impl World {
    pub(in crate::store) fn new() -> Self {
        // Patient: on a busy machine an fsync may take longer than the contract's wait.
        Self::with(Settings { busy_wait: Duration::from_secs(60), ..Settings::default() })
    }

    pub(in crate::store) fn with(settings: Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open_with(folder.path().join("store.db"), settings).unwrap();
        World { store, folder }
    }

    /// A second store on the same file, as another process has it.
    pub(in crate::store) fn neighbour(&self) -> SqliteStore {
        SqliteStore::open(self.path()).unwrap()
    }

    pub(in crate::store) fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    /// A connection of SQLite's own, past everything that the store does.
    pub(in crate::store) fn raw(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }
}

impl Seed for SqliteStore {
    async fn add(&self, guild: &GuildId) {
        self.add_guild(guild, "A guild").await.unwrap();
    }

    async fn leave(&self, guild: &GuildId, left: bool) {
        self.set_guild_left(guild, left).await.unwrap();
    }

    async fn warn(&self, guild: &GuildId, member: MemberId, expires: i64) -> i64 {
        self.add_warn(guild, member, "Mod", "spam", expires).await.unwrap()
    }

    async fn review(&self, guild: &GuildId, member: MemberId, text: &str) -> i64 {
        self.add_review(guild, member, "Bo", 5, text).await.unwrap()
    }
}

store_suite!(World::new());

fn refused<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Err(StoreError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}
