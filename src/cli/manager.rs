//! What the service manager is told (`sd_notify`), where one asks to be told (`NOTIFY_SOCKET`).

use sd_notify::NotifyState;

/// The process accepts callers.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// The service's main process is this one from here on: the one before is about to end, and that is
/// not the service's end.
pub(super) fn took_over() {
    notify(&[NotifyState::Ready, NotifyState::MainPid(std::process::id())]);
}

/// The service ends.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        let states: Vec<String> = states.iter().map(ToString::to_string).collect();
        tracing::warn!(%error, "the service manager could not be told {}", states.join(", "));
    }
}
