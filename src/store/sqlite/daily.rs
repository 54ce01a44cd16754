//! How many requests of each key were counted in a UTC day, kept across restarts (contract section 3, `daily`).

use rusqlite::{Connection, Row, params};

use super::{Failure, SqliteStore, Writes};
use crate::model::KeyId;
use crate::store::refusals;
use crate::store::{Change, Daily, StoreError};

/// Adds to a key's count. A row of the next day keeps its day: two processes may disagree for a moment
/// about which day it is. A row of any other day starts at 0 again: the day is over, or a clock was wrong.
const COUNT: &str = "INSERT INTO daily (key, day, count) VALUES (?1, ?2, ?3) \
    ON CONFLICT (key) DO UPDATE SET \
        count = CASE WHEN day IN (?2, ?2 + 1) THEN min(count, 9223372036854775807 - ?3) + ?3 ELSE ?3 END, \
        day = CASE WHEN day = ?2 + 1 THEN day ELSE ?2 END \
    RETURNING count";

const IS_KEY: &str = "SELECT 1 FROM key WHERE id = ?1";

/// Rows of past days removed with each count. Two calls a second remove the rows of 100,000 keys within
/// a minute, and none delays the next writes by more than a millisecond or two.
const REMOVED: i64 = 1000;

impl Daily for SqliteStore {
    async fn add_daily(&self, day: i64, counts: Vec<(KeyId, u64)>) -> Result<Vec<(KeyId, u64)>, StoreError> {
        let note = move |conn: &Connection| {
            let mut statement = conn.prepare_cached(COUNT)?;
            let add = |(key, more): (KeyId, u64)| {
                let more = i64::try_from(more).unwrap_or(i64::MAX);
                let total = statement.query_row(params![&*key, day, more], |row| count(row, 0))?;
                Ok((key, total))
            };
            let totals = counts.into_iter().map(add).collect::<rusqlite::Result<Vec<_>>>()?;
            // The day before is kept for processes whose clock has not reached its end.
            let sql = "DELETE FROM daily WHERE key IN (SELECT key FROM daily WHERE day < ?1 - 1 LIMIT ?2)";
            conn.prepare_cached(sql)?.execute([day, REMOVED])?;
            Ok((totals, None))
        };
        self.writer.run(Writes::Several, note).await
    }

    async fn daily(&self, day: i64) -> Result<Vec<(KeyId, u64)>, StoreError> {
        let counts = move |conn: &Connection| {
            let sql = "SELECT key, count FROM daily WHERE day IN (?1, ?1 + 1) ORDER BY key";
            let mut statement = conn.prepare_cached(sql)?;
            statement.query_map([day], |row| Ok((row.get(0)?, count(row, 1)?)))?.collect()
        };
        self.reads.run(counts).await
    }

    async fn reset_day(&self, key: &str, is_known: bool) -> Result<(), StoreError> {
        let key: KeyId = key.into();
        let change = Change::DayReset(key.clone());
        let reset = move |conn: &Connection| {
            let is_counted = clear(conn, std::slice::from_ref(&key))?;
            if is_known || is_counted || conn.prepare_cached(IS_KEY)?.exists([&*key])? {
                Ok(())
            } else {
                Err(Failure::Store(refusals::unknown_key(&key)))
            }
        };
        self.write(change, reset).await
    }

    async fn clear_daily(&self, keys: Vec<KeyId>) -> Result<(), StoreError> {
        let clear = move |conn: &Connection| {
            clear(conn, &keys)?;
            Ok(((), None))
        };
        self.writer.run(Writes::Several, clear).await
    }
}

/// Sets the counts to 0. Whether there was a row of each.
fn clear(conn: &Connection, keys: &[KeyId]) -> rusqlite::Result<bool> {
    let mut statement = conn.prepare_cached("UPDATE daily SET count = 0 WHERE key = ?1")?;
    let found = keys.iter().map(|key| statement.execute([&**key])).collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(!found.contains(&0))
}

/// A count. The table allows no negative one.
fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get(column).map(i64::unsigned_abs)
}
