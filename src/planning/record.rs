//! Reads the files of a decision record as one stream in order of time, any number of times. Each file is read up to the
//! length that it had when it was opened, so that every pass sees the same while a server writes to it. Two decisions of
//! one key that were made within a few milliseconds are put in an order in which the buckets can have decided them.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::intervals::BusiestInterval;
use crate::clock::nanos;
use crate::model::{KeyId, counted, date_of, one_line, was};
use crate::telemetry::decisions::{Block, Counts, CutShort, Decision, MAGIC, RecordError, RecordReader, older};

/// The most by which the recorded times of two decisions of one key may contradict the order in which the buckets made
/// them: a thread may be suspended between reading the clock and asking the buckets. Within this time, accepted requests
/// are put before refused ones. A refusal takes nothing from any budget, so later decisions do not depend on it.
const REORDER_WINDOW: Duration = Duration::from_millis(10);

/// The most by which a decision may be recorded after later ones.
const MAX_DELAY: Duration = Duration::from_millis(200);

/// Is called while a record is read, with how many bytes are done and how many there are; it may end the reading.
pub type OnProgress<'p> = &'p mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{} cannot be read: {cause}; name the file that log.decisions names", path.display())]
    Unreadable { path: PathBuf, cause: std::io::Error },
    #[error("{} is no file; name the file that log.decisions names", .0.display())]
    NoFile(PathBuf),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the reading was ended")]
    Ended,
}

/// The files of a decision record, each with the length that it had when it was opened.
#[derive(Debug)]
pub struct RecordFiles(Vec<(PathBuf, File, u64)>);

/// A decision with its place in the record.
#[derive(Clone, Copy, Debug)]
pub struct RecordedDecision<'d> {
    pub decision: &'d Decision,
    /// Keys are numbered from 0 in the order of their first decisions.
    pub key: usize,
    /// Milliseconds since the Unix epoch.
    pub unix_ms: i64,
    /// The run of the server. Its ticks begin at 0 and its buckets are full in each run.
    pub run: u32,
    /// Increases where decisions are missing before this one, as they are between two runs.
    pub gap: u32,
}

/// What was read in one pass.
#[derive(Debug, Default)]
pub struct RecordSummary {
    pub files: Vec<PathBuf>,
    pub decisions: u64,
    pub keys: Vec<KeyId>,
    /// Decisions that were made and are not in the files.
    lost: u64,
    /// Requests without a valid key that exceeded `limits.strangers`.
    strangers: u64,
    strangers_by_minute: BusiestInterval,
    /// The earliest and the latest decision, in milliseconds since the Unix epoch.
    span: Option<(i64, i64)>,
    cut_short: Vec<CutShort>,
}

impl RecordFiles {
    /// Opens the one file named, and its older file before it; or the files named, if they are several.
    pub fn open(paths: &[PathBuf]) -> Result<Self, ReadError> {
        let older = match paths {
            [path] => Some(older(path)).filter(|older| older.exists()),
            _ => None,
        };
        let files = older.iter().chain(paths).map(|path| open(path));
        Ok(RecordFiles(files.collect::<Result<_, _>>()?))
    }

    /// Whether nothing was recorded when they were opened.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, _, length)| *length <= MAGIC.len() as u64)
    }

    /// Calls `each` with every decision, in order of time, and those of one key in an order in which they can have been
    /// made.
    pub fn for_each(
        &self,
        progress: OnProgress<'_>,
        each: &mut dyn FnMut(RecordedDecision<'_>),
    ) -> Result<RecordSummary, ReadError> {
        let total = self.0.iter().map(|(_, _, length)| length).sum();
        let mut sorter = Sorter::new(each);
        let mut done = 0;
        for (path, file, length) in &self.0 {
            let unreadable = |cause| RecordError::Unreadable { path: path.clone(), cause };
            let mut file = file.try_clone().map_err(unreadable)?;
            file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
            let mut reader = RecordReader::new(file, *length, path);
            while let Some(block) = reader.next_block()? {
                sorter.add(block);
                if progress(done + reader.position(), total).is_break() {
                    return Err(ReadError::Ended);
                }
            }
            done += length;
            sorter.summary.cut_short.extend(reader.cut_short().cloned());
            sorter.summary.files.push(path.clone());
        }
        sorter.emit(u64::MAX);
        Ok(sorter.summary)
    }
}

fn open(path: &Path) -> Result<(PathBuf, File, u64), ReadError> {
    let unreadable = |cause| ReadError::Unreadable { path: path.to_owned(), cause };
    // Opening a pipe would wait for its writer, and a pipe can be read only once.
    if std::fs::metadata(path).map_err(unreadable)?.is_file() {
        let file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        Ok((path.to_owned(), file, length))
    } else {
        Err(ReadError::NoFile(path.to_owned()))
    }
}

/// Sorts the decisions of consecutive blocks and passes them on.
struct Sorter<'e> {
    each: &'e mut dyn FnMut(RecordedDecision<'_>),
    summary: RecordSummary,
    numbers: HashMap<KeyId, usize>,
    /// The current run: its number in the file, and its number in this stream.
    run: (Option<u64>, u32),
    gap: u32,
    /// The latest tick of the current run.
    latest: u64,
    buffer: Vec<Buffered>,
}

struct Buffered {
    /// The tick by which it is sorted.
    sort_tick: u64,
    gap: u32,
    unix_ms: i64,
    decision: Decision,
}

impl<'e> Sorter<'e> {
    fn new(each: &'e mut dyn FnMut(RecordedDecision<'_>)) -> Self {
        let (summary, numbers, buffer) = (RecordSummary::default(), HashMap::new(), Vec::new());
        Sorter { each, summary, numbers, run: (None, 0), gap: 0, latest: 0, buffer }
    }

    fn add(&mut self, block: Block) {
        let Block { run, counts: Counts { lost, strangers }, written_at, decisions } = block;
        if self.run.0 != Some(run) {
            self.emit(u64::MAX);
            self.run = (Some(run), self.run.1 + 1);
            self.latest = 0;
            self.gap += 1;
        }
        self.gap += u32::from(lost > 0);
        self.summary.lost += lost;
        self.summary.count_strangers(strangers, written_at.unix_ms);
        for decision in decisions {
            self.latest = self.latest.max(decision.at.0);
            let window = if decision.over.is_some() { nanos(REORDER_WINDOW) } else { 0 };
            let sort_tick = decision.at.0.saturating_add(window);
            let unix_ms = written_at.unix_ms(decision.at);
            self.buffer.push(Buffered { sort_tick, gap: self.gap, unix_ms, decision });
        }
        self.buffer.sort_by_key(|buffered| buffered.sort_tick);
        self.emit(self.latest.saturating_sub(nanos(MAX_DELAY)));
    }

    /// Passes on the decisions whose `sort_tick` is not after `until`.
    fn emit(&mut self, until: u64) {
        let ready = self.buffer.partition_point(|buffered| buffered.sort_tick <= until);
        for Buffered { gap, unix_ms, decision, .. } in self.buffer.drain(..ready) {
            let summary = &mut self.summary;
            summary.decisions += 1;
            let (first, last) = summary.span.unwrap_or((unix_ms, unix_ms));
            summary.span = Some((first.min(unix_ms), last.max(unix_ms)));
            let key = *self.numbers.entry(decision.key.clone()).or_insert_with_key(|key| {
                summary.keys.push(key.clone());
                summary.keys.len() - 1
            });
            (self.each)(RecordedDecision { decision: &decision, key, unix_ms, run: self.run.1, gap });
        }
    }
}

impl RecordSummary {
    /// Counts strangers that exceeded their limit in the second before `unix_ms`.
    fn count_strangers(&mut self, strangers: u64, unix_ms: i64) {
        self.strangers = self.strangers.saturating_add(strangers);
        let strangers = u32::try_from(strangers).unwrap_or(u32::MAX);
        self.strangers_by_minute.add(unix_ms.div_euclid(60_000), strangers);
    }

    /// A line about the strangers that exceeded their limit, if there were any.
    pub fn strangers(&self) -> Option<String> {
        (self.strangers > 0).then(|| {
            let BusiestInterval { interval: minute, count, .. } = self.strangers_by_minute;
            format!(
                "{} without a good key {} over limits.strangers, {count} of them in the minute of {}. Whose, the \
                 record does not say, so they are not replayed.\n",
                counted(self.strangers, "request"),
                was(self.strangers),
                date_of(minute * 60)
            )
        })
    }

    /// Which files are cut short, and whether the record is empty.
    pub fn warnings(&self) -> Vec<String> {
        let empty = || {
            let files = self.file_names();
            format!("no decision is recorded in {files}; a server writes each one within a second after it was made")
        };
        let cut_short = self.cut_short.iter().map(ToString::to_string);
        cut_short.chain((self.decisions == 0).then(empty)).collect()
    }

    fn file_names(&self) -> String {
        self.files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
    }
}

impl fmt::Display for RecordSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", counted(self.decisions, "decision"), counted(self.keys.len() as u64, "key"))?;
        if let Some((first, last)) = self.span.map(|(first, last)| (first.div_euclid(1000), last.div_euclid(1000))) {
            write!(f, " from {} to {}", date_of(first), date_of(last))?;
        }
        write!(f, " in {}", one_line(&self.file_names()))?;
        match self.lost {
            0 => f.write_str("; none was dropped"),
            lost => write!(f, "; {} {} not recorded", counted(lost, "decision"), was(lost)),
        }
    }
}
