use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Gateway, State};
use crate::keys::{Book, Listed, read_key_file};
use crate::store::{Change, SqliteStore, Store};

/// How often the store is asked what others changed. Guarantee 7 allows a second; a look costs a
/// few microseconds.
const POLL: Duration = Duration::from_millis(100);

/// Where the book of keys is read from.
#[derive(Clone, Debug)]
pub enum KeySource {
    Store(Arc<SqliteStore>),
    File(PathBuf),
}

impl KeySource {
    /// All keys, as they are now.
    pub async fn list(&self) -> Result<Vec<Listed>, String> {
        match self {
            KeySource::File(path) => read_key_file(path).map_err(|e| e.to_string()),
            KeySource::Store(store) => {
                let guilds = store.guilds().await.map_err(|e| e.to_string())?;
                let gone: std::collections::HashSet<_> = guilds.into_iter().filter(|g| g.left).map(|g| g.id).collect();
                let keys = store.keys().await.map_err(|e| e.to_string())?;
                let listed = keys.into_iter().map(|key| Listed {
                    guild_gone: gone.contains(&key.guild),
                    id: key.id,
                    digest: key.digest,
                    guild: key.guild,
                    tier: key.tier,
                    scope: key.scope,
                    expires: key.expires,
                });
                Ok(listed.collect())
            }
        }
    }
}

impl Gateway {
    /// Follows the store's change feed for ever: what another process changed shows here within a
    /// second. While the feed cannot be read, nothing held from before is given (guarantee 2).
    pub async fn follow(self: Arc<Self>, store: Arc<SqliteStore>) {
        let source = KeySource::Store(store.clone());
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
                    self.fence.changed_all();
                }
            }
            // A book that could not be read is read again at the next look, whatever the feed says.
            if self.book_is_old.swap(false, Ordering::AcqRel) {
                match source.list().await {
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
            Change::Member(member) => self.fence.changed(member),
            Change::Everything => {
                self.fence.changed_all();
                self.book_is_old.store(true, Ordering::Release);
            }
        }
    }

    /// Puts a new book of keys in force; the budgets used up stay used up.
    pub fn take_book(&self, listed: Vec<Listed>) {
        let _changing = self.changing.lock();
        let state = self.state.load_full();
        let book = Book::new(listed, &state.config.limits, &state.book, self.now());
        let (config, origin) = (state.config.clone(), state.origin.clone());
        self.state.store(Arc::new(State { config, book: Arc::new(book), origin }));
    }
}
