//! Where keys come from (`keys.source`), and the list of all keys as the store or the key file has it now. A running
//! gateway makes one list at a time, and holds a lock until that list is in force or dropped: an older list must never
//! replace a newer one. A rotated key is listed once for each of its two secrets. It decides about no request.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::MutexGuard;

use super::Gateway;
use crate::clock::Tick;
use crate::config::{Config, Keys};
use crate::keys::{Book, KeyFileError, Learned, Listed, Rules, read_key_file};
use crate::model::GuildId;
use crate::store::{AnyStore, Directory, KeyRecord};

/// What the store lists of a source: the guilds that the bot had left by then, and the keys, if they are in the store.
#[derive(Debug, Default)]
pub struct Listing {
    pub keys: Vec<Listed>,
    pub guilds_gone: Arc<HashSet<GuildId>>,
}

/// A listing that is to be put in force, or dropped: nobody else lists meanwhile. A key file may be put in force
/// meanwhile: it holds its keys itself, and no key that was taken out of it waits for a store (guarantee 7).
#[derive(Debug)]
pub struct Fresh<'g> {
    pub(super) listing: Listing,
    /// Changes that are in it, of those that were heard of.
    pub(super) changes: u64,
    /// When it began to be read.
    pub(super) at: Tick,
    _turn: MutexGuard<'g, ()>,
}

impl Gateway {
    /// Lists the keys once every list that was begun before is in force: those of `other`, or of the source that is in
    /// force then. It takes as long as the store does.
    pub async fn list(&self, other: Option<&KeySource>) -> Result<Fresh<'_>, String> {
        let turn = self.listing.lock().await;
        let keys = other.unwrap_or(&self.state().keys).clone();
        let (changes, at) = (self.doubt.changes(), self.now());
        Ok(Fresh { listing: keys.list().await?, changes, at, _turn: turn })
    }
}

/// Where the book of keys is read from.
#[derive(Clone, Debug)]
pub enum KeySource {
    Store(Arc<AnyStore>),
    /// A file's keys as they were when it was read: it is read anew by a reload only.
    File {
        listed: Arc<[Listed]>,
        /// The built-in backend's store, which knows the guilds that the bot has left.
        guilds: Option<Arc<AnyStore>>,
    },
    /// The origin alone knows them.
    Origin(Arc<Learned>),
}

impl KeySource {
    /// Reads a key file, aside: a large one takes a second or two.
    pub async fn file(path: PathBuf, guilds: Option<Arc<AnyStore>>) -> Result<Self, KeyFileError> {
        let read = tokio::task::spawn_blocking(move || read_key_file(&path)).await;
        let listed = read.map_err(|e| KeyFileError::Unreadable(format!("the key file's reader failed: {e}")))??;
        Ok(KeySource::File { listed: listed.into(), guilds })
    }

    /// Puts what a configuration says of learned keys in force from `now` on; their origin may be another one.
    pub(super) fn hold_to(&self, config: &Config, book: &Book, other_origin: bool, now: Tick) {
        if let (KeySource::Origin(learned), Keys::Origin { accepted_for, refused_for }) = (self, &config.keys) {
            let policy = book.default_policy(&config.limits);
            let since = if other_origin { now } else { learned.since() };
            learned.hold_to(Rules { policy, accepted_for: *accepted_for, refused_for: *refused_for, since }, now);
        }
    }

    /// Whether its keys are read from the store, so that a reload has to list them.
    pub fn is_store(&self) -> bool {
        matches!(self, KeySource::Store(_))
    }

    /// All keys, and the guilds that the bot has left, by what the store listed. A file's keys are those that it holds
    /// now, whenever the store was asked.
    pub(super) fn listed(&self, listing: Listing) -> (Vec<Listed>, Arc<HashSet<GuildId>>) {
        let Listing { keys, guilds_gone } = listing;
        let listed = match self {
            KeySource::File { listed, .. } => marked(listed, &guilds_gone),
            KeySource::Store(_) | KeySource::Origin(_) => keys,
        };
        (listed, guilds_gone)
    }

    /// What the store lists, as it is now.
    pub async fn list(&self) -> Result<Listing, String> {
        match self {
            KeySource::Origin(_) => Ok(Listing::default()),
            KeySource::File { guilds: None, .. } => Ok(Listing::default()),
            KeySource::File { guilds: Some(store), .. } => {
                Ok(Listing { keys: Vec::new(), guilds_gone: Arc::new(departed(store).await?) })
            }
            KeySource::Store(store) => {
                let gone = departed(store).await?;
                let keys = store.keys().await.map_err(|e| e.to_string())?;
                let listed = keys.into_iter().flat_map(|key| {
                    let guild_gone = gone.contains(&key.guild);
                    by_each_secret(key, guild_gone)
                });
                Ok(Listing { keys: listed.collect(), guilds_gone: Arc::new(gone) })
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
        tier: key.tier.map(Into::into),
        scope: key.scope,
        expires: key.expires,
    };
    let before = before.map(|(digest, expires)| Listed { digest, expires, ..now.clone() });
    std::iter::once(now).chain(before)
}

/// A file's keys, where these guilds were left.
fn marked(listed: &[Listed], gone: &HashSet<GuildId>) -> Vec<Listed> {
    let mark = |key: &Listed| Listed { guild_gone: gone.contains(&key.guild), ..key.clone() };
    listed.iter().map(mark).collect()
}

/// The guilds that the bot has left.
async fn departed(store: &AnyStore) -> Result<HashSet<GuildId>, String> {
    let guilds = store.guilds().await.map_err(|e| e.to_string())?;
    Ok(guilds.into_iter().filter(|guild| guild.left).map(|guild| guild.id).collect())
}
