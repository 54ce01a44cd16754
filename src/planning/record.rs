//! Reads the files of a decision record as one stream in order of time, any number of times. Each file is read up to the
//! length that it had when it was opened, so that every pass sees the same while a server writes to it. Two decisions of
//! one key that were made within a few milliseconds are put in an order in which the buckets can have decided them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use crate::clock::nanos;
use crate::model::{KeyId, counted, date_of, one_line, was};
use crate::telemetry::decisions::{Block, Decision, Head, RecordError, RecordReader, older};

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
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the reading was ended")]
    Ended,
}

/// The files of a decision record, each with the length that it had when it was opened.
#[derive(Debug)]
pub struct RecordFiles(RefCell<Vec<RecordReader>>);

/// A decision with its place in the record.
#[derive(Clone, Copy, Debug)]
pub struct RecordedDecision<'d> {
    pub decision: &'d Decision,
    /// Keys are numbered from 0 in the order of their first decisions.
    pub key: usize,
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
    /// The earliest and the latest decision, in milliseconds since the Unix epoch.
    span: Option<(i64, i64)>,
    /// Files of which so many bytes are damaged.
    damaged: Vec<(PathBuf, u64)>,
}

impl RecordFiles {
    /// Opens the one file named, and its older file before it; or the files named, if they are several.
    pub fn open(paths: &[PathBuf]) -> Result<Self, ReadError> {
        let older = match paths {
            [path] => Some(older(path)).filter(|older| older.exists()),
            _ => None,
        };
        let files = older.iter().chain(paths).map(|path| RecordReader::open(path));
        Ok(RecordFiles(RefCell::new(files.collect::<Result<_, _>>()?)))
    }

    /// Whether nothing was recorded when they were opened.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().iter().all(|file| file.length == 0)
    }

    /// Calls `each` with every decision, in order of time, and those of one key in an order in which they can have been
    /// made.
    pub fn for_each(
        &self,
        progress: OnProgress<'_>,
        each: &mut dyn FnMut(RecordedDecision<'_>),
    ) -> Result<RecordSummary, ReadError> {
        let files = &mut *self.0.borrow_mut();
        let total = files.iter().map(|file| file.length).sum();
        let mut sorter = Sorter::new(each);
        let mut done = 0;
        for file in files {
            file.rewind()?;
            loop {
                let damaged = file.damaged;
                let block = file.next_block()?;
                sorter.gap += u32::from(file.damaged > damaged);
                let Some(block) = block else { break };
                sorter.add(block);
                if progress(done + file.at, total).is_break() {
                    return Err(ReadError::Ended);
                }
            }
            done += file.length;
            if file.damaged > 0 {
                sorter.summary.damaged.push((file.path.clone(), file.damaged));
            }
            sorter.summary.files.push(file.path.clone());
        }
        sorter.emit(u64::MAX);
        Ok(sorter.summary)
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
    decision: Decision,
}

impl<'e> Sorter<'e> {
    fn new(each: &'e mut dyn FnMut(RecordedDecision<'_>)) -> Self {
        let (summary, numbers, buffer) = (RecordSummary::default(), HashMap::new(), Vec::new());
        Sorter { each, summary, numbers, run: (None, 0), gap: 0, latest: 0, buffer }
    }

    fn add(&mut self, block: Block) {
        let Block { head: Head { run, lost, strangers, .. }, decisions } = block;
        if self.run.0 != Some(run) {
            self.emit(u64::MAX);
            self.run = (Some(run), self.run.1 + 1);
            self.latest = 0;
            self.gap += 1;
        }
        self.gap += u32::from(lost > 0);
        self.summary.lost += lost;
        self.summary.strangers = self.summary.strangers.saturating_add(strangers);
        for decision in decisions {
            self.latest = self.latest.max(decision.at.0);
            let window = if decision.over.is_some() { nanos(REORDER_WINDOW) } else { 0 };
            let sort_tick = decision.at.0.saturating_add(window);
            self.buffer.push(Buffered { sort_tick, gap: self.gap, decision });
        }
        self.buffer.sort_by_key(|buffered| buffered.sort_tick);
        self.emit(self.latest.saturating_sub(nanos(MAX_DELAY)));
    }

    /// Passes on the decisions whose `sort_tick` is not after `until`.
    fn emit(&mut self, until: u64) {
        let ready = self.buffer.partition_point(|buffered| buffered.sort_tick <= until);
        for Buffered { gap, decision, .. } in self.buffer.drain(..ready) {
            let (summary, unix_ms) = (&mut self.summary, decision.unix_ms);
            summary.decisions += 1;
            let (first, last) = summary.span.unwrap_or((unix_ms, unix_ms));
            summary.span = Some((first.min(unix_ms), last.max(unix_ms)));
            let key = *self.numbers.entry(decision.key.clone()).or_insert_with_key(|key| {
                summary.keys.push(key.clone());
                summary.keys.len() - 1
            });
            (self.each)(RecordedDecision { decision: &decision, key, run: self.run.1, gap });
        }
    }
}

impl RecordSummary {
    /// A line about the strangers that exceeded their limit, if there were any.
    pub fn strangers(&self) -> Option<String> {
        (self.strangers > 0).then(|| {
            let (requests, were) = (counted(self.strangers, "request"), was(self.strangers));
            format!("{requests} without a good key {were} over limits.strangers, and {were} not replayed.\n")
        })
    }

    /// Which files are damaged, and whether the record is empty.
    pub fn warnings(&self) -> Vec<String> {
        let empty = || {
            let files = self.file_names();
            format!("no decision is recorded in {files}; a server writes each one within a second after it was made")
        };
        let damaged = |(path, bytes): &(PathBuf, u64)| {
            format!("{} bytes of {} are damaged, as after a power loss; they are left out", bytes, path.display())
        };
        let damaged = self.damaged.iter().map(damaged);
        damaged.chain((self.decisions == 0).then(empty)).collect()
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
