//! Import: lines are read and staged one by one, then applied together.

use std::fmt;
use std::io::{self, BufRead};

use super::apply::apply;
use super::lines::{Line, Lines, MAX_LINE};
use super::record::Record;
use super::stage::{Stage, StageFile};
use crate::model::GuildId;
use crate::store::{SqliteStore, StoreError};

/// Bad lines named one by one; more would scroll the first, the telling ones, off the screen.
pub const SHOWN: usize = 20;

/// Lines or rows between two calls of the progress: rare enough to cost nothing, often enough to move.
pub(super) const PROGRESS_EVERY: u64 = 2000;

/// Some files begin with it; it is no part of their first line.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// How far an import or export is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub doing: Doing,
    /// Records to which it was done so far.
    pub records: u64,
    /// Of how many, where that is known.
    pub of: Option<u64>,
    /// Bytes of lines read or written.
    pub bytes: u64,
}

/// What is being done to the records, one after the other: an import reads them, sends them if the store is a server,
/// and applies them; an export writes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doing {
    #[default]
    Reading,
    Sending,
    Applying,
    Writing,
}

/// What an import does about bad lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One bad line, and nothing of the file is taken.
    AllOrNothing,
    /// The good lines are taken.
    Partial,
}

/// A line that could not be taken, and why.
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
    /// Lines taken.
    pub records: u64,
    /// Lines left out; none unless [`Mode::Partial`].
    pub bad: BadLines,
}

impl Imported {
    /// What was imported where these lines were found bad while it was applied.
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
    /// Imports JSON Lines: staged in a file beside the store, then applied in one transaction. It
    /// replaces what exists; within the file the later line wins. Blocks for as long as it takes.
    pub fn import(
        &self,
        source: impl BufRead,
        mode: Mode,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Imported, ImportError> {
        let stage = Stage::create(self.path())?;
        let (imported, staged) = take_in(stage, source, mode, progress, |guild| self.has_guild(guild))?;
        let Some(staged) = staged else { return Ok(imported) };
        let left_out = apply(self, &staged, mode, progress)?;
        imported.without(left_out, mode)
    }
}

/// Stages the lines of `source`; `stored` tells whether the store has a guild. Answers what is about to
/// be imported, and where it is staged if there is anything.
pub(super) fn take_in(
    mut stage: Stage,
    source: impl BufRead,
    mode: Mode,
    progress: &mut dyn FnMut(Progress),
    stored: impl Fn(&GuildId) -> Result<bool, StoreError>,
) -> Result<(Imported, Option<StageFile>), ImportError> {
    let mut lines = Lines::of(source);
    let mut bad = BadLines::default();
    let mut so_far = Progress::default();
    while let Some((number, line)) = lines.next()? {
        match read(number, line) {
            Ok(None) => {}
            Ok(Some(record)) => {
                stage.take(number, record, &stored)?;
                so_far.records += 1;
            }
            Err(reason) => bad.add(number, reason),
        }
        if number % PROGRESS_EVERY == 0 {
            so_far.bytes = lines.bytes();
            progress(so_far);
        }
    }
    let (homeless, first) = stage.homeless(SHOWN)?;
    bad.merge(homeless, first);
    if bad.total > 0 && mode == Mode::AllOrNothing {
        return Err(ImportError::Bad(bad));
    }
    let records = so_far.records - homeless;
    progress(Progress { bytes: lines.bytes(), records, ..so_far });
    let staged = if records > 0 { Some(stage.finish()?) } else { None };
    Ok((Imported { records, bad }, staged))
}

/// A line's record; `None` for an empty line.
fn read(number: u64, line: Line<'_>) -> Result<Option<Record>, String> {
    let Line::Text(text) = line else {
        return Err(format!("longer than {MAX_LINE} bytes"));
    };
    let text = if number == 1 { text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text) } else { text };
    if text.trim_ascii().is_empty() { Ok(None) } else { Record::parse(text).map(Some) }
}
