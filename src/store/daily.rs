//! How many requests of each key were counted in a UTC day, kept across restarts (contract section 3, `daily`). No answer
//! depends on a count, so that it is no change for followers; a day that is given back is one.

use std::collections::{BTreeMap, HashMap};

use super::conn::json_rows;
use super::*;

/// Adds to keys' counts. A row of the next day stays of that day: two nodes may disagree for a moment about which day it is.
/// A row of any other day starts again: that day is over, or came from a wrong clock.
const COUNT: &str = "INSERT INTO daily (key, day, count) \
    SELECT a.value ->> 0, CAST($2 AS bigint), CAST(a.value ->> 1 AS bigint) FROM json_each($1) a WHERE true \
    ON CONFLICT (key) DO UPDATE SET \
        count = CASE WHEN daily.day NOT IN (excluded.day, excluded.day + 1) THEN excluded.count \
            WHEN daily.count > 9223372036854775807 - excluded.count THEN 9223372036854775807 \
            ELSE daily.count + excluded.count END, \
        day = CASE WHEN daily.day = excluded.day + 1 THEN daily.day ELSE excluded.day END \
    RETURNING key, count";

/// Yesterday is kept for nodes whose clock has not reached midnight. A thousand rows at a time, so that no writer waits
/// long.
const FORGET: &str =
    "DELETE FROM daily WHERE key IN (SELECT key FROM daily WHERE day < CAST($1 AS bigint) - 1 LIMIT 1000)";

const CLEAR: &str = "UPDATE daily SET count = 0 WHERE key IN (SELECT a.value ->> 0 FROM json_each($1) a)";

impl Store {
    /// Adds to each key's count of `day` (days since the Unix epoch, UTC); returns the totals in the same order. A key need
    /// not be in the store.
    pub async fn add_daily(&self, day: i64, counts: Vec<(KeyId, u64)>) -> Result<Vec<(KeyId, u64)>, StoreError> {
        self.write(None, move |conn| {
            // In the order of the keys, so that two nodes that count at once do not deadlock.
            let mut more: BTreeMap<&str, i64> = BTreeMap::new();
            for (key, count) in &counts {
                let sum = more.entry(key).or_default();
                *sum = sum.saturating_add(i64::try_from(*count).unwrap_or(i64::MAX));
            }
            let found = conn.rows(COUNT, values![json_rows(more)?, day])?;
            let totals: HashMap<KeyId, u64> =
                found.into_iter().map(|mut row| Ok((row.take(0)?, row.take(1)?))).collect::<Result<_, StoreError>>()?;
            conn.execute(FORGET, values![day])?;
            Ok(counts.iter().map(|(key, _)| (key.clone(), totals.get(key).copied().unwrap_or(0))).collect())
        })
        .await
    }

    /// Each key's count of `day`, by the rules of [`Store::add_daily`]; keys without one are left out.
    pub async fn daily(&self, day: i64) -> Result<Vec<(KeyId, u64)>, StoreError> {
        let sql = "SELECT key, count FROM daily WHERE day IN (CAST($1 AS bigint), CAST($1 AS bigint) + 1) ORDER BY key";
        self.lists
            .run(LIST, move |conn| {
                conn.rows(sql, values![day])?.into_iter().map(|mut row| Ok((row.take(0)?, row.take(1)?))).collect()
            })
            .await
    }

    /// Gives a key its whole day back. Refused: a key that is neither in the store nor counted, unless it `is_known`: the
    /// store learns of a key of a key file with its first count.
    pub async fn reset_day(&self, key: &str, is_known: bool) -> Result<(), StoreError> {
        let key: KeyId = key.into();
        self.write(Some(Change::DayReset(key.clone())), move |conn| {
            let counted = conn.execute(CLEAR, values![json_rows([(&*key,)])?])?;
            let is_stored = conn.row("SELECT 1 FROM key WHERE id = $1", values![&*key])?.is_some();
            if is_known || counted > 0 || is_stored { Ok(()) } else { Err(refusals::unknown_key(&key)) }
        })
        .await
    }

    /// Sets the counts of these keys to 0, for a follower that was told of their reset and may have added to them since.
    pub async fn clear_daily(&self, keys: Vec<KeyId>) -> Result<(), StoreError> {
        self.write(None, move |conn| {
            conn.execute(CLEAR, values![json_rows(keys.iter().map(|key| (&**key,)))?]).map(drop)
        })
        .await
    }
}
