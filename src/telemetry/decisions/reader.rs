//! Reads one file of the decision record block by block, from its beginning up to a given length, while a server may be
//! writing on. The bytes are not trusted: damage is an error, and an end within a block is reported and not an error.
//! Used by `limits plan` and `limits suggest`; it changes nothing.

use std::fs::File;
use std::io::{BufReader, Read, Take};
use std::path::Path;

use super::format::{Block, Decoder};
use super::frames::{CutShort, Frame, Frames, RecordError};

/// Bytes read at once: few calls for a file of tens of megabytes.
const BUFFER: usize = 256 * 1024;

/// Reads one file of decisions, block by block, up to the length it has when reading begins: a
/// server may be writing on.
#[derive(Debug)]
pub struct RecordReader<R = File> {
    frames: Frames<BufReader<Take<R>>>,
    decoder: Decoder,
    cut: Option<CutShort>,
}

impl<R: Read> RecordReader<R> {
    /// Reads the first `length` bytes of a file, which `path` names in what is said of it.
    pub fn new(file: R, length: u64, path: &Path) -> Self {
        let input = BufReader::with_capacity(BUFFER, file.take(length));
        RecordReader { frames: Frames::new(input, path), decoder: Decoder::default(), cut: None }
    }

    /// The next block; `None` at the end, or where the file is cut short ([`RecordReader::cut_short`]).
    ///
    /// # Errors
    /// A file that is of another kind or version, that is damaged, or that cannot be read.
    pub fn next_block(&mut self) -> Result<Option<Block>, RecordError> {
        match self.frames.next()? {
            Frame::Content(content) => match self.decoder.decode(content) {
                Some(block) => Ok(Some(block)),
                None => Err(self.frames.damaged("a block cannot be understood")),
            },
            Frame::End => Ok(None),
            Frame::Cut => {
                self.cut = Some(CutShort { path: self.frames.path().to_owned(), at: self.frames.at() });
                Ok(None)
            }
        }
    }

    /// Where the file ended, if not with a whole block.
    pub fn cut_short(&self) -> Option<&CutShort> {
        self.cut.as_ref()
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.frames.at()
    }
}
