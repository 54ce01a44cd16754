use std::sync::Arc;
use std::time::Duration;

use super::{Gateway, State};
use crate::keys::{Book, Listed};
use crate::store::{AnyStore, Change, Store, StoreError};

/// How often what is held is put in doubt anew while nothing is heard, and how soon what failed is
/// tried again.
const AGAIN: Duration = Duration::from_millis(100);

impl Gateway {
    /// Follows the store's change feed for ever: what another process changed shows here within a
    /// second. While the feed cannot be read, nothing held from before is given (guarantee 2).
    pub async fn follow(self: Arc<Self>, store: Arc<AnyStore>) {
        // Side by side: a book that takes long to read must not make the gateway deaf.
        tokio::join!(self.hear(&store), self.keep_book());
    }

    async fn hear(&self, store: &AnyStore) {
        let mut deaf = false;
        loop {
            if deaf {
                tokio::time::sleep(AGAIN).await
            } else {
                store.stirred().await
            }
            match self.ask_what_changed(store, deaf).await {
                Ok(changes) => {
                    if std::mem::take(&mut deaf) {
                        tracing::info!("the store's change feed is heard again");
                        self.heed(Change::Everything);
                    }
                    changes.into_iter().for_each(|change| self.heed(change));
                }
                Err(error) => {
                    if !std::mem::replace(&mut deaf, true) {
                        tracing::error!(%error, "the store's change feed cannot be read; nothing is answered from memory");
                    }
                    self.memory.fence().changed_all();
                }
            }
        }
    }

    /// Asks the store. While the gateway is deaf already, what is held stays in doubt meanwhile.
    async fn ask_what_changed(&self, store: &AnyStore, deaf: bool) -> Result<Vec<Change>, StoreError> {
        let mut changes = std::pin::pin!(store.changes());
        loop {
            tokio::select! {
                biased;
                heard = &mut changes => return heard,
                () = tokio::time::sleep(AGAIN), if deaf => self.memory.fence().changed_all(),
            }
        }
    }

    /// Reads the book of keys again whenever it is old, until it is read.
    async fn keep_book(&self) {
        let mut failing = false;
        loop {
            self.book_is_old.notified().await;
            let keys = self.state().keys.clone();
            match keys.list().await {
                Ok(listed) => {
                    failing = false;
                    self.take_book(listed);
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::error!(error, "the keys could not be read from the store; trying again");
                    }
                    tokio::time::sleep(AGAIN).await;
                    self.book_is_old.notify_one();
                }
            }
        }
    }

    fn heed(&self, change: Change) {
        match change {
            Change::Directory => self.book_is_old.notify_one(),
            Change::Member(member) => self.memory.fence().changed(member),
            Change::Everything => {
                self.memory.fence().changed_all();
                self.book_is_old.notify_one();
            }
        }
    }

    /// Puts a new book of keys in force; the budgets used up stay used up.
    pub fn take_book(&self, listed: Vec<Listed>) {
        let _changing = self.changing.lock();
        let state = self.state.load_full();
        let book = Book::new(listed, &state.config.limits, &state.book, self.now(), self.clock.unix());
        self.state.store(Arc::new(State {
            book: Arc::new(book),
            config: state.config.clone(),
            origin: state.origin.clone(),
            keys: state.keys.clone(),
            strangers: state.strangers.clone(),
        }));
    }
}
