//! Where keys come from (`keys.source`), and the list of all keys as the store or the key file has it now. A rotated key
//! is listed once for each of its two secrets. Nothing here decides about a request.

use std::collections::HashSet;
use std::sync::Arc;

use super::State;
use crate::clock::Clock;
use crate::config::{ConfigHash, Keys};
use crate::keys::{LearnedKeyRules, LearnedKeys, ListedKey};
use crate::model::GuildId;
use crate::store::{KeyRecord, Store};

/// Where keys come from.
#[derive(Clone, Debug)]
pub enum KeySource {
    Store(Arc<Store>),
    File(KeyFile),
    /// Only the origin knows them.
    Origin(Arc<LearnedKeys>),
}

/// The keys of a key file as they were when it was read.
#[derive(Clone, Debug)]
pub struct KeyFile {
    pub keys: Arc<[ListedKey]>,
    /// The same for the same keys in any order.
    pub(super) hash: ConfigHash,
    /// The store of the built-in backend, which knows the guilds that the bot has left.
    pub guilds: Option<Arc<Store>>,
}

impl KeyFile {
    pub fn new(keys: Vec<ListedKey>, guilds: Option<Arc<Store>>) -> Self {
        let text = |key: &ListedKey| {
            let ListedKey { id, digest, guild, guild_departed: _, tier, scope, expires } = key;
            format!("{id} {digest} {guild} {scope} {expires:?} {tier:?}\n")
        };
        let mut texts: Vec<String> = keys.iter().map(text).collect();
        texts.sort_unstable();
        KeyFile { keys: keys.into(), hash: ConfigHash::of(&texts.concat()), guilds }
    }
}

/// What the store lists for a source: the guilds that the bot has left, and the keys if they are in the store.
#[derive(Debug, Default)]
pub struct KeyList {
    pub keys: Vec<ListedKey>,
    pub departed_guilds: Arc<HashSet<GuildId>>,
}

impl KeySource {
    /// Puts what the configuration says of learned keys in force from now on.
    pub(super) fn set_rules(&self, state: &State, is_other_origin: bool, clock: &Clock) {
        let config = &state.config;
        if let (KeySource::Origin(learned_keys), Keys::Origin { accepted_for, refused_for }) = (self, &config.keys) {
            let policy = state.key_table.default_policy(&config.limits);
            let since = if is_other_origin { clock.now() } else { learned_keys.since() };
            let (accepted_for, refused_for) = (*accepted_for, *refused_for);
            learned_keys.set_rules(LearnedKeyRules { policy, accepted_for, refused_for, since }, clock.now());
        }
    }

    /// All keys, and the guilds that the bot has left. The keys of a file are those that it holds now, whatever the
    /// store listed.
    pub(super) fn listed(&self, list: KeyList) -> (Vec<ListedKey>, Arc<HashSet<GuildId>>) {
        let KeyList { keys, departed_guilds } = list;
        let keys = match self {
            KeySource::File(file) => {
                let is_departed = |key: &ListedKey| departed_guilds.contains(&key.guild);
                file.keys.iter().map(|key| ListedKey { guild_departed: is_departed(key), ..key.clone() }).collect()
            }
            KeySource::Store(_) | KeySource::Origin(_) => keys,
        };
        (keys, departed_guilds)
    }

    /// Asks the store, if this source needs it.
    pub async fn list(&self) -> Result<KeyList, String> {
        match self {
            KeySource::Origin(_) | KeySource::File(KeyFile { guilds: None, .. }) => Ok(KeyList::default()),
            KeySource::File(KeyFile { guilds: Some(store), .. }) => {
                Ok(KeyList { keys: Vec::new(), departed_guilds: Arc::new(departed_guilds(store).await?) })
            }
            KeySource::Store(store) => {
                let departed = departed_guilds(store).await?;
                let keys = store.keys().await.map_err(|e| e.to_string())?;
                let keys = keys.into_iter().flat_map(|key| {
                    let guild_departed = departed.contains(&key.guild);
                    by_each_secret(key, guild_departed)
                });
                Ok(KeyList { keys: keys.collect(), departed_guilds: Arc::new(departed) })
            }
        }
    }
}

/// A key by its secret and by the one before its last rotation, which expires by itself at the end of the overlap.
fn by_each_secret(key: KeyRecord, guild_departed: bool) -> impl Iterator<Item = ListedKey> {
    let previous = key.previous.map(|previous| (previous.digest, key.previous_ends()));
    let current = ListedKey {
        id: key.id,
        digest: key.digest,
        guild: key.guild,
        guild_departed,
        tier: key.tier.map(Into::into),
        scope: key.scope,
        expires: key.expires,
    };
    let previous = previous.map(|(digest, expires)| ListedKey { digest, expires, ..current.clone() });
    std::iter::once(current).chain(previous)
}

async fn departed_guilds(store: &Store) -> Result<HashSet<GuildId>, String> {
    let guilds = store.guilds().await.map_err(|e| e.to_string())?;
    Ok(guilds.into_iter().filter(|guild| guild.departed).map(|guild| guild.id).collect())
}
