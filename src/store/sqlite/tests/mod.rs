//! Tests of the SQLite store: the suite that every store must pass, and in the modules below what only a file can meet.
//! Each test has a folder of its own, and may open the file a second time or change it with SQL of its own.

mod daily;
mod feed;
mod key_life;
mod opening;
mod verifying;
mod writing;

use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::store::suite::{self, TestStore as _, guild, member, refused, store_suite};
use crate::store::{Daily as _, Directory as _, Members as _};

/// A store in a folder of its own.
pub(in crate::store) struct TestStore {
    pub(in crate::store) store: SqliteStore,
    pub(in crate::store) folder: TempDir,
}

impl TestStore {
    pub(in crate::store) fn new() -> Self {
        // Long: on a busy machine an fsync may take longer than the contract's wait.
        Self::with(Settings { busy_wait: Duration::from_secs(60), ..Settings::default() })
    }

    pub(in crate::store) fn with(settings: Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open_with(folder.path().join("store.db"), settings).unwrap();
        TestStore { store, folder }
    }

    /// A second store on the same file, as another process has it.
    pub(in crate::store) fn open_second(&self) -> SqliteStore {
        SqliteStore::open(self.path()).unwrap()
    }

    pub(in crate::store) fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    /// A connection that does not use the store's code.
    pub(in crate::store) fn raw(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }
}

impl suite::TestStore for TestStore {
    type Store = SqliteStore;

    async fn new() -> Self {
        TestStore::new()
    }

    async fn with_feed_kept(changes: i64) -> Self {
        TestStore::with(Settings { feed_kept: changes, ..Settings::default() })
    }

    fn store(&self) -> &SqliteStore {
        &self.store
    }

    async fn open_second(&self) -> SqliteStore {
        TestStore::open_second(self)
    }

    async fn reopen(self) -> Self {
        let TestStore { store, folder } = self;
        drop(store);
        TestStore { store: SqliteStore::open(folder.path().join("store.db")).unwrap(), folder }
    }
}

store_suite!(TestStore);
