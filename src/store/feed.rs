//! The change feed: each transaction writes what it changed into the table `change`, so that a change and its row are
//! there together or not at all. Rows are numbered without a gap, in the order of the commits. Followers, which are other
//! processes and nodes and this process itself, read them several times a second. The points that this process set are
//! the only change that it knows of already; they carry its own number.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::conn::Value;
use super::writer::Shared;
use super::*;

/// How long a read of the feed may take before the feed counts as lost. With the 250 ms between two reads it is less than
/// the 0.7 s for which keys may be used without a word of the store.
const ANSWER: Duration = Duration::from_millis(400);

/// Rows that are read at once; a follower that is further behind gets [`Change::Everything`].
const READ_AT_ONCE: usize = 2048;

/// Old rows are removed once for so many commits, so that few pay for it.
const PRUNE_EVERY: i64 = 64;

/// Changes that are reported one by one. With more, dropping everything is cheaper.
const MAX_CHANGES: usize = 100_000;

/// The number of no process: everybody reads the row.
pub(super) const NOBODY: i64 = 0;

/// What a row is about, in its column `kind`.
const MEMBERS: i64 = 1;
const DIRECTORY: i64 = 2;
const EVERYTHING: i64 = 3;
const DAY_RESETS: i64 = 4;

const ADD: &str = "INSERT INTO change (seq, node, kind, ids) \
    SELECT coalesce(max(seq), 0) + 1, CAST($1 AS bigint), CAST($2 AS bigint), CAST($3 AS text) FROM change";

/// The newest row is never removed, so that no number is given twice.
const PRUNE: &str = "DELETE FROM change WHERE seq <= (SELECT max(seq) FROM change) - CAST($1 AS bigint)";

/// From the newest back. If the oldest of them is not the last one that was read, some were missed.
const SINCE: &str = "SELECT seq, node, kind, ids FROM change WHERE seq >= $1 ORDER BY seq DESC LIMIT $2";

const NEWEST: &str = "SELECT coalesce(max(seq), 0) FROM change";

/// What was changed.
pub(super) type Changes = BTreeSet<Change>;

/// The rows: the kind, and the ids of members or keys, a space between two of them.
fn rows(changes: &Changes) -> BTreeMap<i64, String> {
    let mut rows: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    for change in changes {
        let (kind, id) = match change {
            Change::Member(member) => (MEMBERS, member.to_string()),
            Change::Directory => (DIRECTORY, String::new()),
            Change::Everything => (EVERYTHING, String::new()),
            Change::DayReset(key) => (DAY_RESETS, key.to_string()),
        };
        rows.entry(kind).or_default().push(id);
    }
    rows.into_iter().map(|(kind, ids)| (kind, ids.join(" "))).collect()
}

/// What a row says.
fn changes(kind: i64, ids: &str) -> Vec<Change> {
    let ids = ids.split_whitespace();
    match kind {
        MEMBERS => ids.filter_map(|id| id.parse().ok()).map(Change::Member).collect(),
        DIRECTORY => vec![Change::Directory],
        DAY_RESETS => ids.map(|id| Change::DayReset(id.into())).collect(),
        _ => vec![Change::Everything],
    }
}

/// Adds rows to the feed, at the end of a transaction, and removes old ones now and then.
pub(super) fn add(
    conn: &mut dyn Conn,
    changes: [(i64, &Changes); 2],
    kept: i64,
    commits: i64,
) -> Result<(), StoreError> {
    if changes.iter().all(|(_, changes)| changes.is_empty()) {
        return Ok(());
    }
    conn.lock_feed()?;
    for (node, changes) in changes {
        for (kind, ids) in rows(changes) {
            conn.execute(ADD, values![node, kind, ids])?;
        }
    }
    if commits % PRUNE_EVERY.min(kept) == 0 {
        conn.execute(PRUNE, values![kept])?;
    }
    Ok(())
}

/// As [`add`], of a transaction that changes what every process must read.
pub(super) fn add_for_all(conn: &mut dyn Conn, change: Change) -> Result<(), StoreError> {
    add(conn, [(NOBODY, &Changes::from([change])), (NOBODY, &Changes::new())], FEED_KEPT, 0)
}

/// How far the feed was read.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// The connection on which it was; 0: it was not. Another one may lead to another server, such as a standby that took
    /// over without the last commits and gives their numbers to others.
    conn: u64,
    /// The newest row that was read; 0 where there was none.
    last: i64,
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
        let (position, shared) = (self.position.clone(), self.writer.shared.clone());
        self.feed.run(within, move |conn| read(conn, &mut position.lock(), &shared)).await
    }

    /// Waits until this process has committed a change that the feed tells it of as well.
    pub async fn committed_here(&self) {
        self.writer.shared.committed.notified().await;
    }
}

fn newest(conn: &mut dyn Conn) -> Result<i64, StoreError> {
    conn.row(NEWEST, &[])?.map_or(Ok(0), |mut row| row.take(0))
}

fn read(conn: &mut dyn Conn, position: &mut Position, shared: &Shared) -> Result<Vec<Change>, StoreError> {
    conn.check()?;
    if position.conn != conn.serial() {
        let last = newest(conn)?;
        *position = Position { conn: conn.serial(), last };
        return Ok(vec![Change::Everything]);
    }
    let found = conn.rows(SINCE, &[Value::from(position.last), Value::from(READ_AT_ONCE)])?;
    let (mut read, mut oldest, mut last) = (Changes::new(), None, position.last);
    for mut row in found {
        let (seq, node): (i64, i64) = (row.take(0)?, row.take(1)?);
        oldest = Some(seq);
        last = last.max(seq);
        if seq > position.last && node != shared.node() {
            read.extend(changes(row.take(2)?, &row.take::<String>(3)?));
        }
    }
    // Without a last one, number 1 is the first; it is missed only if it was removed.
    let is_complete = match (oldest, position.last) {
        (None, last) => last == 0,
        (Some(oldest), 0) => oldest == 1,
        (Some(oldest), last) => oldest == last,
    };
    if !is_complete && oldest.is_none() {
        last = newest(conn)?; // the store was put back to an earlier state
    }
    position.last = last;
    if !is_complete || read.len() > MAX_CHANGES {
        read.insert(Change::Everything);
    }
    if read.contains(&Change::Everything) {
        read.retain(|change| matches!(change, Change::Everything | Change::DayReset(_)));
    }
    Ok(read.into_iter().collect())
}
