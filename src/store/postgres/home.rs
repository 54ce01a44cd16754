//! A thread of the store's own, on whose runtime all its connections live. The callers' runtimes come
//! and go (a listener's ends before the last counts are written down), and a connection dies with the
//! runtime that it was made on.

use std::fmt;
use std::pin::Pin;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::store::StoreError;

type Life = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits, when dropped, for the thread to end.
pub(super) struct Home {
    handle: Handle,
    life: Option<oneshot::Sender<Life>>,
    thread: Option<JoinHandle<()>>,
}

impl Home {
    pub(super) fn start() -> Result<Self, StoreError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| StoreError::Failed(format!("no runtime for the store: {e}")))?;
        let handle = runtime.handle().clone();
        let (life, given) = oneshot::channel::<Life>();
        let run = move || {
            runtime.block_on(async {
                if let Ok(life) = given.await {
                    life.await;
                }
            });
            // A look-up of a name that hangs is not waited for.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("store-postgres".to_owned()).spawn(run);
        let thread = thread.map_err(|e| StoreError::Failed(format!("no thread for the store: {e}")))?;
        Ok(Home { handle, life: Some(life), thread: Some(thread) })
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// From now on the thread lives as long as `life`, and not as long as this.
    pub(super) fn live(&mut self, life: impl Future<Output = ()> + Send + 'static) {
        if let Some(given) = self.life.take() {
            let _ = given.send(Box::pin(life));
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.life = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Home")
    }
}
