//! Reads one file of the decision record block by block, up to the length that it had when it was opened, while a server
//! may be writing on. The bytes are not trusted: what is damaged, as after a power loss or on a full disk, is left out
//! and counted. Used by `limits plan` and `limits suggest`; it changes nothing.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use flate2::bufread::GzDecoder;

use super::{Block, MAGIC, RecordError, check};

/// The largest block, decompressed; the writer's have some 600 KB. What is larger is damage.
const MAX_BLOCK: u64 = 16 << 20;

/// Reads one file of the decision record.
#[derive(Debug)]
pub struct RecordReader {
    pub path: PathBuf,
    file: BufReader<File>,
    pub length: u64,
    /// How many bytes were read: where the next block begins.
    pub at: u64,
    /// How many bytes of those were left out, because they are damaged.
    pub damaged: u64,
}

impl RecordReader {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be read, or is no record.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        check(path)?;
        let opened = || {
            let file = File::open(path)?;
            let length = file.metadata()?.len();
            Ok(RecordReader { path: path.to_owned(), file: BufReader::new(file), length, at: 0, damaged: 0 })
        };
        opened().map_err(|cause| RecordError::Unusable { path: path.to_owned(), cause })
    }

    /// Begins again.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn rewind(&mut self) -> Result<(), RecordError> {
        (self.at, self.damaged) = (0, 0);
        self.file.rewind().map_err(|cause| RecordError::Unusable { path: self.path.clone(), cause })
    }

    /// The next block; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next_block(&mut self) -> Result<Option<Block>, RecordError> {
        self.read_next().map_err(|cause| RecordError::Unusable { path: self.path.clone(), cause })
    }

    fn read_next(&mut self) -> io::Result<Option<Block>> {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        while self.at < self.length {
            match self.read_block() {
                Ok(block) => {
                    self.at = self.file.stream_position()?;
                    return Ok(Some(block));
                }
                Err(error) if matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof) => {
                    let from = self.at;
                    self.skip_damage()?;
                    self.damaged += self.at - from;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn read_block(&mut self) -> io::Result<Block> {
        let mut text = Vec::new();
        if GzDecoder::new(&mut self.file).take(MAX_BLOCK).read_to_end(&mut text)? as u64 == MAX_BLOCK {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let head = serde_json::from_slice(lines.next().unwrap_or_default())?;
        let decisions = lines.map(serde_json::from_slice).collect::<Result<_, _>>()?;
        Ok(Block { head, decisions })
    }

    /// Goes on where a block may begin.
    fn skip_damage(&mut self) -> io::Result<()> {
        let (mut next, mut last) = (self.at + 1, [0; MAGIC.len()]);
        self.file.seek(SeekFrom::Start(next))?;
        for byte in self.file.by_ref().bytes() {
            last.rotate_left(1);
            last[MAGIC.len() - 1] = byte?;
            next += 1;
            if last == MAGIC {
                self.at = next - MAGIC.len() as u64;
                self.file.seek(SeekFrom::Start(self.at))?;
                return Ok(());
            }
        }
        self.at = self.length;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Decision, Head, block};
    use super::*;
    use crate::clock::Tick;

    fn decision(n: u64) -> Decision {
        Decision { unix_ms: n as i64, at: Tick(n), key: format!("k{n}").into(), ..Decision::default() }
    }

    /// The runs of the blocks that are read, and how many bytes are damaged.
    fn read(bytes: &[u8]) -> (Vec<u64>, u64) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let mut reader = RecordReader::open(file.path()).unwrap();
        let mut all = || std::iter::from_fn(|| reader.next_block().unwrap()).collect::<Vec<_>>();
        let blocks = all();
        assert!(blocks.iter().all(|block| block.decisions.iter().all(|decision| decision.at.0 / 10 == block.head.run)));
        assert!(all().is_empty());
        let damaged = reader.damaged;
        reader.rewind().unwrap();
        assert_eq!(std::iter::from_fn(|| reader.next_block().unwrap()).collect::<Vec<_>>(), blocks);
        (blocks.iter().map(|block| block.head.run).collect(), damaged)
    }

    fn blocks() -> Vec<Vec<u8>> {
        let of_run = |run| {
            let decisions: Vec<_> = (run * 10..run * 10 + 10).map(decision).collect();
            block(&Head { run, ..Head::default() }, &decisions).unwrap()
        };
        (0..3).map(of_run).collect()
    }

    #[test]
    fn zeros_that_a_power_loss_left_are_skipped() {
        let zeros = vec![0; 5000];
        assert_eq!(read(&zeros), (vec![], 5000));
        assert_eq!(read(&[zeros, blocks().concat()].concat()), (vec![0, 1, 2], 5000));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn what_is_damaged_is_left_out_and_the_other_blocks_are_read(
            which in 0usize..3, at in any::<prop::sample::Index>(), cut in any::<bool>(), flip in 1u8..,
        ) {
            let mut blocks = blocks();
            let at = at.index(blocks[which].len());
            match cut {
                true => blocks[which].truncate(at),
                false => blocks[which][at] ^= flip,
            }
            let bytes = blocks.concat();
            prop_assume!(MAGIC.starts_with(&bytes[..bytes.len().min(4)]));
            let (runs, damaged) = read(&bytes);
            let others: Vec<u64> = (0..3).filter(|run| *run != which as u64).collect();
            // Some bits of a header mean nothing.
            let is_whole = runs == [0, 1, 2] && !cut;
            prop_assert!(is_whole || (runs == others && damaged == blocks[which].len() as u64), "{:?} {}", runs, damaged);
        }

        #[test]
        fn no_bytes_stop_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (runs, damaged) = read(&[&MAGIC[..], &bytes].concat());
            prop_assert_eq!((runs, damaged), (vec![], 4 + bytes.len() as u64));
        }
    }
}
