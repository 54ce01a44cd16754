//! Puts another configuration, origin and key table in force in one atomic swap. The order matters: the state is
//! swapped first and the epochs move after it, so that no answer of the old origin or of the old cache times is
//! stored as one of the new. Whatever can fail was done before, by the caller.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Gateway, KeyFile, KeyList, KeySource, State};
use crate::config::Config;
use crate::origin::Origin;

/// The keys that a reload puts in force. The store's keys never come without their list.
#[derive(Debug)]
pub enum NewKeys {
    /// The keys in force stay, under the limits of the new configuration.
    Unchanged,
    /// A key file. The store is not asked: the guilds that the bot has left are those known, and changes of them come
    /// by the change feed.
    File(KeyFile),
    /// What the store lists now.
    Listed(KeyList),
}

impl Gateway {
    /// Puts another configuration in force from the next request on, all or nothing. What is available to a key
    /// stays available, up to its new burst (guarantee 6).
    pub fn reload(&self, config: impl Into<Arc<Config>>, origin: Arc<Origin>, keys: NewKeys) {
        self.replace_state(Some((config.into(), origin)), keys);
    }

    /// Puts the next state in force; `settings`: others than those in force.
    pub(super) fn replace_state(&self, settings: Option<(Arc<Config>, Arc<Origin>)>, keys: NewKeys) {
        let (clock, gate) = (&self.clock, &self.cache.gate);
        let _swap = self.swap.lock();
        let before = self.state_full();
        let (config, origin) = settings.unwrap_or_else(|| (before.config.clone(), before.origin.clone()));
        let with_guilds = |keys| KeyList { keys, departed_guilds: before.departed_guilds.clone() };
        let (source, list) = match keys {
            NewKeys::Unchanged => (before.keys.clone(), with_guilds(before.key_table.listed_keys())),
            NewKeys::File(file) => (KeySource::File(file), with_guilds(Vec::new())),
            NewKeys::Listed(list) => (before.keys.clone(), list),
        };
        let strangers = before.strangers.with_rate(config.limits.strangers);
        let used = (&*before.key_table, strangers);
        let state = Arc::new(State::build(config, origin, source, list, used, clock));
        // What the built-in backend answers is about the guild, whatever key it is asked with. What an HTTP origin answered
        // to a key is not about the guild that it was listed under before.
        let realms = match state.origin.is_builtin() {
            true => HashSet::new(),
            false => state.key_table.realms_left(&before.key_table),
        };
        let invalidate = || realms.iter().for_each(|realm| gate.invalidate_realm(*realm));
        invalidate(); // a key of the new state must be told nothing of what was kept
        self.state.store(state.clone());
        invalidate(); // what was asked for meanwhile
        if let Some(peers) = self.peers_of(&state) {
            let changed = state.departed_guilds.symmetric_difference(&before.departed_guilds);
            changed.for_each(|guild| peers.bus.purge(Some(guild.clone()), None));
        }
        let is_other_origin = !Arc::ptr_eq(&before.origin, &state.origin);
        // After the swap: an answer of the old origin that is still accepted was asked for before this moment.
        state.keys.set_rules(&state, is_other_origin, clock);
        if is_other_origin || before.config.cache != state.config.cache {
            gate.invalidate_all();
        }
        // After the epochs: those that wait for a permit, and get one by this, ask in the new epoch at once.
        state.origin.activate();
    }
}
