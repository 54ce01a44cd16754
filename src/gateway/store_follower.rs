//! Follows the store's change feed for as long as the server runs, so that what another process changed takes effect
//! here within one second. A changed member is invalidated in the cache; a changed key or guild makes the key table be
//! loaded again. While the feed cannot be read, no answer that depends on the store is given from memory. Reading the
//! feed and loading the keys run side by side, so that a list of keys that hangs does not stop the feed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, Notify};

use super::key_source::{KeyList, KeySource};
use super::state::{Core, State};
use super::store_freshness::StoreFreshness;
use crate::clock::{AlignedTimer, Tick};
use crate::cluster::Freshness;
use crate::store::{Change, Store, StoreError};

/// How often the feed is read.
const INTERVAL: Duration = Duration::from_millis(250);

/// Interval at which cached answers are invalidated while the feed cannot be read, and at which a failed read is
/// repeated.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A read of the feed that takes longer may fail. The keys are loaded meanwhile, so that they are recent when it does.
const SLOW_READ: Duration = Duration::from_millis(250);

/// Knows how old the keys and the cached answers are compared with the store, and keeps them recent.
#[derive(Debug)]
pub struct StoreFollower {
    core: Arc<Core>,
    freshness: StoreFreshness,
    /// Asks for the keys to be loaded again.
    reload_keys: Notify,
    /// Held from the begin of a list of keys until that list is in force: an older list must never replace a newer one.
    load_lock: Mutex<()>,
    /// The feed could not be read, and was not since.
    is_failing: AtomicBool,
}

/// A list of keys that is to be put in force or dropped; nobody else loads keys meanwhile. A key file may be put in
/// force meanwhile: it holds its keys itself, and a key that was removed from it does not wait for a store
/// (guarantee 7).
#[derive(Debug)]
pub struct LoadedKeys<'f> {
    pub(super) source: KeySource,
    pub(super) list: KeyList,
    pub(super) loaded: Loaded<'f>,
}

/// What a list of keys is known to contain.
#[derive(Debug)]
pub(super) struct Loaded<'f> {
    /// The changes that it contains, of those seen on the feed.
    changes: u64,
    /// When reading it began.
    at: Tick,
    _lock: MutexGuard<'f, ()>,
}

impl StoreFollower {
    pub(super) fn new(core: Arc<Core>) -> Self {
        let freshness = StoreFreshness::new(core.now());
        StoreFollower {
            core,
            freshness,
            reload_keys: Notify::new(),
            load_lock: Mutex::new(()),
            is_failing: AtomicBool::new(false),
        }
    }

    /// Whether the keys of `state` are too old to accept or refuse a request by them.
    pub(super) fn keys_are_stale(&self, state: &State, now: Tick) -> bool {
        // The age of this table, which may have been replaced since `state` was read.
        matches!(state.keys, KeySource::Store(_))
            && (self.freshness.keys_are_stale() || Freshness::is_too_old(state.key_table.confirmed_at(), now))
    }

    /// Invalidates the cache if the feed was not read for too long, as after the process stood still.
    pub(super) fn invalidate_if_feed_is_stale(&self, state: &State, now: Tick) {
        if self.freshness.feed_is_stale(now) && state.depends_on_store() {
            self.core.cache.epochs().invalidate_all();
        }
    }

    /// How long ago the feed was last known to be read up to its end; `None`: it is not followed.
    pub(super) fn feed_age(&self, state: &State, now: Tick) -> Option<Duration> {
        self.freshness.feed_age(now).filter(|_| state.depends_on_store())
    }

    /// Why requests are refused, or nothing is answered from memory; `None`: the store is followed.
    pub fn fault(&self) -> Option<&'static str> {
        let (state, now) = (self.core.state(), self.core.now());
        if self.keys_are_stale(&state, now) {
            return Some("the keys cannot be refreshed from the store; requests are refused until it answers");
        }
        let is_away = state.depends_on_store() && self.freshness.feed_is_stale(now);
        is_away.then_some("the store is away: its changes cannot be read, and nothing is answered from memory")
    }

    /// Loads the keys of `source`, or of the source in force, once every list that was begun before is in force. It
    /// takes as long as the store does.
    pub async fn load_keys(&self, source: Option<KeySource>) -> Result<LoadedKeys<'_>, String> {
        let lock = self.load_lock.lock().await;
        let source = source.unwrap_or_else(|| self.core.state().keys.clone());
        let loaded = Loaded { changes: self.freshness.changes_seen(), at: self.core.now(), _lock: lock };
        Ok(LoadedKeys { list: source.list().await?, source, loaded })
    }

    /// Puts loaded keys in force; what was used up stays used up.
    pub fn apply_keys(&self, keys: LoadedKeys<'_>) {
        let LoadedKeys { list, loaded, .. } = keys;
        self.core.replace_state(
            |before| {
                let (config, origin, keys) = (before.config.clone(), before.origin.clone(), before.keys.clone());
                let state = before.next(config, origin, keys, list, &self.core.clock);
                self.date_keys(&state, &loaded);
                (state, ())
            },
            |_, _, ()| self.keys_in_force(&loaded),
        );
    }

    /// Sets the age of loaded keys, before `state` is in force. They age while the feed is followed.
    pub(super) fn date_keys(&self, state: &State, loaded: &Loaded<'_>) {
        if let Some(as_of) = self.freshness.keys_as_of(loaded.changes, loaded.at) {
            state.key_table.set_confirmed_at(as_of);
        }
    }

    /// Loaded keys are in force from now on.
    pub(super) fn keys_in_force(&self, loaded: &Loaded<'_>) {
        self.freshness.keys_loaded(loaded.changes, loaded.at, self.core.now());
    }

    /// Follows the change feed until the process ends.
    pub async fn follow(&self, store: &Store) {
        // The feed begins before the first keys were loaded.
        self.core.state().key_table.set_confirmed_at(self.freshness.start_following());
        tokio::join!(self.follow_feed(store), self.keep_keys_loaded());
    }

    async fn follow_feed(&self, store: &Store) {
        let timer = AlignedTimer::new();
        loop {
            if self.is_failing.load(Ordering::SeqCst) {
                tokio::time::sleep(RETRY_AFTER).await;
            } else {
                tokio::select! {
                    () = store.committed_here() => {}
                    () = timer.next_multiple_of(INTERVAL) => {}
                }
            }
            let asked = self.core.now();
            match self.read_changes(store).await {
                Ok(changes) => {
                    if self.is_failing.swap(false, Ordering::SeqCst) {
                        tracing::info!("the store's change feed works again");
                        self.apply_change(Change::Everything);
                    }
                    changes.into_iter().for_each(|change| self.apply_change(change));
                    if self.freshness.feed_was_read(asked, self.core.now()) {
                        self.core.state().key_table.set_confirmed_at(asked);
                    }
                    // Changed keys that are not loaded within their time are as good as a feed that cannot be read.
                    self.expire_keys();
                }
                Err(error) => self.feed_failed(&error),
            }
        }
    }

    fn feed_failed(&self, error: &dyn fmt::Display) {
        if !self.is_failing.swap(true, Ordering::SeqCst) {
            tracing::error!(%error, "the store's change feed cannot be read; nothing is answered from memory");
        }
        self.feed_is_silent();
    }

    /// Reads the feed. Cached answers stay invalid meanwhile if the last read failed.
    async fn read_changes(&self, store: &Store) -> Result<Vec<Change>, StoreError> {
        let mut changes = std::pin::pin!(store.changes());
        let is_failing = self.is_failing.load(Ordering::SeqCst);
        loop {
            tokio::select! {
                biased;
                read = &mut changes => return read,
                () = tokio::time::sleep(if is_failing { RETRY_AFTER } else { SLOW_READ }) => match is_failing {
                    true => self.feed_is_silent(),
                    false => self.load_keys_if_old(),
                },
            }
        }
    }

    /// The feed could not be read: answers in memory are not usable, and keys only for a while unless they are loaded.
    pub(super) fn feed_is_silent(&self) {
        let state = self.core.state();
        if state.depends_on_store() {
            self.core.cache.epochs().invalidate_all();
        }
        self.load_keys_if_old();
        self.expire_keys();
    }

    /// Asks for the keys to be loaded if they are to stay usable without the feed.
    fn load_keys_if_old(&self) {
        let is_store = matches!(self.core.state().keys, KeySource::Store(_));
        let is_loading = || self.load_lock.try_lock().is_err();
        if is_store && self.freshness.should_reload_keys(self.core.now()) && !is_loading() {
            self.reload_keys.notify_one();
        }
    }

    fn expire_keys(&self) {
        if matches!(self.core.state().keys, KeySource::Store(_)) && self.freshness.expire_keys(self.core.now()) {
            tracing::error!("keys cannot be refreshed from the store; refusing them");
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
                    self.expire_keys();
                    tokio::time::sleep(RETRY_AFTER).await;
                    self.reload_keys.notify_one();
                }
            }
        }
    }

    fn apply_change(&self, change: Change) {
        match change {
            Change::Member(member) => self.core.cache.epochs().invalidate_member(member),
            Change::DayReset(key) => self.core.day_resets.lock().push(key),
            Change::Directory => self.keys_changed(),
            Change::Everything => {
                self.core.cache.epochs().invalidate_all();
                self.keys_changed();
            }
        }
    }

    pub(super) fn keys_changed(&self) {
        self.freshness.keys_changed();
        self.reload_keys.notify_one();
    }

    #[cfg(test)]
    pub(super) fn parts(&self) -> (&StoreFreshness, &Notify) {
        (&self.freshness, &self.reload_keys)
    }
}
