//! Export: one snapshot, streamed in the order guild, member, its warns, its reviews.

use std::io::{self, Write};
use std::time::Duration;

use rusqlite::fallible_streaming_iterator::FallibleStreamingIterator;
use rusqlite::{Connection, Row, Rows, Transaction};

use super::import::{Doing, PROGRESS_EVERY, Progress};
use super::record::Record;
use crate::model::{GuildId, MemberId};
use crate::store::sqlite::{file_failure, open};
use crate::store::{SqliteStore, StoreError};

/// How long an export waits for a lock; in WAL mode only recovery after a crash makes it wait.
const BUSY: Duration = Duration::from_secs(5);

const MEMBERS: &str = "SELECT member, name, points FROM member WHERE guild = ?1 ORDER BY member";
const WARNS: &str = "SELECT member, id, author, reason, expires FROM warn WHERE guild = ?1 ORDER BY member, id";
const REVIEWS: &str = "SELECT member, id, author, rating, text FROM review WHERE guild = ?1 ORDER BY member, id";

/// How many records there are. Counting takes a twentieth of the time that writing them does.
pub(super) const COUNT: &str = "SELECT (SELECT count(*) FROM guild) + (SELECT count(*) FROM member) \
    + (SELECT count(*) FROM warn) + (SELECT count(*) FROM review)";

/// Why an export was cut off.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the export cannot be written: {0}")]
    Write(#[from] io::Error),
}

/// As it is met, before the file's name is added.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    Write(#[from] io::Error),
}

impl SqliteStore {
    /// Writes every guild, member, warn and review as JSON Lines; answers how many. Keys and
    /// whether the bot left a guild are not part of it. What others write meanwhile is not seen,
    /// and the WAL grows by it until the export ends. Blocks for as long as it takes.
    pub fn export(&self, to: &mut dyn Write, progress: &mut dyn FnMut(Progress)) -> Result<u64, ExportError> {
        let told = |e| ExportError::Store(file_failure(self.path(), &e));
        let mut conn = open::readable(self.path(), BUSY).map_err(told)?;
        let snapshot = conn.transaction().map_err(told)?;
        let mut sink = Sink::new(to, progress);
        write_all(&snapshot, &mut sink).map_err(|e| match e {
            Cut::Sqlite(e) => told(e),
            Cut::Write(e) => ExportError::Write(e),
        })?;
        Ok(sink.finish()?)
    }
}

pub(super) struct Sink<'a> {
    to: &'a mut dyn Write,
    progress: &'a mut dyn FnMut(Progress),
    so_far: Progress,
    line: Vec<u8>,
}

impl<'a> Sink<'a> {
    pub(super) fn new(to: &'a mut dyn Write, progress: &'a mut dyn FnMut(Progress)) -> Self {
        Sink { to, progress, so_far: Progress { doing: Doing::Writing, ..Progress::default() }, line: Vec::new() }
    }

    /// Tells how many records there will be.
    pub(super) fn expect(&mut self, records: u64) {
        self.so_far.of = Some(records);
        (self.progress)(self.so_far);
    }

    /// Answers how many records were written.
    pub(super) fn finish(self) -> io::Result<u64> {
        self.to.flush()?;
        (self.progress)(self.so_far);
        Ok(self.so_far.records)
    }

    pub(super) fn put(&mut self, record: &Record) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, record).map_err(io::Error::from)?;
        self.line.push(b'\n');
        self.to.write_all(&self.line)?;
        self.so_far.bytes += self.line.len() as u64;
        self.so_far.records += 1;
        if self.so_far.records.is_multiple_of(PROGRESS_EVERY) {
            (self.progress)(self.so_far);
        }
        Ok(())
    }
}

fn write_all(snapshot: &Transaction<'_>, sink: &mut Sink<'_>) -> Result<(), Cut> {
    let records: i64 = snapshot.query_row(COUNT, [], |row| row.get(0))?;
    sink.expect(records.unsigned_abs());
    let mut guilds = snapshot.prepare("SELECT no, id, name FROM guild ORDER BY id")?;
    let mut rows = guilds.query([])?;
    while let Some(row) = rows.next()? {
        let guild = guild_id(row, 1)?;
        sink.put(&Record::Guild { guild: guild.clone(), name: row.get(2)? })?;
        write_members(snapshot, row.get(0)?, &guild, sink)?;
    }
    Ok(())
}

/// Three cursors side by side, all ordered by member: a query for each member would take longer.
fn write_members(conn: &Connection, no: i64, guild: &GuildId, sink: &mut Sink<'_>) -> Result<(), Cut> {
    let mut members = conn.prepare_cached(MEMBERS)?;
    let (mut warns, mut reviews) = (conn.prepare_cached(WARNS)?, conn.prepare_cached(REVIEWS)?);
    let mut warns = Ahead::of(warns.query([no])?)?;
    let mut reviews = Ahead::of(reviews.query([no])?)?;
    let mut rows = members.query([no])?;
    while let Some(row) = rows.next()? {
        let member = member_id(row)?;
        sink.put(&Record::Member { guild: guild.clone(), member, name: row.get(1)?, points: row.get(2)? })?;
        warns.each_of(member, |row| {
            Ok(sink.put(&Record::Warn {
                guild: guild.clone(),
                member,
                warn: row.get(1)?,
                author: row.get(2)?,
                reason: row.get(3)?,
                expires: row.get(4)?,
            })?)
        })?;
        reviews.each_of(member, |row| {
            Ok(sink.put(&Record::Review {
                guild: guild.clone(),
                member,
                review: row.get(1)?,
                author: row.get(2)?,
                rating: row.get(3)?,
                text: row.get(4)?,
            })?)
        })?;
    }
    Ok(())
}

/// Rows whose first column is a member, one of them looked at ahead.
struct Ahead<'s> {
    rows: Rows<'s>,
    next: Option<MemberId>,
}

impl<'s> Ahead<'s> {
    fn of(rows: Rows<'s>) -> Result<Self, Cut> {
        let mut ahead = Ahead { rows, next: None };
        ahead.step()?;
        Ok(ahead)
    }

    fn step(&mut self) -> Result<(), Cut> {
        self.next = self.rows.next()?.map(member_id).transpose()?;
        Ok(())
    }

    /// The rows of `member`, which comes after all those asked for before.
    fn each_of(&mut self, member: MemberId, mut write: impl FnMut(&Row<'_>) -> Result<(), Cut>) -> Result<(), Cut> {
        while self.next == Some(member) {
            if let Some(row) = self.rows.get() {
                write(row)?;
            }
            self.step()?;
        }
        Ok(())
    }
}

fn member_id(row: &Row<'_>) -> rusqlite::Result<MemberId> {
    let id: i64 = row.get(0)?;
    u64::try_from(id).ok().and_then(MemberId::new).ok_or(rusqlite::Error::IntegralValueOutOfRange(0, id))
}

fn guild_id(row: &Row<'_>, column: usize) -> rusqlite::Result<GuildId> {
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|e: crate::model::BadGuildId| rusqlite::types::FromSqlError::Other(e.into()).into())
}
