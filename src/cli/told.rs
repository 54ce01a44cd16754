//! What a command did, told on stdout. Where that cannot be told, it is not what failed: who tries again is to know.

use std::io::Write;

use super::error::{CommandError, unless_enough_read};

/// Tells what was done.
pub(super) fn report(out: &mut dyn Write, done: &str) -> Result<(), CommandError> {
    let told = unless_enough_read(writeln!(out, "{done}").and_then(|()| out.flush()));
    told.map_err(|e| CommandError::new(format!("{done}; only this could not be told on stdout: {e}")))
}

/// Prints `secret`, which holds a key, on a line of its own. `done` is what made it, and `next` what to do where
/// nobody got it: a reader that went away before is told of too, since the key is shown once.
pub(super) fn hand_out(out: &mut dyn Write, secret: &str, done: &str, next: &str) -> Result<(), CommandError> {
    let told = writeln!(out, "{secret}").and_then(|()| out.flush());
    told.map_err(|e| CommandError::new(format!("{done}; only the secret could not be printed to stdout: {e}\n{next}")))
}
