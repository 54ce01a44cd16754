//! Requests' reads, and the connections that all reads but the change feed's run on. They never wait for the writer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use super::{failure, open};
use crate::model::{GuildId, MemberId, Review, Warn};
use crate::store::StoreError;

/// Connections kept open for reads. Requests' reads use as many as they have threads; if lists that are read at once take
/// more than this, those are opened for one read and closed.
const KEPT: usize = 64;

/// How long a read waits while SQLite locks the file for itself (recovery after a crash). In WAL mode
/// nothing else makes a reader wait. It blocks its thread, so it is short.
const BUSY: Duration = Duration::from_millis(250);

pub(super) const POINTS: &str = "SELECT g.gone, m.points FROM guild g \
    LEFT JOIN member m ON m.guild = g.no AND m.member = ?2 WHERE g.id = ?1";

// One statement, so one snapshot: a row with a NULL id is a guild whose member has none.
const WARNS: &str = "SELECT w.id, w.author, w.reason, w.expires FROM guild g \
    LEFT JOIN warn w ON w.guild = g.no AND w.member = ?2 AND w.expires > ?3 \
    WHERE g.id = ?1 AND g.gone = 0 ORDER BY w.id";

const REVIEWS: &str = "SELECT r.id, r.author, r.rating, r.text FROM guild g \
    LEFT JOIN review r ON r.guild = g.no AND r.member = ?2 \
    WHERE g.id = ?1 AND g.gone = 0 ORDER BY r.id";

/// The read-only connections that are not in use.
#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    idle: ArrayQueue<Connection>,
}

impl Readers {
    /// Opens the first connection, so that a file that cannot be read is reported at the start.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let readers = Readers { path: path.to_owned(), idle: ArrayQueue::new(KEPT) };
        readers.with(|_| Ok(()))?;
        Ok(readers)
    }

    /// Runs `read` on a connection of its own. `read` leaves no statement open, so no snapshot is held
    /// and checkpoints go on.
    pub(super) fn with<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let failed = |e| failure::of(&self.path, &e);
        let conn = match self.idle.pop() {
            Some(conn) => conn,
            None => open::readable(&self.path, BUSY).map_err(failed)?,
        };
        // A connection that failed is closed.
        let found = read(&conn).map_err(failed)?;
        let _ = self.idle.push(conn);
        Ok(found)
    }

    pub(super) fn points(&self, guild: &GuildId, member: MemberId) -> Result<i64, StoreError> {
        let row = self.with(|conn| {
            conn.prepare_cached(POINTS)?
                .query_row(params![guild.as_str(), member.as_i64()], |row| {
                    Ok((row.get::<_, bool>(0)?, row.get::<_, Option<i64>>(1)?))
                })
                .optional()
        })?;
        match row {
            Some((false, points)) => Ok(points.unwrap_or(0)),
            _ => Err(StoreError::GuildDeparted(guild.clone())),
        }
    }

    pub(super) fn warns(&self, guild: &GuildId, member: MemberId, now: i64) -> Result<Vec<Warn>, StoreError> {
        self.of_member(guild, WARNS, params![guild.as_str(), member.as_i64(), now], |id, row| {
            Ok(Warn { id, author: row.get(1)?, reason: row.get(2)?, expires: row.get(3)? })
        })
    }

    pub(super) fn reviews(&self, guild: &GuildId, member: MemberId) -> Result<Vec<Review>, StoreError> {
        self.of_member(guild, REVIEWS, params![guild.as_str(), member.as_i64()], |id, row| {
            Ok(Review { id, author: row.get(1)?, rating: row.get(2)?, text: row.get(3)? })
        })
    }

    /// What `sql` finds of a member. Its first column is the id, which is NULL if the member has none; without a row the
    /// guild has departed.
    fn of_member<T>(
        &self,
        guild: &GuildId,
        sql: &str,
        params: impl Params,
        record: impl Fn(i64, &Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let found = self.with(|conn| {
            let mut statement = conn.prepare_cached(sql)?;
            let mut rows = statement.query(params)?;
            let mut found = None;
            while let Some(row) = rows.next()? {
                let records = found.get_or_insert_with(Vec::new);
                if let Some(id) = row.get(0)? {
                    records.push(record(id, row)?);
                }
            }
            Ok(found)
        })?;
        found.ok_or_else(|| StoreError::GuildDeparted(guild.clone()))
    }
}
