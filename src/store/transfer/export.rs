//! Export: one snapshot, streamed in the order guild, member, its warns, its reviews.

use std::io::{self, Write};
use std::time::Duration;

use rusqlite::{Connection, Transaction};

use super::import::{PROGRESS_EVERY, Phase, Progress};
use super::record::Record;
use crate::model::{GuildId, MemberId};
use crate::store::sqlite::{file_failure, member_id, open, parsed};
use crate::store::{SqliteStore, StoreError};

/// How long an export waits for a lock; in WAL mode only recovery after a crash makes it wait.
const BUSY: Duration = Duration::from_secs(5);

/// The column `kind` of [`RECORDS`].
const MEMBER: i32 = 0;
const WARN: i32 = 1;
const REVIEW: i32 = 2;

/// A guild's records for both kinds of store: each member, then its warns, then its reviews. The `name` of a warn or
/// review is its author.
pub(super) const RECORDS: &str = "SELECT member, 0 AS kind, CAST(0 AS bigint) AS id, name, '' AS text, \
        points AS number FROM member WHERE guild = $1 \
    UNION ALL SELECT member, 1, id, author, reason, expires FROM warn WHERE guild = $1 \
    UNION ALL SELECT member, 2, id, author, text, rating FROM review WHERE guild = $1 \
    ORDER BY member, kind, id";

/// The number of records. Counting takes a twentieth of the time of writing them.
pub(super) const COUNT: &str = "SELECT (SELECT count(*) FROM guild) + (SELECT count(*) FROM member) \
    + (SELECT count(*) FROM warn) + (SELECT count(*) FROM review)";

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the export cannot be written: {0}")]
    Write(#[from] io::Error),
}

/// As [`ExportError`], before the store's path is added to SQLite's error.
#[derive(Debug, thiserror::Error)]
enum SqliteExportError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    Write(#[from] io::Error),
}

impl SqliteStore {
    /// Writes every guild, member, warn and review as JSON Lines; returns how many. Keys, and whether a guild has
    /// departed, are left out. Later writes of others are left out too, and the WAL grows by them until the export ends.
    /// Blocks for as long as it takes.
    pub fn export(&self, to: &mut dyn Write, progress: &mut dyn FnMut(Progress)) -> Result<u64, ExportError> {
        let failed = |e| ExportError::Store(file_failure(self.path(), &e));
        let mut conn = open::readable(self.path(), BUSY).map_err(failed)?;
        let snapshot = conn.transaction().map_err(failed)?;
        let mut writer = RecordWriter::new(to, progress);
        write_all(&snapshot, &mut writer).map_err(|e| match e {
            SqliteExportError::Sqlite(e) => failed(e),
            SqliteExportError::Write(e) => ExportError::Write(e),
        })?;
        Ok(writer.finish()?)
    }
}

pub(super) struct RecordWriter<'a> {
    to: &'a mut dyn Write,
    progress: &'a mut dyn FnMut(Progress),
    so_far: Progress,
    line: Vec<u8>,
}

impl<'a> RecordWriter<'a> {
    pub(super) fn new(to: &'a mut dyn Write, progress: &'a mut dyn FnMut(Progress)) -> Self {
        RecordWriter {
            to,
            progress,
            so_far: Progress { phase: Phase::Writing, ..Progress::default() },
            line: Vec::new(),
        }
    }

    /// Reports how many records there will be.
    pub(super) fn set_total(&mut self, records: u64) {
        self.so_far.of = Some(records);
        (self.progress)(self.so_far);
    }

    /// Returns how many records were written.
    pub(super) fn finish(self) -> io::Result<u64> {
        self.to.flush()?;
        (self.progress)(self.so_far);
        Ok(self.so_far.records)
    }

    pub(super) fn write(&mut self, record: &Record) -> io::Result<()> {
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

fn write_all(snapshot: &Transaction<'_>, writer: &mut RecordWriter<'_>) -> Result<(), SqliteExportError> {
    let records: i64 = snapshot.query_row(COUNT, [], |row| row.get(0))?;
    writer.set_total(records.unsigned_abs());
    let mut guilds = snapshot.prepare("SELECT no, id, name FROM guild ORDER BY id")?;
    let mut rows = guilds.query([])?;
    while let Some(row) = rows.next()? {
        let guild = parsed::<GuildId>(row, 1)?;
        writer.write(&Record::Guild { guild: guild.clone(), name: row.get(2)? })?;
        write_members(snapshot, row.get(0)?, &guild, writer)?;
    }
    Ok(())
}

fn write_members(
    conn: &Connection,
    no: i64,
    guild: &GuildId,
    writer: &mut RecordWriter<'_>,
) -> Result<(), SqliteExportError> {
    let mut statement = conn.prepare_cached(RECORDS)?;
    let mut rows = statement.query([no])?;
    while let Some(row) = rows.next()? {
        let (kind, id, name, text, number) = (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?);
        writer.write(&record(guild.clone(), member_id(row, 0)?, kind, id, name, text, number)?)?;
    }
    Ok(())
}

/// The record of a row of [`RECORDS`].
pub(super) fn record(
    guild: GuildId,
    member: MemberId,
    kind: i32,
    id: i64,
    name: String,
    text: String,
    number: i64,
) -> io::Result<Record> {
    Ok(match kind {
        MEMBER => Record::Member { guild, member, name, points: number },
        WARN => Record::Warn { guild, member, warn: id, author: name, reason: text, expires: number },
        REVIEW => {
            let rating = u8::try_from(number).unwrap_or_default(); // the table allows 1 to 5
            Record::Review { guild, member, review: id, author: name, rating, text }
        }
        other => return Err(io::Error::other(format!("the store has a record of kind {other}, which has no line"))),
    })
}
