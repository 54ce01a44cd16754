//! The change feed: each transaction writes what it changed into a numbered row of its own, so that a
//! change and its row are there together or not at all. Followers read the rows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, params};

use super::failure;
use super::open;
use super::open_file::OpenFile;
use crate::store::change_set::{ChangeSet, PRUNE_EVERY};
use crate::store::{Change, StoreError};

/// How long a read of the feed waits for a lock; in WAL mode only recovery makes it wait.
const BUSY: Duration = Duration::from_millis(250);

/// Writes what was changed as rows made by `node`, and prunes old ones down to `kept`.
pub(in crate::store) fn write(changes: &ChangeSet, conn: &Connection, node: i64, kept: i64) -> rusqlite::Result<()> {
    for (kind, members) in changes.rows() {
        let sql = "INSERT INTO change (node, kind, members, lineage) \
            VALUES (?1, ?2, ?3, (SELECT user_version FROM pragma_user_version))";
        conn.prepare_cached(sql)?.execute(params![node, kind, members])?;
        let seq = conn.last_insert_rowid();
        if seq % PRUNE_EVERY.min(kept) == 0 {
            conn.prepare_cached("DELETE FROM change WHERE seq <= ?1")?.execute([seq - kept])?;
        }
    }
    Ok(())
}

/// Reads the changes that others make.
#[derive(Debug)]
pub(super) struct Feed {
    conn: Connection,
    path: PathBuf,
    file: OpenFile,
    node: Arc<AtomicI64>,
    /// SQLite's own count of commits by others: if it has not changed, there is nothing to read.
    version: i64,
    /// The newest change read.
    last: i64,
}

impl Feed {
    /// Starts after the newest change there is.
    pub(super) fn open(path: &Path, file: OpenFile, node: Arc<AtomicI64>) -> Result<Self, StoreError> {
        let start = || -> rusqlite::Result<(Connection, i64, i64)> {
            let conn = open::readable(path, BUSY)?;
            // In this order: a commit between the two changes the version, and is read later.
            let version = data_version(&conn)?;
            let last = newest(&conn)?;
            Ok((conn, version, last))
        };
        let (conn, version, last) = start().map_err(|e| failure::of(path, &e))?;
        Ok(Feed { conn, path: path.to_owned(), file, node, version, last })
    }

    /// What others changed since the last call.
    pub(super) fn changes(&mut self) -> Result<Vec<Change>, StoreError> {
        self.still_there()?;
        self.read().map_err(|e| failure::of(&self.path, &e))
    }

    /// Refuses if the file that was opened is no longer the store.
    pub(super) fn still_there(&self) -> Result<(), StoreError> {
        self.file.check(&self.conn)
    }

    fn read(&mut self) -> rusqlite::Result<Vec<Change>> {
        let version = data_version(&self.conn)?;
        if version == self.version {
            return Ok(Vec::new());
        }
        let found = self.since_last()?;
        // Only now: a read that failed is repeated.
        self.version = version;
        Ok(found)
    }

    fn since_last(&mut self) -> rusqlite::Result<Vec<Change>> {
        let mut statement =
            self.conn.prepare_cached("SELECT seq, node, kind, members FROM change WHERE seq >= ?1 ORDER BY seq")?;
        let mut rows = statement.query([self.last])?;
        let mut found = ChangeSet::default();
        let mut last = self.last;
        let mut first = None;
        while let Some(row) = rows.next()? {
            let seq: i64 = row.get(0)?;
            first.get_or_insert(seq);
            if seq == self.last {
                continue;
            }
            last = seq;
            if row.get::<_, i64>(1)? == self.node.load(Ordering::SeqCst) {
                continue;
            }
            found.add_row(row.get(2)?, row.get_ref(3)?.as_blob_or_null()?.unwrap_or_default());
        }
        match first {
            // Rows between the last one read and the oldest one left were pruned unread.
            Some(first) => {
                let gap = first > self.last + 1;
                self.last = last;
                Ok(found.into_changes(gap))
            }
            None if self.last == 0 => Ok(Vec::new()),
            // The newest row is never pruned: the store was put back to an earlier state.
            None => {
                self.last = newest(&self.conn)?;
                Ok(found.into_changes(true))
            }
        }
    }
}

fn data_version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}

fn newest(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached("SELECT coalesce(max(seq), 0) FROM change")?.query_row([], |row| row.get(0))
}
