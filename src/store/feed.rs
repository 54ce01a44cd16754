//! The change feed: each transaction writes what it changed into the table `change`, so that a change and its row are
//! there together or not at all. Rows are numbered without a gap, in the order of the commits. Followers, which are other
//! processes and nodes and this process itself, read them several times a second. The points that this process set are
//! the only change that it knows of already; they carry its own number.

use std::collections::BTreeSet;
use std::time::Duration;

use super::conn::Value;
use super::writer::Shared;
use super::*;

/// How long a read of the feed may take before the feed counts as lost. With the 250 ms between two reads it is less than
/// the 0.7 s for which keys may be used without a word of the store.
const ANSWER: Duration = Duration::from_millis(400);

/// Rows that are read at once; a follower that is further behind gets [`Change::Everything`].
const READ_AT_ONCE: usize = 2048;

/// Changes that are kept for followers; one that is further behind reads [`Change::Everything`]. Each transaction adds one
/// or two, and followers read four times a second: this is most of a second of the fastest transactions.
const KEPT: i64 = 8192;

/// Old rows are removed by one of so many commits, by chance, so that few pay for it.
const PRUNE_ONCE_IN: u8 = 64;

/// The number of no process: everybody reads the row.
pub(super) const NOBODY: i64 = 0;

/// What a row is about, in its column `kind`.
const MEMBERS: i64 = 1;
const DIRECTORY: i64 = 2;
const EVERYTHING: i64 = 3;
const DAY_RESET: i64 = 4;

const ADD: &str = "INSERT INTO change (seq, node, kind, ids) \
    SELECT coalesce(max(seq), 0) + 1, CAST($1 AS bigint), CAST($2 AS bigint), CAST($3 AS text) FROM change";

/// The newest row is never removed, so that no number is given twice.
const PRUNE: &str = "DELETE FROM change WHERE seq <= (SELECT max(seq) FROM change) - CAST($1 AS bigint)";

/// From the newest back. If the oldest of them is not the last one that was read, some were missed.
const SINCE: &str = "SELECT seq, node, kind, ids FROM change WHERE seq >= $1 ORDER BY seq DESC LIMIT $2";

const NEWEST: &str = "SELECT coalesce(max(seq), 0) FROM change";

/// What was changed.
pub(super) type Changes = BTreeSet<Change>;

/// The rows: the kind, and the ids of members with a space between two of them, or the id of one key, which may hold any
/// character.
fn rows(changes: &Changes) -> Vec<(i64, String)> {
    let mut rows: Vec<(i64, String)> = Vec::new();
    for change in changes {
        match (change, rows.last_mut()) {
            (Change::Member(member), Some((MEMBERS, ids))) => *ids += &format!(" {member}"),
            (Change::Member(member), _) => rows.push((MEMBERS, member.to_string())),
            (Change::Directory, _) => rows.push((DIRECTORY, String::new())),
            (Change::Everything, _) => rows.push((EVERYTHING, String::new())),
            (Change::DayReset(key), _) => rows.push((DAY_RESET, key.to_string())),
        }
    }
    rows
}

/// What a row says.
fn changes(kind: i64, ids: &str) -> Vec<Change> {
    match kind {
        MEMBERS => ids.split(' ').filter_map(|id| id.parse().ok()).map(Change::Member).collect(),
        DIRECTORY => vec![Change::Directory],
        DAY_RESET => vec![Change::DayReset(ids.into())],
        _ => vec![Change::Everything],
    }
}

/// Adds rows to the feed, at the end of a transaction, and removes old ones now and then. `node` did what is in them.
pub(super) fn add(conn: &mut dyn Conn, node: i64, changes: &Changes) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    conn.lock_feed()?;
    for (kind, ids) in rows(changes) {
        conn.execute(ADD, values![node, kind, ids])?;
    }
    if fastrand::u8(..PRUNE_ONCE_IN) == 0 {
        conn.execute(PRUNE, values![KEPT])?;
    }
    Ok(())
}

impl Store {
    /// What others changed since the last call, or since the store was opened: everything that was committed before the
    /// call, but for points that were set through this object. An error means that the feed is lost for now. Ends within
    /// 400 ms.
    ///
    /// # Errors
    /// Why the feed cannot be read.
    pub async fn changes(&self) -> Result<Vec<Change>, StoreError> {
        self.changes_within(ANSWER).await
    }

    pub(super) async fn changes_within(&self, within: Duration) -> Result<Vec<Change>, StoreError> {
        let shared = self.writer.shared.clone();
        self.feed.run(within, move |conn| read(conn, &shared)).await
    }

    /// Waits until this process has committed a change that the feed tells it of as well.
    pub async fn committed_here(&self) {
        self.writer.shared.committed.notified().await;
    }
}

fn read(conn: &mut dyn Conn, shared: &Shared) -> Result<Vec<Change>, StoreError> {
    if let Some(last) = *conn.feed_position()
        && let Some((changes, last)) = read_since(conn, last, shared)?
    {
        *conn.feed_position() = Some(last);
        return Ok(changes.into_iter().collect());
    }
    let newest = conn.row(NEWEST, &[])?.map_or(Ok(0), |mut row| row.take(0))?;
    *conn.feed_position() = Some(newest);
    Ok(vec![Change::Everything])
}

/// What others changed since the row `last`, and the newest row; `None`: some rows were missed.
fn read_since(conn: &mut dyn Conn, last: i64, shared: &Shared) -> Result<Option<(Changes, i64)>, StoreError> {
    let (mut read, mut oldest, mut newest) = (Changes::new(), 0, last);
    for mut row in conn.rows(SINCE, &[Value::from(last), Value::from(READ_AT_ONCE)])? {
        let (seq, node): (i64, i64) = (row.take(0)?, row.take(1)?);
        (oldest, newest) = (seq, newest.max(seq));
        if seq > last && node != shared.node() {
            read.extend(changes(row.take(2)?, &row.take::<String>(3)?));
        }
    }
    // Where none was read before, number 1 is the first.
    let is_complete = oldest == last || (last, oldest) == (0, 1);
    Ok(is_complete.then_some((read, newest)))
}
