//! The signals of a running server: SIGTERM, SIGINT and SIGQUIT end it, SIGHUP asks for a reload, SIGUSR1 reopens the logs. Those
//! that come before it listens for them are held back (`HeldSignals`).

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
