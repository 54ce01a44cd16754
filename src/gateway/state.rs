//! What a request sees: configuration, origin and keys in force, as one snapshot (`State`) that never changes. A reload
//! or a change of keys swaps in another snapshot. `Core` holds the snapshot in force with the clock and the cache; the
//! rules and all owners share it.

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use super::key_source::{KeyList, KeySource};
use super::peers::Peers;
use super::read::Asked;
use crate::cache::{Answers, Realm};
use crate::clock::{Clock, Tick};
use crate::config::Config;
use crate::keys::KeyTable;
use crate::limits::{DayCount, Strangers};
use crate::model::{GuildId, KeyId};
use crate::origin::Origin;

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

    /// The realms whose cached answers are about other guilds than under the state before.
    pub(super) fn realms_left(&self, before: &State) -> HashSet<Realm> {
        // What the built-in backend answers is about the guild, whatever key it is asked with.
        if self.origin.is_builtin() {
            return HashSet::new();
        }
        // What an HTTP origin answered to a key is not about the guild that it was listed under before.
        self.key_table.realms_left(&before.key_table)
    }

    /// Whether changes in the store can outdate cached answers. The store holds nothing about the answers of an HTTP
    /// origin to keys of a key file.
    pub(super) fn depends_on_store(&self) -> bool {
        matches!(self.keys, KeySource::Store(_)) || self.origin.is_builtin()
    }
}

/// What the rules and the owners share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) clock: Clock,
    pub(super) cache: Answers<Asked>,
    /// The other nodes before the same HTTP origin.
    pub(super) peers: Option<Peers>,
    pub(super) state: ArcSwap<State>,
    /// Keys whose day was given back, by the change feed, and is not yet here.
    pub(super) day_resets: Mutex<Vec<KeyId>>,
    /// Held while the next state is made.
    pub(super) swap: Mutex<()>,
}

impl Core {
    pub(super) fn new(clock: Clock, state: State, peers: Option<Peers>) -> Self {
        let cache = Answers::new(state.config.cache.max_size);
        Core {
            clock,
            cache,
            peers,
            state: ArcSwap::from_pointee(state),
            day_resets: Mutex::default(),
            swap: Mutex::new(()),
        }
    }

    pub(super) fn now(&self) -> Tick {
        self.clock.now()
    }

    /// The state in force, for as long as nothing is waited for.
    pub(super) fn state(&self) -> Guard<Arc<State>> {
        self.state.load()
    }

    /// The state in force, to be kept while something is waited for.
    pub(super) fn state_full(&self) -> Arc<State> {
        self.state.load_full()
    }
}
