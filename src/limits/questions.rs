//! What is being asked of Redis about one key, which `cluster` asks (contract section 3 `[cluster]`). It is part of the
//! key's budget, so that it is found without a table of its own.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Policy, Told};
use crate::clock::Tick;

/// What is being asked of Redis for one key: about reads, and about writes.
#[derive(Debug, Default)]
pub struct Questions {
    pub open: [Mutex<Question>; 2],
    /// The day was given back, which Redis is to be told.
    pub resets_day: AtomicBool,
}

/// One question after the other.
#[derive(Debug, Default)]
pub struct Question {
    /// The requests that the next question is about, each with the policy by which it came.
    pub waiting: Vec<(Arc<Policy>, oneshot::Sender<Told>)>,
    pub is_under_way: bool,
    pub refused: Option<(Tick, Told)>,
}
