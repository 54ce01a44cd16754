use std::fs::{self, File};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::model::Limit;
use crate::telemetry::background_writer::{CLOSE_TIMEOUT, INTERVAL};
use crate::telemetry::decisions::format::tests::any_blocks;
use crate::telemetry::decisions::{Block, RecordReader, older};
use crate::wire::Operation;

/// A record in a folder of its own.
struct TestRecord {
    folder: TempDir,
    clock: Clock,
}

impl TestRecord {
    fn new() -> Self {
        TestRecord { folder: tempfile::tempdir().unwrap(), clock: Clock::manual(1_790_000_000) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("d.log")
    }

    fn writer(&self, max_size: u64) -> Writer {
        let file = RecordFile::open(&self.path()).unwrap();
        Writer::new(Some(file), &self.path(), max_size, self.clock.clone())
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
    let record = TestRecord::new();
    for run in 0..3 {
        let log = record.log();
        (0..100).for_each(|n| log.record(decision(run * 100 + n)));
        log.close(Instant::now() + CLOSE_TIMEOUT);
    }
    assert_eq!(decisions(&record.path()), (0..300).map(decision).collect::<Vec<_>>());
    let mut runs: Vec<u64> = blocks(&record.path()).iter().map(|block| block.run).collect();
    runs.dedup();
    assert_eq!(runs.len(), 3, "{runs:?}");
    let written_at = blocks(&record.path())[0].written_at;
    assert_eq!(written_at, ClockReading { tick: Tick(0), unix_ms: 1_790_000_000_000 });
}

#[test]
fn decisions_held_at_the_end_wait_briefly_for_the_files_lock() {
    let record = TestRecord::new();
    let first = record.log();
    let mut writer = Writer::holding(&record.path(), 1 << 20, record.clock.clone());
    writer.add(decision(1));
    let (mut first, mut tries) = (Some(first), 0);
    writer.wait = Box::new(move |_| {
        tries += 1;
        drop(first.take_if(|_| tries == LAST_TRIES - 1)); // before the last try
    });
    writer.write_if_due(true);
    assert_eq!(writer.counts.lost, 0);
    assert_eq!(decisions(&record.path()), [decision(1)]);
}

#[test]
fn strangers_over_their_limit_are_counted_without_a_decision_and_take_no_decisions_room() {
    let record = TestRecord::new();
    let log = record.log();
    (0..100_000).for_each(|_| log.count_stranger());
    log.record(decision(1));
    log.close(Instant::now() + CLOSE_TIMEOUT);
    let log = record.log();
    log.count_stranger();
    log.close(Instant::now() + CLOSE_TIMEOUT);
    let blocks = blocks(&record.path());
    assert_eq!(blocks.iter().map(|block| block.counts.strangers).sum::<u64>(), 100_001);
    assert_eq!(blocks.iter().map(|block| (block.counts.lost, block.decisions.len())).max(), Some((0, 1)));
    assert!(fs::metadata(record.path()).unwrap().len() < 200);
}

#[test]
fn decisions_are_held_for_a_file_that_another_process_is_about_to_close() {
    let record = TestRecord::new();
    let (first, many) = (record.log(), 20_000);
    let mut second = Writer::holding(&record.path(), 1 << 20, record.clock.clone());
    first.record(decision(0));
    for n in 1..=many {
        second.add(decision(n));
        second.write_if_due(false);
    }
    first.close(Instant::now() + CLOSE_TIMEOUT);
    drop(first);
    assert_eq!(decisions(&record.path()), [decision(0)]);
    record.clock.advance(MIN_HOLD);
    second.write_if_due(false);
    drop(second);
    assert_eq!(decisions(&record.path()), (0..=many).map(decision).collect::<Vec<_>>());
    assert!(blocks(&record.path()).len() > 3, "they are one block");
}

#[test]
fn of_three_that_follow_each_other_at_once_each_has_its_turn() {
    let record = TestRecord::new();
    let first = record.log();
    let after = || DecisionLog::open_as_successor(&record.path(), 1 << 20, record.clock.clone()).unwrap();
    let (second, mut third) = (after(), Writer::holding(&record.path(), 1 << 20, record.clock.clone()));
    first.record(decision(0));
    second.record(decision(1));
    first.close(Instant::now() + CLOSE_TIMEOUT);
    drop(first);
    third.add(decision(2));
    third.write_if_due(false);
    assert!(third.holds, "it opened the file that the second one waits for");
    second.close(Instant::now() + CLOSE_TIMEOUT);
    drop(second);
    record.clock.advance(MIN_HOLD);
    third.write_if_due(false);
    drop(third);
    assert_eq!(decisions(&record.path()), (0..3).map(decision).collect::<Vec<_>>());
}

#[test]
fn a_file_that_is_never_closed_is_given_up_after_a_while_and_what_was_lost_is_counted() {
    let record = TestRecord::new();
    let first = record.log();
    let mut writer = Writer::holding(&record.path(), 1 << 20, record.clock.clone());
    writer.add(decision(1));
    writer.write_if_due(false);
    assert_eq!((writer.holds, writer.pending.len()), (true, 1));
    record.clock.advance(MAX_HOLD);
    writer.write_if_due(false);
    assert_eq!((writer.holds, writer.counts.lost), (false, 1));
    first.close(Instant::now() + CLOSE_TIMEOUT);
    drop(first);
    writer.add(decision(2));
    writer.write_if_due(true);
    assert_eq!(decisions(&record.path()), [decision(2)]);
    assert_eq!(blocks(&record.path())[0].counts.lost, 1);
}

#[test]
fn a_decision_waits_no_longer_than_a_second() {
    let record = TestRecord::new();
    let mut writer = record.writer(1 << 20);
    writer.add(decision(1));
    writer.write_if_due(false);
    assert_eq!(decisions(&record.path()), []);
    // The ring is emptied every `INTERVAL`: it may have waited there for one, and is looked at again after another.
    record.clock.advance(Duration::from_secs(1) - 2 * INTERVAL);
    writer.write_if_due(false);
    assert_eq!(decisions(&record.path()), [decision(1)]);
}

#[test]
fn the_file_and_the_older_one_stay_within_their_bound_and_the_newest_is_there() {
    let record = TestRecord::new();
    let most = 16 * 1024;
    let mut writer = record.writer(most);
    for n in 0..10_000 {
        writer.add(decision(n));
        if n % 50 == 0 {
            writer.write();
        }
        let size = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
        assert!(size(&record.path()) + size(&older(&record.path())) <= most);
    }
    writer.write();
    let kept: Vec<_> = [older(&record.path()), record.path()].iter().flat_map(|path| decisions(path)).collect();
    assert!(kept.len() > 500, "{}", kept.len());
    assert_eq!(kept, (10_000 - kept.len() as u64..10_000).map(decision).collect::<Vec<_>>(), "without a gap");
    let runs: std::collections::BTreeSet<u64> = blocks(&record.path()).iter().map(|block| block.run).collect();
    assert_eq!(runs, blocks(&older(&record.path())).iter().map(|block| block.run).collect(), "it is one run");
}

#[test]
fn decisions_that_cannot_be_written_are_counted_and_reported_later() {
    let record = TestRecord::new();
    let mut writer = record.writer(2048);
    let blocked = older(&record.path());
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
    assert_eq!(decisions(&record.path()).len() as u64, recorded - 20, "what was written before stays");
    fs::remove_dir_all(&blocked).unwrap();
    (0..20).for_each(|n| writer.add(decision(n)));
    writer.write();
    let after = blocks(&record.path());
    assert_eq!((after[0].counts.lost, after[0].decisions.len(), writer.counts.lost), (40, 20, 0));
}

#[test]
fn a_moved_or_truncated_file_is_replaced_by_a_new_one() {
    let record = TestRecord::new();
    let moved = record.folder.path().join("moved");
    let mut writer = record.writer(1 << 20);
    writer.add(decision(1));
    writer.write();
    fs::rename(record.path(), &moved).unwrap();
    writer.reopen_file().unwrap();
    writer.add(decision(2));
    writer.write();
    assert_eq!((decisions(&moved), decisions(&record.path())), (vec![decision(1)], vec![decision(2)]));
    File::options().write(true).open(record.path()).unwrap().set_len(0).unwrap();
    writer.add(decision(3));
    writer.write();
    assert_eq!(decisions(&record.path()), [decision(3)]);
}

#[test]
fn a_moved_file_is_closed_at_the_next_check() {
    let record = TestRecord::new();
    let log = record.log();
    fs::rename(record.path(), record.folder.path().join("moved")).unwrap();
    log.reopen();
    log.record(decision(1));
    log.close(Instant::now() + CLOSE_TIMEOUT);
    assert_eq!(decisions(&record.path()), [decision(1)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_file_with_any_cut_gives_whole_blocks_and_goes_on(written in any_blocks(), cut in any::<u64>()) {
        let record = TestRecord::new();
        let mut writer = record.writer(1 << 20);
        for block in &written {
            block.iter().for_each(|decision| writer.add(decision.clone()));
            writer.write();
        }
        drop(writer);
        let whole = blocks(&record.path());
        let length = fs::metadata(record.path()).unwrap().len();
        File::options().write(true).open(record.path()).unwrap().set_len(cut % length).unwrap();
        let mut writer = record.writer(1 << 20);
        writer.add(decision(1));
        writer.write();
        let after = blocks(&record.path());
        let (last, before) = after.split_last().unwrap();
        prop_assert_eq!(before, &whole[..before.len()]);
        prop_assert_eq!(&last.decisions[..], &[decision(1)][..]);
    }

    #[test]
    fn a_file_with_any_flipped_bit_gives_what_was_written_or_is_refused(
        written in any_blocks(), at in any::<usize>(), bit in 0u8..8,
    ) {
        let record = TestRecord::new();
        let mut writer = record.writer(1 << 20);
        for block in &written {
            block.iter().for_each(|decision| writer.add(decision.clone()));
            writer.write();
        }
        let whole = blocks(&record.path());
        let mut bytes = fs::read(record.path()).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        fs::write(record.path(), &bytes).unwrap();
        let file = File::open(record.path()).unwrap();
        let mut reader = RecordReader::new(file, bytes.len() as u64, &record.path());
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
