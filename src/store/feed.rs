//! The change feed: each transaction writes what it changed into the table `change`, so that a change and its row are
//! there together or not at all. Rows are numbered without a gap, in the order of the commits. Followers, which are other
//! processes and nodes and this process itself, read them several times a second. The points that this process set are
//! the only change that it knows of already; they carry its own number.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::conn::Value;
use super::workers::{Opener, Workers};
use super::writer::Shared;
use super::*;

/// How long a read of the feed may take before the feed counts as lost. With the 250 ms between two reads it is less than
/// the 0.7 s for which keys may be used without a word of the store.
const ANSWER: Duration = Duration::from_millis(400);

/// Rows that are read at once; a follower that is further behind gets [`Change::Everything`].
const READ_AT_ONCE: usize = 2048;

/// Old rows are removed once for so many commits, so that few pay for it.
const PRUNE_EVERY: i64 = 64;

/// Changed members that are reported one by one. With more, dropping everything is cheaper.
const MAX_MEMBERS: usize = 100_000;

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
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    members: Vec<MemberId>,
    day_resets: Vec<KeyId>,
    directory: bool,
    everything: bool,
    probe: bool,
}

impl Extend<Change> for Changes {
    fn extend<I: IntoIterator<Item = Change>>(&mut self, changes: I) {
        for change in changes {
            match change {
                Change::Member(member) => self.members.push(member),
                Change::DayReset(key) => self.day_resets.push(key),
                Change::Directory => self.directory = true,
                Change::Everything => self.everything = true,
            }
        }
    }
}

impl Changes {
    /// A row about no member: it is written to see whether the store can be written to.
    pub(super) fn probe() -> Self {
        Changes { probe: true, ..Changes::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows().next().is_none()
    }

    /// The rows: the kind, and the ids of members or keys, a space between two of them.
    fn rows(&self) -> impl Iterator<Item = (i64, String)> {
        let joined = |ids: Vec<String>| ids.join(" ");
        let members = || joined(self.members.iter().map(MemberId::to_string).collect());
        let keys = || joined(self.day_resets.iter().map(|key| key.to_string()).collect());
        let everything = self.everything.then(|| (EVERYTHING, String::new()));
        let directory = (self.directory && !self.everything).then(|| (DIRECTORY, String::new()));
        let has_members = self.probe || !self.members.is_empty() && !self.everything;
        let members = has_members.then(|| (MEMBERS, members()));
        let day_resets = (!self.day_resets.is_empty()).then(|| (DAY_RESETS, keys()));
        [everything, directory, members, day_resets].into_iter().flatten()
    }

    /// Adds a row that was read.
    fn add_row(&mut self, kind: i64, ids: &str) {
        match kind {
            MEMBERS => self.members.extend(ids.split_whitespace().filter_map(|id| id.parse::<MemberId>().ok())),
            DIRECTORY => self.directory = true,
            DAY_RESETS => self.day_resets.extend(ids.split_whitespace().map(KeyId::from)),
            _ => self.everything = true,
        }
    }

    /// The changes to report; everything if rows were missed (`gap`).
    fn into_changes(mut self, gap: bool) -> Vec<Change> {
        self.members.sort_unstable();
        self.members.dedup();
        self.day_resets.sort_unstable();
        self.day_resets.dedup();
        let day_resets = self.day_resets.into_iter().map(Change::DayReset);
        if gap || self.everything || self.members.len() > MAX_MEMBERS {
            return std::iter::once(Change::Everything).chain(day_resets).collect();
        }
        let directory = self.directory.then_some(Change::Directory);
        directory.into_iter().chain(self.members.into_iter().map(Change::Member)).chain(day_resets).collect()
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
        for (kind, ids) in changes.rows() {
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
    let mut changes = Changes::default();
    changes.extend([change]);
    add(conn, [(NOBODY, &changes), (NOBODY, &Changes::default())], FEED_KEPT, 0)
}

/// Reads the changes that others make.
#[derive(Debug)]
pub(super) struct Feed {
    thread: Workers,
    position: Arc<Mutex<Position>>,
    shared: Arc<Shared>,
}

/// How far the feed was read.
#[derive(Debug)]
struct Position {
    /// The connection on which it was. Another one may lead to another server, such as a standby that took over without the
    /// last commits and gives their numbers to others.
    conn: u64,
    /// The newest row that was read; 0 where there was none.
    last: i64,
}

impl Feed {
    /// Starts after the newest row there is. Blocks.
    pub(super) fn start(opener: &Opener, location: &str, shared: Arc<Shared>) -> Result<Self, StoreError> {
        let mut conn = opener.open(conn::Access::Read)?;
        conn.set_deadline(std::time::Instant::now() + READ);
        let position = Arc::new(Mutex::new(Position { conn: conn.serial(), last: newest(&mut *conn)? }));
        let thread = Workers::start_with("store-feed", vec![Some(conn)], opener, location)?;
        Ok(Feed { thread, position, shared })
    }

    async fn changes(&self) -> Result<Vec<Change>, StoreError> {
        let (position, shared) = (self.position.clone(), self.shared.clone());
        self.thread.run(ANSWER, move |conn| read(conn, &mut position.lock(), &shared)).await
    }
}

impl Store {
    /// What others changed since the last call, or since the store was opened: everything that was committed before the
    /// call, but for points that were set through this object. An error means that the feed is lost for now. Ends within
    /// 400 ms.
    ///
    /// # Errors
    /// Why the feed cannot be read.
    pub async fn changes(&self) -> Result<Vec<Change>, StoreError> {
        self.feed.changes().await
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
    let (mut changes, mut oldest, mut last) = (Changes::default(), None, position.last);
    for mut row in found {
        let (seq, node): (i64, i64) = (row.take(0)?, row.take(1)?);
        oldest = Some(seq);
        last = last.max(seq);
        if seq > position.last && node != shared.node() {
            changes.add_row(row.take(2)?, &row.take::<String>(3)?);
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
    Ok(changes.into_changes(!is_complete))
}
