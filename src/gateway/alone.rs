//! Whether this process serves alone. While another one serves the same addresses (`server.handover`), neither answers
//! from memory nor keeps anything, so that neither has to know of the other's writes (guarantee 2). `process/handover`
//! says when.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Gateway;

/// Set in the count of writes once none may begin any more.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// The writes under way.
#[derive(Debug, Default)]
pub(super) struct Writes {
    count: AtomicUsize,
    /// Notified when a write has ended.
    ended: Notify,
}

/// A write under way, until it is dropped.
#[derive(Debug)]
pub(super) struct CountedWrite(Arc<Writes>);

impl Gateway {
    /// Another process may serve from now on: until [`Gateway::alone`] nothing is answered from memory, and nothing is
    /// kept.
    pub fn not_alone(&self) {
        self.cache.gate.not_alone();
    }

    /// No other process serves any more. `unsettled_for`: how long its writes may still take effect; `None`: nobody knows.
    pub fn alone(&self, unsettled_for: Option<Duration>) {
        let state = self.state();
        let longest = state.unknown_for().max(state.write_time());
        self.cache.gate.alone(self.now().plus(unsettled_for.unwrap_or(longest)));
    }

    /// How long writes of this process may still take effect of which callers were not told.
    pub fn unsettled_for(&self) -> Duration {
        self.cache.gate.unsettled_until().since(self.now())
    }

    /// Lets no write begin any more, if none is under way. Returns whether that is so, and another process may answer from
    /// memory: reads are answered from the origin here, and need not be waited for.
    pub fn end_writes(&self) -> bool {
        let ended = self.writes.count.compare_exchange(0, CLOSED, Ordering::SeqCst, Ordering::SeqCst);
        matches!(ended, Ok(_) | Err(CLOSED))
    }

    /// Waits until [`Gateway::end_writes`] says so.
    pub async fn writes_ended(&self) {
        while !self.end_writes() {
            self.writes.ended.notified().await;
        }
    }
}

impl Writes {
    /// Counts a write, from before it waits for anything; `None`: none may begin here any more.
    pub(super) fn begin(self: &Arc<Self>) -> Option<CountedWrite> {
        let write = CountedWrite(self.clone());
        (self.count.fetch_add(1, Ordering::SeqCst) & CLOSED == 0).then_some(write)
    }
}

impl Drop for CountedWrite {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::SeqCst);
        self.0.ended.notify_one();
    }
}
