//! Writes the decision record: a request pushes into a bounded queue and never waits, and a thread writes blocks. A block
//! is one write to the end of the file, so that two processes (in a hand-over) may write one record. The file becomes
//! the older one at half of `decisions_max_size`. What does not fit into the queue or cannot be written is counted, and
//! the count is in the next block.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use super::{Decision, Head, RecordError, check, older};
use crate::clock::Clock;
use crate::telemetry::writer::{BackgroundWriter, INTERVAL, Sink};

/// Decisions that wait for the writer: 0.2 s of 80,000 requests a second, 1.5 MB.
const QUEUE: usize = 16_384;

/// How long a decision may wait to be written. This is what kill -9 may lose.
const MAX_DELAY: Duration = Duration::from_millis(900);

/// Decisions in a block, some 600 KB before compression.
const MAX_BLOCK: usize = 4096;

/// The decision record of this process.
#[derive(Debug)]
pub struct DecisionLog {
    /// To it a request hands a decision.
    pub writer: BackgroundWriter<Decision>,
    strangers: Arc<AtomicU64>,
}

impl DecisionLog {
    /// Opens the record at `path` and continues at its end. The file and the older file (`PATH.1`) have at most
    /// `max_size` bytes together.
    ///
    /// # Errors
    /// A file that cannot be opened, or that is no record.
    pub fn open(path: &Path, max_size: u64, clock: Clock) -> Result<Self, RecordError> {
        check(path)?;
        let unusable = |cause| RecordError::Unusable { path: path.to_owned(), cause };
        open(path).map_err(unusable)?;
        let writer = Writer::new(path, max_size, clock);
        let strangers = writer.strangers.clone();
        let writer = BackgroundWriter::start("the decision record", "decision-log", (QUEUE, INTERVAL), writer);
        Ok(DecisionLog { writer: writer.map_err(unusable)?, strangers })
    }

    /// Counts a request without a valid key that exceeded `limits.strangers`.
    pub fn count_stranger(&self) {
        if self.strangers.fetch_add(1, Ordering::Relaxed) == 0 {
            self.writer.wake();
        }
    }
}

/// The state of the writing thread.
struct Writer {
    path: PathBuf,
    /// The largest size of a file: half of `log.decisions_max_size`.
    max_file_size: u64,
    clock: Clock,
    /// The head of the next block.
    head: Head,
    pending: Vec<Decision>,
    /// Counted by requests, for the next head.
    strangers: Arc<AtomicU64>,
    is_failing: bool,
}

impl Writer {
    fn new(path: &Path, max_size: u64, clock: Clock) -> Self {
        Writer {
            path: path.to_owned(),
            max_file_size: max_size / 2,
            clock,
            head: Head { run: fastrand::u64(..), ..Head::default() },
            pending: Vec::new(),
            strangers: Arc::default(),
            is_failing: false,
        }
    }

    /// Opens the file for each block, so that it does not matter who has moved it meanwhile.
    fn append(&self, block: &[u8]) -> io::Result<()> {
        let mut file = open(&self.path)?;
        let length = file.metadata()?.len();
        if length > 0 && length + block.len() as u64 > self.max_file_size {
            fs::rename(&self.path, older(&self.path))?;
            file = open(&self.path)?;
        }
        file.write_all(block)
    }
}

impl Sink<Decision> for Writer {
    const DELAY: Duration = MAX_DELAY;

    fn add(&mut self, decision: Decision) -> bool {
        self.pending.push(decision);
        self.pending.len() >= MAX_BLOCK
    }

    /// Writes what is pending as one block, or counts it as lost.
    fn write(&mut self, dropped: u64) {
        self.head.lost += dropped;
        self.head.strangers += self.strangers.swap(0, Ordering::Relaxed);
        if self.pending.is_empty() && self.head.lost + self.head.strangers == 0 {
            return;
        }
        self.pending.sort_by_key(|decision| decision.at);
        self.head.unix_ms = self.clock.unix_ms();
        let written = block(&self.head, &self.pending).and_then(|block| self.append(&block));
        let path = self.path.display();
        if let Err(error) = &written {
            if !self.is_failing {
                tracing::error!(%error, %path, "the decision record cannot be written; its decisions are lost");
            }
            self.head.lost += self.pending.len() as u64;
        } else {
            if self.is_failing {
                tracing::info!(lost = self.head.lost, %path, "the decision record is written again");
            }
            (self.head.lost, self.head.strangers) = (0, 0);
        }
        self.is_failing = written.is_err();
        self.pending.clear();
    }
}

fn open(path: &Path) -> io::Result<File> {
    // The record says who called and when, so other users must not read it.
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

/// A block, as it is appended to a file.
///
/// # Errors
/// None of what it is made of fails.
pub fn block(head: &Head, decisions: &[Decision]) -> io::Result<Vec<u8>> {
    fn line(gzip: &mut GzEncoder<Vec<u8>>, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut *gzip, value)?;
        gzip.write_all(b"\n")
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    line(&mut gzip, head)?;
    decisions.iter().try_for_each(|decision| line(&mut gzip, decision))?;
    gzip.finish()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::{Block, RecordReader};
    use super::*;
    use crate::clock::Tick;
    use crate::model::Limit;
    use crate::telemetry::CLOSE_TIMEOUT;
    use crate::wire::Operation;

    fn decision(n: u64) -> Decision {
        Decision {
            unix_ms: 1_790_000_000_000 + n as i64,
            at: Tick(n * 1_000_000),
            key: format!("k{}", n % 7).into(),
            tier: n.is_multiple_of(2).then(|| "gold".into()),
            operation: Operation::ALL[n as usize % Operation::COUNT],
            over: n.is_multiple_of(3).then_some(Limit::WriteRate),
            refused: n.is_multiple_of(3),
            over_candidate: n.is_multiple_of(5),
            in_flight: (n % 4) as u32,
            used_today: n,
        }
    }

    fn decisions(range: std::ops::Range<u64>) -> Vec<Decision> {
        range.map(decision).collect()
    }

    /// The blocks of a file, and how many bytes of it are damaged.
    fn read(path: &Path) -> (Vec<Block>, u64) {
        let mut reader = RecordReader::open(path).unwrap();
        let blocks = std::iter::from_fn(|| reader.next_block().unwrap()).collect();
        (blocks, reader.damaged)
    }

    /// A writer of a record in a folder of its own.
    fn writer(max_size: u64) -> (tempfile::TempDir, Writer) {
        let folder = tempfile::tempdir().unwrap();
        let writer = Writer::new(&folder.path().join("d.log"), max_size, Clock::manual(1_790_000_000));
        (folder, writer)
    }

    #[test]
    fn every_decision_recorded_before_the_close_is_in_the_file_and_runs_follow_each_other() {
        let (_folder, Writer { path, clock, .. }) = writer(0);
        for run in 0..3 {
            let log = DecisionLog::open(&path, 1 << 20, clock.clone()).unwrap();
            decisions(run * 100..run * 100 + 100).into_iter().for_each(|decision| log.writer.record(decision));
            (0..4).for_each(|_| log.count_stranger());
            log.writer.close(Instant::now() + CLOSE_TIMEOUT);
        }
        let (blocks, damaged) = read(&path);
        assert_eq!(damaged, 0);
        assert_eq!(blocks.iter().map(|block| block.head.strangers).sum::<u64>(), 12);
        let mut runs: Vec<u64> = blocks.iter().map(|block| block.head.run).collect();
        runs.dedup();
        assert_eq!(runs.len(), 3, "{runs:?}");
        assert_eq!(blocks.into_iter().flat_map(|block| block.decisions).collect::<Vec<_>>(), decisions(0..300));
    }

    #[test]
    fn a_block_is_written_when_it_is_full_or_has_waited() {
        let (_folder, mut writer) = writer(1 << 30);
        for decision in decisions(0..MAX_BLOCK as u64 + 1) {
            if writer.add(decision) {
                writer.write(0);
            }
        }
        writer.write(2);
        writer.write(0);
        let (blocks, _) = read(&writer.path);
        let counts: Vec<_> = blocks.iter().map(|block| (block.decisions.len(), block.head.lost)).collect();
        assert_eq!(counts, [(MAX_BLOCK, 0), (1, 2)]);
    }

    #[test]
    fn the_file_becomes_the_older_one_before_it_is_too_large() {
        let (_folder, mut writer) = writer(2 * 16_384);
        for n in 0..100 {
            writer.pending = decisions(n * 100..n * 100 + 100);
            writer.write(0);
            let size = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
            assert!(size(&writer.path) <= 16_384 && size(&older(&writer.path)) <= 16_384);
        }
        let recorded: Vec<_> =
            [older(&writer.path), writer.path.clone()].iter().flat_map(|path| read(path).0).collect();
        let kept = recorded.iter().map(|block| block.decisions.len() as u64).sum::<u64>();
        assert!(kept >= 400, "{kept}");
        let recorded = recorded.into_iter().flat_map(|block| block.decisions).collect::<Vec<_>>();
        assert_eq!(recorded, decisions(10_000 - kept..10_000), "the latest ones are kept");
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_a_moved_file_is_made_anew() {
        let (folder, mut writer) = writer(1 << 30);
        let path = std::mem::replace(&mut writer.path, folder.path().join("none/d.log"));
        writer.pending = decisions(0..5);
        writer.write(0);
        assert_eq!((writer.head.lost, writer.is_failing), (5, true));
        writer.path = path.clone();
        for n in 5..8 {
            writer.pending = decisions(n..n + 1);
            writer.write(0);
            fs::rename(&path, folder.path().join(n.to_string())).unwrap();
        }
        let lost = [5, 6, 7].map(|n: u64| read(&folder.path().join(n.to_string())).0[0].head.lost);
        assert_eq!((lost, writer.is_failing), ([5, 0, 0], false));
    }

    #[test]
    fn what_is_no_record_is_left_alone() {
        let (folder, Writer { path, clock, .. }) = writer(0);
        fs::write(&path, "a note of somebody").unwrap();
        for (path, said) in
            [(&*path, "d.log is no record"), (folder.path(), "is no file"), (Path::new("/a/b"), "/a/b: ")]
        {
            let error = DecisionLog::open(path, 1 << 20, clock.clone()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "a note of somebody");
    }
}
