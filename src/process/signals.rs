//! The signals of a running server: SIGTERM, SIGINT and SIGQUIT end it, SIGHUP asks for a reload, SIGUSR1 reopens the logs.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::ProcessError;

/// Listens for a signal. From now on it no longer ends the process by itself.
pub(super) fn listen(kind: SignalKind) -> Result<Signal, ProcessError> {
    signal(kind).map_err(|e| ProcessError::Failed(format!("cannot listen for signals: {e}")))
}

/// SIGTERM, SIGINT and SIGQUIT.
pub(super) type StopSignals = [Signal; 3];

/// Waits for one of them.
pub(super) async fn stopped([terminate, interrupt, quit]: &mut StopSignals) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = quit.recv() => {}
    }
}
