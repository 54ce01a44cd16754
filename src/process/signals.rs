//! The signals of a running server: SIGTERM and SIGINT end it, SIGHUP asks for a reload, SIGUSR1 reopens the logs. Once a
//! signal is registered, it no longer ends the process by itself.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::ProcessError;

fn failed(error: io::Error) -> ProcessError {
    ProcessError::Failed(format!("cannot listen for signals: {error}"))
}

/// SIGHUP, from now on.
pub(super) fn sighup() -> Result<Signal, ProcessError> {
    signal(SignalKind::hangup()).map_err(failed)
}

/// SIGUSR1, from now on.
pub(super) fn sigusr1() -> Result<Signal, ProcessError> {
    signal(SignalKind::user_defined1()).map_err(failed)
}

/// SIGXFSZ, from now on: a write beyond `ulimit -f` fails, as on a full disk, and does not end the process.
pub(super) fn sigxfsz() -> Result<Signal, ProcessError> {
    signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())).map_err(failed)
}

/// SIGTERM and SIGINT.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Registers both, from now on.
    pub(super) fn register() -> Result<Self, ProcessError> {
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        Ok(StopSignals { terminate, interrupt: signal(SignalKind::interrupt()).map_err(failed)? })
    }

    /// Waits for one of them.
    pub(super) async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The output of a step of the start; `None`: a signal came first.
    pub(super) async fn unless_stopped<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.recv() => None,
            output = step => Some(output),
        }
    }
}
