//! The tasks behind a server's answers: where one of them ends, the process is of no use any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::gateway::Gateway;
use crate::store::AnyStore;

/// How long requests under way may take to end once a task has ended: the process is gone within a second.
pub(super) const LAST_ANSWERS: Duration = Duration::from_millis(300);

/// What a server does beside answering.
#[derive(Debug)]
pub(super) struct Background {
    store: Arc<AnyStore>,
    following: JoinHandle<()>,
    noting: JoinHandle<()>,
}

impl Background {
    pub(super) fn start(gateway: &Arc<Gateway>, store: &Arc<AnyStore>) -> Self {
        Background {
            store: store.clone(),
            following: tokio::spawn(gateway.clone().follow(store.clone())),
            noting: tokio::spawn(gateway.clone().keep_notes(store.clone())),
        }
    }

    /// Waits until one of them has ended, which only a defect brings about; answers which.
    pub(super) async fn ended(&mut self) -> &'static str {
        tokio::select! {
            () = self.store.writer_ended() => "the task that writes to the store has ended",
            _ = &mut self.following => "the task that follows the store's changes has ended",
            _ = &mut self.noting => "the task that keeps the counts of keys has ended",
        }
    }
}
