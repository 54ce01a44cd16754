//! What commands print: outcomes, secrets, single records and lists, for a person or as JSON.

use std::fmt::Display;
use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::error::CommandError;
use super::table::aligned;
use crate::model::date_of;

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

/// Prints rows as a table of these fields, or as one JSON array with all of them.
pub(super) fn print_rows<T: Serialize>(
    out: &mut dyn Write,
    JsonArg { json }: JsonArg,
    rows: &[T],
    fields: &[&str],
) -> Result<(), CommandError> {
    if json {
        let rows = rows.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        return Ok(writeln!(out, "[{}]", rows.join(",\n"))?);
    }
    let mut lines = vec![fields.iter().map(|field| field.to_uppercase().replace('_', " ")).collect()];
    for row in rows {
        let row = serde_json::to_value(row)?;
        lines.push(fields.iter().map(|field| in_words(field, &row[field])).collect());
    }
    Ok(write!(out, "{}", aligned(&lines, usize::MAX))?)
}

/// Prints a row as a line for each of these fields, or as one JSON object with all of them.
pub(super) fn print_row<T: Serialize>(
    out: &mut dyn Write,
    json: JsonArg,
    row: &T,
    fields: &[&str],
) -> Result<(), CommandError> {
    let value = serde_json::to_value(row)?;
    let lines = fields.iter().map(|field| vec![field.replace('_', " "), in_words(field, &value[field])]);
    print_record(out, json, row, aligned(&lines.collect::<Vec<_>>(), usize::MAX).trim_end())
}

/// The fields that are points in time.
const TIMES: [&str; 4] = ["created", "expires", "last_used", "previous_until"];

/// A field's value for a person.
fn in_words(field: &str, value: &Value) -> String {
    match value {
        Value::Null if field == "previous_until" => "-".to_owned(),
        Value::Null => "never".to_owned(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(unix) if TIMES.contains(&field) => unix.as_i64().map(date_of).unwrap_or_default(),
        Value::Array(texts) if texts.is_empty() => "nothing".to_owned(),
        Value::Array(texts) => texts.iter().map(|text| in_words(field, text)).collect::<Vec<_>>().join("; "),
        other => other.to_string(),
    }
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
