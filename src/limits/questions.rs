//! The questions to Redis about one key, which `cluster` asks (contract section 3 `[cluster]`). They are part of the key's
//! budget, so that they are found without a table of their own.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use tokio::sync::Mutex;

use super::Told;
use crate::clock::Tick;

/// One question after the other. Its requests are numbered as they come.
#[derive(Debug, Default)]
pub struct Question {
    pub came: AtomicU64,
    /// Locked while a question is under way.
    pub last: Mutex<Answer>,
}

/// What the last question was about, and what Redis said.
#[derive(Debug, Default)]
pub struct Answer {
    pub asked: Range<u64>,
    /// How many of them are let in, the first ones.
    pub let_in: u64,
    /// `None`: it has not answered.
    pub told: Option<Told>,
    /// Until then, all further requests are refused.
    pub refused_until: Tick,
}

impl Answer {
    /// The refusal that is remembered.
    pub fn refusal(&self, now: Tick) -> Option<Told> {
        self.told.filter(|_| now < self.refused_until).map(|told| Told { admitted: false, ..told })
    }
}
