//! How many requests of each key were counted in a UTC day, kept across restarts (contract section 3, `daily`). No answer
//! depends on a count, so that it is no change for followers; a day that is given back is one. Beside them, how many
//! requests of each key came on each of the last days, for people.

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

/// The days of which the requests of each key are kept.
pub const KEPT_DAYS: i64 = 31;

const ADD_REQUESTS: &str = "INSERT INTO key_day (key, day, requests) \
    SELECT a.value ->> 0, CAST($2 AS bigint), CAST(a.value ->> 1 AS bigint) FROM json_each($1) a WHERE true \
    ON CONFLICT (day, key) DO UPDATE SET requests = key_day.requests + excluded.requests";

/// More rows at a time than are added, so that none stays.
const FORGET_REQUESTS: &str = "DELETE FROM key_day WHERE (day, key) IN \
    (SELECT day, key FROM key_day WHERE day <= CAST($1 AS bigint) LIMIT 1000)";

const REQUESTS: &str = "SELECT d.day, d.requests FROM json_each($1) a \
    JOIN key_day d ON d.day = CAST(a.value ->> 0 AS bigint) AND d.key = $2 ORDER BY d.day";

impl Store {
    /// Adds to the requests of keys on `day`, and removes rows of days that are not kept any more.
    pub async fn add_requests(&self, day: i64, mut counts: Vec<(KeyId, i64)>) -> Result<(), StoreError> {
        counts.sort(); // so that two nodes do not deadlock
        self.write(None, move |conn| {
            conn.execute(ADD_REQUESTS, values![json_rows(counts.iter().map(|(key, count)| (&**key, count)))?, day])?;
            conn.execute(FORGET_REQUESTS, values![day - KEPT_DAYS]).map(drop)
        })
        .await
    }

    /// The requests of a key on the days up to `day`, oldest first; days without any are left out.
    pub async fn requests_by_day(&self, key: &str, day: i64) -> Result<Vec<(i64, u64)>, StoreError> {
        let key = key.to_owned();
        let of_row = |mut row: conn::Row| Ok((row.take(0)?, row.take(1)?));
        let find = move |conn: &mut dyn Conn| {
            let days = json_rows((day - KEPT_DAYS + 1..=day).map(|day| (day,)))?;
            conn.rows(REQUESTS, values![days, &*key])?.into_iter().map(of_row).collect()
        };
        self.lists.run(LIST, find).await
    }

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
