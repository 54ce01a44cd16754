use std::sync::Arc;
use std::time::Duration;

use super::{Gateway, KeySource};
use crate::limits::{Counted, Usage};
use crate::model::KeyId;
use crate::store::SqliteStore;

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
    pub async fn keep_notes(self: Arc<Self>, store: Arc<SqliteStore>) {
        let mut failing = false;
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
                self.note_last_use(&store).await;
            }
        }
    }

    /// Writes down everything at the end.
    pub async fn last_notes(&self, store: &SqliteStore) {
        if let Err(error) = self.note_days(store).await {
            tracing::error!(error, "the day's last counts could not be written down");
        }
        self.note_last_use(store).await;
    }

    /// Writes down what was counted of the day since the last time, and learns what others counted.
    async fn note_days(&self, store: &SqliteStore) -> Result<(), String> {
        // One at a time: what is being written would be written twice.
        let _noting = self.noting.lock().await;
        let mut counted = {
            let state = self.state();
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
    pub(super) async fn note_last_use(&self, store: &SqliteStore) {
        let used = self.state().book.used();
        if used.is_empty() {
            return;
        }
        let (now, unix) = (self.now(), self.clock.unix());
        let ago = |at| i64::try_from(now.since(at).as_secs()).unwrap_or(i64::MAX);
        let used = used.into_iter().map(|(id, at)| (id, unix.saturating_sub(ago(at)))).collect();
        if let Err(error) = store.note_last_use(used).await {
            tracing::warn!(%error, "when keys were last used could not be written down");
        }
    }
}

/// Writes down some keys' counts of one day.
async fn note_some(store: &SqliteStore, some: &[(KeyId, Arc<Usage>, Counted)]) -> Result<(), String> {
    let Some((_, _, Counted { day, .. })) = some.first() else { return Ok(()) };
    let counts = some.iter().map(|(id, _, counted)| (id.clone(), counted.count)).collect();
    let totals = store.note_daily(*day, counts).await.map_err(|e| e.to_string())?;
    for ((_, usage, told), (_, total)) in some.iter().zip(totals) {
        usage.day.noted(*told, total);
    }
    Ok(())
}
