//! The record of decisions (`log.decisions`): which key asked when, and what its limits said. It is
//! what `limits plan` and `limits suggest` replay (contract section 2). Key ids are in it, and
//! never a key, a body or an address (guarantee 9). Of strangers it holds how many were over their limit and when,
//! to a second.

mod file; // the file that one process writes on
mod format; // decisions to bytes and back, pure
mod frames; // blocks with length and checksum
#[cfg(test)]
mod fuzz;
mod reader; // a file's blocks, from first to last
mod varint;
mod writer; // the ring, the thread, the rotation

use std::sync::Arc;

use crate::clock::Tick;
use crate::model::{KeyId, Limit};
use crate::wire::Operation;

pub use file::{OpenError, older};
pub use format::{Anchor, Block, Counts, Encoder};
pub use frames::{CutShort, MAGIC, RecordError};
pub use reader::RecordReader;
pub use writer::DecisionLog;

/// What a key's limits said to one request, and what they went by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When it was decided, on the process's own clock.
    pub at: Tick,
    pub key: KeyId,
    /// The tier that the key is listed with; `None`: the default one.
    pub tier: Option<Arc<str>>,
    pub operation: Operation,
    /// The limit it was over.
    pub over: Option<Limit>,
    /// Refused for it (in shadow it is not).
    pub refused: bool,
    /// Over the tier's candidate limit, which refuses nothing.
    pub over_candidate: bool,
    /// Other requests of the key that were under way when it came.
    pub in_flight: u32,
    /// Requests of the key admitted before it in its UTC day; 0 where they are not counted.
    pub used_today: u64,
}
