//! Writes the decision record: a request pushes into a bounded ring and never waits, and a thread writes blocks and
//! rotates the file at half of `decisions_max_size`. What does not fit, or cannot be written, is counted, and the count
//! is written with the next block, so that a reader knows how much was dropped. A process that takes over from another
//! one holds its decisions until the other has closed the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Decision;
use super::file::{OpenError, RecordFile, rotate};
use super::format::{ClockReading, Counts, Encoder};
use crate::clock::{Clock, Tick};
use crate::telemetry::background_writer::{BackgroundWriter, Batch};

/// Decisions that wait for the writer: 0.2 s of 80,000 requests a second, 1.3 MB.
const RING: usize = 16_384;

/// How long a decision may wait to be written. This is what kill -9 may lose.
const MAX_DELAY: Duration = Duration::from_millis(900);

/// The estimated size of pending decisions at which they are written.
const BLOCK_SIZE: usize = 32 * 1024;

/// How long a process that took over from another one holds its decisions at least. The other one may be holding its
/// own for a third one, and opens the file up to half a second after it has handed over. If this process opened the file
/// first, the other one could never write them.
const MIN_HOLD: Duration = Duration::from_secs(1);

/// How long it holds them at most, while another process has the file.
const MAX_HOLD: Duration = Duration::from_secs(5);

/// How many it holds at most, some 10 MB. Fewer come within [`MAX_HOLD`].
const MAX_HELD: usize = 131_072;

/// How often the last batch tries to open a file that another process has, and the time between two tries: half a second
/// in all, within the second that closing waits for the writer.
const LAST_TRIES: u32 = 25;
const TRY_INTERVAL: Duration = Duration::from_millis(20);

/// The decision record of this process.
#[derive(Debug)]
pub struct DecisionLog {
    decisions: BackgroundWriter<Decision>,
    strangers: Arc<AtomicU64>,
}

impl DecisionLog {
    /// Opens the record at `path` and continues at its end. The file and the older file (`PATH.1`) have at most
    /// `max_size` bytes together.
    ///
    /// # Errors
    /// A file that cannot be opened, that another process writes, or that is not a record.
    pub fn open(path: &Path, max_size: u64, clock: Clock) -> Result<Self, OpenError> {
        let file = RecordFile::open(path)?;
        Self::start(Writer::new(Some(file), path, max_size, clock))
    }

    /// Opens the record in a process that takes over from another one: decisions are held until the other one has closed
    /// the file.
    ///
    /// # Errors
    /// A file that cannot be opened or is not a record.
    pub fn open_as_successor(path: &Path, max_size: u64, clock: Clock) -> Result<Self, OpenError> {
        match RecordFile::open(path) {
            Ok(_) | Err(OpenError::Locked(_)) => Self::start(Writer::holding(path, max_size, clock)),
            Err(unusable) => Err(unusable),
        }
    }

    fn start(mut writer: Writer) -> Result<Self, OpenError> {
        let (path, strangers) = (writer.path.clone(), Arc::<AtomicU64>::default());
        let counted = strangers.clone();
        let write = move |batch: Batch<'_, Decision>| {
            writer.counts.strangers += counted.swap(0, Ordering::SeqCst);
            writer.process(&batch)
        };
        let decisions = BackgroundWriter::start("the decision record", "decision-log", RING, write);
        Ok(DecisionLog { decisions: decisions.map_err(|cause| OpenError::Io { path, cause })?, strangers })
    }

    /// Hands a decision to the writer, or counts it as lost.
    pub fn record(&self, decision: Decision) {
        self.decisions.record(decision);
    }

    /// Counts a request without a valid key that exceeded `limits.strangers`.
    pub fn count_stranger(&self) {
        self.strangers.fetch_add(1, Ordering::SeqCst);
        self.decisions.wake();
    }

    /// Begins a new file if this one was moved.
    pub fn reopen(&self) {
        self.decisions.reopen();
    }

    /// Has the writer write what is queued and end, and does not wait for it.
    pub fn begin_close(&self) {
        self.decisions.begin_close();
    }

    /// Writes what is queued and ends the writer, by then at most.
    pub fn close(&self, deadline: Instant) {
        self.decisions.close(deadline);
    }
}

/// The state of the writing thread.
struct Writer {
    path: PathBuf,
    /// The largest size of a file: half of `log.decisions_max_size`.
    max_file_size: u64,
    clock: Clock,
    /// `None`: it was moved and no new one could be made yet, or another process has it.
    file: Option<RecordFile>,
    /// Whether decisions are held, because another process may still write the file.
    holds: bool,
    encoder: Encoder,
    pending: Vec<Decision>,
    /// The estimated size of `pending`.
    pending_size: usize,
    /// Since when something is pending.
    pending_since: Option<Tick>,
    /// Counts that are not written yet.
    counts: Counts,
    failing: bool,
    /// Kept to reuse its memory.
    block: Vec<u8>,
    /// Waits between two tries to open the file. A test closes the other process's file meanwhile.
    wait: Box<dyn FnMut(Duration) + Send>,
}

impl Writer {
    fn new(file: Option<RecordFile>, path: &Path, max_size: u64, clock: Clock) -> Self {
        Writer {
            file,
            holds: false,
            path: path.to_owned(),
            max_file_size: max_size / 2,
            clock,
            encoder: Encoder::new(fastrand::u64(..)),
            pending: Vec::new(),
            pending_size: 0,
            pending_since: None,
            counts: Counts::default(),
            failing: false,
            block: Vec::new(),
            wait: Box::new(std::thread::sleep),
        }
    }

    /// A writer that holds its decisions until another process has closed the file.
    fn holding(path: &Path, max_size: u64, clock: Clock) -> Self {
        Writer { holds: true, ..Writer::new(None, path, max_size, clock) }
    }

    /// Returns after how long it is to be called again.
    fn process(&mut self, batch: &Batch<'_, Decision>) -> Option<Duration> {
        if batch.reopen
            && !self.file.as_ref().is_some_and(RecordFile::is_in_place)
            && let Err(error) = self.reopen_file()
        {
            tracing::error!("the decision record cannot be reopened: {error}");
        }
        self.counts.lost += batch.dropped;
        for decision in batch.records() {
            self.add(decision);
        }
        self.write_if_due(batch.last)
    }

    /// Writes what is pending if it has waited long enough or if this is the `last` batch. Otherwise it returns after how
    /// long to try again.
    fn write_if_due(&mut self, last: bool) -> Option<Duration> {
        let now = self.clock.now();
        if self.pending.is_empty() && self.counts == Counts::default() {
            return None;
        }
        let waited = now.since(*self.pending_since.get_or_insert(now));
        if self.holds && !self.release(waited, last) {
            return Some(TRY_INTERVAL);
        }
        if last || waited >= MAX_DELAY {
            self.write();
            return None;
        }
        Some(MAX_DELAY - waited)
    }

    /// Stops holding if the file is free or the decisions were held for long enough. Returns whether it did.
    fn release(&mut self, waited: Duration, last: bool) -> bool {
        let must_release = last || waited >= MAX_HOLD || self.pending.len() >= MAX_HELD;
        if !must_release && waited < MIN_HOLD {
            return false;
        }
        match self.open_held(last) {
            Err(OpenError::Locked(_)) if !must_release => return false,
            Ok(file) => self.file = Some(file),
            // The write tries again and logs the error.
            Err(_) => {}
        }
        self.holds = false;
        // Added again, so that they are written in blocks of the usual size.
        self.pending_size = 0;
        std::mem::take(&mut self.pending).into_iter().for_each(|decision| self.add(decision));
        true
    }

    /// Opens the file that another process writes, or wrote. For the `last` batch it waits a moment, since a third
    /// process may have the file open only to check it.
    fn open_held(&mut self, last: bool) -> Result<RecordFile, OpenError> {
        for _ in 1..if last { LAST_TRIES } else { 1 } {
            match RecordFile::open(&self.path) {
                Err(OpenError::Locked(_)) => (self.wait)(TRY_INTERVAL),
                opened => return opened,
            }
        }
        RecordFile::open(&self.path)
    }

    fn add(&mut self, decision: Decision) {
        self.pending_size += estimated_size(&decision);
        self.pending.push(decision);
        if self.pending_size >= BLOCK_SIZE && !self.holds {
            self.write();
        }
    }

    /// Writes what is pending as one block, or counts it as lost.
    fn write(&mut self) {
        let written = self.try_write();
        if let Err(error) = &written {
            if !self.failing {
                tracing::error!("the decision record cannot be written; its decisions are lost: {error}");
            }
            // Keys that were numbered in the lost block must be numbered again.
            self.encoder.start_over();
            self.counts.lost += self.pending.len() as u64;
        } else {
            if self.failing {
                tracing::info!(lost = self.counts.lost, "the decision record is written again");
            }
            self.counts = Counts::default();
        }
        self.failing = written.is_err();
        self.pending.clear();
        (self.pending_size, self.pending_since) = (0, None);
    }

    fn try_write(&mut self) -> Result<(), OpenError> {
        if !self.file.as_ref().is_some_and(RecordFile::is_unchanged) {
            self.reopen_file()?;
        }
        self.encode();
        let block = self.block.len() as u64;
        let is_full = |file: &RecordFile| !file.is_empty() && file.length() + block > self.max_file_size;
        if self.file.as_ref().is_some_and(is_full) {
            rotate(&self.path)?;
            self.reopen_file()?;
            self.encode();
        }
        // Kept only on success: opening it again checks what a failure left.
        if let Some(mut file) = self.file.take() {
            file.append(&self.block).map_err(|cause| OpenError::Io { path: self.path.clone(), cause })?;
            self.file = Some(file);
        }
        Ok(())
    }

    fn encode(&mut self) {
        let now = ClockReading { tick: self.clock.now(), unix_ms: self.clock.unix_ms() };
        self.block.clear();
        self.encoder.block(now, self.counts, &mut self.pending, &mut self.block);
    }

    fn reopen_file(&mut self) -> Result<(), OpenError> {
        self.file = None; // closed first, since its lock would keep this process out too
        self.file = Some(RecordFile::open(&self.path)?);
        self.encoder.start_over();
        Ok(())
    }
}

/// About how many bytes a decision takes. The maximum is four times as many, so a block is always far smaller than the
/// smallest file.
fn estimated_size(decision: &Decision) -> usize {
    8 + decision.key.len() + decision.tier.as_ref().map_or(0, |tier| tier.len())
}

#[cfg(test)]
mod tests;
