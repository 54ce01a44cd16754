//! Ctrl-C or SIGTERM amid a command that takes long: what is half made goes away, and a line says what is left.

use std::io::{self, IsTerminal, Write};

use tokio::signal::unix::{SignalKind, signal};

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
    drop(entered);
    let listen = move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
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
