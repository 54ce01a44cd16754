//! What commands print: outcomes, secrets, single records and lists, for a person or as JSON.

use std::fmt::Display;
use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use super::error::CommandError;

/// `--json`, of commands that list or show something.
#[derive(Clone, Copy, Debug, Args)]
pub struct JsonArg {
    /// Prints JSON instead of text: ids as strings, times as Unix seconds
    #[arg(long)]
    pub json: bool,
}

/// Prints one record as text or as one JSON object.
pub(super) fn print_record(
    out: &mut dyn Write,
    JsonArg { json }: JsonArg,
    record: &impl Serialize,
    text: &str,
) -> Result<(), CommandError> {
    let json = json.then(|| serde_json::to_string(record)).transpose()?;
    Ok(writeln!(out, "{}", json.as_deref().unwrap_or(text))?)
}

/// Prints rows as lines of text or as one JSON array. `line` separates columns by tabs, which no stored text contains.
pub(super) fn print_list<T: Serialize>(
    out: &mut dyn Write,
    JsonArg { json }: JsonArg,
    rows: impl Iterator<Item = T>,
    line: fn(&T) -> String,
) -> Result<(), CommandError> {
    if !json {
        for row in rows {
            writeln!(out, "{}", line(&row))?;
        }
        return Ok(());
    }
    let mut separator = "[";
    for row in rows {
        write!(out, "{separator}")?;
        serde_json::to_writer(&mut *out, &row)?;
        separator = ",\n";
    }
    Ok(writeln!(out, "{}", if separator == "[" { "[]" } else { "]" })?)
}

/// Prints what a command has done. If this fails, the error says that the command itself did not.
pub(super) fn print_outcome(out: &mut dyn Write, outcome: &str) -> Result<(), CommandError> {
    let printed = ignore_broken_pipe(writeln!(out, "{outcome}").and_then(|()| out.flush()));
    printed.map_err(|e| CommandError::new(format!("{outcome}, but this line could not be printed to stdout: {e}")))
}

/// Prints a line that contains a key. It is shown only once, so a closed stdout is an error here: it says what was
/// done (`outcome`) and what to do now (`next_step`).
pub(super) fn print_secret(
    out: &mut dyn Write,
    secret: &str,
    outcome: &str,
    next_step: &str,
) -> Result<(), CommandError> {
    let printed = writeln!(out, "{secret}").and_then(|()| out.flush());
    printed.map_err(|e| {
        CommandError::new(format!("{outcome}, but the secret could not be printed to stdout: {e}\n{next_step}"))
    })
}

/// Prints a line on stderr in one write. A closed stderr is ignored, where `eprintln!` would panic.
pub(super) fn print_to_stderr(line: impl Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Treats a closed stdout as success: for what is printed last, or where the exit code reports what was found.
pub(super) fn ignore_broken_pipe(printed: io::Result<()>) -> io::Result<()> {
    match printed {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}
