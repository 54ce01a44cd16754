use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Gateway, State};
use crate::keys::{Book, Listed, read_key_file};
use crate::model::GuildId;
use crate::store::{Change, KeyRecord, SqliteStore, Store};

/// How often the store is asked what others changed. Guarantee 7 allows a second; a look costs a
/// few microseconds.
const POLL: Duration = Duration::from_millis(100);

/// How often the last uses of keys are written down, in looks: every 5 s. A kill loses no more.
const LOOKS_PER_NOTE: u64 = 50;

/// Where the book of keys is read from.
#[derive(Clone, Debug)]
pub enum KeySource {
    Store(Arc<SqliteStore>),
    /// A file's keys as they were when it was read: it is read anew by a reload only.
    File {
        listed: Arc<[Listed]>,
        /// The built-in backend's store, which knows the guilds that the bot has left.
        guilds: Option<Arc<SqliteStore>>,
    },
}

impl KeySource {
    /// Reads a key file, aside: a large one takes a second or two.
    pub async fn file(path: PathBuf, guilds: Option<Arc<SqliteStore>>) -> Result<Self, String> {
        let read = tokio::task::spawn_blocking(move || read_key_file(&path).map_err(|e| e.to_string())).await;
        let listed = read.map_err(|e| format!("the key file's reader failed: {e}"))??;
        Ok(KeySource::File { listed: listed.into(), guilds })
    }

    /// All keys, as they are now.
    pub async fn list(&self) -> Result<Vec<Listed>, String> {
        match self {
            KeySource::File { listed, guilds: None } => Ok(listed.to_vec()),
            KeySource::File { listed, guilds: Some(store) } => {
                let gone = departed(store).await?;
                let mark = |key: &Listed| Listed { guild_gone: gone.contains(&key.guild), ..key.clone() };
                Ok(listed.iter().map(mark).collect())
            }
            KeySource::Store(store) => {
                let gone = departed(store).await?;
                let keys = store.keys().await.map_err(|e| e.to_string())?;
                let listed = keys.into_iter().flat_map(|key| {
                    let guild_gone = gone.contains(&key.guild);
                    by_each_secret(key, guild_gone)
                });
                Ok(listed.collect())
            }
        }
    }
}

/// A key by its secret and by the one before its last rotation. The latter ends by itself, at its
/// second: the book is told of it as of an expiry.
fn by_each_secret(key: KeyRecord, guild_gone: bool) -> impl Iterator<Item = Listed> {
    let before = key.previous.map(|previous| (previous.digest, key.previous_ends()));
    let now = Listed {
        id: key.id,
        digest: key.digest,
        guild: key.guild,
        guild_gone,
        tier: key.tier,
        scope: key.scope,
        expires: key.expires,
    };
    let before = before.map(|(digest, expires)| Listed { digest, expires, ..now.clone() });
    std::iter::once(now).chain(before)
}

/// The guilds that the bot has left.
async fn departed(store: &SqliteStore) -> Result<HashSet<GuildId>, String> {
    let guilds = store.guilds().await.map_err(|e| e.to_string())?;
    Ok(guilds.into_iter().filter(|guild| guild.left).map(|guild| guild.id).collect())
}

impl Gateway {
    /// Follows the store's change feed for ever: what another process changed shows here within a
    /// second. While the feed cannot be read, nothing held from before is given (guarantee 2).
    pub async fn follow(self: Arc<Self>, store: Arc<SqliteStore>) {
        let mut deaf = false;
        for look in 1u64.. {
            tokio::time::sleep(POLL).await;
            if look.is_multiple_of(LOOKS_PER_NOTE) {
                // Aside: a store that is slow to write must not keep a revocation from being heard.
                let (gateway, store) = (self.clone(), store.clone());
                tokio::spawn(async move { gateway.note_last_use(&store).await });
            }
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

    /// Writes down when keys were last used. What cannot be written is lost: it is a hint for
    /// people, and the next use notes itself again.
    pub async fn note_last_use(&self, store: &SqliteStore) {
        let used = self.state().book.used();
        if used.is_empty() {
            return;
        }
        let (now, unix) = (self.now(), self.clock.unix());
        let ago = |at| i64::try_from(now.since(at).as_secs()).unwrap_or(i64::MAX);
        let used = used.into_iter().map(|(id, at)| (id, unix.saturating_sub(ago(at)))).collect();
        if let Err(error) = store.note_last_use(used).await {
            tracing::warn!(%error, "when keys were last used could not be written down");
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
        self.state.store(Arc::new(State {
            book: Arc::new(book),
            config: state.config.clone(),
            origin: state.origin.clone(),
            keys: state.keys.clone(),
            strangers: state.strangers.clone(),
        }));
    }
}
