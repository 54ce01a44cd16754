//! Import: lines are read and staged one by one, then applied together.

use std::fmt;
use std::io::{self, BufRead};
use std::path::Path;

use rusqlite::Connection;

use super::apply::apply;
use super::lines::{Line, Lines, MAX_LINE};
use super::record::Record;
use super::stage::{Stage, Staged, staging_file};
use crate::model::GuildId;
use crate::store::postgres::BulkSession;
use crate::store::sqlite::file_failure;
use crate::store::temp_file::TempFile;
use crate::store::{SqliteStore, StoreError};

/// Bad lines shown one by one; more would scroll the first ones off the screen.
pub const SHOWN: usize = 20;

/// Lines or rows between two progress reports: rare enough to cost nothing, often enough to be seen.
pub(super) const PROGRESS_EVERY: u64 = 2000;

/// A file may begin with it. It is not part of the first line.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The progress of an import or export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub phase: Phase,
    /// Records that are done.
    pub records: u64,
    /// How many there are, if that is known.
    pub of: Option<u64>,
    /// Bytes of lines read or written.
    pub bytes: u64,
}

/// The phases: an import reads the records, sends them if the store is a server, and applies them; an export writes
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    Reading,
    Sending,
    Applying,
    Writing,
}

/// What an import does if there are bad lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is imported if one line is bad.
    AllOrNothing,
    /// The good lines are imported.
    Partial,
}

/// A line that cannot be imported, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// From 1.
    pub line: u64,
    pub reason: String,
}

/// The bad lines of a file: the first [`SHOWN`], and how many there are in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadLines {
    pub shown: Vec<BadLine>,
    pub total: u64,
}

impl BadLines {
    fn add(&mut self, line: u64, reason: String) {
        self.total += 1;
        if self.shown.len() < SHOWN {
            self.shown.push(BadLine { line, reason });
        }
    }

    fn merge(&mut self, total: u64, lines: Vec<BadLine>) {
        self.total += total;
        self.shown.extend(lines);
        self.shown.sort_by_key(|bad| bad.line);
        self.shown.truncate(SHOWN);
    }
}

impl fmt::Display for BadLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, bad) in self.shown.iter().enumerate() {
            write!(f, "{}line {}: {}", if i > 0 { "\n" } else { "" }, bad.line, bad.reason)?;
        }
        match self.total - self.shown.len() as u64 {
            0 => Ok(()),
            more => write!(f, "\n{more} more bad lines"),
        }
    }
}

/// What an import did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Lines imported, those included that later ones replaced.
    pub records: u64,
    /// Those of them that are members, warns and reviews.
    pub of_members: u64,
    /// Lines left out; none unless [`Mode::Partial`].
    pub bad: BadLines,
}

impl Imported {
    /// What was imported, given that these lines were found to be bad while they were applied.
    pub(super) fn without(mut self, lines: Vec<BadLine>, mode: Mode) -> Result<Self, ImportError> {
        let count = lines.len() as u64;
        self.bad.merge(count, lines);
        self.records = self.records.saturating_sub(count);
        match mode {
            Mode::AllOrNothing if count > 0 => Err(ImportError::Bad(self.bad)),
            Mode::AllOrNothing | Mode::Partial => Ok(self),
        }
    }
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("{0}")]
    Bad(BadLines),
    #[error("the file cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SqliteStore {
    /// Imports JSON Lines: stages them in a file in the store's folder, then applies them in one transaction. Existing
    /// records are replaced; of two lines for one record the later one is used. Blocks for as long as it takes.
    pub fn import(
        &self,
        source: impl BufRead,
        mode: Mode,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Imported, ImportError> {
        let file = staging_file(self.path())?;
        let (imported, conn) = self.import_uncommitted(file.path(), source, mode, progress)?;
        conn.map_or(Ok(()), |conn| self.commit(&conn))?;
        Ok(imported)
    }

    /// As [`SqliteStore::import`], without the commit, staged in the empty file at `staging`. The caller commits the
    /// connection's transaction; there is none if nothing is imported.
    pub(in crate::store) fn import_uncommitted(
        &self,
        staging: &Path,
        source: impl BufRead,
        mode: Mode,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Imported, Option<Connection>), ImportError> {
        let (imported, staged) = read_lines(staging, source, mode, progress, |guild| self.has_guild(guild))?;
        let Some(staged) = staged else { return Ok((imported, None)) };
        let (left_out, conn) = apply(self, &staged, mode, progress)?;
        Ok((imported.without(left_out, mode)?, conn))
    }

    fn commit(&self, conn: &Connection) -> Result<(), StoreError> {
        conn.execute_batch("COMMIT").map_err(|e| file_failure(self.path(), &e))
    }
}

/// An import that has only to be committed. If it is dropped, nothing is imported.
#[derive(Debug)]
pub struct UncommittedImport<'s> {
    pub(in crate::store) imported: Imported,
    pub(in crate::store) transaction: Transaction<'s>,
    /// The staging file.
    pub(in crate::store) _file: TempFile,
}

/// The transaction to commit.
#[derive(Debug)]
pub(in crate::store) enum Transaction<'s> {
    /// Nothing is imported.
    None,
    Sqlite(&'s SqliteStore, Connection),
    Postgres(BulkSession<'s>),
}

impl UncommittedImport<'_> {
    /// Whether there is a line about a member.
    pub fn has_members(&self) -> bool {
        self.imported.of_members > 0
    }

    /// Commits it.
    pub async fn commit(self) -> Result<Imported, ImportError> {
        match self.transaction {
            Transaction::None => {}
            Transaction::Sqlite(store, conn) => store.commit(&conn)?,
            Transaction::Postgres(session) => session.commit().await?,
        }
        Ok(self.imported)
    }
}

/// Stages the lines of `source` in the empty file at `staging`; `stored` tells whether the store has a guild. Returns what
/// will be imported, and the staging file unless there is nothing.
pub(super) fn read_lines(
    staging: &Path,
    source: impl BufRead,
    mode: Mode,
    progress: &mut dyn FnMut(Progress),
    stored: impl Fn(&GuildId) -> Result<bool, StoreError>,
) -> Result<(Imported, Option<Staged>), ImportError> {
    let mut stage = Stage::open(staging)?;
    let mut lines = Lines::of(source);
    let mut bad = BadLines::default();
    let (mut so_far, mut of_members) = (Progress::default(), 0);
    while let Some((number, line)) = lines.next()? {
        match parse(number, line) {
            Ok(None) => {}
            Ok(Some(record)) => {
                of_members += u64::from(!matches!(record, Record::Guild { .. }));
                stage.add(number, record, &stored)?;
                so_far.records += 1;
            }
            Err(reason) => bad.add(number, reason),
        }
        if number % PROGRESS_EVERY == 0 {
            so_far.bytes = lines.bytes();
            progress(so_far);
        }
    }
    let (without_guild, first) = stage.without_guild(SHOWN)?;
    bad.merge(without_guild, first);
    if bad.total > 0 && mode == Mode::AllOrNothing {
        return Err(ImportError::Bad(bad));
    }
    let records = so_far.records - without_guild;
    progress(Progress { bytes: lines.bytes(), records, ..so_far });
    let staged = if records > 0 { Some(stage.finish()?) } else { None };
    Ok((Imported { records, of_members, bad }, staged))
}

/// A line's record; `None` for an empty line.
fn parse(number: u64, line: Line<'_>) -> Result<Option<Record>, String> {
    let Line::Text(text) = line else {
        return Err(format!("longer than {MAX_LINE} bytes"));
    };
    let text = if number == 1 { text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text) } else { text };
    if text.trim_ascii().is_empty() { Ok(None) } else { Record::parse(text).map(Some) }
}
