//! The record of decisions (`log.decisions`): which key sent a request when, and what its limits decided. `limits plan`
//! and `limits suggest` replay it (contract section 2). It holds key ids, and never a key, a body or an address
//! (guarantee 9). For strangers it holds how many exceeded their limit and when, to a second.

mod file;
mod format;
#[cfg(test)]
mod fuzz;
mod raw_blocks;
mod reader;
mod varint;
mod writer;

use std::sync::Arc;

use crate::clock::Tick;
use crate::model::{KeyId, Limit};
use crate::wire::Operation;

pub use file::{OpenError, older};
pub use format::{Block, ClockReading, Counts, Encoder};
pub use raw_blocks::{CutShort, MAGIC, RecordError};
pub use reader::RecordReader;
pub use writer::DecisionLog;

/// What a key's limits decided about one request, and the counts that they used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When it was decided, on the process's monotonic clock.
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
