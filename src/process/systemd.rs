//! Notifications to the service manager (`sd_notify`), if there is one that wants them (`NOTIFY_SOCKET`).

use sd_notify::NotifyState;

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

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        let states: Vec<String> = states.iter().map(ToString::to_string).collect();
        tracing::warn!(%error, states = states.join(" "), "cannot notify the service manager");
    }
}
