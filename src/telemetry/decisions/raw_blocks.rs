//! The container of a decision record: a first line with the version, then blocks, each with its length and checksums.
//! It tells a file that was cut short from a damaged one. Reading trusts no byte; the content of a block is `format`'s.

use std::fmt;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The first line of every file, with the version of all that follows.
pub const MAGIC: &[u8] = b"guildgate decisions 1\n";

/// How that line begins in any version.
const MAGIC_NAME: &[u8] = b"guildgate decisions ";

/// Length of the content, its checksum, and the checksum of these two, so that a wrong length does not look like a file
/// that is cut short.
const HEADER: usize = 12;

/// The largest content of a block. The writer's have 128 KiB at most; a larger length is damage, and no memory is
/// allocated for it.
const MAX_BLOCK: usize = 4 << 20;

/// Why a record cannot be used.
#[derive(Debug, Error)]
pub enum RecordError {
    #[error("{} cannot be read: {cause}", path.display())]
    Unreadable { path: PathBuf, cause: io::Error },
    #[error("{} is no record of decisions: it does not begin with the line `guildgate decisions 1`; name a file that `log.decisions` wrote", .0.display())]
    OtherKind(PathBuf),
    #[error("{} is a record of decisions of version {version}; this guildgate reads version 1", path.display())]
    OtherVersion { path: PathBuf, version: String },
    /// Damage before the end of the file, which a killed process cannot cause.
    #[error("{} is damaged at byte {at}: {why}; move it away, or name other files with --log", path.display())]
    Damaged { path: PathBuf, at: u64, why: &'static str },
}

/// A record whose last block is incomplete, as after kill -9 or a power loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutShort {
    pub path: PathBuf,
    /// Where the last whole block ends.
    pub at: u64,
}

impl fmt::Display for CutShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is cut short at byte {}; the complete blocks before it are used", self.path.display(), self.at)
    }
}

/// Appends a block with this content to `out`.
pub(super) fn put(content: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&(content.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(content).to_le_bytes());
    let header = crc32fast::hash(&out[start..]);
    out.extend_from_slice(&header.to_le_bytes());
    out.extend_from_slice(content);
}

/// Reads the blocks of a file from first to last, without decoding them.
#[derive(Debug)]
pub(super) struct RawBlocks<R> {
    input: R,
    path: PathBuf,
    content: Vec<u8>,
    /// Where the current block begins.
    block: u64,
    /// Where the next block begins, which is the end of the last complete one.
    at: u64,
}

/// What comes next in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RawBlock<'f> {
    Content(&'f [u8]),
    End,
    /// The file ends within a block.
    Incomplete,
}

impl<R: BufRead> RawBlocks<R> {
    /// Reads a file of this path. The first line is read with the first block.
    pub(super) fn new(input: R, path: &Path) -> Self {
        RawBlocks { input, path: path.to_owned(), content: Vec::new(), block: 0, at: 0 }
    }

    /// The end of the last complete block.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn next(&mut self) -> Result<RawBlock<'_>, RecordError> {
        if self.at == 0 && !self.first_line()? {
            return Ok(if self.content.is_empty() { RawBlock::End } else { RawBlock::Incomplete });
        }
        self.block = self.at;
        self.fill(HEADER)?;
        let Some(header) = self.content.first_chunk::<HEADER>().copied() else {
            return Ok(if self.content.is_empty() { RawBlock::End } else { RawBlock::Incomplete });
        };
        let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (length, checksum) = (number(0) as usize, number(4));
        if crc32fast::hash(&header[..8]) != number(8) || length > MAX_BLOCK {
            // A power loss may leave zeros behind what was written.
            let unwritten = header.iter().all(|byte| *byte == 0) && self.rest_is_zero()?;
            return if unwritten { Ok(RawBlock::Incomplete) } else { Err(self.damaged("a block's header is wrong")) };
        }
        self.fill(length)?;
        if self.content.len() < length {
            return Ok(RawBlock::Incomplete);
        }
        if crc32fast::hash(&self.content) != checksum {
            // Only the last block can be incomplete.
            return match self.input.fill_buf() {
                Ok([]) => Ok(RawBlock::Incomplete),
                Ok(_) => Err(self.damaged("a block does not match its checksum")),
                Err(cause) => Err(self.unreadable(cause)),
            };
        }
        self.at += (HEADER + length) as u64;
        Ok(RawBlock::Content(&self.content))
    }

    /// Reads the first line; false if the file ends within it.
    fn first_line(&mut self) -> Result<bool, RecordError> {
        self.fill(MAGIC.len())?;
        if self.content == MAGIC {
            self.at = MAGIC.len() as u64;
            return Ok(true);
        }
        let unwritten = self.content.iter().all(|byte| *byte == 0) && self.rest_is_zero()?;
        if unwritten || MAGIC.starts_with(&self.content) {
            return Ok(false);
        }
        let Some(version) = self.content.strip_prefix(MAGIC_NAME) else {
            return Err(RecordError::OtherKind(self.path.clone()));
        };
        let version: String = version.iter().take_while(|b| b.is_ascii_digit()).map(|b| char::from(*b)).collect();
        Err(match version.as_str() {
            "" | "1" => RecordError::OtherKind(self.path.clone()),
            _ => RecordError::OtherVersion { path: self.path.clone(), version },
        })
    }

    /// Reads `length` bytes into `content`, or as many as there are.
    fn fill(&mut self, length: usize) -> Result<(), RecordError> {
        self.content.clear();
        let read = self.input.by_ref().take(length as u64).read_to_end(&mut self.content);
        read.map(|_| ()).map_err(|cause| self.unreadable(cause))
    }

    /// Whether the rest of the file is zeros.
    fn rest_is_zero(&mut self) -> Result<bool, RecordError> {
        loop {
            let length = match self.input.fill_buf() {
                Ok([]) => return Ok(true),
                Ok(bytes) if bytes.iter().any(|byte| *byte != 0) => return Ok(false),
                Ok(bytes) => bytes.len(),
                Err(cause) => return Err(self.unreadable(cause)),
            };
            self.input.consume(length);
        }
    }

    fn unreadable(&self, cause: io::Error) -> RecordError {
        RecordError::Unreadable { path: self.path.clone(), cause }
    }

    /// The error for damage in the current block.
    pub(super) fn damaged(&self, why: &'static str) -> RecordError {
        RecordError::Damaged { path: self.path.clone(), at: self.block, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(contents: &[&[u8]]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        contents.iter().for_each(|content| put(content, &mut out));
        out
    }

    /// The complete blocks of a file, and the byte at which it is cut short.
    fn read(bytes: &[u8]) -> Result<(Vec<Vec<u8>>, Option<u64>), String> {
        let (mut blocks, mut contents) = (RawBlocks::new(bytes, Path::new("d.log")), Vec::new());
        loop {
            match blocks.next().map_err(|e| e.to_string())? {
                RawBlock::Content(content) => contents.push(content.to_vec()),
                RawBlock::End => return Ok((contents, None)),
                RawBlock::Incomplete => return Ok((contents, Some(blocks.at()))),
            }
        }
    }

    #[test]
    fn a_file_of_blocks_reads_back() {
        assert_eq!(
            read(&file(&[b"one", b"", b"three"])).unwrap(),
            (vec![b"one".into(), vec![], b"three".into()], None)
        );
        assert_eq!(read(MAGIC).unwrap(), (vec![], None));
        assert_eq!(read(b"").unwrap(), (vec![], None), "nothing was written yet");
    }

    #[test]
    fn a_file_that_is_cut_anywhere_is_read_up_to_its_last_whole_block() {
        let whole = file(&[b"one", b"two"]);
        let ends = [MAGIC.len(), MAGIC.len() + 15, whole.len()];
        for length in 1..whole.len() {
            let (contents, cut) = read(&whole[..length]).unwrap();
            let blocks = ends[1..].iter().filter(|end| **end <= length).count();
            assert_eq!(contents.len(), blocks, "{length}");
            let last = ends.iter().rev().find(|end| **end <= length).copied().unwrap_or_default();
            assert_eq!(cut, (!ends.contains(&length)).then_some(last as u64), "{length}");
        }
        let zeros = [&whole[..], &[0; 5000]].concat();
        assert_eq!(read(&zeros).unwrap().1, Some(whole.len() as u64), "a power loss leaves zeros");
        assert_eq!(read(&[0; 100]).unwrap().1, Some(0));
    }

    #[test]
    fn a_flipped_bit_ends_the_file_there_or_is_refused_by_its_byte() {
        let whole = file(&[b"one", b"two", b"three"]);
        let second = MAGIC.len() + 15;
        let last = second + 15;
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            match read(&bytes) {
                Ok((contents, cut)) => {
                    assert!(at >= last + HEADER, "{at}: only the last block may look incomplete");
                    assert_eq!((contents, cut), (vec![b"one".into(), b"two".into()], Some(last as u64)), "{at}");
                }
                Err(error) if at < MAGIC.len() => assert!(error.contains("d.log is "), "{error}"),
                Err(error) => {
                    let block = [MAGIC.len(), second, last].into_iter().rev().find(|b| *b <= at).unwrap();
                    assert!(error.starts_with(&format!("d.log is damaged at byte {block}: ")), "{at}: {error}");
                }
            }
        }
    }

    #[test]
    fn another_kind_of_file_and_another_version_are_distinguished() {
        let kind = read(b"# gateway.toml, by mistake\n").unwrap_err();
        assert!(kind.starts_with("d.log is no record of decisions"), "{kind}");
        let version = read(b"guildgate decisions 12\nand what came of it").unwrap_err();
        assert_eq!(version, "d.log is a record of decisions of version 12; this guildgate reads version 1");
        assert!(read(b"guild").unwrap().1.is_some(), "the first line is incomplete");
    }

    #[test]
    fn no_memory_is_allocated_for_a_block_that_claims_to_be_huge() {
        let mut bytes = MAGIC.to_vec();
        put(&vec![7; MAX_BLOCK + 1], &mut bytes);
        assert!(read(&bytes).unwrap_err().contains("header is wrong"));
    }
}
