//! A runtime of the store's own, on a thread of its own, for all its connections. A connection ends with the
//! runtime that it was made on, and a listener's runtime ends before the last counts are written.

use std::fmt;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;

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
        let failed = |e| StoreError::Failed(format!("cannot start a thread for the store: {e}"));
        let runtime = Builder::new_current_thread().enable_all().thread_keep_alive(Duration::MAX).build();
        let runtime = runtime.map_err(failed)?;
        // A thread that resolves names, and is kept: without one, tokio panics where the system has no thread to give.
        runtime.spawn_blocking(|| {});
        let handle = runtime.handle().clone();
        let (running, mut stopped) = mpsc::channel(1);
        let run = move || {
            runtime.block_on(stopped.recv());
            // A DNS lookup that hangs is not waited for.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("store-postgres".to_owned()).spawn(run).map_err(failed)?;
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
