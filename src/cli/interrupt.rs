//! Ends a long command at Ctrl-C, SIGTERM, or when its terminal is closed (SIGHUP): drops the command's future, which
//! removes its temporary files, prints a message and exits with code 1.

use std::fs;
use std::io::{self, IsTerminal, Write};

use futures_util::future::select_all;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::CommandError;
use super::print_message;

/// Moves the cursor to the start of its line and clears the line, where a progress bar may be.
const CLEAR_LINE: &str = "\r\x1b[K";

/// The signals that end a command. They are received from the time at which this is made.
pub(super) struct Interrupt {
    /// What to print if the command is interrupted.
    message: String,
    signals: Vec<Signal>,
}

impl Interrupt {
    pub(super) fn listen(message: impl Into<String>) -> Result<Self, CommandError> {
        let mut kinds = vec![SignalKind::terminate(), SignalKind::interrupt()];
        // A process that was started with SIGHUP ignored, as by nohup, outlives its terminal.
        if !is_ignored(SignalKind::hangup()) {
            kinds.push(SignalKind::hangup());
        }
        let signals = kinds.into_iter().map(signal).collect::<Result<_, _>>();
        let signals = signals.map_err(|e| CommandError::new(format!("cannot listen for signals: {e}")))?;
        Ok(Interrupt { message: message.into(), signals })
    }

    /// Waits for `work`, which must not block. If a signal comes first, drops it, prints the message and ends the
    /// process. Signals after that are ignored: what follows is short, and its outcome is reported.
    pub(super) async fn run<T, E>(&mut self, work: impl Future<Output = Result<T, E>>) -> Result<T, CommandError>
    where
        CommandError: From<E>,
    {
        tokio::select! {
            biased;
            done = work => return Ok(done?),
            _ = select_all(self.signals.iter_mut().map(|signal| Box::pin(signal.recv()))) => {}
        }
        if io::stderr().is_terminal() {
            let _ = io::stderr().write_all(CLEAR_LINE.as_bytes());
        }
        print_message(&self.message);
        // Does not wait for a thread that is blocked in a read or in a long statement.
        std::process::exit(1)
    }
}

/// Whether this process was started with `signal` ignored. Without `unsafe`, only /proc tells this: the mask is in
/// hexadecimal, its lowest bit for signal 1.
fn is_ignored(signal: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask >> (signal.as_raw_value() - 1) & 1 == 1)
}
