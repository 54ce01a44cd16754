//! Ctrl-C, SIGTERM, or a terminal that is closed (SIGHUP) amid a command that takes long: what is half made goes away,
//! and a line says what is left.

use std::fs;
use std::io::{self, IsTerminal, Write};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::CommandError;
use super::{runtime, tell};
use crate::store::under_way;

/// Takes the cursor to the start of its line and empties it: a progress bar may stand there.
const CLEAR_LINE: &str = "\r\x1b[K";

/// From now on a signal ends the process with exit 1 and `line`, unless what it does is settled by then. A thread of its
/// own listens, since the command's may wait for a disk, a pipe or a server at any moment.
pub(super) fn heed(line: String) -> Result<(), CommandError> {
    let deaf = |e: io::Error| CommandError::new(format!("signals cannot be listened for: {e}"));
    let runtime = runtime()?;
    let entered = runtime.enter();
    let mut terminate = signal(SignalKind::terminate()).map_err(deaf)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(deaf)?;
    // Whoever had it ignored (nohup) wants the command to outlive its terminal; listening would end that.
    let mut hang_up = match is_ignored(SignalKind::hangup()) {
        true => None,
        false => Some(signal(SignalKind::hangup()).map_err(deaf)?),
    };
    drop(entered);
    let listen = move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    () = heard(&mut hang_up) => {}
                }
                let said = || {
                    if io::stderr().is_terminal() {
                        let _ = io::stderr().write_all(CLEAR_LINE.as_bytes());
                    }
                    tell(&line);
                };
                if under_way::abandon(said) {
                    std::process::exit(1);
                }
            }
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map(drop).map_err(deaf)
}

async fn heard(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether this process was started with `signal` ignored.
fn is_ignored(signal: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("SigIgn:")).is_some_and(|mask| is_in(mask, signal.as_raw_value()))
}

/// Whether a signal is in a mask as the kernel shows it: in hexadecimal, the lowest bit for signal 1.
fn is_in(mask: &str, signal: i32) -> bool {
    u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_of_signals_is_read_as_the_kernel_writes_it() {
        assert!(is_in("\t0000000000000001", 1) && is_in("\t0000000000001001", 1) && is_in("8000000000000000", 64));
        assert!(!is_in("\t0000000000001000", 1) && !is_in("\t0000000000000002", 1) && !is_in("", 1));
    }
}
