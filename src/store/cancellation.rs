//! A write that waits for its turn: either the store begins it, or its caller cancels it before, never both.

use std::sync::Arc;

use parking_lot::Mutex;

/// Whether a queued write has begun, shared by its caller and the store's writer.
#[derive(Clone, Debug, Default)]
pub struct Cancellation(Arc<Mutex<Stage>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Queued,
    Begun,
    Cancelled,
}

impl Cancellation {
    /// Evaluates `check` if the write has not begun, and cancels it if `check` refuses it: nothing is written then.
    pub fn cancel_unless<E>(&self, check: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut stage = self.0.lock();
        match *stage {
            Stage::Queued => check().inspect_err(|_| *stage = Stage::Cancelled),
            Stage::Begun | Stage::Cancelled => Ok(()),
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        *self.0.lock() == Stage::Cancelled
    }

    /// Begins the write, whose turn has come; false if it was cancelled.
    pub(super) fn begin(&self) -> bool {
        let mut stage = self.0.lock();
        if *stage == Stage::Queued {
            *stage = Stage::Begun;
        }
        *stage == Stage::Begun
    }

    /// The write, which was undone if it had begun, waits for another turn, unless it was cancelled.
    pub(super) fn requeue(&self) {
        let mut stage = self.0.lock();
        if *stage == Stage::Begun {
            *stage = Stage::Queued;
        }
    }
}
