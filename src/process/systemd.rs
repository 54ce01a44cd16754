//! Notifications to the service manager (`sd_notify`), if there is one that wants them (`NOTIFY_SOCKET`).

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

/// How often the watchdog is notified where no interval is given: systemd gives none to a process that takes over
/// (`ExecReload`). So a unit's `WatchdogSec` is twice this or more.
const WATCHDOG_INTERVAL: Duration = Duration::from_secs(5);

/// The process accepts connections.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// This process is the service's main process from now on, so the predecessor's end is not the service's end.
pub(super) fn main_process_changed() {
    notify(&[NotifyState::Ready, NotifyState::MainPid(std::process::id())]);
}

/// The service ends.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Notifies the watchdog from now on, from the runtime that handles signals and reloads. If that hangs, the service
/// manager starts the service anew.
pub(super) async fn notify_watchdog() {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let mut ticks = interval(sd_notify::watchdog_enabled().map_or(WATCHDOG_INTERVAL, |timeout| timeout / 2));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        let states: Vec<String> = states.iter().map(ToString::to_string).collect();
        tracing::warn!(%error, states = states.join(" "), "cannot notify the service manager");
    }
}
