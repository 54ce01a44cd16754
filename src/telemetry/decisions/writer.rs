//! Writes the decision record: a request pushes into a bounded ring and never waits, and a thread writes blocks and
//! rotates the file at half of `decisions_max_size`. What does not fit, or cannot be written, is counted, and the count
//! is written with the next block, so that a reader knows how much was dropped. In a process that takes another's
//! place, decisions are held back until the other has closed the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Decision;
use super::file::{OpenError, RecordFile, rotate};
use super::format::{Anchor, Counts, Encoder};
use crate::clock::{Clock, Tick};
use crate::telemetry::spool::{Spool, Turn};

/// Decisions that wait for the writer: 0.2 s of 80,000 requests a second, 1.3 MB.
const RING: usize = 16_384;

/// How long a decision may wait to be written: what kill -9 may lose.
const WAIT: Duration = Duration::from_millis(900);

/// How many bytes wait to be written, as guessed by [`guess`], until they are.
const ENOUGH: usize = 32 * 1024;

/// How long a process that took another's place holds its decisions in any case. The one before it may hold its
/// own for the one before that, and has the file from when that closed it until half a second after it has
/// handed over: who took the file first would have it for good.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(1);

/// And how long where the file is another's still.
const HELD: Duration = Duration::from_secs(5);

/// And how many, which is some 10 MB: more than come until then.
const MAX_HELD: usize = 131_072;

/// How often the last look tries to open a file that another process has, and the time between two tries: half a
/// second in all, within the second that an end waits for the writer.
const LAST_TRIES: u32 = 25;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// The record of decisions: a bounded ring, and a thread that writes what is in it to a file, which
/// it changes for a new one when it is full.
#[derive(Debug)]
pub struct DecisionLog {
    decisions: Spool<Decision>,
    strangers: Arc<AtomicU64>,
}

impl DecisionLog {
    /// Opens the record at `path`, and goes on at its end. The file and the older one beside it
    /// (`PATH.1`) are kept to `max_size` bytes together.
    ///
    /// # Errors
    /// A file that cannot be opened, that another process writes, or that is something else.
    pub fn open(path: &Path, max_size: u64, clock: Clock) -> Result<Self, OpenError> {
        Self::start(Writer::open(path, max_size, clock)?)
    }

    /// As [`DecisionLog::open`], in a process that takes another's place: decisions are held until that one
    /// has closed the file.
    ///
    /// # Errors
    /// As there.
    pub fn open_after_another(path: &Path, max_size: u64, clock: Clock) -> Result<Self, OpenError> {
        match RecordFile::open(path) {
            Ok(_) | Err(OpenError::Taken(_)) => {
                Self::start(Writer { holds: true, ..Writer::new(None, path, max_size, clock) })
            }
            Err(unusable) => Err(unusable),
        }
    }

    fn start(mut writer: Writer) -> Result<Self, OpenError> {
        let (path, strangers) = (writer.path.clone(), Arc::<AtomicU64>::default());
        let counted = strangers.clone();
        let turn = move |turn: Turn<'_, Decision>| {
            writer.counts.strangers += counted.swap(0, Ordering::Relaxed);
            writer.turn(&turn);
        };
        let decisions = Spool::start(("the decision record", "decision-log"), RING, turn);
        Ok(DecisionLog { decisions: decisions.map_err(|cause| OpenError::Io { path, cause })?, strangers })
    }

    /// Hands a decision to the writer, or counts it as not recorded.
    pub fn record(&self, decision: Decision) {
        self.decisions.record(decision);
    }

    /// Counts a request without a good key that was over `limits.strangers`.
    pub fn count_stranger(&self) {
        self.strangers.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins a new file, if somebody moved this one away.
    pub fn reopen(&self) {
        self.decisions.reopen();
    }

    /// Writes what is there and ends the writer, waiting no longer than a second.
    pub fn close(&self) {
        self.decisions.close();
    }
}

/// What the writer's thread holds.
struct Writer {
    path: PathBuf,
    /// How long a file may become: half of `log.decisions_max_size`.
    half: u64,
    clock: Clock,
    /// `None`: it was moved away, and no new one could be made yet, or it is another process's.
    file: Option<RecordFile>,
    /// Another process still writes it, and is about to close it.
    holds: bool,
    encoder: Encoder,
    waiting: Vec<Decision>,
    /// About as many bytes as `waiting` will take.
    size: usize,
    /// Since when something has been waiting.
    since: Option<Tick>,
    /// What is not yet told of in a file.
    counts: Counts,
    failing: bool,
    /// Kept for its room.
    block: Vec<u8>,
}

impl Writer {
    fn open(path: &Path, max_size: u64, clock: Clock) -> Result<Self, OpenError> {
        Ok(Self::new(Some(RecordFile::open(path)?), path, max_size, clock))
    }

    fn new(file: Option<RecordFile>, path: &Path, max_size: u64, clock: Clock) -> Self {
        Writer {
            file,
            holds: false,
            path: path.to_owned(),
            half: max_size / 2,
            clock,
            encoder: Encoder::new(fastrand::u64(..)),
            waiting: Vec::new(),
            size: 0,
            since: None,
            counts: Counts::default(),
            failing: false,
            block: Vec::new(),
        }
    }

    fn turn(&mut self, turn: &Turn<'_, Decision>) {
        if turn.reopen
            && !self.file.as_ref().is_some_and(RecordFile::is_in_place)
            && let Err(error) = self.open_anew()
        {
            tracing::error!("the decision record cannot be opened anew: {error}");
        }
        self.counts.lost += turn.dropped;
        for decision in turn.records() {
            self.add(decision);
        }
        self.look(turn.last);
    }

    /// Writes what has waited long enough; all of it, if this is the `last` look.
    fn look(&mut self, last: bool) {
        let now = self.clock.now();
        if self.waiting.is_empty() && self.counts == Counts::default() {
            return;
        }
        let since = *self.since.get_or_insert(now);
        if self.holds {
            let waited = now.since(since);
            let enough = last || waited >= HELD || self.waiting.len() >= MAX_HELD;
            if !enough && waited < LEFT_TO_OTHERS {
                return;
            }
            match self.open_held(last) {
                Err(OpenError::Taken(_)) if !enough => return,
                Ok(file) => self.file = Some(file),
                // Said where it is written.
                Err(_) => {}
            }
            self.holds = false;
            // In blocks of the usual size.
            self.size = 0;
            std::mem::take(&mut self.waiting).into_iter().for_each(|decision| self.add(decision));
        }
        if last || now.since(since) >= WAIT {
            self.write();
        }
    }

    /// Opens the file that another process writes, or wrote. The `last` look waits a moment for it: a third
    /// process may have it open only to see what it is.
    fn open_held(&self, last: bool) -> Result<RecordFile, OpenError> {
        for _ in 1..if last { LAST_TRIES } else { 1 } {
            match RecordFile::open(&self.path) {
                Err(OpenError::Taken(_)) => std::thread::sleep(BETWEEN_TRIES),
                opened => return opened,
            }
        }
        RecordFile::open(&self.path)
    }

    fn add(&mut self, decision: Decision) {
        self.size += guess(&decision);
        self.waiting.push(decision);
        if self.size >= ENOUGH && !self.holds {
            self.write();
        }
    }

    /// Writes what waits as one block, or counts it as lost.
    fn write(&mut self) {
        let written = self.try_write();
        if let Err(error) = &written {
            if !self.failing {
                tracing::error!("the decision record cannot be written; its decisions are lost: {error}");
            }
            // Keys that are numbered in the lost block have to be named again.
            self.encoder.start_over();
            self.counts.lost += self.waiting.len() as u64;
        } else {
            if self.failing {
                tracing::info!(lost = self.counts.lost, "the decision record is written again");
            }
            self.counts = Counts::default();
        }
        self.failing = written.is_err();
        self.waiting.clear();
        (self.size, self.since) = (0, None);
    }

    fn try_write(&mut self) -> Result<(), OpenError> {
        if !self.file.as_ref().is_some_and(RecordFile::is_as_left) {
            self.open_anew()?;
        }
        self.encode();
        let full = |file: &RecordFile| !file.is_empty() && file.length() + self.block.len() as u64 > self.half;
        if self.file.as_ref().is_some_and(full) {
            rotate(&self.path)?;
            self.open_anew()?;
            self.encode();
        }
        // Kept only if all went well: what a failure leaves behind is looked at when it is opened again.
        if let Some(mut file) = self.file.take() {
            file.append(&self.block).map_err(|cause| OpenError::Io { path: self.path.clone(), cause })?;
            self.file = Some(file);
        }
        Ok(())
    }

    fn encode(&mut self) {
        let anchor = Anchor { tick: self.clock.now(), unix_ms: self.clock.unix_ms() };
        self.block.clear();
        self.encoder.block(anchor, self.counts, &mut self.waiting, &mut self.block);
    }

    fn open_anew(&mut self) -> Result<(), OpenError> {
        self.file = None; // first, or this process itself would be the one that has it
        self.file = Some(RecordFile::open(&self.path)?);
        self.encoder.start_over();
        Ok(())
    }
}

/// About how many bytes a decision will take. The most is four times as much, so a block stays
/// far below the smallest file.
fn guess(decision: &Decision) -> usize {
    8 + decision.key.len() + decision.tier.as_ref().map_or(0, |tier| tier.len())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::super::format::tests::any_blocks;
    use super::super::{Block, RecordReader, older};
    use super::*;
    use crate::model::Limit;
    use crate::wire::Operation;

    struct World {
        folder: TempDir,
        clock: Clock,
    }

    impl World {
        fn new() -> Self {
            World { folder: tempfile::tempdir().unwrap(), clock: Clock::manual(1_790_000_000) }
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("d.log")
        }

        fn writer(&self, max_size: u64) -> Writer {
            Writer::open(&self.path(), max_size, self.clock.clone()).unwrap()
        }

        fn log(&self) -> DecisionLog {
            DecisionLog::open(&self.path(), 1 << 20, self.clock.clone()).unwrap()
        }
    }

    fn blocks(path: &Path) -> Vec<Block> {
        let file = File::open(path).unwrap();
        let length = file.metadata().unwrap().len();
        let mut reader = RecordReader::new(file, length, path);
        let blocks = std::iter::from_fn(|| reader.next_block().unwrap()).collect();
        assert_eq!(reader.cut_short(), None);
        blocks
    }

    fn decisions(path: &Path) -> Vec<Decision> {
        blocks(path).into_iter().flat_map(|block| block.decisions).collect()
    }

    fn decision(n: u64) -> Decision {
        Decision {
            at: Tick(n * 1_000_000),
            key: format!("k{}", n % 7).into(),
            tier: n.is_multiple_of(2).then(|| "gold".into()),
            operation: Operation::SetPoints,
            over: n.is_multiple_of(3).then_some(Limit::WriteRate),
            refused: n.is_multiple_of(3),
            over_candidate: n.is_multiple_of(5),
            in_flight: (n % 4) as u32,
            used_today: n,
        }
    }

    #[test]
    fn every_decision_recorded_before_the_close_is_in_the_file_and_runs_follow_each_other() {
        let world = World::new();
        for run in 0..3 {
            let log = world.log();
            (0..100).for_each(|n| log.record(decision(run * 100 + n)));
            log.close();
        }
        assert_eq!(decisions(&world.path()), (0..300).map(decision).collect::<Vec<_>>());
        let mut runs: Vec<u64> = blocks(&world.path()).iter().map(|block| block.run).collect();
        runs.dedup();
        assert_eq!(runs.len(), 3, "{runs:?}");
        let anchor = blocks(&world.path())[0].anchor;
        assert_eq!(anchor, Anchor { tick: Tick(0), unix_ms: 1_790_000_000_000 });
    }

    #[test]
    fn decisions_held_at_the_end_wait_for_who_has_the_file_open_for_a_moment() {
        let world = World::new();
        let first = world.log();
        let mut writer = Writer { holds: true, ..Writer::new(None, &world.path(), 1 << 20, world.clock.clone()) };
        writer.add(decision(1));
        let ends = std::thread::spawn(move || {
            writer.look(true);
            writer.counts.lost
        });
        std::thread::sleep(BETWEEN_TRIES * 2); // so that the first try is made in vain
        first.close();
        drop(first);
        assert_eq!(ends.join().unwrap(), 0);
        assert_eq!(decisions(&world.path()), [decision(1)]);
    }

    #[test]
    fn strangers_over_their_limit_are_counted_without_a_decision_and_take_no_decisions_room() {
        let world = World::new();
        let log = world.log();
        (0..100_000).for_each(|_| log.count_stranger());
        log.record(decision(1));
        log.close();
        let log = world.log();
        log.count_stranger();
        log.close();
        let blocks = blocks(&world.path());
        assert_eq!(blocks.iter().map(|block| block.counts.strangers).sum::<u64>(), 100_001);
        assert_eq!(blocks.iter().map(|block| (block.counts.lost, block.decisions.len())).max(), Some((0, 1)));
        assert!(fs::metadata(world.path()).unwrap().len() < 200);
    }

    #[test]
    fn decisions_are_held_for_a_file_that_another_process_is_about_to_close() {
        let world = World::new();
        let (first, many) = (world.log(), 20_000);
        let second = DecisionLog::open_after_another(&world.path(), 1 << 20, world.clock.clone()).unwrap();
        first.record(decision(0));
        for n in 1..=many {
            second.record(decision(n));
            if n % 4000 == 0 {
                std::thread::sleep(2 * crate::telemetry::spool::LOOK); // the ring holds 16,384
            }
        }
        first.close();
        drop(first);
        second.close();
        assert_eq!(decisions(&world.path()), (0..=many).map(decision).collect::<Vec<_>>());
        assert!(blocks(&world.path()).len() > 3, "they are one block");
    }

    #[test]
    fn of_three_that_follow_each_other_at_once_each_has_its_turn() {
        let world = World::new();
        let first = world.log();
        let after = || DecisionLog::open_after_another(&world.path(), 1 << 20, world.clock.clone()).unwrap();
        let (second, mut third) =
            (after(), Writer { holds: true, ..Writer::new(None, &world.path(), 1 << 20, world.clock.clone()) });
        first.record(decision(0));
        second.record(decision(1));
        first.close();
        drop(first);
        third.add(decision(2));
        third.look(false);
        assert!(third.holds, "it takes what the second one waits for");
        second.close();
        drop(second);
        world.clock.advance(LEFT_TO_OTHERS);
        third.look(false);
        drop(third);
        assert_eq!(decisions(&world.path()), (0..3).map(decision).collect::<Vec<_>>());
    }

    #[test]
    fn a_file_that_is_never_closed_is_given_up_after_a_while_and_what_was_lost_is_counted() {
        let world = World::new();
        let first = world.log();
        let mut writer = Writer { holds: true, ..Writer::new(None, &world.path(), 1 << 20, world.clock.clone()) };
        writer.add(decision(1));
        writer.look(false);
        assert_eq!((writer.holds, writer.waiting.len()), (true, 1));
        world.clock.advance(HELD);
        writer.look(false);
        assert_eq!((writer.holds, writer.counts.lost), (false, 1));
        first.close();
        drop(first);
        writer.add(decision(2));
        writer.look(true);
        assert_eq!(decisions(&world.path()), [decision(2)]);
        assert_eq!(blocks(&world.path())[0].counts.lost, 1);
    }

    #[test]
    fn a_decision_waits_no_longer_than_a_second() {
        let world = World::new();
        let log = world.log();
        log.record(decision(1));
        let mut waited = Duration::ZERO;
        while decisions(&world.path()).is_empty() {
            // The writer looks 50 times a second and must find a second passed on its clock.
            world.clock.advance(Duration::from_millis(100));
            std::thread::sleep(Duration::from_millis(5));
            waited += Duration::from_millis(5);
            assert!(waited < Duration::from_secs(10), "it is not written before the end");
        }
        assert_eq!(decisions(&world.path()), [decision(1)]);
    }

    #[test]
    fn the_file_and_the_older_one_stay_within_their_bound_and_the_newest_is_there() {
        let world = World::new();
        let most = 16 * 1024;
        let mut writer = world.writer(most);
        for n in 0..10_000 {
            writer.add(decision(n));
            if n % 50 == 0 {
                writer.write();
            }
            let size = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
            assert!(size(&world.path()) + size(&older(&world.path())) <= most);
        }
        writer.write();
        let kept: Vec<_> = [older(&world.path()), world.path()].iter().flat_map(|path| decisions(path)).collect();
        assert!(kept.len() > 500, "{}", kept.len());
        assert_eq!(kept, (10_000 - kept.len() as u64..10_000).map(decision).collect::<Vec<_>>(), "without a gap");
        let runs: std::collections::BTreeSet<u64> = blocks(&world.path()).iter().map(|block| block.run).collect();
        assert_eq!(runs, blocks(&older(&world.path())).iter().map(|block| block.run).collect(), "it is one run");
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_told_once_it_can() {
        let world = World::new();
        let mut writer = world.writer(2048);
        let blocked = older(&world.path());
        fs::create_dir_all(blocked.join("in the way")).unwrap();
        let (mut recorded, mut lost) = (0, 0);
        while lost == 0 {
            (0..20).for_each(|n| writer.add(decision(recorded + n)));
            writer.write();
            recorded += 20;
            lost = writer.counts.lost;
        }
        (0..20).for_each(|n| writer.add(decision(n)));
        writer.write();
        assert_eq!((lost, writer.counts.lost), (20, 40));
        assert_eq!(decisions(&world.path()).len() as u64, recorded - 20, "what was written before stays");
        fs::remove_dir_all(&blocked).unwrap();
        (0..20).for_each(|n| writer.add(decision(n)));
        writer.write();
        let after = blocks(&world.path());
        assert_eq!((after[0].counts.lost, after[0].decisions.len(), writer.counts.lost), (40, 20, 0));
    }

    #[test]
    fn a_file_that_was_moved_away_or_cut_is_begun_anew() {
        let world = World::new();
        let moved = world.folder.path().join("moved");
        let mut writer = world.writer(1 << 20);
        writer.add(decision(1));
        writer.write();
        fs::rename(world.path(), &moved).unwrap();
        writer.open_anew().unwrap();
        writer.add(decision(2));
        writer.write();
        assert_eq!((decisions(&moved), decisions(&world.path())), (vec![decision(1)], vec![decision(2)]));
        File::options().write(true).open(world.path()).unwrap().set_len(0).unwrap();
        writer.add(decision(3));
        writer.write();
        assert_eq!(decisions(&world.path()), [decision(3)]);
    }

    #[test]
    fn a_moved_file_is_let_go_of_when_told_to_look() {
        let world = World::new();
        let log = world.log();
        fs::rename(world.path(), world.folder.path().join("moved")).unwrap();
        log.reopen();
        log.record(decision(1));
        log.close();
        assert_eq!(decisions(&world.path()), [decision(1)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_file_with_any_cut_gives_whole_blocks_and_goes_on(written in any_blocks(), cut in any::<u64>()) {
            let world = World::new();
            let mut writer = world.writer(1 << 20);
            for block in &written {
                block.iter().for_each(|decision| writer.add(decision.clone()));
                writer.write();
            }
            drop(writer);
            let whole = blocks(&world.path());
            let length = fs::metadata(world.path()).unwrap().len();
            File::options().write(true).open(world.path()).unwrap().set_len(cut % length).unwrap();
            let mut writer = world.writer(1 << 20);
            writer.add(decision(1));
            writer.write();
            let after = blocks(&world.path());
            let (last, before) = after.split_last().unwrap();
            prop_assert_eq!(before, &whole[..before.len()]);
            prop_assert_eq!(&last.decisions[..], &[decision(1)][..]);
        }

        #[test]
        fn a_file_with_any_flipped_bit_gives_what_was_written_or_is_refused(
            written in any_blocks(), at in any::<usize>(), bit in 0u8..8,
        ) {
            let world = World::new();
            let mut writer = world.writer(1 << 20);
            for block in &written {
                block.iter().for_each(|decision| writer.add(decision.clone()));
                writer.write();
            }
            let whole = blocks(&world.path());
            let mut bytes = fs::read(world.path()).unwrap();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            fs::write(world.path(), &bytes).unwrap();
            let file = File::open(world.path()).unwrap();
            let mut reader = RecordReader::new(file, bytes.len() as u64, &world.path());
            let mut read = 0;
            loop {
                match reader.next_block() {
                    Ok(Some(block)) => prop_assert_eq!(&block, &whole[read]),
                    Ok(None) => {
                        prop_assert!(reader.cut_short().is_some());
                        break;
                    }
                    Err(error) => {
                        prop_assert!(error.to_string().contains("d.log"));
                        break;
                    }
                }
                read += 1;
            }
            prop_assert!(read < whole.len());
        }
    }
}
