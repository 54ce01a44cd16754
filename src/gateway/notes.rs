//! Writes to the store what is counted in memory for each key: the requests of the UTC day (`daily`) and the time of
//! the last use. The day's counts of other processes are added to those in memory from the store's answer. A count that
//! could not be written is written with the next one; a last use is lost then. No request waits for any of this.

use std::sync::Arc;
use std::time::Duration;

use super::{Gateway, KeySource};
use crate::limits::{Counted, Usage};
use crate::model::KeyId;
use crate::store::{AnyStore, Daily, Directory};

/// How often the day's counts are written down. A kill loses no more than a second's worth, the
/// writing included (contract section 3, `daily`).
const COUNTS_EVERY: Duration = Duration::from_millis(400);

/// How often the last uses of keys are written down. A kill loses no more.
const LAST_USE_EVERY: Duration = Duration::from_secs(5);

/// Keys whose counts go into one transaction: others' writes wait for it no longer than some
/// milliseconds.
const AT_ONCE: usize = 512;

impl Gateway {
    /// Writes down for ever, in turn, what is kept of keys in use.
    pub async fn keep_notes(self: Arc<Self>, store: Arc<AnyStore>) {
        let (mut failing, mut failing_last_use) = (false, false);
        let mut last_use = self.now();
        loop {
            tokio::time::sleep(COUNTS_EVERY).await;
            let noted = self.note_days(&store).await;
            match &noted {
                Err(error) if !failing => {
                    tracing::error!(error, "the day's counts cannot be written down; they go on in memory");
                }
                Ok(()) if failing => tracing::info!("the day's counts are written down again"),
                Ok(()) | Err(_) => {}
            }
            failing = noted.is_err();
            if self.now().since(last_use) >= LAST_USE_EVERY {
                last_use = self.now();
                let noted = self.note_last_use(&store).await;
                if let Err(error) = &noted
                    && !failing_last_use
                {
                    tracing::warn!(error, "when keys were last used cannot be written down");
                }
                failing_last_use = noted.is_err();
            }
        }
    }

    /// Writes down everything at the end, within `limit`: a disk that stalls holds the end up no
    /// longer. What could not be written down is said.
    pub async fn last_notes(&self, store: &AnyStore, limit: Duration) {
        let notes = async {
            self.note_days(store).await?;
            self.note_last_use(store).await
        };
        let noted = tokio::time::timeout(limit, notes).await.unwrap_or_else(|_| Err("the store takes too long".into()));
        if let Err(error) = noted {
            tracing::error!(error, "the day's last counts and the last uses of keys were not written down");
        }
    }

    /// Writes down what was counted of the day since the last time, and learns what others counted.
    async fn note_days(&self, store: &AnyStore) -> Result<(), String> {
        // One at a time: what is being written would be written twice.
        let _noting = self.noting.lock().await;
        let mut counted = {
            let state = self.state();
            if !state.config.limits.counts_days() {
                return Ok(()); // and there may be many keys to look at
            }
            match &state.keys {
                KeySource::Origin(learned) => learned.counted(),
                KeySource::Store(_) | KeySource::File { .. } => state.book.counted(),
            }
        };
        counted.sort_by_key(|(_, _, counted)| counted.day);
        for of_a_day in counted.chunk_by(|(_, _, a), (_, _, b)| a.day == b.day) {
            for some in of_a_day.chunks(AT_ONCE) {
                note_some(store, some).await?;
            }
        }
        Ok(())
    }

    /// Writes down when keys were last used. What cannot be written is lost: it is a hint for
    /// people, and the next use notes itself again.
    pub(super) async fn note_last_use(&self, store: &AnyStore) -> Result<(), String> {
        let used = self.state().book.used();
        if used.is_empty() {
            return Ok(());
        }
        let (now, unix) = (self.now(), self.clock.unix());
        let ago = |at| i64::try_from(now.since(at).as_secs()).unwrap_or(i64::MAX);
        let used = used.into_iter().map(|(id, at)| (id, unix.saturating_sub(ago(at)))).collect();
        store.note_last_use(used).await.map_err(|e| e.to_string())
    }
}

/// Writes down some keys' counts of one day.
async fn note_some(store: &AnyStore, some: &[(KeyId, Arc<Usage>, Counted)]) -> Result<(), String> {
    let Some((_, _, Counted { day, .. })) = some.first() else { return Ok(()) };
    let counts = some.iter().map(|(id, _, counted)| (id.clone(), counted.count)).collect();
    let totals = store.note_daily(*day, counts).await.map_err(|e| e.to_string())?;
    for ((_, usage, told), (_, total)) in some.iter().zip(totals) {
        usage.day.noted(*told, total);
    }
    Ok(())
}
