//! What a request sees: configuration, origin and keys in force, as one snapshot that never changes. A reload or a change
//! of keys swaps in another one (`reload.rs`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::key_source::{KeyList, KeySource};
use crate::clock::Clock;
use crate::config::{Config, OriginKind};
use crate::keys::{Key, KeyTable};
use crate::limits::{DayCount, Strangers};
use crate::model::{GuildId, KeyId};
use crate::origin::Origin;
use crate::wire::Operation;

/// The longest time that a write of the built-in backend takes: a second to begin, two for its commit, and two to spare.
const STORE_WRITES_WITHIN: Duration = Duration::from_secs(5);

/// Configuration, origin and keys in force together.
#[derive(Debug)]
pub struct State {
    pub config: Arc<Config>,
    pub origin: Arc<Origin>,
    pub keys: KeySource,
    pub(super) key_table: Arc<KeyTable>,
    pub(super) strangers: Arc<Strangers>,
    /// The guilds that the bot has left, as the store last listed them.
    pub(super) departed_guilds: Arc<HashSet<GuildId>>,
}

impl State {
    /// The first state of a gateway. `list` is what `keys` lists now, `counts` the requests that were counted on this
    /// day before the start.
    pub fn new(
        config: Config,
        origin: Arc<Origin>,
        keys: KeySource,
        list: KeyList,
        counts: Vec<(KeyId, DayCount)>,
        clock: &Clock,
    ) -> Self {
        let used = KeyTable::with_day_counts(counts);
        let strangers = Arc::new(Strangers::new(config.limits.strangers));
        let state = State::build(Arc::new(config), origin, keys, list, (&used, strangers), clock);
        state.keys.set_rules(&state, false, clock);
        state
    }

    /// `used`: the table before, from which each id keeps its budget (guarantee 6).
    pub(super) fn build(
        config: Arc<Config>,
        origin: Arc<Origin>,
        keys: KeySource,
        list: KeyList,
        (used, strangers): (&KeyTable, Arc<Strangers>),
        clock: &Clock,
    ) -> Self {
        let (listed, departed_guilds) = keys.listed(list);
        let key_table = Arc::new(KeyTable::new(listed, &config.limits, used, clock.now(), clock.unix()));
        State { config, origin, keys, key_table, strangers, departed_guilds }
    }

    /// Whether changes in the store can outdate cached answers. The store holds nothing about the answers of an HTTP
    /// origin to keys of a key file.
    pub(super) fn depends_on_store(&self) -> bool {
        matches!(self.keys, KeySource::Store(_)) || self.origin.is_builtin()
    }

    /// The wanted ones of all keys. A key with two secrets is there once.
    pub(super) fn keys_in_force(&self, is_wanted: impl Fn(&Key) -> bool) -> Vec<Arc<Key>> {
        let mut keys: Vec<Arc<Key>> = match &self.keys {
            KeySource::Origin(learned_keys) => learned_keys.keys().into_iter().filter(|key| is_wanted(key)).collect(),
            KeySource::Store(_) | KeySource::File(_) => {
                self.key_table.keys().filter(|key| is_wanted(key)).cloned().collect()
            }
        };
        let mut seen = HashSet::new();
        keys.retain(|key| seen.insert(key.id.clone()));
        keys
    }

    /// How long a request waits for others before it, at most.
    pub(super) fn queue_time(&self) -> Duration {
        match &self.config.origin.kind {
            OriginKind::Http(upstreams) => upstreams.queue_timeout,
            OriginKind::Builtin => Duration::ZERO,
        }
    }

    /// How long a write takes at most until its caller is answered.
    pub(super) fn write_time(&self) -> Duration {
        match &self.config.origin.kind {
            OriginKind::Http(upstreams) => upstreams.timeout,
            OriginKind::Builtin => STORE_WRITES_WITHIN,
        }
    }

    /// How long nothing about a member is kept after a write of unknown outcome.
    pub(super) fn unknown_for(&self) -> Duration {
        match self.config.cache.of(Operation::GetPoints).ttl {
            Duration::ZERO => self.write_time(),
            ttl => ttl,
        }
    }
}
