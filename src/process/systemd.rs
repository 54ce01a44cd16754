//! Notifications to the service manager (sd_notify(3)), if there is one that wants them (`NOTIFY_SOCKET`).

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

/// How often the watchdog is notified where no interval is given: systemd gives none to a process that takes over
/// (`ExecReload`). So a unit's `WatchdogSec` is twice this or more.
const WATCHDOG_INTERVAL: Duration = Duration::from_secs(5);

/// Notifies the watchdog from now on, from the runtime that handles signals and reloads. If that hangs, the service
/// manager starts the service anew.
pub(super) async fn notify_watchdog() {
    if env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    // `WATCHDOG_PID` names the process whose interval it is, if it is not everybody's.
    let is_ours = env::var("WATCHDOG_PID").map_or(true, |pid| pid == process::id().to_string());
    let given = env::var("WATCHDOG_USEC").ok().filter(|_| is_ours).and_then(|us| us.parse().ok()).filter(|us| *us > 0);
    let mut ticks = interval(given.map_or(WATCHDOG_INTERVAL, |us| Duration::from_micros(us) / 2));
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
