//! Writes to the store what is counted in memory for each key: the requests of the UTC day (`daily`) and the time of
//! the last use. The day's counts of other processes come back in the store's answer and are added to those in memory.
//! A count that could not be written is written with the next one; a last use is lost then. No request waits for this.

use std::sync::Arc;
use std::time::Duration;

use super::key_source::KeySource;
use super::state::Core;
use crate::clock::AlignedTimer;
use crate::cluster::SharedLimits;
use crate::keys::Key;
use crate::limits::DayCount;
use crate::store::{Store, StoreError};

/// Interval at which the day's counts are written. A kill loses at most one second of them, with the time of writing
/// (contract section 3, `daily`).
const COUNTS_EVERY: Duration = Duration::from_millis(500);

/// Interval at which the last uses of keys are written. A kill loses no more.
const LAST_USE_EVERY: Duration = Duration::from_secs(5);

/// Keys whose counts are written in one transaction, so that other writes wait a few milliseconds at most.
const KEYS_AT_ONCE: usize = 512;

/// Writes the usage of keys to the store.
#[derive(Debug)]
pub struct UsageFlush {
    core: Arc<Core>,
    /// Where the other nodes are told of a day that is given back.
    shared_limits: Option<Arc<SharedLimits>>,
    /// Held while counts are written: two at once would write the same counts twice.
    lock: tokio::sync::Mutex<()>,
}

impl UsageFlush {
    pub(super) fn new(core: Arc<Core>, shared_limits: Option<Arc<SharedLimits>>) -> Self {
        UsageFlush { core, shared_limits, lock: tokio::sync::Mutex::new(()) }
    }

    /// Writes usage until the process ends.
    pub async fn run(&self, store: &Store) {
        let (mut is_failing, mut last_use) = (false, self.core.now());
        let timer = AlignedTimer::new();
        loop {
            timer.next_multiple_of(COUNTS_EVERY).await;
            let mut written = self.reset_days(store).await.and(self.write_counts(store).await);
            if self.core.now().since(last_use) >= LAST_USE_EVERY {
                last_use = self.core.now();
                written = written.and(self.write_last_use(store).await);
            }
            match &written {
                Err(error) if !is_failing => {
                    tracing::error!(
                        error,
                        "the use of keys cannot be written to the store; counting goes on in memory"
                    );
                }
                Ok(()) if is_failing => tracing::info!("the use of keys is written to the store again"),
                Ok(()) | Err(_) => {}
            }
            is_failing = written.is_err();
        }
    }

    /// Writes everything before the process ends, within `limit`: a disk that stalls does not delay the end further.
    pub async fn finish(&self, store: &Store, limit: Duration) {
        let write = async {
            self.write_counts(store).await?;
            self.write_last_use(store).await
        };
        let written =
            tokio::time::timeout(limit, write).await.unwrap_or_else(|_| Err("the store takes too long".into()));
        if let Err(error) = written {
            tracing::error!(error, "the day's last counts and the last uses of keys were not written to the store");
        }
    }

    /// Gives keys their whole day back, as the change feed told. Counts from before that were written after it are taken
    /// back as well.
    async fn reset_days(&self, store: &Store) -> Result<(), String> {
        let keys = std::mem::take(&mut *self.core.day_resets.lock());
        if keys.is_empty() {
            return Ok(());
        }
        let _lock = self.lock.lock().await;
        // The store first: while it cannot be written, each attempt would give the day back once more.
        if let Err(error) = store.clear_daily(keys.clone()).await {
            self.core.day_resets.lock().extend(keys);
            return Err(error.to_string());
        }
        let state = self.core.state_full();
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
        let _lock = self.lock.lock().await;
        let mut counts = {
            let state = self.core.state();
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
    pub(super) async fn write_last_use(&self, store: &Store) -> Result<(), String> {
        let used = self.core.state().key_table.take_last_uses();
        if used.is_empty() {
            return Ok(());
        }
        let (now, unix) = (self.core.now(), self.core.clock.unix());
        let seconds_ago = |at| i64::try_from(now.since(at).as_secs()).unwrap_or(i64::MAX);
        let used = used.into_iter().map(|(id, at)| (id, unix.saturating_sub(seconds_ago(at)))).collect();
        store.record_last_use(used).await.map_err(|e| e.to_string())
    }
}

async fn write_counts_of_a_day(store: &Store, counts: &[(Arc<Key>, DayCount)]) -> Result<(), String> {
    let Some((_, DayCount { day, .. })) = counts.first() else { return Ok(()) };
    let added = counts.iter().map(|(key, count)| (key.id.clone(), count.count)).collect();
    let (totals, result) = match store.add_daily(*day, added).await {
        Ok(totals) => (totals.into_iter().map(|(_, total)| total).collect(), Ok(())),
        // They may have been added. If they were added again, keys would have used up what they did not ask for.
        Err(error @ (StoreError::Unknown(_) | StoreError::Late(_))) => {
            (vec![0; counts.len()], Err(error.to_string()))
        }
        Err(error) => return Err(error.to_string()),
    };
    for ((key, saved), total) in counts.iter().zip(totals) {
        key.budget.day().saved(*saved, total);
    }
    result
}
