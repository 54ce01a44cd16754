//! Export: one state of the store as JSON Lines, in the order guild, member, its notes by kind and id. Keys, and whether a
//! guild has departed, are left out.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::conn::{Access, Row};
use super::import::PROGRESS_EVERY;
use super::*;
use crate::model::NOTE_KINDS;

/// How long an export may take.
const WITHIN: Duration = Duration::from_hours(12);

/// Guilds in memory at a time. There may be a million.
const GUILDS_AT_ONCE: usize = 1000;

/// The guilds after a given one. All come after the empty text, since no id is empty.
const GUILDS: &str = "SELECT no, id, name FROM guild WHERE id > $1 ORDER BY id LIMIT $2";

/// A guild's records: each member (of kind 0), then its notes. The `name` of a note is its author.
const RECORDS: &str = "SELECT member, CAST(0 AS bigint) AS kind, CAST(0 AS bigint) AS id, name, '' AS text, \
        points AS number FROM member WHERE guild = $1 \
    UNION ALL SELECT member, kind, id, author, text, number FROM note WHERE guild = $1 \
    ORDER BY member, kind, id";

/// Counting takes a twentieth of the time of writing them.
const COUNT: &str = "SELECT (SELECT count(*) FROM guild) + (SELECT count(*) FROM member) + (SELECT count(*) FROM note)";

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the export cannot be written: {0}")]
    Write(#[from] io::Error),
}

impl Store {
    /// Writes every guild, member and note; returns how many. Later writes of others are left out. Blocks for as long as it
    /// takes.
    ///
    /// # Errors
    /// Why the store cannot be read, or the lines not written.
    pub fn export(&self, to: &mut dyn Write, progress: &mut dyn FnMut(Progress)) -> Result<u64, ExportError> {
        let mut conn = (self.opener)(Access::Bulk)?;
        conn.set_deadline(Instant::now() + WITHIN);
        conn.begin_snapshot()?;
        let of: Option<u64> = conn.row(COUNT, &[])?.map(|mut row| row.take(0)).transpose()?;
        let so_far = Progress { phase: Phase::Writing, of, ..Progress::default() };
        let mut writer = RecordWriter { to, progress, so_far, line: Vec::new() };
        (writer.progress)(so_far);
        let mut last = String::new();
        loop {
            let guilds = conn.rows(GUILDS, values![&*last, GUILDS_AT_ONCE])?;
            if guilds.is_empty() {
                break;
            }
            for mut row in guilds {
                let (no, guild, name): (i64, GuildId, String) = (row.take(0)?, row.take(1)?, row.take(2)?);
                last = guild.to_string();
                writer.write(&Record::Guild { guild: guild.clone(), name })?;
                let mut written = Ok(());
                conn.each_row(RECORDS, values![no], &mut |row| {
                    let record = record(guild.clone(), row).map_err(ExportError::from);
                    written = record.and_then(|record| writer.write(&record));
                    written.is_ok()
                })?;
                written?;
            }
        }
        writer.to.flush()?;
        (writer.progress)(writer.so_far);
        Ok(writer.so_far.records)
    }
}

/// The record of a row of [`RECORDS`].
fn record(guild: GuildId, mut row: Row) -> Result<Record, StoreError> {
    let (member, code, name, number): (_, i64, _, i64) = (row.take(0)?, row.take(1)?, row.take(3)?, row.take(5)?);
    if code == 0 {
        return Ok(Record::Member { guild, member, name, points: number });
    }
    let unknown = || StoreError::Failed(format!("the store holds a note of kind {code}, which no Guildgate writes"));
    let kind = NOTE_KINDS.into_iter().find(|kind| kind.code == code).ok_or_else(unknown)?;
    let note = Note { id: row.take(2)?, author: name, text: row.take(4)?, number };
    Ok(Record::Note { guild, member, kind, note })
}

struct RecordWriter<'a> {
    to: &'a mut dyn Write,
    progress: &'a mut dyn FnMut(Progress),
    so_far: Progress,
    line: Vec<u8>,
}

impl RecordWriter<'_> {
    fn write(&mut self, record: &Record) -> Result<(), ExportError> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, record).map_err(io::Error::from)?;
        self.line.push(b'\n');
        self.to.write_all(&self.line)?;
        self.so_far.records += 1;
        if self.so_far.records.is_multiple_of(PROGRESS_EVERY) {
            (self.progress)(self.so_far);
        }
        Ok(())
    }
}
