//! Wakes the one thread that empties a queue, once for all that is queued until it begins to empty it. Whoever queues
//! something pays one read of an atomic while the thread is awake or about to be. `tests/model` runs this file under a
//! model checker.

use std::time::{Duration, Instant};

use crate::sync::thread::{self, Thread};
use crate::sync::{AtomicBool, OnceLock, Ordering};

/// All accesses are sequentially consistent: either whoever queues something finds `is_set` cleared, or the thread,
/// which empties the queue after it has cleared it, finds what was queued. What is queued must be so too, as the push of
/// `crossbeam_queue::ArrayQueue` is.
#[derive(Debug)]
pub(super) struct Wakeup {
    is_set: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Wakeup {
    pub(super) fn new() -> Self {
        Wakeup { is_set: AtomicBool::new(false), thread: OnceLock::new() }
    }

    /// Names the thread, before anybody else can call [`Wakeup::wake`].
    pub(super) fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread); // it is named once
    }

    /// To be called after something was queued.
    pub(super) fn wake(&self) {
        if !self.is_set.load(Ordering::SeqCst) {
            self.wake_thread();
        }
    }

    #[cold]
    fn wake_thread(&self) {
        if !self.is_set.swap(true, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Waits until something was queued since [`Wakeup::clear`], or for this long (`None`: for ever). To be called by the
    /// thread.
    pub(super) fn wait(&self, at_most: Option<Duration>) {
        let start = Instant::now();
        while !self.is_set.load(Ordering::SeqCst) {
            match at_most.map(|at_most| at_most.saturating_sub(start.elapsed())) {
                None => thread::park(),
                Some(Duration::ZERO) => return,
                Some(left) => thread::park_timeout(left),
            }
        }
    }

    /// To be called by the thread before it empties the queue.
    pub(super) fn clear(&self) {
        self.is_set.swap(false, Ordering::SeqCst);
    }
}
