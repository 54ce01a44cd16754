//! Puts another configuration, origin and key table in force in one atomic swap. The order matters: the state is
//! swapped first and the epochs move after it, so that no answer of the old origin or of the old cache times is
//! stored as one of the new. Whatever can fail was done before, by the caller.

use std::sync::Arc;

use super::{Gateway, KeyFile, KeyList, KeySource, LoadedKeys};
use crate::config::Config;
use crate::origin::Origin;

/// The keys that a reload puts in force. The store's keys never come without their list.
#[derive(Debug)]
pub enum NewKeys<'l> {
    /// The keys in force stay, under the limits of the new configuration.
    Unchanged,
    /// A key file. The store is not asked: the guilds that the bot has left are those known, and changes of them come
    /// by the change feed.
    File(KeyFile),
    /// The store's keys.
    Store(LoadedKeys<'l>),
}

impl Gateway {
    /// Puts another configuration in force from the next request on, all or nothing. What is available to a key
    /// stays available, up to its new burst (guarantee 6).
    pub fn reload(&self, config: Config, origin: Arc<Origin>, keys: NewKeys<'_>) {
        let config = Arc::new(config);
        self.core.replace_state(
            |before| {
                let departed_guilds = before.departed_guilds.clone();
                let (source, list, loaded) = match keys {
                    NewKeys::Unchanged => {
                        let keys = before.key_table.listed_keys();
                        (before.keys.clone(), KeyList { keys, departed_guilds }, None)
                    }
                    NewKeys::File(file) => (KeySource::File(file), KeyList { keys: Vec::new(), departed_guilds }, None),
                    NewKeys::Store(LoadedKeys { source, list, loaded }) => (source, list, Some(loaded)),
                };
                let state = before.next(config, origin, source, list, &self.core.clock);
                match &loaded {
                    Some(loaded) => self.follower.date_keys(&state, loaded),
                    // The same keys, which the follower may have confirmed again while the table was built.
                    None => state.key_table.set_confirmed_at(before.key_table.confirmed_at()),
                }
                (state, loaded)
            },
            |before, state, loaded| {
                let is_other_origin = !Arc::ptr_eq(&before.origin, &state.origin);
                // After the swap: an answer of the old origin that is still accepted was asked for before this moment.
                state.keys.set_rules(state, is_other_origin, &self.core.clock);
                if is_other_origin || before.config.cache != state.config.cache {
                    self.core.cache.gate.invalidate_all();
                }
                // After the epochs: those that wait for a permit, and get one by this, ask in the new epoch at once.
                state.origin.activate();
                loaded.inspect(|loaded| self.follower.keys_in_force(loaded));
            },
        );
    }
}
