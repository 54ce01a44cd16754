use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Gateway, State};
use crate::keys::{Book, Listed};
use crate::store::{Change, SqliteStore, Store};

/// How often the store is asked what others changed. Guarantee 7 allows a second; a look costs a
/// few microseconds.
const POLL: Duration = Duration::from_millis(100);

impl Gateway {
    /// Follows the store's change feed for ever: what another process changed shows here within a
    /// second. While the feed cannot be read, nothing held from before is given (guarantee 2).
    pub async fn follow(self: Arc<Self>, store: Arc<SqliteStore>) {
        let mut deaf = false;
        loop {
            tokio::time::sleep(POLL).await;
            match store.changes().await {
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
            // A book that could not be read is read again at the next look, whatever the feed says.
            if self.book_is_old.swap(false, Ordering::AcqRel) {
                let keys = self.state().keys.clone();
                match keys.list().await {
                    Ok(listed) => self.take_book(listed),
                    Err(error) => {
                        self.book_is_old.store(true, Ordering::Release);
                        tracing::error!(error, "the keys could not be read from the store; trying again");
                    }
                }
            }
        }
    }

    fn heed(&self, change: Change) {
        match change {
            Change::Directory => self.book_is_old.store(true, Ordering::Release),
            Change::Member(member) => self.memory.fence().changed(member),
            Change::Everything => {
                self.memory.fence().changed_all();
                self.book_is_old.store(true, Ordering::Release);
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
