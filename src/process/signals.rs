//! The signals of a running server: SIGTERM and SIGINT end it, SIGHUP asks for a reload, SIGUSR1 reopens the logs. Once a
//! signal is registered, it no longer ends the process by itself. Those that come before are held back (`HeldSignals`).

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Number};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::ProcessError;

/// SIGHUP and SIGUSR1, held back by the kernel until this is dropped; those that came meanwhile take effect then. A server
/// listens for them by then, so that one that comes as it starts, as from a tool that rotates logs, does not end it. For other
/// commands they mean what they mean to every program.
#[derive(Debug)]
pub struct HeldSignals {
    /// What this thread held back before; `None`: they could not be held back.
    before: Option<SigSet>,
}

impl HeldSignals {
    /// Holds them back from this thread, and from those that it starts meanwhile.
    pub fn hold() -> Self {
        let held = SigSet::from_iter([Number::SIGHUP, Number::SIGUSR1]);
        HeldSignals { before: held.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok() }
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // Fails for no set that the system itself gave.
        let _ = self.before.map(|before| before.thread_set_mask());
    }
}

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
