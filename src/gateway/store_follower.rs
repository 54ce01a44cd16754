//! Follows the store's change feed for as long as the server runs, so that what another process changed takes effect
//! here within one second (guarantees 2 and 7). A changed member is dropped from memory; a changed key or guild makes the
//! key table be loaded again. Two stamps say how old what is known is, and requests compare them with their own time: the
//! feed's, after which nothing that depends on the store is answered from memory, and the key table's, after which its
//! keys are refused. Reading the feed and loading the keys run side by side, so that a long list of keys does not stop the
//! feed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, OwnedMutexGuard};

use super::NewKeys;
use super::key_source::{KeyList, KeySource};
use super::state::{Core, State};
use crate::clock::{AlignedTimer, Tick};
use crate::cluster::{Freshness, MAX_AGE};
use crate::store::{Change, Store};

/// How often the feed is read.
const INTERVAL: Duration = Duration::from_millis(250);

/// How soon a read that failed is repeated.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Knows how old the keys and the answers in memory are compared with the store, and keeps them recent.
#[derive(Debug)]
pub struct StoreFollower {
    pub(super) core: Arc<Core>,
    /// The feed's stamp. That of the keys is in the key table.
    feed: Freshness,
    /// Changes of guilds and keys that were seen on the feed, and how many of them the key table contains.
    seen: AtomicU64,
    loaded: AtomicU64,
    /// Asks for the keys to be loaded again.
    reload_keys: Notify,
    /// Held from the begin of a list of keys until that list is in force: an older list must never replace a newer one.
    load_lock: Arc<Mutex<()>>,
}

/// A list of keys that is to be put in force or dropped; nobody else loads keys meanwhile. A key file may be put in
/// force meanwhile: it holds its keys itself, and a key that was removed from it does not wait for a store
/// (guarantee 7).
#[derive(Debug)]
pub struct LoadedKeys {
    /// `None`: the source in force.
    pub(super) source: Option<KeySource>,
    pub(super) list: KeyList,
    pub(super) loaded: Loaded,
}

/// What a list of keys is known to contain.
#[derive(Debug)]
pub(super) struct Loaded {
    /// The changes that it contains, of those seen on the feed.
    changes: u64,
    /// When reading it began.
    at: Tick,
    _lock: OwnedMutexGuard<()>,
}

impl StoreFollower {
    pub(super) fn new(core: Arc<Core>) -> Self {
        StoreFollower {
            core,
            feed: Freshness::not_followed(),
            seen: AtomicU64::new(0),
            loaded: AtomicU64::new(0),
            reload_keys: Notify::new(),
            load_lock: Arc::default(),
        }
    }

    /// Whether the keys of `state` are too old to accept or refuse a request by them.
    pub(super) fn keys_are_stale(&self, state: &State, now: Tick) -> bool {
        matches!(state.keys, KeySource::Store(_)) && now.since(state.key_table.confirmed_at()) >= MAX_AGE
    }

    /// Whether what others change in the store is known here in time to answer from memory.
    pub(super) fn hears_store(&self, state: &State, now: Tick) -> bool {
        !(self.feed.is_stale(now) && state.depends_on_store())
    }

    /// How long ago the feed was last known to be read up to its end; `None`: it is not followed.
    pub(super) fn feed_age(&self, state: &State, now: Tick) -> Option<Duration> {
        self.feed.age(now).filter(|_| state.depends_on_store())
    }

    /// Why requests are refused, or nothing is answered from memory; `None`: the store is followed.
    pub fn fault(&self) -> Option<&'static str> {
        let (state, now) = (self.core.state(), self.core.now());
        if self.keys_are_stale(&state, now) {
            return Some("the keys cannot be refreshed from the store; requests are refused until it answers");
        }
        let is_away = !self.hears_store(&state, now);
        is_away.then_some("the store is away: its changes cannot be read, and nothing is answered from memory")
    }

    /// Loads the keys of `source`, or of the source in force, once every list that was begun before is in force. It
    /// takes as long as the store does.
    pub async fn load_keys(&self, source: Option<KeySource>) -> Result<LoadedKeys, String> {
        let lock = self.load_lock.clone().lock_owned().await;
        let loaded = Loaded { changes: self.seen.load(Ordering::SeqCst), at: self.core.now(), _lock: lock };
        let from = source.clone().unwrap_or_else(|| self.core.state().keys.clone());
        Ok(LoadedKeys { list: from.list().await?, source, loaded })
    }

    /// Puts loaded keys in force; what was used up stays used up.
    pub fn apply_keys(&self, keys: LoadedKeys) {
        self.replace_state(None, NewKeys::Store(keys));
    }

    /// Stamps loaded keys, before `state` is in force: they are as recent as the feed if it told of no change since, and
    /// else of when reading them began. They age while the feed is followed.
    pub(super) fn date_keys(&self, state: &State, loaded: &Loaded) {
        let Some(as_of) = self.feed.as_of() else { return }; // first: what it told is counted before
        let is_complete = self.seen.load(Ordering::SeqCst) == loaded.changes;
        state.key_table.set_confirmed_at(if is_complete { loaded.at.max(as_of) } else { loaded.at });
    }

    /// Loaded keys are in force from now on.
    pub(super) fn keys_in_force(&self, loaded: &Loaded) {
        self.loaded.store(loaded.changes, Ordering::SeqCst);
    }

    /// Follows the change feed until the process ends. It begins before the first keys were loaded.
    pub async fn follow(&self, store: &Store) {
        let now = self.core.now();
        self.feed.confirm(now);
        self.core.state().key_table.set_confirmed_at(now);
        tokio::join!(self.follow_feed(store), self.keep_keys_loaded());
    }

    async fn follow_feed(&self, store: &Store) {
        let (timer, mut is_failing) = (AlignedTimer::new(), false);
        loop {
            if is_failing {
                tokio::time::sleep(RETRY_AFTER).await;
            } else {
                tokio::select! {
                    () = store.committed_here() => {}
                    () = timer.next_multiple_of(INTERVAL) => {}
                }
            }
            let asked = self.core.now();
            match store.changes().await {
                Ok(changes) => {
                    if std::mem::take(&mut is_failing) {
                        tracing::info!("the store's change feed works again");
                        self.apply_change(Change::Everything);
                    }
                    changes.into_iter().for_each(|change| self.apply_change(change));
                    self.feed_was_read(asked);
                }
                Err(error) if !std::mem::replace(&mut is_failing, true) => tracing::error!(
                    %error,
                    "the store's change feed cannot be read; nothing is answered from memory, and the store's keys are \
                     refused until it is"
                ),
                Err(_) => {}
            }
        }
    }

    /// The feed was read, up to what had changed by `at`, and the changes were applied.
    pub(super) fn feed_was_read(&self, at: Tick) {
        self.feed.confirm(at);
        // A change that was seen and is not loaded yet keeps the keys from being current.
        if self.seen.load(Ordering::SeqCst) == self.loaded.load(Ordering::SeqCst) {
            self.core.state().key_table.set_confirmed_at(at);
        }
    }

    /// Loads the keys whenever this is asked for, and again until it succeeds.
    async fn keep_keys_loaded(&self) {
        let mut is_failing = false;
        loop {
            self.reload_keys.notified().await;
            match self.load_keys(None).await {
                Ok(keys) => {
                    is_failing = false;
                    self.apply_keys(keys);
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::error!(error, "the keys could not be read from the store; trying again");
                    }
                    tokio::time::sleep(RETRY_AFTER).await;
                    self.reload_keys.notify_one();
                }
            }
        }
    }

    fn apply_change(&self, change: Change) {
        match change {
            Change::Member(member) => self.core.cache.gate.invalidate_member(member),
            Change::DayReset(key) => self.core.day_resets.lock().push(key),
            Change::Directory => self.keys_changed(),
            Change::Everything => {
                self.core.cache.gate.invalidate_all();
                self.keys_changed();
            }
        }
    }

    pub(super) fn keys_changed(&self) {
        self.seen.fetch_add(1, Ordering::SeqCst);
        self.reload_keys.notify_one();
    }
}
