//! Tests of the PostgreSQL store on a real server: the suite that every store must pass, and in the modules below the
//! cases of PostgreSQL alone. Each test has a database of its own. The tests in `tests/it` start the server with the
//! same file.

#[expect(dead_code, reason = "the tests from the outside use more of it")]
#[path = "../../../../tests/it/support/postgres.rs"]
pub(in crate::store) mod server;

mod failing;
mod feed;
mod moving;
mod opening;
mod writing;

use std::path::Path;

use super::*;
use crate::store::suite::{self, TestStore as _, guild, member, others_changes, store_suite};
use crate::store::{Daily as _, Directory as _, Members as _};
use server::{Postgres, connect};

/// A store in a database of its own.
pub(in crate::store) struct TestStore {
    pub(in crate::store) store: PostgresStore,
    url: String,
}

impl TestStore {
    async fn with(settings: Settings) -> Self {
        let url = Postgres::shared().database().await;
        let store = PostgresStore::open_with(&at(&url), settings).await.unwrap();
        TestStore { store, url }
    }
}

impl suite::TestStore for TestStore {
    type Store = PostgresStore;

    async fn new() -> Self {
        TestStore::with(Settings::default()).await
    }

    async fn with_feed_kept(changes: i64) -> Self {
        TestStore::with(Settings { feed_kept: changes, ..Settings::default() }).await
    }

    fn store(&self) -> &PostgresStore {
        &self.store
    }

    async fn open_second(&self) -> PostgresStore {
        PostgresStore::open(&at(&self.url), IfMissing::Make).await.unwrap()
    }

    async fn reopen(self) -> Self {
        let TestStore { store, url } = self;
        drop(store);
        TestStore { store: PostgresStore::open(&at(&url), IfMissing::Make).await.unwrap(), url }
    }
}

fn at(url: &str) -> PostgresAt {
    PostgresAt::parse(url, Path::new("/")).unwrap()
}

store_suite!(TestStore);
