//! Reads one file of the decision record block by block, from its beginning up to a given length, while a server may be
//! writing on. The bytes are not trusted: damage is an error, and an end within a block is reported and not an error.
//! Used by `limits plan` and `limits suggest`; it changes nothing.

use std::fs::File;
use std::io::{BufReader, Read, Take};
use std::path::Path;

use super::format::{Block, Decoder};
use super::raw_blocks::{CutShort, RawBlock, RawBlocks, RecordError};

/// Bytes read at once, so that a file of tens of megabytes takes few system calls.
const BUFFER: usize = 256 * 1024;

/// Reads one file of the decision record.
#[derive(Debug)]
pub struct RecordReader<R = File> {
    blocks: RawBlocks<BufReader<Take<R>>>,
    decoder: Decoder,
    cut: Option<CutShort>,
}

impl<R: Read> RecordReader<R> {
    /// Reads the first `length` bytes of a file; messages name it by `path`.
    pub fn new(file: R, length: u64, path: &Path) -> Self {
        let input = BufReader::with_capacity(BUFFER, file.take(length));
        RecordReader { blocks: RawBlocks::new(input, path), decoder: Decoder::default(), cut: None }
    }

    /// The next block; `None` at the end, or if the file is cut short ([`RecordReader::cut_short`]).
    ///
    /// # Errors
    /// A file of another kind or version, a damaged file, or one that cannot be read.
    pub fn next_block(&mut self) -> Result<Option<Block>, RecordError> {
        match self.blocks.next()? {
            RawBlock::Content(content) => match self.decoder.decode(content) {
                Some(block) => Ok(Some(block)),
                None => Err(self.blocks.damaged("a block cannot be decoded")),
            },
            RawBlock::End => Ok(None),
            RawBlock::Incomplete => {
                self.cut = Some(CutShort { path: self.blocks.path().to_owned(), at: self.blocks.at() });
                Ok(None)
            }
        }
    }

    /// Where the last complete block ends, if the file is cut short.
    pub fn cut_short(&self) -> Option<&CutShort> {
        self.cut.as_ref()
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.blocks.at()
    }
}
