//! Reads the files of a decision record as one stream in order of time, as often as it is asked to. Each file is read
//! up to the length that it had when it was opened, so that every pass sees the same while a server writes on. Two
//! decisions of one key that were made within a few milliseconds are put in an order in which the buckets can have
//! decided them. This module only reads.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::stretches::{Stretches, Worst};
use super::table::{Moment, s};
use crate::cli::error::CommandError;
use crate::cli::transfer::byte_bar;
use crate::clock::nanos;
use crate::files::FileId;
use crate::model::{KeyId, Limit, one_line};
use crate::telemetry::decisions::{Block, Counts, CutShort, Decision, RecordError, RecordReader, older};

/// How far apart two decisions of one key can have been made that were counted the other way
/// round: a thread may be set aside between its look at the clock and its asking the buckets.
/// Where two were made that close, the one that was let in passes first. A refusal takes nothing
/// from any budget, so what follows is none the wiser.
const RACE: Duration = Duration::from_millis(10);

/// How long a decision can have been on its way into the record while later ones went before it.
const STRAGGLE: Duration = Duration::from_millis(200);

/// The files of a record, each up to the length it had when it was opened: a server may be writing
/// on, and every pass must see the same.
#[derive(Debug)]
pub(super) struct Record(Vec<(PathBuf, File, u64)>);

/// One decision as it passes by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passing<'d> {
    pub(super) decision: &'d Decision,
    /// Keys are numbered in the order in which they pass first.
    pub(super) key: usize,
    /// Milliseconds since the Unix epoch.
    pub(super) unix_ms: i64,
    /// Another run of the server: its ticks begin anew, and so did its buckets.
    pub(super) run: u32,
    /// Grows where decisions are missing before this one, as they are between two runs.
    pub(super) gap: u32,
}

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) files: Vec<PathBuf>,
    pub(super) decisions: u64,
    pub(super) keys: Vec<KeyId>,
    /// Decisions that were made and are not in the files.
    pub(super) lost: u64,
    /// Requests without a good key that were over `limits.strangers`.
    strangers: u64,
    /// And the minute in which most of them were.
    strangers_by_minute: Stretches,
    worst: Worst,
    /// The earliest and the latest, in milliseconds since the Unix epoch.
    pub(super) span: Option<(i64, i64)>,
    pub(super) cut: Vec<CutShort>,
}

impl Record {
    /// Opens the one file named, and its older half before it; or the files named, if they are several.
    pub(super) fn open(named: &[PathBuf]) -> Result<Self, CommandError> {
        let [path] = named else {
            return Ok(Record(named.iter().map(|path| open(path)).collect::<Result<_, _>>()?));
        };
        // The newer one first: if it becomes the older one meanwhile, it is the same file twice,
        // and not one too few.
        let newer = open(path)?;
        let older = older(path);
        if !older.exists() {
            return Ok(Record(vec![newer]));
        }
        let before = open(&older)?;
        let id = |file: &File| file.metadata().map(|meta| FileId::from(&meta)).ok();
        Ok(Record(if id(&before.1) == id(&newer.1) { vec![newer] } else { vec![before, newer] }))
    }

    /// Lets every decision pass, in order of time, those of one key in an order in which they can
    /// have been made.
    pub(super) fn pass(&self, each: &mut dyn FnMut(Passing<'_>)) -> Result<Read, CommandError> {
        let bar = byte_bar(self.0.iter().map(|(_, _, length)| length).sum());
        let mut stream = Stream::new(each);
        let mut done = 0;
        for (path, file, length) in &self.0 {
            let unreadable = |cause| RecordError::Unreadable { path: path.clone(), cause };
            let mut file = file.try_clone().map_err(unreadable)?;
            file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
            let mut reader = RecordReader::new(file, *length, path);
            while let Some(block) = reader.next_block()? {
                stream.block(block);
                if let Some(bar) = &bar {
                    bar.set_position(done + reader.position());
                }
            }
            done += length;
            stream.read.cut.extend(reader.cut_short().cloned());
            stream.read.files.push(path.clone());
        }
        stream.let_pass(u64::MAX);
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let Read { strangers_by_minute, worst, .. } = &mut stream.read;
        std::mem::take(strangers_by_minute).finish(|minute, count| worst.see(minute, count));
        Ok(stream.read)
    }
}

fn open(path: &Path) -> Result<(PathBuf, File, u64), CommandError> {
    let unreadable = |cause| {
        CommandError::new(format!("{} cannot be read: {cause}; name the file that log.decisions names", path.display()))
    };
    // A pipe would be waited for, and can be read but once.
    if std::fs::metadata(path).map_err(unreadable)?.is_file() {
        let file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        Ok((path.to_owned(), file, length))
    } else {
        Err(CommandError::new(format!("{} is no file; name the file that log.decisions names", path.display())))
    }
}

impl From<RecordError> for CommandError {
    fn from(error: RecordError) -> Self {
        CommandError::new(error.to_string())
    }
}

/// Blocks on their way to becoming one stream.
struct Stream<'e> {
    each: &'e mut dyn FnMut(Passing<'_>),
    read: Read,
    numbers: HashMap<KeyId, usize>,
    /// The run at hand: its number in the file, and its place among them.
    run: (Option<u64>, u32),
    gap: u32,
    /// The latest tick of the run at hand.
    latest: u64,
    waiting: Vec<Waiting>,
    /// The tier under which each key was decided last.
    tiers: HashMap<KeyId, Option<Arc<str>>>,
}

struct Waiting {
    /// The tick in whose place it passes.
    turn: u64,
    gap: u32,
    unix_ms: i64,
    decision: Decision,
}

/// Whether it left its key's budgets as they were. A write that the main bucket refused had been
/// counted by the write bucket already.
fn took_nothing(decision: &Decision) -> bool {
    match decision.over {
        None => false,
        Some(Limit::Rate) => !decision.operation.is_write(),
        Some(Limit::WriteRate | Limit::Daily | Limit::InFlight) => true,
    }
}

impl<'e> Stream<'e> {
    fn new(each: &'e mut dyn FnMut(Passing<'_>)) -> Self {
        let (read, numbers, waiting, tiers) = (Read::default(), HashMap::new(), Vec::new(), HashMap::new());
        Stream { each, read, numbers, run: (None, 0), gap: 0, latest: 0, waiting, tiers }
    }

    fn block(&mut self, block: Block) {
        let Block { run, counts: Counts { lost, strangers }, written_at, decisions } = block;
        if self.run.0 != Some(run) {
            self.let_pass(u64::MAX);
            self.run = (Some(run), self.run.1 + 1);
            self.latest = 0;
            self.gap += 1;
        }
        self.gap += u32::from(lost > 0);
        self.read.lost += lost;
        self.read.count_strangers(strangers, written_at.unix_ms);
        for decision in decisions {
            self.latest = self.latest.max(decision.at.0);
            let mut turn = decision.at.0;
            if self.is_first_under_its_tier(&decision) {
                // What is used up is taken over at its moment, even if it is refused then: it passes in
                // its place, and whoever came under the tier before has passed by then.
                let earlier = self.waiting.iter_mut().filter(|waiting| waiting.decision.key == decision.key);
                earlier.for_each(|waiting| waiting.turn = waiting.turn.min(turn));
            } else if took_nothing(&decision) {
                turn = turn.saturating_add(nanos(RACE));
            }
            let unix_ms = written_at.unix_ms(decision.at);
            self.waiting.push(Waiting { turn, gap: self.gap, unix_ms, decision });
        }
        self.waiting.sort_by_key(|waiting| waiting.turn);
        self.let_pass(self.latest.saturating_sub(nanos(STRAGGLE)));
    }

    /// Whether its key was decided under another tier before. Noted as that of its key.
    fn is_first_under_its_tier(&mut self, decision: &Decision) -> bool {
        match self.tiers.get_mut(&decision.key) {
            Some(tier) if *tier == decision.tier => false,
            Some(tier) => {
                tier.clone_from(&decision.tier);
                true
            }
            None => {
                self.tiers.insert(decision.key.clone(), decision.tier.clone());
                false
            }
        }
    }

    /// Lets those pass whose turn is at `until` or before.
    fn let_pass(&mut self, until: u64) {
        let ready = self.waiting.partition_point(|waiting| waiting.turn <= until);
        for Waiting { gap, unix_ms, decision, .. } in self.waiting.drain(..ready) {
            let read = &mut self.read;
            read.decisions += 1;
            let (from, to) = read.span.unwrap_or((unix_ms, unix_ms));
            read.span = Some((from.min(unix_ms), to.max(unix_ms)));
            let key = match self.numbers.get(&decision.key) {
                Some(number) => *number,
                None => {
                    let number = read.keys.len();
                    self.numbers.insert(decision.key.clone(), number);
                    read.keys.push(decision.key.clone());
                    number
                }
            };
            (self.each)(Passing { decision: &decision, key, unix_ms, run: self.run.1, gap });
        }
    }
}

impl Read {
    /// Counts strangers who were over their limit in the second before `unix_ms`.
    fn count_strangers(&mut self, strangers: u64, unix_ms: i64) {
        if strangers > 0 {
            let worst = &mut self.worst;
            let count = u32::try_from(strangers).unwrap_or(u32::MAX);
            self.strangers = self.strangers.saturating_add(strangers);
            self.strangers_by_minute
                .add_many(unix_ms.div_euclid(60_000), count, |minute, count| worst.see(minute, count));
        }
    }

    /// What is told of strangers, as a line; `None` where none of them was over the limit.
    pub(super) fn strangers(&self) -> Option<String> {
        (self.strangers > 0).then(|| {
            let Worst { stretch, count } = self.worst;
            format!(
                "{} request{} without a good key {} over limits.strangers, {count} of them in the minute of {}. Whose, the \
                 record does not say, so they are not replayed.\n",
                self.strangers,
                s(self.strangers),
                if self.strangers == 1 { "was" } else { "were" },
                Moment::of_minute(stretch)
            )
        })
    }

    /// Says on stderr what the reader of any output should know.
    pub(super) fn say_notices(&self) {
        // Where stderr is gone there is nobody to tell.
        for cut in &self.cut {
            let _ = writeln!(io::stderr(), "{cut}");
        }
        if self.decisions == 0 {
            let _ = writeln!(io::stderr(), "no decision is recorded in {}", self.file_names());
        }
    }

    fn file_names(&self) -> String {
        self.files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
    }
}

impl fmt::Display for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (decisions, keys, lost) = (self.decisions, self.keys.len() as u64, self.lost);
        write!(f, "{decisions} decision{} of {keys} key{}", s(decisions), s(keys))?;
        if let Some((from, to)) = self.span {
            write!(f, " from {} to {}", Moment(from), Moment(to))?;
        }
        write!(f, " in {}", one_line(&self.file_names()))?;
        match lost {
            0 => f.write_str("; none was dropped"),
            1 => f.write_str("; 1 decision was not recorded"),
            _ => write!(f, "; {lost} decisions were not recorded"),
        }
    }
}
