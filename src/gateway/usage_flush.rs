//! Writes to the store what is counted in memory for each key: the requests of the UTC day (`daily`), the time of the
//! last use, and how many requests came on which day. The day's counts of other processes come back in the store's answer and are added to those in memory.
//! A count that could not be written is written with the next one; a last use is lost then. No request waits for this.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::{Gateway, KeySource};
use crate::clock::next_multiple_of;
use crate::keys::Key;
use crate::limits::{DayCount, day_of};
use crate::store::{Store, StoreError};

/// Interval at which the day's counts are written. A kill loses at most one second of them, with the time of writing
/// (contract section 3, `daily`).
const COUNTS_EVERY: Duration = Duration::from_millis(500);

/// The last uses of keys are written with every tenth of these counts. A kill loses no more than those of 5 s.
const LAST_USE_EVERY: u64 = 10;

/// The requests of each day are written with every so many of these counts: once a minute.
const REQUESTS_EVERY: u64 = 120;

/// Keys whose counts are written in one transaction, so that other writes wait a few milliseconds at most.
const KEYS_AT_ONCE: usize = 512;

impl Gateway {
    /// Writes usage until the process ends.
    pub async fn flush_usage(&self, store: &Store) {
        let mut is_failing = false;
        for round in 1.. {
            next_multiple_of(COUNTS_EVERY).await;
            let written = self.write_usage(store, round).await;
            match (&written, is_failing) {
                (Err(error), false) => {
                    tracing::error!(error, "the use of keys cannot be written to the store; counting goes on in memory")
                }
                (Ok(()), true) => tracing::info!("the use of keys is written to the store again"),
                _ => {}
            }
            is_failing = written.is_err();
        }
    }

    /// Writes everything before the process ends, within `limit`: a disk that stalls does not delay the end further.
    pub async fn finish_usage(&self, store: &Store, limit: Duration) {
        let written = timeout(limit, self.write_usage(store, 0)).await;
        if let Err(error) = written.unwrap_or_else(|_| Err("the store takes too long".into())) {
            tracing::error!(error, "the day's last counts and the last uses of keys were not written to the store");
        }
    }

    /// Writes what is due in this round; in round 0 everything.
    pub(super) async fn write_usage(&self, store: &Store, round: u64) -> Result<(), String> {
        // Two at once would write the same counts twice.
        let _lock = self.usage_lock.lock().await;
        self.reset_days(store).await?;
        self.write_counts(store).await?;
        if round.is_multiple_of(LAST_USE_EVERY) {
            self.write_last_use(store).await?;
        }
        if round.is_multiple_of(REQUESTS_EVERY) { self.write_requests(store).await } else { Ok(()) }
    }

    /// Gives keys their whole day back, as the change feed told. Counts from before that were written after it are taken
    /// back as well.
    async fn reset_days(&self, store: &Store) -> Result<(), String> {
        let keys = self.day_resets.lock().clone();
        if keys.is_empty() {
            return Ok(());
        }
        // The store first: while it cannot be written, each attempt would give the day back once more.
        store.clear_daily(keys.clone()).await.map_err(|e| e.to_string())?;
        self.day_resets.lock().drain(..keys.len());
        let state = self.state_full();
        if let KeySource::Origin(learned_keys) = &state.keys {
            learned_keys.forget_day_counts(&keys);
        }
        for key in state.keys_in_force(|key| keys.contains(&key.id)) {
            key.budget.day().reset();
            self.shared_limits.as_ref().inspect(|limits| limits.reset_day(&key));
        }
        Ok(())
    }

    /// Writes what was counted of the day since the last time, and adds what other processes counted.
    async fn write_counts(&self, store: &Store) -> Result<(), String> {
        let mut counts = {
            let state = self.state();
            if !state.config.limits.counts_days() {
                return Ok(()); // there may be many keys to go through
            }
            let unsaved = |key: Arc<Key>| {
                let count = key.budget.day().unsaved();
                Some((key, count?))
            };
            let keys = state.keys_in_force(|key| key.budget.day().unsaved().is_some());
            keys.into_iter().filter_map(unsaved).collect::<Vec<_>>()
        };
        counts.sort_by_key(|(_, count)| count.day);
        for of_a_day in counts.chunk_by(|(_, a), (_, b)| a.day == b.day) {
            for counts in of_a_day.chunks(KEYS_AT_ONCE) {
                write_counts_of_a_day(store, counts).await?;
            }
        }
        Ok(())
    }

    /// Writes when keys were last used. If that fails they are lost: they are a hint for people, and the next use is
    /// written again.
    async fn write_last_use(&self, store: &Store) -> Result<(), String> {
        let (now, unix, state) = (self.now(), self.clock.unix(), self.state_full());
        let last_use = |key: &Arc<Key>| {
            let seconds_ago = now.since(key.budget.take_last_use()?).as_secs();
            Some((key.id.clone(), unix.saturating_sub(i64::try_from(seconds_ago).unwrap_or(i64::MAX))))
        };
        let used: Vec<_> = state.key_table.keys().filter_map(last_use).collect();
        if used.is_empty() { Ok(()) } else { store.record_last_use(used).await.map_err(|e| e.to_string()) }
    }

    /// Adds the requests since the last time to those of this day. If their addition is not certain, they are lost: they are
    /// for people.
    async fn write_requests(&self, store: &Store) -> Result<(), String> {
        let used = self.state().keys_in_force(|key| key.budget.activity.is_used());
        for keys in used.chunks(KEYS_AT_ONCE) {
            let counts = keys.iter().map(|key| (key.id.clone(), key.budget.activity.take_unsaved()));
            let counts: Vec<_> = counts.collect();
            let added: Vec<_> = counts.iter().filter(|(_, count)| *count > 0).cloned().collect();
            if added.is_empty() {
                continue;
            }
            if let Err(error) = store.add_requests(day_of(self.clock.unix()), added).await {
                if !matches!(error, StoreError::Unknown(_) | StoreError::Late(_)) {
                    keys.iter().zip(counts).for_each(|(key, (_, count))| key.budget.activity.give_back(count));
                }
                return Err(error.to_string());
            }
        }
        Ok(())
    }
}

async fn write_counts_of_a_day(store: &Store, counts: &[(Arc<Key>, DayCount)]) -> Result<(), String> {
    let Some((_, DayCount { day, .. })) = counts.first() else { return Ok(()) };
    let added = counts.iter().map(|(key, count)| (key.id.clone(), count.count)).collect();
    let (totals, result) = match store.add_daily(*day, added).await {
        Ok(totals) => (totals.into_iter().map(|(_, total)| total).collect(), Ok(())),
        // They may have been added. If they were added again, keys would have used up what they did not ask for.
        Err(error @ (StoreError::Unknown(_) | StoreError::Late(_))) => (vec![0; counts.len()], Err(error.to_string())),
        Err(error) => return Err(error.to_string()),
    };
    for ((key, saved), total) in counts.iter().zip(totals) {
        key.budget.day().saved(*saved, total);
    }
    result
}
