use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::MutexGuard;
use tokio::time::{sleep, timeout};

use super::Gateway;
use crate::clock::Tick;
use crate::config::{Config, Keys};
use crate::keys::{Book, KeyFileError, Learned, Listed, Rules, read_key_file};
use crate::model::GuildId;
use crate::store::{AnyStore, Directory, KeyRecord};

/// How long a key file that was read waits for the store to tell which guilds were left, and how soon the store is
/// asked again where it did not: a key that was taken out of the file must not be let in meanwhile (guarantee 7).
const GUILDS: Duration = Duration::from_millis(300);

/// A list of keys that is to be put in force, or dropped: nobody else lists meanwhile.
#[derive(Debug)]
pub struct Fresh<'g> {
    pub(super) listed: Vec<Listed>,
    /// Changes that are in it, of those that were heard of.
    pub(super) changes: u64,
    /// When it began to be read.
    pub(super) at: Tick,
    /// The store did not tell in time which guilds were left; those of the book in force are taken for it.
    guilds_are_old: bool,
    _turn: MutexGuard<'g, ()>,
}

impl Fresh<'_> {
    /// Whether the keys are to be [listed again](Gateway::list_again), once they are in force.
    pub fn guilds_are_old(&self) -> bool {
        self.guilds_are_old
    }
}

impl Gateway {
    /// Lists the keys once every list that was begun before is in force: those of `other`, or of the source that is in
    /// force then.
    pub async fn list(&self, other: Option<&KeySource>) -> Result<Fresh<'_>, String> {
        let turn = self.listing.lock().await;
        let keys = other.unwrap_or(&self.state().keys).clone();
        let (changes, at) = (self.doubt.changes(), self.now());
        let (listed, guilds_are_old) = match (other, &keys) {
            (Some(_), KeySource::File { listed, guilds: Some(store) }) => {
                match timeout(GUILDS, departed(store)).await {
                    Ok(Ok(gone)) => (marked(listed, &gone), false),
                    Ok(Err(_)) | Err(_) => (marked(listed, &self.state().book.guilds_gone()), true),
                }
            }
            _ => (keys.list().await?, false),
        };
        Ok(Fresh { listed, changes, at, guilds_are_old, _turn: turn })
    }

    /// Lists the keys in force again, until the store tells which guilds were left.
    pub async fn list_again(&self) {
        loop {
            sleep(GUILDS).await;
            if let Ok(fresh) = self.list(None).await {
                self.take_book(fresh);
                return;
            }
        }
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

    /// All keys that are listed, as they are now.
    pub async fn list(&self) -> Result<Vec<Listed>, String> {
        match self {
            KeySource::Origin(_) => Ok(Vec::new()),
            KeySource::File { listed, guilds: None } => Ok(listed.to_vec()),
            KeySource::File { listed, guilds: Some(store) } => Ok(marked(listed, &departed(store).await?)),
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
