//! Follows the store's change feed for as long as the server runs, so that what another process changed takes effect
//! here within one second (guarantees 2 and 7). A changed member is dropped from memory; a changed key or guild makes the
//! key table be loaded again, before the feed is read on. One stamp says up to when all changes are known and in force,
//! and requests compare it with their own time: where it is too old, nothing that depends on the store is answered from
//! memory, and the store's keys are refused.

use std::time::Duration;

use super::{Gateway, KeySource, NewKeys, State};
use crate::cache::Realms;
use crate::clock::{Tick, next_multiple_of};
use crate::store::{Change, Store};

/// How often the feed is read.
const INTERVAL: Duration = Duration::from_millis(250);

/// How soon a read that failed is repeated.
const RETRY_AFTER: Duration = Duration::from_millis(100);

impl Gateway {
    /// Whether the keys of `state` are too old to accept or refuse a request by them.
    pub(super) fn keys_are_stale(&self, state: &State, now: Tick) -> bool {
        matches!(state.keys, KeySource::Store(_)) && self.feed.is_stale(now)
    }

    /// Whether what others change in the store is known here in time to answer from memory.
    pub(super) fn hears_store(&self, state: &State, now: Tick) -> bool {
        !(self.feed.is_stale(now) && state.depends_on_store())
    }

    /// How long ago everything in the store was last known; `None`: it is not followed.
    pub(super) fn feed_age(&self, state: &State, now: Tick) -> Option<Duration> {
        self.feed.age(now).filter(|_| state.depends_on_store())
    }

    /// Why requests are refused, or nothing is answered from memory; `None`: the store is followed.
    pub fn store_fault(&self) -> Option<&'static str> {
        let (state, now) = (self.state(), self.now());
        if self.keys_are_stale(&state, now) {
            return Some("the keys cannot be refreshed from the store; requests are refused until it answers");
        }
        let is_away = !self.hears_store(&state, now);
        is_away.then_some("the store is away: its changes cannot be read, and nothing is answered from memory")
    }

    /// Follows the change feed until the process ends. It begins before the first keys were loaded.
    pub async fn follow_store(&self, store: &Store) {
        self.feed.confirm(self.now());
        let mut is_failing = false;
        loop {
            if is_failing {
                tokio::time::sleep(RETRY_AFTER).await;
            } else {
                tokio::select! {
                    () = store.committed_here() => {}
                    () = next_multiple_of(INTERVAL) => {}
                }
            }
            match self.catch_up(store, is_failing).await {
                Ok(()) if std::mem::take(&mut is_failing) => tracing::info!("the store's change feed works again"),
                Err(error) if !std::mem::replace(&mut is_failing, true) => tracing::error!(
                    error,
                    "the store's change feed cannot be read; nothing is answered from memory, and the store's keys are \
                     refused until it is"
                ),
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// Puts in force what has changed since the last time, or everything where that has failed and its changes are lost.
    pub(super) async fn catch_up(&self, store: &Store, has_failed: bool) -> Result<(), String> {
        let asked = self.now();
        let mut changes = store.changes().await.map_err(|e| e.to_string())?;
        changes.extend(has_failed.then_some(Change::Everything));
        let mut keys_changed = false;
        for change in changes {
            match change {
                Change::Member(member) => self.cache.gate.invalidate_member(member, Realms::All),
                Change::DayReset(key) => self.day_resets.lock().push(key),
                Change::Directory => keys_changed = true,
                Change::Everything => {
                    self.cache.gate.invalidate_all();
                    keys_changed = true;
                }
            }
        }
        if keys_changed {
            // A key file may be put in force meanwhile: it holds its keys itself (guarantee 7).
            let list = self.state_full().keys.list().await?;
            self.replace_state(None, NewKeys::Listed(list));
        }
        self.feed.confirm(asked);
        Ok(())
    }
}
