//! What a command did, told on stdout. Where that cannot be told, it is not what failed: who tries again is to know.

use std::io::Write;

use super::error::CommandError;
use crate::keys::ApiKey;

/// Tells what was done.
pub(super) fn report(out: &mut dyn Write, done: &str) -> Result<(), CommandError> {
    let told = writeln!(out, "{done}").and_then(|()| out.flush());
    told.map_err(|e| CommandError::new(format!("{done}; only this could not be told on stdout: {e}")))
}

/// Prints a key, alone. `done` is what made it, and `next` what to do where nobody got it.
pub(super) fn hand_out(out: &mut dyn Write, key: &ApiKey, done: &str, next: &str) -> Result<(), CommandError> {
    let told = writeln!(out, "{}", key.reveal()).and_then(|()| out.flush());
    told.map_err(|e| CommandError::new(format!("{done}; only the secret could not be printed to stdout: {e}\n{next}")))
}
