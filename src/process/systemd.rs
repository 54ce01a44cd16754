//! Notifications to the service manager (sd_notify(3)), if there is one that wants them (`NOTIFY_SOCKET`).

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

/// How often the watchdog is notified: in time for every `WatchdogSec` of at least 2 s.
const WATCHDOG_INTERVAL: Duration = Duration::from_secs(1);

/// Notifies the watchdog from now on, from the runtime that handles signals and reloads. If that hangs, the service
/// manager starts the service anew.
pub(super) async fn notify_watchdog() {
    if env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let mut ticks = interval(WATCHDOG_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        notify("WATCHDOG=1\n");
    }
}

/// Tells the service manager this: `READY=1`, `STOPPING=1`.
pub(super) fn notify(state: &str) {
    if let Err(error) = send(state) {
        tracing::warn!(%error, state = state.trim_end(), "cannot notify the service manager");
    }
}

fn send(state: &str) -> io::Result<()> {
    let Some(at) = env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let at = match at.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&at)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &at).map(drop)
}
