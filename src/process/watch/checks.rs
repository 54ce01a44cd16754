//! When watched files are to be checked: when the system tells that one may have changed, and by the clock in any case.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::clock::AlignedTimer;
use crate::files::FileEvents;

/// How often files are checked where the system does not tell of changes. A check costs two microseconds a file.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How often files are checked in any case: not everything that changes one is told. With [`super::SETTLE_TIME`] a key that is
/// taken out of its file is refused within a second nevertheless (guarantee 7); only while `gateway.toml` is reloaded or
/// about to be may it be `CONFIG_FIRST` later. Each check of a part wakes two threads.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How long to wait after an event, so that many in quick succession cause few checks.
const EVENTS_TAKE: Duration = Duration::from_millis(20);

/// Tells `checks` whenever files are to be checked, for ever. `paths` are those that are watched; `reloads` has a new value
/// when they may be others, or may lead elsewhere.
pub(in crate::process) async fn tell_when_to_check(
    checks: &watch::Sender<()>,
    paths: impl Fn() -> Vec<PathBuf>,
    reloads: watch::Receiver<()>,
) -> Infallible {
    let interval = Cell::new(MAX_CHECK_INTERVAL);
    let by_the_clock = async {
        let timer = AlignedTimer::new();
        loop {
            timer.next_multiple_of(interval.get()).await;
            checks.send_replace(());
        }
    };
    let by_events = async {
        let Err(error) = check_at_events(checks, paths, reloads).await;
        tracing::warn!(%error, "changes of files cannot be watched (inotify); they are checked ten times a second instead");
        interval.set(CHECK_INTERVAL);
    };
    tokio::join!(by_the_clock, by_events).0
}

/// Tells `checks` when the system tells that a file may have changed.
async fn check_at_events(
    checks: &watch::Sender<()>,
    paths: impl Fn() -> Vec<PathBuf>,
    mut reloads: watch::Receiver<()>,
) -> io::Result<Infallible> {
    let mut events = FileEvents::new()?;
    loop {
        let paths = paths();
        // May take for ever, as a look may.
        let watching = spawn_blocking(move || events.watch_paths(&paths).map(|()| events));
        events = watching.await.map_err(io::Error::other)??;
        tokio::select! {
            () = events.next() => {
                sleep(EVENTS_TAKE).await;
                checks.send_replace(());
            }
            _ = reloads.changed() => {}
        }
    }
}
