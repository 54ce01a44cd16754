//! Tells when there may be commits to read in the change feed: when something was written into the write-ahead log
//! (inotify), and four times a second in any case. Where the system does not tell of writes, ten times a second.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::clock::AlignedTimer;
use crate::files::FileEvents;

/// How often the feed is read where nothing is told of writes, and for a while after each write. Reading it costs a few
/// microseconds.
const POLL: Duration = Duration::from_millis(100);

/// How often it is read in any case. Guarantee 7 allows a second, and the keys expire after 0.7 s without a read.
const MAX_INTERVAL: Duration = Duration::from_millis(250);

/// How long to wait after a write: SQLite writes into the log first, then has it on disk, and only then shows the commit,
/// in shared memory, of which inotify tells nothing. Many writes in quick succession cause one read, too.
const COMMIT_TAKES: Duration = Duration::from_millis(20);

/// How long the feed is polled after a write, for a disk that is slow.
const SLOW_COMMIT_TAKES: Duration = Duration::from_secs(2);

/// Tells when to read the feed. For one task.
#[derive(Debug)]
pub(super) struct CommitEvents {
    wal: PathBuf,
    /// Made in the runtime of the task.
    waiting: Mutex<Option<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    /// `None`: the system does not tell of writes.
    events: Option<FileEvents>,
    timer: AlignedTimer,
    last_write: Option<Instant>,
}

impl CommitEvents {
    /// Of the store with this write-ahead log, which is there for as long as the store is open.
    pub(super) fn of(wal: &Path) -> Self {
        CommitEvents { wal: wal.to_owned(), waiting: Mutex::new(None) }
    }

    /// Waits until there may be a commit, or it is time to read in any case.
    pub(super) async fn next(&self) {
        self.waiting.lock().await.get_or_insert_with(|| Waiting::new(&self.wal)).next().await;
    }
}

impl Waiting {
    fn new(wal: &Path) -> Self {
        let events = FileEvents::new().and_then(|mut events| events.watch_content(wal).map(|()| events));
        let events = events.inspect_err(|error| {
            let wal = wal.display();
            tracing::warn!(%error, %wal, "writes to the store cannot be watched (inotify); it is read ten times a second instead");
        });
        Waiting { events: events.ok(), timer: AlignedTimer::new(), last_write: None }
    }

    async fn next(&mut self) {
        let Some(events) = &self.events else { return sleep(POLL).await };
        let polls = self.last_write.is_some_and(|write| write.elapsed() < SLOW_COMMIT_TAKES);
        tokio::select! {
            biased;
            () = events.next() => {
                self.last_write = Some(Instant::now());
                sleep(COMMIT_TAKES).await;
            }
            () = sleep(POLL), if polls => {}
            () = self.timer.next_multiple_of(MAX_INTERVAL), if !polls => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn a_write_is_told_at_once_and_polled_for_afterwards_and_a_log_that_cannot_be_watched_is_polled() {
        let folder = tempfile::tempdir().unwrap();
        let wal = folder.path().join("store.db-wal");
        assert!(Waiting::new(&wal).events.is_none(), "there is no such file");
        let mut file = fs::File::create(&wal).unwrap();
        let events = CommitEvents::of(&wal);
        events.next().await;
        let last_write = async || events.waiting.lock().await.as_ref().unwrap().last_write;
        assert_eq!(last_write().await, None);
        file.write_all(b"frame").unwrap();
        events.next().await;
        let told = last_write().await;
        assert!(told.is_some(), "it returned for another reason");
        events.next().await;
        assert_eq!(last_write().await, told, "there was no other write");
    }
}
