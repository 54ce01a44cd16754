//! Ctrl-C, SIGTERM, or a terminal that is closed (SIGHUP) during a command that takes long: the command's future is
//! dropped, which removes its temporary files, and the process ends with a line and exit code 1.

use std::fs;
use std::io::{self, IsTerminal, Write};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::CommandError;
use super::tell;

/// Moves the cursor to the start of its line and clears it: a progress bar may be there.
const CLEAR_LINE: &str = "\r\x1b[K";

/// The signals that end a command, from when this was made.
pub(super) struct Interrupt {
    /// What the command leaves behind if it is interrupted.
    line: String,
    terminate: Signal,
    interrupt: Signal,
    /// `None` if the process was started with SIGHUP ignored, as by nohup: it is to outlive its terminal.
    hang_up: Option<Signal>,
}

impl Interrupt {
    pub(super) fn listen(line: impl Into<String>) -> Result<Self, CommandError> {
        let listen = |kind| signal(kind).map_err(|e| CommandError::new(format!("cannot listen for signals: {e}")));
        let hang_up = SignalKind::hangup();
        Ok(Interrupt {
            line: line.into(),
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: if is_ignored(hang_up) { None } else { Some(listen(hang_up)?) },
        })
    }

    /// Waits for `work`, which may not block. If a signal comes first, drops it, prints the line and ends the process.
    /// Signals after that are ignored: what follows is short, and its outcome is reported.
    pub(super) async fn unless<T, E>(&mut self, work: impl Future<Output = Result<T, E>>) -> Result<T, CommandError>
    where
        CommandError: From<E>,
    {
        tokio::select! {
            biased;
            done = work => return Ok(done?),
            () = self.next() => {}
        }
        if io::stderr().is_terminal() {
            let _ = io::stderr().write_all(CLEAR_LINE.as_bytes());
        }
        tell(&self.line);
        // Nobody waits for a thread that is blocked in a read or in a long statement.
        std::process::exit(1)
    }

    async fn next(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = hang_up => {}
        }
    }
}

/// Whether this process was started with `signal` ignored. Only /proc tells without `unsafe`: the mask is in
/// hexadecimal, the lowest bit for signal 1.
fn is_ignored(signal: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask >> (signal.as_raw_value() - 1) & 1 == 1)
}
