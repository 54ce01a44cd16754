//! The record of decisions (`log.decisions`): which key sent a request when, and what its limits decided. `limits plan`
//! and `limits suggest` replay it (contract section 2). It holds key ids, and never a key, a body or an address
//! (guarantee 9); of strangers it holds how many exceeded their limit. A file is a sequence of blocks, each a gzip member
//! of JSON lines: a [`Head`], then decisions. `zcat FILE | jq` reads it.

mod reader;
mod writer;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::clock::Tick;
use crate::files::with_suffix;
use crate::model::{KeyId, Limit};
use crate::wire::Operation;

pub use reader::RecordReader;
pub use writer::{DecisionLog, block};

/// How a block begins: gzip, deflate, no flags.
const MAGIC: [u8; 4] = [0x1f, 0x8b, 8, 0];

/// What a key's limits decided about one request, and the counts that they used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Milliseconds since the Unix epoch.
    pub unix_ms: i64,
    /// The same moment on the process's monotonic clock, in nanoseconds.
    #[serde(rename = "tick")]
    pub at: Tick,
    pub key: KeyId,
    /// The tier of the key; `None`: the default one.
    pub tier: Option<Arc<str>>,
    pub operation: Operation,
    /// The limit that it exceeded.
    pub over: Option<Limit>,
    /// Whether it was refused for that; in shadow it is not.
    pub refused: bool,
    /// Whether it exceeded the tier's candidate limit, which refuses nothing.
    pub over_candidate: bool,
    /// Other requests of the key in flight when it came.
    pub in_flight: u32,
    /// Requests of the key admitted before it in its UTC day; 0 if they are not counted.
    pub used_today: u64,
}

/// The first line of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The run of a server that wrote it. Only ticks of the same run can be compared.
    pub run: u64,
    /// When it was written.
    pub unix_ms: i64,
    /// Decisions that could not be recorded since the block before.
    pub lost: u64,
    /// Requests without a valid key that exceeded `limits.strangers` since the block before. They are only counted: a
    /// flood of them must not displace the decisions about keys.
    pub strangers: u64,
}

/// A block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub head: Head,
    /// Ordered by their ticks.
    pub decisions: Vec<Decision>,
}

/// Why a record cannot be used.
#[derive(Debug, Error)]
pub enum RecordError {
    #[error("{}: {cause}", path.display())]
    Unusable { path: PathBuf, cause: io::Error },
    #[error("{} is no file; name another path", .0.display())]
    NoFile(PathBuf),
    #[error("{} is no record of decisions; name a file that `log.decisions` wrote", .0.display())]
    OtherKind(PathBuf),
}

/// The path of a record's older file: `PATH.1`.
pub fn older(path: &Path) -> PathBuf {
    with_suffix(path, ".1")
}

/// Checks that what is at `path`, if there is something, is a record or empty.
///
/// # Errors
/// It is something else, or cannot be read.
pub fn check(path: &Path) -> Result<(), RecordError> {
    let unusable = |cause| RecordError::Unusable { path: path.to_owned(), cause };
    match fs::metadata(path) {
        Ok(meta) if !meta.is_file() => return Err(RecordError::NoFile(path.to_owned())), // opening a pipe would wait
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        meta => meta.map_err(unusable)?,
    };
    let mut begin = Vec::new();
    File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut begin)).map_err(unusable)?;
    // After a power loss a file may hold zeros where it had grown.
    let is_ours = MAGIC.starts_with(&begin) || begin == [0; MAGIC.len()];
    if is_ours { Ok(()) } else { Err(RecordError::OtherKind(path.to_owned())) }
}
