//! Whether this process serves alone. While another one serves the same addresses (`server.handover`), neither answers
//! from memory nor keeps anything, so that neither has to know of the other's writes (guarantee 2). `process/handover`
//! says when.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::state::Core;
use super::write::{unknown_for, write_time};

/// Set in the count of writes once none may begin any more.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// This process's part in a hand-over.
#[derive(Debug)]
pub struct Alone {
    core: Arc<Core>,
    /// Writes under way.
    writes: AtomicUsize,
    /// Notified when a write has ended.
    write_ended: Notify,
}

/// A write under way, until it is dropped.
#[derive(Debug)]
pub(super) struct CountedWrite<'a>(&'a Alone);

impl Alone {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Alone { core, writes: AtomicUsize::new(0), write_ended: Notify::new() }
    }

    /// Another process may serve from now on: until [`Alone::end`] nothing is answered from memory, and nothing is kept.
    pub fn begin(&self) {
        self.core.cache.gate.not_alone();
    }

    /// No other process serves any more. `unsettled`: as the other one's gate names the members whose write there may still
    /// take effect; `None`: nobody knows which ones.
    pub fn end(&self, unsettled: Option<Vec<usize>>) {
        let (gate, state) = (&self.core.cache.gate, self.core.state());
        let until = self.core.now().plus(unknown_for(&state).max(write_time(&state)));
        match unsettled {
            Some(slots) => slots.into_iter().for_each(|slot| gate.unknown_outcome_of(slot, until)),
            None => gate.ask_until(until),
        }
        gate.alone();
    }

    /// The members whose write may still take effect, as the gate names them; `None`: too many to name.
    pub fn unsettled(&self) -> Option<Vec<usize>> {
        self.core.cache.gate.unsettled(self.core.now())
    }

    /// Counts a write, from before it waits for anything; `None`: none may begin here any more.
    pub(super) fn begin_write(&self) -> Option<CountedWrite<'_>> {
        let write = CountedWrite(self);
        (self.writes.fetch_add(1, Ordering::SeqCst) & CLOSED == 0).then_some(write)
    }

    /// Lets no write begin any more, if none is under way. Returns whether that is so, and another process may answer from
    /// memory: reads are answered from the origin here, and need not be waited for.
    pub fn end_writes(&self) -> bool {
        matches!(self.writes.compare_exchange(0, CLOSED, Ordering::SeqCst, Ordering::SeqCst), Ok(_) | Err(CLOSED))
    }

    /// Waits until [`Alone::end_writes`] says so.
    pub async fn writes_ended(&self) {
        while !self.end_writes() {
            self.write_ended.notified().await;
        }
    }
}

impl Drop for CountedWrite<'_> {
    fn drop(&mut self) {
        self.0.writes.fetch_sub(1, Ordering::SeqCst);
        self.0.write_ended.notify_one();
    }
}
