//! A runtime of the store's own, on a thread of its own, for all its connections. A connection ends with the
//! runtime that it was made on, and a listener's runtime ends before the last counts are written.

use std::fmt;
use std::thread::JoinHandle;

use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::runtime::{self, ThreadSettings};
use crate::store::StoreError;

/// Dropping it waits for the tasks of [`StoreRuntime::spawn_to_its_end`].
pub(super) struct StoreRuntime {
    handle: Handle,
    /// The thread runs until every copy of this is dropped.
    running: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StoreRuntime {
    pub(super) fn start() -> Result<Self, StoreError> {
        let (running, mut stopped) = mpsc::channel(1);
        let run = || async move {
            let _: Option<()> = stopped.recv().await;
        };
        let started = runtime::start_thread("store-postgres", ThreadSettings::default(), run);
        let (handle, thread) =
            started.map_err(|e| StoreError::Failed(format!("cannot start a thread for the store: {e}")))?;
        Ok(StoreRuntime { handle, running: Some(running), thread: Some(thread) })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a task to its end, also after the store was dropped.
    pub(super) fn spawn_to_its_end(&self, task: impl Future<Output = ()> + Send + 'static) {
        let running = self.running.clone();
        self.handle.spawn(async move {
            task.await;
            drop(running);
        });
    }
}

impl Drop for StoreRuntime {
    fn drop(&mut self) {
        self.running = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for StoreRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreRuntime")
    }
}
