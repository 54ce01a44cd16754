//! Follows the store's change feed for as long as the server runs, so that what another process changed takes effect
//! here within one second. Changed members are invalidated in the cache, and changed keys or guilds make the key table
//! be loaded again. While the feed cannot be read, no answer that depends on the store is given from memory. Reading
//! the feed and loading the keys run side by side, so that a list of keys that hangs does not stop the feed.

use std::sync::Arc;
use std::time::Duration;

use super::{Fresh, Gateway, KeySource, State};
use crate::keys::Book;
use crate::store::{AnyStore, Change, Store, StoreError};

/// How often what is held is put in doubt anew while nothing is heard, and how soon what failed is
/// tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// A look at the feed that takes so long may come to nothing: the keys are read meanwhile, so that they are known
/// when it does.
const SLOW: Duration = Duration::from_millis(250);

impl Gateway {
    /// Follows the store's change feed for ever: what another process changed shows here within a
    /// second. While the feed cannot be read, nothing held from before is given (guarantee 2).
    pub async fn follow(self: Arc<Self>, store: Arc<AnyStore>) {
        // The feed begins before the first book was read.
        self.state().book.set_known_until(self.doubt.listens());
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
            let asked = self.now();
            match self.ask_what_changed(store, deaf).await {
                Ok(changes) => {
                    if std::mem::take(&mut deaf) {
                        tracing::info!("the store's change feed works again");
                        self.heed(Change::Everything);
                    }
                    changes.into_iter().for_each(|change| self.heed(change));
                    if self.doubt.heard_all(asked, self.now()) {
                        self.state().book.set_known_until(asked);
                    }
                    // A list of keys that is only slow is one that is not there.
                    if matches!(self.state().keys, KeySource::Store(_)) {
                        self.doubt_book();
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut deaf, true) {
                        tracing::error!(%error, "the store's change feed cannot be read; nothing is answered from memory");
                    }
                    self.hears_nothing();
                }
            }
        }
    }

    /// What is held is in doubt: answers at once, and keys after a while, unless they can be read anew.
    pub(super) fn hears_nothing(&self) {
        let state = self.state();
        if state.follows_store() {
            self.memory.fence().changed_all();
        }
        if matches!(state.keys, KeySource::Store(_)) {
            self.read_ahead();
            self.doubt_book();
        }
    }

    /// The keys are read anew if they are to be known for longer.
    fn read_ahead(&self) {
        // One that is being listed comes in any case.
        let lists_keys = matches!(self.state().keys, KeySource::Store(_));
        if lists_keys && self.doubt.asks_for_a_book(self.now()) && self.listing.try_lock().is_ok() {
            self.book_is_old.notify_one();
        }
    }

    fn doubt_book(&self) {
        if self.doubt.grows(self.now()) {
            tracing::error!("keys cannot be refreshed from the store; refusing them");
        }
    }

    /// Asks the store. While the gateway is deaf already, what is held stays in doubt meanwhile.
    async fn ask_what_changed(&self, store: &AnyStore, deaf: bool) -> Result<Vec<Change>, StoreError> {
        let mut changes = std::pin::pin!(store.changes());
        loop {
            tokio::select! {
                biased;
                heard = &mut changes => return heard,
                () = tokio::time::sleep(if deaf { AGAIN } else { SLOW }) => match deaf {
                    true => self.hears_nothing(),
                    false => self.read_ahead(),
                },
            }
        }
    }

    /// Reads the book of keys again whenever it is old, until it is read.
    async fn keep_book(&self) {
        let mut failing = false;
        loop {
            self.book_is_old.notified().await;
            match self.list(None).await {
                Ok(fresh) => {
                    failing = false;
                    self.take_book(fresh);
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::error!(error, "the keys could not be read from the store; trying again");
                    }
                    self.doubt_book();
                    tokio::time::sleep(AGAIN).await;
                    self.book_is_old.notify_one();
                }
            }
        }
    }

    fn heed(&self, change: Change) {
        match change {
            Change::Directory => self.book_changed(),
            Change::Member(member) => self.memory.fence().changed(member),
            Change::Everything => {
                self.memory.fence().changed_all();
                self.book_changed();
            }
        }
    }

    fn book_changed(&self) {
        self.doubt.book_changed();
        self.book_is_old.notify_one();
    }

    /// Puts a new book of keys in force; the budgets used up stay used up.
    pub fn take_book(&self, fresh: Fresh<'_>) {
        let _changing = self.changing.lock();
        let state = self.state.load_full();
        let (listed, guilds_gone) = state.keys.listed(fresh.listing);
        let book = Book::new(listed, &state.config.limits, &state.book, self.now(), self.clock.unix());
        self.state.store(Arc::new(State {
            book: Arc::new(book),
            guilds_gone,
            config: state.config.clone(),
            origin: state.origin.clone(),
            keys: state.keys.clone(),
            strangers: state.strangers.clone(),
        }));
        if self.doubt.book_taken(fresh.changes, fresh.at, self.now()) {
            self.state().book.set_known_until(fresh.at);
        }
    }
}
