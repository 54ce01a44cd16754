//! What is counted of each key in a UTC day, kept across restarts.

use std::collections::HashMap;

use super::transaction::Transaction;
use super::{PostgresStore, column};
use crate::model::KeyId;
use crate::store::refusals;
use crate::store::{Change, Daily, StoreError};

/// Adds to keys' counts, in the order of the keys, so that two nodes that count at once do not deadlock. A row of
/// the next day stays of that day: two nodes may disagree for a moment about which day it is. A row of any other
/// day starts again: that day is over, or came from a wrong clock.
const COUNT: &str = "INSERT INTO daily AS d (key, day, count) \
    SELECT key, $1::bigint, more FROM unnest($2::text[], $3::bigint[]) AS t (key, more) ORDER BY key COLLATE \"C\" \
    ON CONFLICT (key) DO UPDATE SET \
        count = CASE WHEN d.day IN ($1::bigint, $1::bigint + 1) \
            THEN least(d.count, 9223372036854775807 - excluded.count) + excluded.count ELSE excluded.count END, \
        day = CASE WHEN d.day = $1::bigint + 1 THEN d.day ELSE $1::bigint END \
    RETURNING key, count";

/// Yesterday is kept for nodes whose clock has not reached midnight. A thousand rows at a time, so that no writer waits long.
const FORGET: &str = "DELETE FROM daily WHERE key IN \
    (SELECT key FROM daily WHERE day < $1::bigint - 1 LIMIT 1000 FOR UPDATE SKIP LOCKED)";

const CLEAR: &str = "UPDATE daily SET count = 0 WHERE key IN \
    (SELECT key FROM daily WHERE key = ANY ($1::text[]) ORDER BY key COLLATE \"C\" FOR UPDATE) RETURNING 1";

impl Daily for PostgresStore {
    async fn add_daily(&self, day: i64, counts: Vec<(KeyId, u64)>) -> Result<Vec<(KeyId, u64)>, StoreError> {
        let mut totals = vec![0; counts.len()];
        let mut left: Vec<usize> = (0..counts.len()).collect();
        while !left.is_empty() {
            // One statement counts a key once; a key that is named again is counted in another round.
            let mut round: HashMap<&str, usize> = HashMap::new();
            left.retain(|at| *round.entry(&counts[*at].0).or_insert(*at) != *at);
            let (keys, more): (Vec<&str>, Vec<i64>) =
                round.iter().map(|(key, at)| (*key, i64::try_from(counts[*at].1).unwrap_or(i64::MAX))).unzip();
            for row in self.pool.write_once(COUNT, &[&day, &keys, &more]).await? {
                if let Some(at) = round.get(column::<&str>(&row, 0)?) {
                    totals[*at] = column::<i64>(&row, 1)?.unsigned_abs();
                }
            }
        }
        // What was added would be added again if this were an error. Old rows are forgotten the next time.
        let _ = self.pool.write_once(FORGET, &[&day]).await;
        Ok(counts.into_iter().zip(totals).map(|((key, _), total)| (key, total)).collect())
    }

    async fn daily(&self, day: i64) -> Result<Vec<(KeyId, u64)>, StoreError> {
        let sql = "SELECT key, count FROM daily WHERE day IN ($1::bigint, $1::bigint + 1) ORDER BY key";
        let rows = self.pool.list(sql, &[&day]).await?;
        rows.iter().map(|row| Ok((column::<&str>(row, 0)?.into(), column::<i64>(row, 1)?.unsigned_abs()))).collect()
    }

    async fn reset_day(&self, key: &str, is_known: bool) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let reset = reset_day(&mut tx, key, is_known).await;
        tx.end(reset, Change::DayReset(key.into())).await
    }

    async fn clear_daily(&self, keys: Vec<KeyId>) -> Result<(), StoreError> {
        let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
        self.pool.write_once(CLEAR, &[&keys]).await.map(drop)
    }
}

async fn reset_day(tx: &mut Transaction<'_>, key: &str, is_known: bool) -> Result<(), StoreError> {
    let counted = tx.count(CLEAR, &[&[key].as_slice()]).await?;
    let stored = tx.count("SELECT 1 FROM key WHERE id = $1", &[&key]).await?;
    refusals::changed(counted + stored + usize::from(is_known), || refusals::unknown_key(key))
}
